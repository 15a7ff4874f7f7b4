"""Tables of grown Tokenformers, their controls and their costs."""

from collections import Counter

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.arms import registered_arms
from formerlab.report.claims.envelope import flops_at_loss
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.runs import (
    TOKENFORMER,
    TRAINED_FURTHER,
    TRANSFORMER,
    comparable_losses,
    differences,
    estimate,
    held_out_losses,
    language_baselines,
    means_by_run,
    sort_by_regime,
)
from formerlab.report.studies.tokenformer import (
    FROM_SCRATCH,
    STUDY,
    fully_annealed_losses,
    published_points,
    published_ratio,
    runs_with_ancestors,
    stage_pairs,
    with_registered_rates,
)
from formerlab.report.tables.blocks import by_regime, claim_runs, pooled_estimate, side_by_side, with_pooled
from formerlab.results.read import Results
from formerlab.statistics import student

_SERIES = {"grown, 30B a stage": "grown", "Transformer, 300B tokens": "Transformer"}
"""Labels in the table, by published curve of Fig. 3."""


def _published_main() -> DataFrame:
    """Return the perplexities of Tables 6 and 7 with the TPU hours of Fig 3, a row per size."""
    points = published_points(*(("Fig 3", series) for series in _SERIES)).replace({"series": _SERIES})
    points = points[~points["run"].str.endswith(" 124M")]  # before growth; other training tokens
    points = points.assign(size=points["run"].str.split().str[1])
    wide = points.pivot_table(["perplexity", "tpu_v4_hours"], "size", "series", "first", sort=False)
    units = {"perplexity": "perplexity", "tpu_v4_hours": "TPU hours"}
    wide.columns = wide.columns.map(lambda pair: f"{pair[1]}: {units[pair[0]]} ↓")
    return wide.reset_index()


_GROWN, _ZERO = "grown: random keys, tau sqrt(n)", "grown: zero keys, tau kept"
_LABELS = {
    _GROWN: "grown as published",
    _ZERO: "grown with zero keys",
    f"{TOKENFORMER}, {TRAINED_FURTHER}": "parent trained further",
}
"""Variants that readers know by a name of the study page."""
_STAGE, _SCRATCH, _SECOND = "the parent trained further", "the same model from scratch", "new text"
_NEW_TEXT = "tokenformer-continued-training-lower"


def _comparisons(losses: DataFrame, results: Results) -> DataFrame:
    """Return the pairs of runs that the table compares: `run` minus `compared_with`, and the `question`."""
    losses = with_registered_rates(losses, results.scale)
    stages = stage_pairs(losses, results.runs(STUDY).drop_duplicates("run").set_index("run"))
    runs = losses.drop_duplicates("run").assign(start=lambda rows: rows["init.id"].notna())
    pairs = [(row.run, row.rival, _STAGE, row.tokens_per_new_parameter) for row in stages.itertuples()]
    for scratch in runs[runs["variant"].eq(TOKENFORMER) & ~runs["start"]].to_dict("records"):
        equal = (runs["flops_cumulative"] / scratch["flops_cumulative"]).between(0.95, 1.05)
        same = equal & (runs["parameters"] == scratch["parameters"]) & (runs["regime"] == scratch["regime"])
        grown = runs[same & runs["variant"].eq(_GROWN)]
        stage = dict(zip(stages.get("run", ()), stages.get("tokens_per_new_parameter", ()), strict=True))
        pairs += [(run, scratch["run"], _SCRATCH, stage.get(run, np.nan)) for run in grown["run"]]
    second = runs[runs["run"].str.startswith("continued-") & ~runs["run"].str.endswith("-ungrown")]
    for run, projection in second[["run", "spec.model.projection.kind"]].to_numpy():
        family = "tokenformer" if projection == "pattention" else "transformer"
        pairs += [(run, f"continued-{family}-ungrown", _SECOND, np.nan)]
    return DataFrame(pairs, columns=["run", "compared_with", "question", "tokens_per_new_parameter"])


def _validated_gains(results: Results, pairs: DataFrame) -> DataFrame:
    """Return the perplexity of the models on new text at the last validation, and their gain by growth.

    A gain is the loss of the same family without growth minus the loss with growth. The claim on new text compares it
    with the gain of Net2Net.
    """
    arms = registered_arms(_NEW_TEXT, results.scale).for_item("last_step")
    reader, rows = ClaimRows(results, STUDY, ClaimArms()), []
    rival, rival_ungrown = (arms[name].run if name in arms else None for name in ("rival", "rival_ungrown"))
    pairs = pairs.loc[pairs["question"] == _SECOND, ["run", "compared_with"]]
    for run, other in [*pairs.to_numpy(), *((run, None) for run in pairs["compared_with"].unique())]:
        loss = pooled_estimate(reader, "loss", {run: 1.0}, at="last_step").get("loss", np.nan)
        rows.append({"run": run, "validation_perplexity": np.exp(loss)})
        if other:
            gain = {other: 1.0, run: -1.0}
            rows[-1] |= pooled_estimate(reader, "validation_gain_nats", gain, at="last_step")
        if other and run != rival:
            signs = Counter(gain)
            signs.update({str(rival_ungrown): -1.0, str(rival): 1.0})
            rows[-1] |= pooled_estimate(reader, "minus_net2net_nats", signs, at="last_step")
    columns = "run validation_perplexity validation_gain_nats[] minus_net2net_nats[]"
    return DataFrame(rows, columns=expand_columns(columns))


def _by_question(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the growth stages, and the growth for new text; without comparisons, all models by data set."""
    if rows["source"].eq("published").any():
        return {
            "OpenWebText; grown by 30B tokens a stage, Transformer from 300B tokens": rows.dropna(axis=1, how="all")
        }
    rows = rows.assign(variant=rows["variant"].replace(_LABELS))
    if rows["question"].isna().all():
        return by_regime(rows.drop(columns="question"))
    stages = rows[rows["question"].isin((_STAGE, _SCRATCH)) & rows["variant"].isin(_LABELS.values())]
    pooled = {f"difference_nats_{end}": stages[f"difference_nats_pooled_{end}"] for end in ("low", "high")}
    stages = stages.assign(text=stages["regime"].str.split(", ").str[0], **pooled)
    keys = ["text", "tokens", "tokens_per_new_parameter", "question", "seeds"]
    names = stages["variant"].str.removeprefix("grown ") + " (nats) ↓"
    table = side_by_side(stages, keys, names, "difference_nats")
    second = rows[rows["validation_perplexity"].notna()].drop(columns="perplexity")
    methods = second["variant"].str.removeprefix("grown: ").where(second["question"].eq(_SECOND), "without growth")
    texts = " and ".join(dict.fromkeys(str(regime).partition(", ")[0] for regime in second["regime"]))
    second = second.assign(variant=second["family"] + ", " + methods).sort_values("validation_gain_nats")
    second = second.rename(columns=lambda name: name.replace("validation_", ""))
    columns = ["variant", "tokens", "perplexity", *expand_columns("gain_nats[] minus_net2net_nats[]"), "seeds", "bold"]
    stage = {"question": "control", "tokens": "tokens of the stage"}
    blocks = {
        "growth, loss minus a control of equal FLOPs": table.rename(columns=stage),
        f"growth for new text, {texts}, validation split": second[columns].rename(columns=stage),
    }
    return {heading: block for heading, block in blocks.items() if len(block)}


@table(reads="test.csv floors.csv", published=_published_main, readers=_by_question,
       columns="source run regime question variant family parameters_non_embedding learning_rate tokens -flops "
               "tokens_per_new_parameter flops_cumulative loss_nats[] -bits_per_byte perplexity[] compared_with "
               "difference_nats[]+ validation_perplexity validation_gain_nats[] minus_net2net_nats[] seeds diverged "
               "bold size grown:~perplexity~↓ "
               "grown:~TPU~hours~↓ Transformer:~perplexity~↓ Transformer:~TPU~hours~↓"
       )  # fmt: skip
def tokenformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Does growth pay? After Tables 6 and 7 of Tokenformer (arXiv:2410.23168). A parent grows by new parameter tokens,
    as published (random keys, tau = sqrt(n)) or with zero keys and the old tau, and is trained for a stage on new text.
    First block: held-out loss minus the loss of a control that costs the same FLOPs, parent included; below zero,
    growth pays. Second block, at the last validation: a gain is the loss of the same family without growth minus the
    loss with growth; the last column is this gain minus the gain of Net2Net by padding (bold: a verdict rests on it).
    HyperCloning and Net2Net grow the width of a Transformer; noise breaks the symmetry of copies. In brackets: 95 %
    interval over seeds, paired, with the variance of similar runs, as for verdicts. Published: TPU hours are read from
    a figure (± 30); Table 7 has perplexity 11.93 for the Transformer of 757M. The CSV has all runs and the test split.
    """
    losses = held_out_losses(results, STUDY, runs)
    rows = means_by_run(losses, first=["regime", "spec.optimizer.lr", "spec.model.projection.kind"])
    pairs = _comparisons(losses, results) if "init.id" in losses and "spec.growth.keys" in losses else DataFrame()
    if len(pairs) and len(differing := differences(losses, pairs, "run", "compared_with")):
        differing = with_pooled(differing, results, STUDY, "run", "compared_with", "difference_nats")
        differing = differing[differing["part"] == "mean"].drop(columns=["source", "part", "seed", "seeds"])
        rows = rows.merge(differing, on="run", how="left").merge(_validated_gains(results, pairs), on="run", how="left")
    claimed = claim_runs(results, STUDY, _NEW_TEXT)[_NEW_TEXT]
    families = {"pattention": TOKENFORMER, "linear": TRANSFORMER}
    rows = rows.assign(family=rows["spec.model.projection.kind"].map(families))
    rows["bold"] = rows["run"].isin(claimed) & rows.get("minus_net2net_nats", rows["loss_nats"] * np.nan).notna()
    rows = rows.rename(columns={"spec.optimizer.lr": "learning_rate"})
    return pd.concat([language_baselines(results, STUDY, runs), sort_by_regime(rows, "flops_cumulative", "run")])


def _growth(rows: DataFrame) -> DataFrame:
    """Return the parent and the models grown as published, or the published ratio."""
    if rows["source"].eq("published").any():
        return DataFrame({"model": "Tokenformer 1.4B", "hours_ratio": rows["flops_ratio"]})
    grown = rows[rows["variant"].eq(_GROWN)]
    rows = pd.concat([rows[rows["run"].isin(grown["parent"])], grown] if len(grown) else [rows], ignore_index=True)
    variant = rows["variant"].replace({TOKENFORMER: "parent"} | _LABELS)
    rows = rows.assign(variant=variant, tokens=rows["tokens_cumulative"])
    return rows.drop(columns=["schedule", "parent", "tokens_cumulative"])


@table(reads="test.csv", needs="envelope-*", readers=_growth, published=published_ratio,
       columns="source run variant schedule -learning_rate parent -parameters_non_embedding tokens -tokens_cumulative "
               "-flops flops_cumulative -loss_nats[] perplexity -bits_per_byte flops_of_transformer flops_ratio[]+ "
               "parents_ratio envelope seeds")  # fmt: skip
def tokenformer_envelope(results: Results, runs: list[str]) -> DataFrame:
    """Does growth need fewer FLOPs than training from scratch? FLOPs of a grown Tokenformer, with all ancestors,
    divided by the FLOPs of a Transformer from scratch with the same loss, after section 4.1 of arXiv:2410.23168. Below
    1, growth saves cost; the paper claims at most 0.5. The column "ancestors alone" is the same ratio for the
    ancestors: if it is near 1 or above, the stage cannot save cost. The Transformers have three sizes and three
    lengths, each with its own schedule; their FLOPs at a loss are interpolated along their lower envelope, and there is
    no ratio beyond its ends. Training tokens and cumulative FLOPs include all ancestors. All losses are on the test
    text of the Transformers. In brackets: 95 % interval over seeds, with the spread of the Transformers. Published: TPU
    hours, interpolated by us between points that are read from a figure (± 30): 0.40 with the perplexity of the 757M
    Transformer in Table 6, 0.42 with that in Table 7. The CSV has zero keys and the parent trained further.
    """
    losses = fully_annealed_losses(results, runs)
    if runs_with_ancestors(losses).empty:
        losses = comparable_losses(results, STUDY, runs)
    scratch, rows = losses[losses["run"].str.startswith(FROM_SCRATCH)], []
    envelope = scratch.groupby("run")[["flops_cumulative", "loss_nats"]].mean().to_numpy().T
    reader = ClaimRows(results, STUDY, ClaimArms())
    envelope_runs = tuple(f"{name}*" for name in FROM_SCRATCH)
    for record in runs_with_ancestors(losses).sort_values("flops_cumulative").to_dict("records"):
        row = {str(name): value for name, value in record.items()}
        of_run = losses[losses["run"] == row["run"]]
        needed = of_run["loss_nats"].map(lambda loss: flops_at_loss(loss, *envelope))
        inside = needed.notna().all()
        row |= estimate("flops_ratio", student(of_run["flops_cumulative"] / needed if inside else []))
        signs, metric = {row["run"]: 1.0}, "flops_ratio_at_equal_loss"
        row |= pooled_estimate(reader, "flops_ratio_pooled", signs, metric, envelope=envelope_runs)
        row |= {
            "envelope": None if inside else "beyond its ends",
            "flops_of_transformer": flops_at_loss(row["loss_nats"], *envelope),
        }
        row["parents_ratio"] = (row["flops_cumulative"] - row["flops"]) / row["flops_of_transformer"] or None
        row["schedule"] = of_run["regime"].iloc[0].partition(", ")[2]
        rows.append(row | {"learning_rate": of_run["spec.optimizer.lr"].iloc[0]})
    return DataFrame(rows) if rows else DataFrame(columns=expand_columns("run flops_ratio[]"))
