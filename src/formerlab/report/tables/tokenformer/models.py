"""Tables of Tokenformers from scratch: comparison with Transformers, zero-shot accuracy, and sizes by formula."""

from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import table
from formerlab.report.columns import MINUS, count, verdict_words
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published, published_rows
from formerlab.report.runs import (
    TOKENFORMER,
    TRANSFORMER,
    by_seed,
    comparable_losses,
    estimate,
    held_out_losses,
    load_runs,
    means_by_run,
    seed_count,
    with_difference,
)
from formerlab.report.studies.questions import CHANCE, accuracy_columns
from formerlab.report.studies.tokenformer import (
    STUDY,
    Shape,
    families_at_best_rates,
    model_shape,
)
from formerlab.report.tables.cells import (
    answer_word,
    claim_rows,
    claim_verdicts,
    in_words,
    ngram_levels,
    ngrams,
    pooled_estimate,
    side_by_side,
    verdict_cell,
    with_pooled,
    with_verdict,
    with_verdicts,
)
from formerlab.results.read import Results
from formerlab.statistics import student


def _published_zeroshot() -> DataFrame:
    wide = published_rows(PAPER, "Table 1").set_index("model").filter(regex="^(?!.*perplexity)")
    wide = wide[wide.index.str.startswith(("TokenFormer", "Pythia"))] / 100
    return wide.add_suffix(" (published)").rename_axis("run").reset_index()


@table(reads="zeroshot.csv", published=_published_zeroshot)
def tokenformer_zeroshot(results: Results, runs: list[str]) -> DataFrame:
    """How many questions do Tokenformers and Transformers answer without examples?

    - Accuracy by task and metric, after Table 1 of Tokenformer (arXiv:2410.23168): acc takes the most probable answer,
    acc_norm the answer that is most probable per character, and acc_mutual_info the answer whose probability rises most
    when the question is given.
    - After ±: one standard error, over questions and seeds.
    - Doubt: the paper used other questions, and small models guess.
    """
    variants = load_runs(results, STUDY, runs).drop_duplicates("run").set_index("run")["variant"]
    ours = accuracy_columns(results.rows("zeroshot.csv", STUDY, runs), ["run"])
    ours.insert(1, "variant", ours["run"].map(variants).fillna(CHANCE))
    return ours


VOCABULARY = 50304
_FLOPS, _COUNTS = "tokenformer-flops-formula", "tokenformer-parameter-counts"
_TABLE_8_WIDTHS = (768, 1416, 2104)
"""Widths of the Transformers in Table 8, as `evaluation.exact.counts` has them; that module imports torch, which tables
must not.
"""
_DEVIATION = "nearer_count_minus_printed_percent"


def _columns(run: str, variant: str, shape: Shape) -> dict[str, Any]:
    return {"run": run, "variant": variant, "layers": shape.layers, "width": shape.width} | {
        "parameters_formula": shape.parameters,
        "flops_token_token_coefficient": 4 * shape.layers * shape.width,
    }


def _published_formulas() -> DataFrame:
    """Return the coefficients of T² of Table 8, then the sizes of Table 9, beside the formulas."""
    coefficients = published_rows(PAPER, "Table 8").set_index("model")["token_token_flops_coefficient"] * 1e4
    models = {
        TOKENFORMER: ("TokenFormer", _TABLE_8_WIDTHS[:1] * 3),
        f"{TRANSFORMER}, wider": ("Net2Net (Transformer)", _TABLE_8_WIDTHS),
    }
    rows: list[dict[str, Any]] = [
        {"run": f"{name}, {size}", "layers": 12, "width": width}
        | {"flops_printed": coefficients[f"{model} {size}"], "flops_token_token_coefficient": 4 * 12 * width}
        for name, (model, widths) in models.items()
        for size, width in zip(("124M", "354M", "757M"), widths, strict=True)
    ]
    sizes = published_rows(PAPER, "Table 9")
    keys = ["layers", "hidden_size", "attention_tokens_per_projection", "ffn_tokens"]
    for row in sizes[sizes["model"].str.startswith(("LM", "Scale"))].to_dict("records"):
        shape, printed = Shape(*(int(row[key]) for key in keys)), row["parameters"] * 1e6
        with_embedding = shape.parameters + VOCABULARY * shape.width
        deviations = [100 * (counted / printed - 1) for counted in (shape.parameters, with_embedding)]
        counts = {"parameters_printed": printed, "parameters_with_embedding": with_embedding}
        rows.append(_columns(row["model"], TOKENFORMER, shape) | counts | {_DEVIATION: min(deviations, key=abs)})
    return DataFrame(rows)


_LIMIT_PERCENT = 2.0
"""Largest deviation of a printed size that the claim on parameter counts allows."""
_SIZES = {"^LM-": "language model, ", "^Scale-": "grown, "}
"""Labels of the models of Table 9, by pattern."""


def _counted(rows: DataFrame) -> dict[str, DataFrame]:
    """Return counted FLOPs, the coefficients of Table 8 and the sizes of Table 9 beside the formulas."""
    if rows["source"].eq("published").any():
        return {}
    counts = {
        "counted FLOPs": rows["flops_formula"] + rows["flops_difference"],
        "formula of FLOPs": rows["flops_formula"],
        "counted parameters minus formula": rows["parameters_difference"],
    }
    shape = f"{rows['layers'].iloc[0]:.0f} blocks of width {rows['width'].iloc[0]:.0f}, {rows['context'].iloc[0]:.0f}"
    sizes, coefficients = (
        _published_formulas().dropna(subset=name) for name in ("parameters_printed", "flops_printed")
    )
    formula = coefficients["flops_token_token_coefficient"]
    coefficients = coefficients.assign(
        model=coefficients["run"].str.replace("Tokenformer, .*", "Tokenformer, all sizes", regex=True),
        printed=coefficients["flops_printed"],
        **{"formula 4 L d": formula},
        formula_minus_printed_percent=100 * (formula / coefficients["flops_printed"] - 1),
    )[["model", "printed", "formula 4 L d", "formula_minus_printed_percent"]].drop_duplicates()
    largest = sizes[_DEVIATION].abs().eq(sizes[_DEVIATION].abs().max())
    millions = {
        "printed": sizes["parameters_printed"] / 1e6,
        "without_embedding": (sizes["parameters_formula"] / 1e6).round(),
        "with_embedding": (sizes["parameters_with_embedding"] / 1e6).round(),
    }
    table = DataFrame({"model": sizes["run"].replace(_SIZES, regex=True)} | millions)
    table = table.assign(**{_DEVIATION: sizes[_DEVIATION]}, verdict=largest.map({True: rows["sizes_verdict"].iloc[0]}))
    ours = rows[["variant"]].assign(**counts, verdict=rows["verdict"]).drop_duplicates()
    return {
        f"a forward pass of our models without logits; {shape} tokens": ours,
        "coefficients of T² in FLOPs: printed in Table 8, and by the formula": coefficients,
        "parameters in millions: printed in Table 9, and by the formula": table,
    }


def _answer_counted(rows: DataFrame) -> str:
    published, equal = _published_formulas(), rows["flops_difference"].eq(0).sum()
    sizes, coefficients = (published.dropna(subset=name) for name in ("parameters_printed", "flops_printed"))
    off = (coefficients["flops_token_token_coefficient"] / coefficients["flops_printed"] - 1).abs().max()
    words = sizes["run"].replace(_SIZES, regex=True) + " is off by " + sizes[_DEVIATION].map("{:.1f} %".format)
    return (
        f"FLOPs, yes: {equal} of {len(rows)} counts equal the formula, and the coefficients that Table 8 prints differ "
        f"by at most {100 * off:.1f} %{with_verdict(rows.iloc[0])}. Parameters, no: "
        f"{', '.join(words[sizes[_DEVIATION].abs() > _LIMIT_PERCENT])} "
        f"({verdict_words(rows['sizes_verdict'].iloc[0])})."
    ).replace("-", MINUS)


@table(runs="transformer-[1-4] tokenformer-1 grown-random-sqrt-[2-4] classic-chosen",
       published=_published_formulas, readers=_counted, answer=_answer_counted,
       columns="source run variant layers width parameters_formula parameters_with_embedding "
               "flops_token_token_coefficient flops_printed context flops_formula parameters_difference "
               "flops_difference parameters_printed nearer_count_minus_printed_percent -sizes_verdict verdict"
       )  # fmt: skip
def tokenformer_formulas(results: Results, runs: list[str]) -> DataFrame:
    """Do the counted parameters and FLOPs follow the formulas?

    - Formulas of Table 3 of Tokenformer (arXiv:2410.23168) for L blocks of width d and T tokens: 12 L d² parameters, or
    2 L d (n_q+n_k+n_v+n_o+n_ff) with parameter tokens. They omit norms and biases, which counts include.
    - Doubt: one printed size, 1.4B, differs by 6 % from its formula, which rounding cannot explain.
    """
    rows = []
    for record in results.runs(STUDY, runs).drop_duplicates("run").to_dict("records"):
        shape, tokens = model_shape(record), record["spec.model.projection.kind"] == "pattention"
        time, batch, steps = (int(record[f"spec.{key}"]) for key in ("task.context", "task.batch", "steps"))
        row = _columns(record["run"], TOKENFORMER if tokens else TRANSFORMER, shape)
        flops_of_training = 3 * steps * batch * shape.flops(time, int(record["spec.model.vocabulary"]))
        row |= {"context": time, "flops_formula": shape.flops(time)}
        row |= {"parameters_difference": record["parameters_non_embedding"] - shape.parameters}
        rows.append(row | {"flops_difference": record["flops"] - flops_of_training})
    counts = verdict_cell(_COUNTS, claim_verdicts(results, STUDY, _COUNTS)[_COUNTS])
    return with_verdicts(DataFrame(rows).assign(sizes_verdict=counts), results, STUDY, {_FLOPS: True})


_WORSE, _SHRINKS = "tokenformer-worse-than-modern-transformer", "tokenformer-gap-shrinks-with-training"


def published_gaps() -> DataFrame:
    """Return the perplexities of a Tokenformer and a Transformer with their difference in nats: from the paper, then
    from an independent implementation.
    """
    paper = published_rows(PAPER, "Tables 6-7").set_index("model")["perplexity"]
    report = published("zzox531/nlp_tokenformer").query("metric == 'perplexity'").set_index("model")["value"]
    rows = [{"perplexity_tokenformer": paper["TokenFormer 124M"], "perplexity": paper["Transformer 124M"],
             "run": "the paper, 124M", "arm": "classic"},
            {"perplexity_tokenformer": float(report["TokenFormer"]), "perplexity": float(report["Transformer"]),
             "run": "course report, 124M", "arm": "modern"}]  # fmt: skip
    table = DataFrame(rows)
    return table.assign(difference_nats=np.log(table["perplexity_tokenformer"] / table["perplexity"]))


def _published_gaps_and_bits() -> DataFrame:
    """Return `published_gaps`, then a third source, which prints bits per byte only."""
    bits = published("openai/parameter-golf").set_index("model")["value"].astype(float)
    row = {"run": "openai/parameter-golf, 17M, parameter tokens in MLPs only", "bits_per_byte": bits["baseline"]}
    row["bits_per_byte_tokenformer"] = bits["TokenFormer MLP only"]
    return pd.concat([published_gaps(), DataFrame([row])], ignore_index=True)


def _gaps(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return a row per text, schedule and kind of Transformer, with the differences by number of training tokens and
    their change.
    """
    if rows["source"].eq("published").all():
        names = {"run": "published by", "perplexity": "Transformer, perplexity ↓"}
        names |= {"bits_per_byte": "Transformer, bits per byte ↓"}
        return rows.rename(columns=names | {"bits_per_byte_tokenformer": "Tokenformer, bits per byte ↓"})
    gaps = rows[rows["arm"].notna()].sort_values(["arm", "tokens"], ascending=[False, True])  # changes have no tokens
    keys, parts = ["text", "final learning rate", "arm"], gaps["regime"].str.partition(", ")
    gaps = gaps.assign(
        **{"text": parts[0], "final learning rate": parts[2].str.removeprefix("cosine learning rate to ")}
    )
    labels = gaps["tokens"].map(lambda tokens: f"after {count(tokens)} tokens (nats) ↓", na_action="ignore")
    table = side_by_side(gaps, keys, labels.fillna("change (nats)"), "difference_nats", pooled=True)
    verdicts = gaps.dropna(subset="verdict").groupby(keys)["verdict"].agg("; ".join)
    heading = "; ".join(filter(None, [seed_count(gaps["seeds"]), ngram_levels(rows)]))
    table = table.join(verdicts, on=keys).sort_values(["text", "final learning rate"], kind="stable")
    return {f"Tokenformer minus Transformer; {heading}": table}


def _answer_gaps(rows: DataFrame) -> str:
    modern = rows[rows["run"].notna() & rows["arm"].eq("modern")]
    if (evaluated := modern[modern["verdict"].notna()]).empty:
        return ""
    first = modern[modern["regime"].eq(evaluated["regime"].iloc[0])].sort_values("tokens").drop_duplicates("tokens")
    ends = [
        f"{in_words(row, 'difference_nats')} nats after {count(row['tokens'])} tokens (perplexity "
        f"{row['perplexity_tokenformer']:.1f} and {row['perplexity']:.1f})"
        for _, row in first.iloc[[0, -1]].drop_duplicates("tokens").iterrows()
    ]
    text = first["regime"].iloc[0].partition(", ")[0]
    answer = answer_word(evaluated.iloc[0])
    return f"{answer} on {text}, compared with a modern Transformer after few tokens: {'; '.join(ends)}."


@table(reads="eval.csv test.csv lender_test.csv floors.csv", published=_published_gaps_and_bits, readers=_gaps,
       answer=_answer_gaps, runs="modern-* classic-* matched-* *-modern-* *-classic-* *-matched-*",
       columns="source run variant regime arm tokens -learning_rate -parameters_non_embedding -tokenformer "
               "perplexity_tokenformer perplexity bits_per_byte_tokenformer bits_per_byte -loss_nats[] "
               "difference_nats[]+ seeds -diverged verdict"
       )  # fmt: skip
def tokenformer_modern(results: Results, runs: list[str]) -> DataFrame:
    """Is a Tokenformer worse than a Transformer of equal size?

    - Loss of the Tokenformer minus the loss of the Transformer, after Table 6 of Tokenformer (arXiv:2410.23168).
    - Brackets: 95 % interval over seeds, with the variance of similar runs, except on six books with a final rate
    of zero. A change uses shared seeds.
    - Doubt: with these seeds' variance alone, few intervals exclude zero. Most rates are from short searches.
    """
    losses = held_out_losses(results, STUDY, runs)
    families = families_at_best_rates(results, runs)[["run", "arm", "chosen", "tokenformer"]]
    points = means_by_run(losses, first=["regime", "spec.optimizer.lr"]).merge(families)
    level = points.set_index("run")["perplexity"]
    rivals = points[points["chosen"] & points["arm"].ne("matched")].dropna(subset="tokenformer")
    rivals = rivals.sort_values(["regime", "arm", "tokens"], ascending=[True, False, True], ignore_index=True)
    rivals = rivals.assign(perplexity_tokenformer=rivals["tokenformer"].map(level))
    rivals = with_difference(rivals, losses, "tokenformer", "run", "difference_nats")
    rivals = with_pooled(rivals, results, STUDY, "tokenformer", "run", "difference_nats")
    rivals = with_verdicts(rivals, results, STUDY, {_WORSE: rivals["arm"].eq("modern")})
    rows = pd.concat([rivals, _on_lender_text(results, rivals), _changes(results, losses, rivals)], ignore_index=True)
    rows = rows.sort_values("regime", kind="stable").rename(columns={"spec.optimizer.lr": "learning_rate"})
    return pd.concat([rows, ngrams(results, STUDY, runs)], ignore_index=True)


def _changes(results: Results, losses: DataFrame, rivals: DataFrame) -> DataFrame:
    """Return the difference after the most tokens minus the difference after the fewest, by regime and arm."""
    reader, shrinks, changes = claim_rows(results, STUDY), claim_verdicts(results, STUDY, _SHRINKS)[_SHRINKS], []
    for (regime, arm), group in rivals.groupby(["regime", "arm"], sort=False):
        if len(group) > 1:
            names = group[["tokenformer", "run"]].iloc[[-1, 0]].to_numpy().ravel()
            signs = dict(zip(names, (1.0, -1.0, -1.0, 1.0), strict=True))
            values = [sign * by_seed(losses, run) for run, sign in signs.items()]
            shared = pd.concat(values, axis=1, join="inner").sum(axis=1)
            verdict = verdict_cell(_SHRINKS, shrinks) if {*names} <= shrinks.runs else None
            change = {"regime": regime, "arm": arm, "seeds": len(shared), "verdict": verdict}
            change |= estimate("difference_nats", student(shared))
            changes.append(change | pooled_estimate(reader, "difference_nats_pooled", signs))
    return DataFrame(changes)


def _on_lender_text(results: Results, rivals: DataFrame) -> DataFrame:
    """Return the pairs that use the tokenizer of another data set, with losses on the test text of that data set."""
    losses = comparable_losses(results, STUDY, [*{*rivals["run"], *rivals["tokenformer"]}])
    lenders, lent = losses.loc[~losses["lent"], "data.name"].unique(), losses[losses["lent"]]
    pairs = rivals[rivals["run"].isin(lent["run"]) & rivals["tokenformer"].isin(lent["run"])]
    if pairs.empty or len(lenders) != 1:
        return rivals[:0]
    points, shared = means_by_run(lent, first=["spec.optimizer.lr"]).set_index("run"), ["regime", "arm", "tokenformer"]
    pairs = pairs[["run", *shared]].join(points, on="run").reset_index(drop=True)
    return with_difference(pairs, lent, "tokenformer", "run", "difference_nats").assign(
        regime=lenders[0] + ", " + pairs["regime"].str.partition(", ")[2],
        perplexity_tokenformer=pairs["tokenformer"].map(points["perplexity"]),
    )
