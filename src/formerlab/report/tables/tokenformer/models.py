"""Tables of Tokenformers from scratch: comparison with Transformers, zero-shot accuracy, and sizes by formula."""

from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.columns import MINUS, count
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
from formerlab.report.tables.blocks import (
    claim_verdicts,
    in_words,
    ngram_levels,
    ngrams,
    pooled_estimate,
    with_pooled,
    with_prefix,
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
    - After ±: one standard error over questions, and over seeds.
    - Doubt: our questions differ from the paper's, and small models guess.
    """
    variants = load_runs(results, STUDY, runs).drop_duplicates("run").set_index("run")["variant"]
    ours = accuracy_columns(results.rows("zeroshot.csv", STUDY, runs), ["run"])
    ours.insert(1, "variant", ours["run"].map(variants).fillna(CHANCE))
    return ours


VOCABULARY = 50304


_FORMULAS = "tokenformer-flops-formula", "tokenformer-parameter-counts"


def _columns(run: str, variant: str, shape: Shape) -> dict[str, Any]:
    return {"run": run, "variant": variant, "layers": shape.layers, "width": shape.width} | {
        "parameters_formula": shape.parameters,
        "flops_token_token_coefficient": 4 * shape.layers * shape.width,
    }


_TABLE_8_WIDTHS = (768, 1416, 2104)
"""Widths of the Transformers in Table 8, as `evaluation.exact.counts` has them; that module imports torch, which tables
must not.
"""


def _published_formulas() -> DataFrame:
    """Return the coefficients of T² of Table 8, then the sizes of Table 9, beside the formulas."""
    sizes = published_rows(PAPER, "Table 9")
    coefficients = published_rows(PAPER, "Table 8").set_index("model")["token_token_flops_coefficient"].dropna()
    printed, rows = coefficients * 1e4, list[dict[str, Any]]()
    for name, model, widths in (
        (TOKENFORMER, "TokenFormer", _TABLE_8_WIDTHS[:1] * 3),
        (f"{TRANSFORMER}, wider", "Net2Net (Transformer)", _TABLE_8_WIDTHS),
    ):
        for size, width in zip(("124M", "354M", "757M"), widths, strict=True):
            shared = {"run": f"{name}, {size}", "layers": 12, "width": width}
            rows.append(
                shared | {"flops_printed": printed[f"{model} {size}"], "flops_token_token_coefficient": 4 * 12 * width}
            )
    for row in sizes[sizes["model"].str.startswith(("LM", "Scale"))].to_dict("records"):
        shape = Shape(*(int(row[key]) for key in
                        ("layers", "hidden_size", "attention_tokens_per_projection", "ffn_tokens")))  # fmt: skip
        formula, count_printed = shape.parameters, row["parameters"] * 1e6
        with_embedding = formula + VOCABULARY * shape.width
        nearest = min((formula, with_embedding), key=lambda counted: abs(counted / count_printed - 1))
        rows.append(
            _columns(row["model"], TOKENFORMER, shape)
            | {"parameters_printed": count_printed, "parameters_with_embedding": with_embedding}
            | {"nearer_count_minus_printed_percent": 100 * (nearest / count_printed - 1)}
        )
    return DataFrame(rows)


_LIMIT_PERCENT = 2.0
"""Largest deviation of a printed size that the claim on parameter counts allows."""
_SIZES = {"^LM-": "language model, ", "^Scale-": "grown, "}
"""Labels of the models of Table 9, by pattern."""


def _counted(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return counts beside formulas for our models, or the sizes of the published ones."""
    if rows["source"].eq("published").any():
        sizes = rows[rows["parameters_printed"].notna()]
        coefficients = rows[rows["flops_printed"].notna()]
        names = {"parameters_formula": "without embedding (M)", "parameters_with_embedding": "with embedding (M)"}
        names |= {"parameters_printed": "printed (M)"}
        table = DataFrame({"model": sizes["run"].replace(_SIZES, regex=True)})
        table = table.assign(**{label: (sizes[name] / 1e6).round() for name, label in names.items()})
        table = table.join(sizes["nearer_count_minus_printed_percent"])
        scaled = {"printed (10^4)": coefficients["flops_printed"] / 1e4,
                  "4 L d (10^4)": (coefficients["flops_token_token_coefficient"] / 1e4).round(2)}  # fmt: skip
        attention = coefficients[["run", "layers", "width"]].rename(columns={"run": "model", "layers": "blocks L"})
        attention = attention.rename(columns={"width": "width d"}).assign(**scaled)
        return {"parameters, Table 9": table, "FLOPs of attention between tokens, divided by T², Table 8": attention}
    counts = {
        "counted parameters": rows["parameters_formula"] + rows["parameters_difference"],
        "formula of parameters": rows["parameters_formula"],
        "counted FLOPs": rows["flops_formula"] + rows["flops_difference"],
        "formula of FLOPs": rows["flops_formula"],
    }
    size = f"{rows['layers'].iloc[0]:.0f} blocks of width {rows['width'].iloc[0]:.0f}, {rows['context'].iloc[0]:.0f}"
    shown = rows[["variant"]].assign(**counts).join(rows["verdict"]).drop_duplicates()
    formulas = "N = 2 L d (n_q + n_k + n_v + n_o + n_ff) or 12 L d² parameters, 2 N T + 4 L d T² FLOPs"
    return {f"a forward pass without logits; {size} tokens; formulas: {formulas}": shown}


def _answer_counted(rows: DataFrame) -> str:
    exact, sizes = rows["flops_difference"].eq(0).sum(), _published_formulas().dropna(subset="parameters_printed")
    off = sizes[sizes["nearer_count_minus_printed_percent"].abs() > _LIMIT_PERCENT]
    names = (
        off["run"].replace(_SIZES, regex=True) + ": " + off["nearer_count_minus_printed_percent"].map("{:.1f} %".format)
    )
    return (
        f"FLOPs do: {exact} of {len(rows)} counts equal the formula{with_verdict(rows.iloc[0])}. Parameters: "
        f"{len(sizes) - len(off)} of {len(sizes)} printed sizes are within {_LIMIT_PERCENT:.0f} %"
        + with_prefix(", not ", ", ".join(names)).replace("-", MINUS)
        + f" ({rows['sizes_verdict'].iloc[0]})."
    )


@table(runs="transformer-[1-4] tokenformer-1 grown-random-sqrt-[2-4] classic-chosen",
       published=_published_formulas, readers=_counted, answer=_answer_counted,
       columns="source run variant layers width parameters_formula parameters_with_embedding "
               "flops_token_token_coefficient flops_printed context flops_formula parameters_difference "
               "flops_difference parameters_printed nearer_count_minus_printed_percent -sizes_verdict verdict"
       )  # fmt: skip
def tokenformer_formulas(results: Results, runs: list[str]) -> DataFrame:
    """Do the counted parameters and FLOPs follow the formulas?

    - Formulas of Table 3 of Tokenformer (arXiv:2410.23168): L blocks of width d, T tokens, N parameters; n_q to n_ff
    are the parameter tokens of a layer. Counts also have norms and biases.
    - Printed sizes: compared with the nearer count, with or without embedding.
    - Doubt: rounding to 1.4B explains no error of 6 %.
    """
    rows = []
    for record in results.runs(STUDY, runs).drop_duplicates("run").to_dict("records"):
        shape, tokens = model_shape(record), record["spec.model.projection.kind"] == "pattention"
        time, batch, steps = (int(record[f"spec.{key}"]) for key in ("task.context", "task.batch", "steps"))
        row = _columns(record["run"], TOKENFORMER if tokens else TRANSFORMER, shape)
        row |= {"context": time, "flops_formula": shape.flops(time)}
        row["parameters_difference"] = record["parameters_non_embedding"] - shape.parameters
        vocabulary = int(record["spec.model.vocabulary"])
        row["flops_difference"] = record["flops"] - 3 * steps * batch * shape.flops(time, vocabulary)
        rows.append(row)
    sizes = claim_verdicts(results, STUDY, _FORMULAS[1])[_FORMULAS[1]].word
    return with_verdicts(DataFrame(rows).assign(sizes_verdict=sizes), results, STUDY, {_FORMULAS[0]: True})


_GAP_CLAIMS = "tokenformer-worse-than-modern-transformer", "tokenformer-gap-shrinks-with-training"


def published_gap() -> DataFrame:
    """Return the perplexities of a Tokenformer and a Transformer from an independent implementation, with the
    difference in nats.
    """
    rows = (
        published("zzox531/nlp_tokenformer").query("metric == 'perplexity'").set_index("model")["value"].astype(float)
    )
    pair = {"perplexity_tokenformer": rows["TokenFormer"], "perplexity": rows["Transformer"]}
    gap = float(np.log(rows["TokenFormer"] / rows["Transformer"]))
    return DataFrame([pair | {"run": "course report, 124M", "arm": "modern", "difference_nats": gap}])


def _published_gaps() -> DataFrame:
    """Return the pair of the paper, then the pair of `published_gap`."""
    level = published_rows(PAPER, "Tables 6-7").set_index("model")["perplexity"]
    pair = {"perplexity_tokenformer": level["TokenFormer 124M"], "perplexity": level["Transformer 124M"]}
    gap = float(np.log(pair["perplexity_tokenformer"] / pair["perplexity"]))
    paper = pair | {"run": "the paper, 124M", "arm": "classic", "difference_nats": gap}
    return pd.concat([DataFrame([paper]), published_gap()], ignore_index=True)


def _gaps(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the gaps by text, then their changes from the shortest to the longest training."""
    if rows["source"].eq("published").all():
        bits = published("openai/parameter-golf").set_index("model")["value"].astype(float)
        other = f"{bits['TokenFormer MLP only']:.4f} against {bits['baseline']:.4f} bits per byte"
        names = {"run": "published by", "perplexity": "Transformer, perplexity ↓"}
        return {f"a third source has {other}, 17M parameters": rows.rename(columns=names)}
    text = rows["regime"].str.replace(", cosine learning rate", ", rate")
    rows, gaps = rows.assign(text=text), rows["run"].notna() & rows["arm"].notna()
    level, ends = ["perplexity_tokenformer", "perplexity"], expand_columns("difference_nats[]+")
    shown = rows[gaps].sort_values(["regime", "arm", "tokens"], ascending=[True, False, True])
    heading = "; ".join(filter(None, [seed_count(shown["seeds"]), ngram_levels(rows)]))
    shown = shown[["text", "arm", "tokens", *level, *ends, "verdict"]]
    blocks = {heading: shown.rename(columns={"perplexity": "Transformer, perplexity ↓"})}
    changes = rows[rows["run"].isna()].drop(columns="tokens")
    if len(changes):
        names = {name: name.replace("difference", "change_of_difference") for name in ends}
        trained = " minus ".join(count(tokens) for tokens in (shown["tokens"].max(), shown["tokens"].min()))
        columns = ["text", "arm", *names.values(), "verdict"]
        blocks[f"the difference after {trained} tokens"] = changes.rename(columns=names)[columns]
    return blocks


def _answer_gaps(rows: DataFrame) -> str:
    modern = rows[rows["run"].notna() & rows["arm"].eq("modern") & rows["verdict"].notna()]
    if modern.empty:
        return ""
    first = rows[rows["regime"].eq(modern["regime"].iloc[0]) & rows["arm"].eq("modern") & rows["run"].notna()]
    ends = [f"{in_words(row, 'difference_nats')} nats after {count(row['tokens'])} tokens{with_verdict(row)}"
            for _, row in first.sort_values("tokens").iloc[[0, -1]].drop_duplicates("tokens").iterrows()]  # fmt: skip
    text = first["regime"].iloc[0].partition(", ")[0]
    return f"Loss on {text} minus the loss of a modern Transformer: {', '.join(ends)}."


@table(reads="eval.csv test.csv lender_test.csv floors.csv", published=_published_gaps, readers=_gaps,
       answer=_answer_gaps, runs="modern-* classic-* matched-* *-modern-* *-classic-* *-matched-*",
       columns="source run variant regime arm tokens -learning_rate -parameters_non_embedding -tokenformer "
               "perplexity_tokenformer perplexity -loss_nats[] difference_nats[]+ seeds -diverged verdict"
       )  # fmt: skip
def tokenformer_modern(results: Results, runs: list[str]) -> DataFrame:
    """Is a Tokenformer worse than a Transformer of equal size?

    - Loss minus that of a Transformer of equal width and parameters (modern: RMSNorm, SwiGLU, rotary positions;
    classic: as GPT-2), after Table 6 of Tokenformer (arXiv:2410.23168).
    - Brackets: 95 % interval over seeds, with the variance of similar runs, if any.
    - Doubt: the seeds alone decide little. Rates are the best of a grid, mostly of short searches.
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
    reader = ClaimRows(results, STUDY, ClaimArms())
    shrinks = claim_verdicts(results, STUDY, _GAP_CLAIMS[1])[_GAP_CLAIMS[1]]
    rivals = with_verdicts(rivals, results, STUDY, {_GAP_CLAIMS[0]: True})
    changes = []
    for (regime, arm), group in rivals.groupby(["regime", "arm"], sort=False):
        if len(group) > 1:
            names = group[["tokenformer", "run"]].iloc[[-1, 0]].to_numpy().ravel()
            signs = dict(zip(names, (1.0, -1.0, -1.0, 1.0), strict=True))
            values = [sign * by_seed(losses, run) for run, sign in signs.items()]
            shared = pd.concat(values, axis=1, join="inner").sum(axis=1)
            change = {"regime": regime, "arm": arm, "seeds": len(shared)} | estimate("difference_nats", student(shared))
            change |= pooled_estimate(reader, "difference_nats_pooled", signs)
            changes.append(change | {"verdict": shrinks.word if {*names} <= shrinks.runs else None})
    rows = pd.concat([rivals, _on_lender_text(results, rivals), DataFrame(changes)], ignore_index=True)
    rows = rows.sort_values("regime", kind="stable")
    rows = pd.concat([rows, ngrams(results, STUDY, runs)], ignore_index=True)
    return rows.rename(columns={"spec.optimizer.lr": "learning_rate"})


def _on_lender_text(results: Results, rivals: DataFrame) -> DataFrame:
    """Return the pairs whose tokenizer comes from the data set of other pairs, with their losses on its test text."""
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
