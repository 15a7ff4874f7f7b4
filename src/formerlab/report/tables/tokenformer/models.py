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


def _columns(run: str, variant: str, shape: Shape) -> dict[str, Any]:
    coefficient = 4 * shape.layers * shape.width
    return {"run": run, "variant": variant, "layers": shape.layers, "width": shape.width} | {
        "parameters_formula": shape.parameters,
        "flops_token_token_coefficient": coefficient,
    }


def _published_formulas() -> DataFrame:
    rows, table = [], published_rows(PAPER, "Table 9")
    for row in table[table["model"].str.startswith(("LM", "Scale"))].to_dict("records"):
        sizes = ("layers", "hidden_size", "attention_tokens_per_projection", "ffn_tokens")
        shape = Shape(*(int(row[key]) for key in sizes))
        printed, formula = row["parameters"] * 1e6, shape.parameters
        nearest = min((formula, formula + VOCABULARY * shape.width), key=lambda count: abs(count / printed - 1))
        share = {"parameters_printed": printed, "nearer_count_minus_printed_percent": 100 * (nearest / printed - 1)}
        share["parameters_with_embedding"] = formula + VOCABULARY * shape.width
        rows.append(_columns(row["model"], TOKENFORMER, shape) | share)
    return DataFrame(rows)


_LIMIT_PERCENT = 2.0
"""Largest deviation of a printed size that the claim on parameter counts allows."""


def _counted(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return counts beside formulas for our models, or the sizes of the published ones."""
    if rows["source"].eq("published").any():
        names = rows["run"].replace({"^LM-": "language model ", "^Scale-": "grown, "}, regex=True)
        off = rows["nearer_count_minus_printed_percent"]
        within = off.abs().le(_LIMIT_PERCENT).map({True: "yes", False: "no"})
        millions = {f"{label} (M)": (rows[name] / 1e6).round() for label, name in (
            ("formula", "parameters_formula"), ("with embedding", "parameters_with_embedding"),
            ("printed", "parameters_printed"))}  # fmt: skip
        shown = DataFrame({"model": names} | millions).join(off).assign(**{f"within {_LIMIT_PERCENT:.0f} %": within})
        return {"sizes of Table 9, in millions": shown}
    counted = rows["parameters_formula"] + rows["parameters_difference"]
    columns = {
        "counted": counted,
        "formula": rows["parameters_formula"],
        "norms and biases": rows["parameters_difference"],
    }
    columns |= {"FLOPs minus formula": rows["flops_difference"]}
    more = ["flops_token_token_coefficient", "layers", "width", "context"]
    shown = rows[["variant"]].join(DataFrame(columns)).join(rows[more]).drop_duplicates()
    return {"parameters without embedding": shown}


def _answer_counted(rows: DataFrame) -> str:
    exact, published = rows["flops_difference"].eq(0).sum(), _published_formulas()
    off = published[published["nearer_count_minus_printed_percent"].abs() > _LIMIT_PERCENT]
    wrong = [
        f"{run} by {value:.1f} %".replace("-", MINUS)
        for run, value in off[["run", "nearer_count_minus_printed_percent"]].to_numpy()
    ]
    return (
        f"The FLOPs of {exact} of {len(rows)} runs equal the formula; {len(published) - len(off)} of {len(published)} "
        f"printed sizes are within {_LIMIT_PERCENT:.0f} %" + with_prefix(", not ", ", ".join(wrong)) + "."
    )


@table(runs="transformer-[1-4] tokenformer-1 grown-random-sqrt-[2-4] classic-chosen",
       published=_published_formulas, readers=_counted, answer=_answer_counted,
       columns="source run variant layers width parameters_formula parameters_with_embedding "
               "flops_token_token_coefficient context flops_formula parameters_difference flops_difference "
               "parameters_printed nearer_count_minus_printed_percent")  # fmt: skip
def tokenformer_formulas(results: Results, runs: list[str]) -> DataFrame:
    """Do the counted parameters and FLOPs follow the formulas?

    - N = 2 L d (n_q + n_k + n_v + n_o + n_ff) or 12 L d² parameters, and 2 N T + 4 L d T² FLOPs over T tokens, for L
    blocks of width d, after Table 3 of Tokenformer (arXiv:2410.23168).
    - Printed sizes: compared with the nearer count, with or without embedding.
    - Doubt: "1.4B" is rounded.
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
    return DataFrame(rows)


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


def _gaps(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the gaps by text, then their changes from the shortest to the longest training."""
    columns = {"run": "published by", "perplexity": "Transformer's ↓"}
    if rows["source"].eq("published").all():
        return rows.rename(columns=columns)
    own = expand_columns("difference_nats[]")[1:]
    rows = rows.assign(
        own_seeds_nats=rows["difference_nats"], own_seeds_nats_low=rows[own[0]], own_seeds_nats_high=rows[own[1]]
    )
    rows = rows.assign(text=rows["regime"].str.partition(", ")[0])
    blocks, gaps = {}, rows["run"].notna() & rows["arm"].notna()
    for regime, group in rows[gaps].groupby("regime", sort=False):
        floor = with_prefix("; ", ngram_levels(rows[rows["regime"].eq(group["text"].iloc[0])]))
        group = group.sort_values(["arm", "tokens"], ascending=[False, True]).rename(columns=columns)
        hidden = ["regime", "text", "published by", "variant"]
        if group["difference_nats_pooled_low"].isna().all():
            hidden, floor = [*hidden, *expand_columns("own_seeds_nats[]")], f"; brackets: own seeds alone{floor}"
        blocks[f"perplexity, and loss; {regime}{floor}"] = group.drop(columns=hidden)
    changes = rows[rows["run"].isna()]
    trained = rows[gaps].groupby("regime")["tokens"].agg(["max", "min"]).map(count)
    change = changes["regime"].map(trained["max"] + " minus " + trained["min"])
    if len(changes):
        ends = expand_columns("difference_nats[]+ own_seeds_nats[]")
        blocks["change of the difference with training"] = changes.assign(tokens=change)[
            ["text", "arm", "tokens", *ends, "seeds", "verdict"]
        ]
    return blocks


def _answer_gaps(rows: DataFrame) -> str:
    modern = rows[rows["run"].notna() & rows["arm"].eq("modern")].sort_values("tokens")
    if modern.empty:
        return ""
    first = modern[modern["regime"].eq(modern["regime"].iloc[0])]
    ends = [f"{in_words(row, 'difference_nats')} after {count(row['tokens'])} tokens{with_verdict(row)}"
            for _, row in first.iloc[[0, -1]].drop_duplicates("tokens").iterrows()]  # fmt: skip
    text = first["regime"].iloc[0].partition(", ")[0]
    return f"Tokenformer minus modern Transformer on {text}, nats: {', '.join(ends)}."


@table(reads="eval.csv test.csv floors.csv", published=published_gap, readers=_gaps, answer=_answer_gaps,
       runs="modern-* classic-* matched-* *-modern-* *-classic-* *-matched-*",
       columns="source run variant regime arm tokens -learning_rate -parameters_non_embedding -tokenformer "
               "perplexity_tokenformer perplexity -loss_nats[] difference_nats[]+ seeds -diverged verdict"
       )  # fmt: skip
def tokenformer_modern(results: Results, runs: list[str]) -> DataFrame:
    """Is a Tokenformer worse than a Transformer of equal size?

    - Loss of the Tokenformer minus the loss of a Transformer with equal width and number of parameters; modern:
    RMSNorm, SwiGLU, rotary positions; classic: as GPT-2.
    - Brackets: 95 % interval over seeds, with the variance of similar runs, which the column "these seeds alone"
    excludes.
    - Doubt: each model has the best learning rate of a grid, mostly from short searches.
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
    worse, shrinks = claim_verdicts(results, STUDY, *_GAP_CLAIMS).values()
    rivals["verdict"] = rivals["run"].isin(worse.runs).map({True: worse.word, False: None})
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
