"""Helpers for figures and tables of the Tokenformer study: series of sizes, costs, curves and model sizes."""

from collections.abc import Hashable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.claims.arms import registered_arms
from formerlab.report.claims.envelope import flops_at_loss, on_envelope
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.runs import (
    GROWN,
    comparable_losses,
    held_out_losses,
    last_step_rows,
    lineage,
    means_by_run,
    parent_run,
    summarize,
    validation_losses,
    with_seeds,
)
from formerlab.results.read import Results

STUDY = "tokenformer"
SIZES = (1, 2, 3, 4)
SERIES = {
    "Transformer, full budget": "transformer-{size}",
    "Transformer, tokens of a stage": "transformer-short-{size}",
    "Tokenformer from scratch": "tokenformer-scratch-{size} annealed-scratch-{size}",
    "grown, half the tokens": "grown-half-{size}",
    "grown as published": "grown-random-sqrt-{size} annealed-random-sqrt-{size}",
    "grown, twice the tokens": "grown-double-{size}",
    "parent trained further, equal FLOPs": "trained-on-{size} annealed-trained-on-{size}*",
    "parent trained further, equal tokens": "trained-on-tokens-{size}",
}
"""Name patterns of the runs of each series; `{size}` is a size or a stage length. Figures join the points of a series
by a line.
"""
WAYS_TO_GROW = {
    f"{GROWN}: random keys, tau sqrt(n)": "grown as published",
    f"{GROWN}: zero keys, tau kept": "grown with zero keys",
}
"""Labels of the two main ways to grow."""
PARENT = "parent"
"""Series of the ungrown parents of grown models."""
LENGTHS = ("short", "medium", "long")
"""Lengths of one stage from one parent. Medium has 4 times and long has 8 times the tokens of short."""
GROWTH_PATTERNS = ("grown-random-*-2", "grown-zero-*-2", "annealed-zero-keep-*")
"""Name patterns of the runs that grew in the first stage, in different ways."""


FROM_SCRATCH = ("envelope-", "modern-chosen", "long-modern-chosen")
"""Name prefixes of the Transformers trained from scratch, each with a full schedule.

Other comparisons also use `modern-chosen` and `long-modern-chosen`, the smallest models of the shortest and longest
budget, so they do not have the prefix `envelope-`.
"""


def scratch_points(losses: DataFrame) -> DataFrame:
    """Return a row per run of FROM_SCRATCH, sorted by size and length; `lowest` marks runs on the lower envelope."""
    points = means_by_run(losses[losses["run"].str.startswith(FROM_SCRATCH)], first=["lent"])
    points["lowest"] = points.index.isin(on_envelope(points["flops_cumulative"], points["loss_nats"]))
    return points.sort_values(["parameters_non_embedding", "tokens"], ignore_index=True)


def with_ancestors(losses: DataFrame, *sums: str) -> DataFrame:
    """Return a row per run with its `parent` and, for each of `sums`, `<name>_cumulative`, which adds its ancestors."""
    points = means_by_run(losses, first=["lent"]).set_index("run", drop=False)
    points["parent"] = [parent_run(losses, run) for run in points.index]
    for name in sums:
        points[f"{name}_cumulative"] = [points.loc[lineage(losses, run), name].sum() for run in points.index]
    return points


def runs_with_ancestors(losses: DataFrame) -> DataFrame:
    """Return the runs that started from a parent and were tested on the same text as the runs of the envelope, with
    their ancestors.

    `losses` is the result of `comparable_losses`.
    """
    data = losses.loc[losses["run"].str.startswith(FROM_SCRATCH), "data.fingerprint"]
    tested = losses["data.fingerprint"].isin(data) | losses["lent"] & ~losses["run"].str.startswith("continued-")
    points = with_ancestors(losses, "tokens")
    children = points.index[points["parent"].notna() & points["run"].isin(losses.loc[tested, "run"])]
    return points[points["run"].isin([name for run in children for name in lineage(losses, run)])]


def with_registered_rates(losses: DataFrame, scale: str, *, costs: bool = False) -> DataFrame:
    """Keep, for each stage length, only the registered runs among grown models and parents trained further.

    With `costs`, the grown model is the one of the claim on training costs. Its learning rate may differ, because the
    claim needs a loss inside the envelope of the Transformers.
    """
    claim = registered_arms("tokenformer-growth-beats-continuing", scale)
    prefixes = {"grown": "annealed-random-sqrt", "continued": "annealed-trained-on"}
    runs = {
        f"{prefix}-{length}": arms[arm].run for length, arms in claim.items.items() for arm, prefix in prefixes.items()
    }
    if costs and (grown := registered_arms("tokenformer-growth-saves-cost", scale).arms.get("grown")):
        runs |= {prefix: grown.run for prefix in runs if (grown.run or "").startswith(prefix)}
    registered = {prefix: run for prefix, run in runs.items() if run and run.startswith(prefix)}
    other_rate = losses["run"].str.startswith(tuple(registered)) & ~losses["run"].isin(registered.values())
    return losses[~other_rate]


def fully_annealed_losses(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return losses on comparable text, at the learning rates that the claim on training costs uses.

    If any run that starts from a parent ends at learning rate 0, keep only such runs among the runs with a parent
    (TokenFormer, arXiv:2410.23168, section 4.1).
    """
    losses = with_registered_rates(comparable_losses(results, STUDY, runs), results.scale, costs=True)
    if "init.id" not in losses:
        return losses
    continued, annealed = losses["init.id"].notna(), losses["regime"].str.endswith(" to 0")
    return losses[~continued | annealed] if (continued & annealed).any() else losses


def series_points(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, and the losses by seed (`runs.with_seeds`).

    The order is: the parents of grown models, the runs of `SERIES` by series and size, runs without a prefix of
    MAIN_PREFIXES or SEPARATE_FIGURE_PREFIXES, and the remaining runs of GROWTH_PATTERNS.
    """
    losses, frames, parents = fully_annealed_losses(results, runs), [], set[str]()
    points = with_ancestors(losses, "tokens", "training_time_s")
    for series, pattern in SERIES.items():
        globs = [glob.format(size=size) for size in (*SIZES, *LENGTHS) for glob in pattern.split()]
        names = [run for glob in globs for run in points.index if fnmatchcase(run, glob)]
        if series.startswith(GROWN):
            parents |= set(points.loc[names[:1], "parent"].dropna())
        frames.append(points.loc[names].assign(series=series))
    frames.insert(0, points[points["run"].isin(parents)].assign(series=PARENT))
    no_series = ~points["run"].str.startswith((*MAIN_PREFIXES, *SEPARATE_FIGURE_PREFIXES))
    in_series = {run for frame in frames for run in frame["run"]}
    grown = [run for run in points["run"] if any(fnmatchcase(run, glob) for glob in GROWTH_PATTERNS)]
    others = points[points["run"].isin([run for run in grown if run not in in_series])]
    for group in (points[no_series].sort_values("parameters", kind="stable"), others):
        frames += [
            rows.assign(series=WAYS_TO_GROW.get(str(variant), variant))
            for variant, rows in group.groupby("variant", sort=False)
        ]
    means = pd.concat(frames, ignore_index=True)
    return with_seeds(means, losses, [name for name in map(str, means) if not name.startswith(_SEED_COLUMNS)])


_SEED_COLUMNS = ("run", "loss_nats", "perplexity", "bits_per_byte", "seeds", "diverged")
"""Name prefixes of the columns that differ between seeds."""


MAIN_PREFIXES = ("transformer-", "tokenformer-", "grown-", "net2net-", "hypercloning-", "trained-on-", "envelope-")
"""Name prefixes of the main runs of the study."""
SEPARATE_FIGURE_PREFIXES = (
    *("score-", "layernorm-", "matched-", "modern-", "classic-", "long-"),
    *("continued-", "searched-", "annealed-"),
)
"""Name prefixes of runs that have their own figures and tables."""


def families_at_best_rates(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run of the arms `matched` (Tokenformers), `modern` and `classic` (Transformers).

    `chosen` marks the run with the lowest final validation loss of its arm, regime and number of tokens. Runs that
    diverged are never chosen. `tokenformer` is the chosen matched run of the same regime and number of tokens.
    """
    losses = held_out_losses(results, STUDY, runs)
    shared = {"data.name": "first", "regime": "first", "tokens": "first", "diverged": "any"}
    table: DataFrame = losses.groupby("run").agg(shared).reset_index()
    table["arm"] = table["run"].str.extract("(matched|modern|classic)-[^-]*$")[0]
    validation = last_step_rows(validation_losses(results, STUDY, runs)).groupby("run")["loss_nats"].mean()
    final = table["run"].map(validation).mask(table["diverged"]).dropna()
    budget = ["regime", "tokens"]
    table["chosen"] = table.index.isin(final.groupby([table[key] for key in (*budget, "arm")]).idxmin())
    tokenformers = table[table["chosen"] & table["arm"].eq("matched")].set_index(budget)["run"]
    return table.join(tokenformers.rename("tokenformer"), on=budget)


def mean_curves(curves: DataFrame, minus: Mapping[Any, str] | None = None) -> DataFrame:
    """Return the mean loss over seeds of each run and step with Student's interval; `summarize` explains `minus`."""
    means = summarize(curves, "loss_nats", ["run", "step"], minus).query("part == 'mean'")
    return means.drop(columns=["part", "seed"]).astype({"step": float})


def stage_pairs(losses: DataFrame, records: DataFrame) -> DataFrame:
    """Pair each grown run (`run`) with its parent trained further (`rival`) on the same text, whose FLOPs are
    equal within 5 %.

    If several learning rates were tried, use the run with the lowest validation loss, and prefer runs with at least two
    seeds. `records` has a row per run, indexed by run.
    """
    losses = losses.assign(stretch=losses.get("spec.task.stretch", ""), keys=losses["spec.growth.keys"].fillna(""))
    arms = losses.astype({"stretch": str}).groupby("run", sort=False).agg(
        {name: "first" for name in ("variant", "regime", "spec.init", "stretch", "keys", "tokens", "flops")}
        | {"parameters_non_embedding": "first", "final.valid_loss_nats": "mean", "seed": "nunique"}
    )  # fmt: skip
    arms = arms.assign(single=arms["seed"] < 2).sort_values(["single", "final.valid_loss_nats"], kind="stable")
    stages, controls = arms[arms["keys"] != ""], arms[arms["keys"] == ""]
    start, pairs = ["regime", "spec.init", "stretch"], []
    best = stages.drop_duplicates(["variant", "regime", "spec.init", "stretch", "tokens"]).index
    for run, stage in stages.loc[[run for run in losses["run"].unique() if run in best]].iterrows():
        equal = controls["flops"].between(0.95 * stage["flops"], 1.05 * stage["flops"])
        same_start = equal & (controls[start] == stage[start]).all(axis=1)
        if not same_start.any() or stage["spec.init"] not in records.index:
            continue
        new = stage["parameters_non_embedding"] - records["parameters_non_embedding"][stage["spec.init"]]
        pair = {"variant": stage["variant"], "run": run, "rival": controls.index[same_start][0]}
        pair["tokens_per_new_parameter"] = stage["tokens"] / new if new else np.nan
        pairs.append(pair | {"_tokens": stage["tokens"]})
    return DataFrame(pairs)


def published_points(*curves: tuple[str, str]) -> DataFrame:
    """Return the points of published curves, given as pairs of the figure with the costs and the name of the series.

    Curves of grown models in Fig 3 begin at the first model of the chain.
    """
    rows = published(PAPER, "Fig 3", "Fig 4", "Table 6", "Tables 6-7")
    seen = rows["setting"].str.extract(r"(\d+B) tokens")[0]
    rows = rows.assign(seen=seen.fillna("60B"), value=pd.to_numeric(rows["value"]), first=seen.isna())
    costs = rows[rows["metric"] == "training_cost"]
    reached = rows[rows["metric"].eq("perplexity") & rows["table_or_figure"].str.startswith("Table")]
    costs, frames = costs.merge(reached[["model", "seen", "value"]], on=["model", "seen"]), []
    for figure, name in curves:
        family, tokens = ("TokenFormer" if name.startswith(GROWN) else "Transformer"), name.split()[1]
        of_family = costs[costs["table_or_figure"].eq(figure) & costs["model"].str.startswith(family)]
        curve = of_family[of_family["seen"].eq(tokens) | of_family["first"]]
        frames.append(curve.assign(source="published", series=name))
    points = pd.concat(frames, ignore_index=True).rename(
        columns={"model": "run", "value_x": "tpu_v4_hours", "value_y": "perplexity"}
    )
    points["loss_nats"] = np.log(points["perplexity"])
    return points[["source", "series", "run", "tpu_v4_hours", "perplexity", "loss_nats"]]


def published_ratio() -> DataFrame:
    """Return the TPU hours of the largest grown model of the paper divided by the TPU hours of its Transformers at
    equal loss, as `flops_ratio`.

    `flops_ratio_other_perplexity` uses the perplexities of Table 7, where one Transformer has another value.
    """
    points = published_points(("Fig 3", "Transformer, 300B tokens"), ("Fig 3", "grown, 30B a stage"))
    transformers = points[points["series"].str.startswith("Transformer")]
    largest = points[points["series"].str.startswith("grown")].nlargest(1, "tpu_v4_hours")
    other = published(PAPER, "Table 7").set_index("model")["value"].astype(float).map(np.log)
    hours, printed = transformers["tpu_v4_hours"], transformers["loss_nats"]
    ratios = [
        largest["tpu_v4_hours"] / flops_at_loss(largest["loss_nats"].iloc[0], hours, losses)
        for losses in (printed, transformers["run"].map(other).fillna(printed))
    ]
    return largest[["source", "run"]].assign(
        part="paper", flops_ratio=ratios[0], flops_ratio_other_perplexity=ratios[1]
    )


class Shape(NamedTuple):
    """Sizes of a model, with its parameters and FLOPs by formula (arXiv:2410.23168, Table 3): a forward pass over T
    tokens takes 2 N T + 4 L d T^2 FLOPs.

    N = 2 L d (n_q + n_k + n_v + n_o + n_ff) counts parameters without embedding and norms. A d x d matrix has as many
    parameters as d / 2 parameter tokens, so the formula also gives the 12 L d^2 parameters of a Transformer.
    """

    layers: int
    width: int
    attention: int
    """Parameter tokens of each of query, key, value and output; for a Transformer, half the width."""
    feedforward: int
    """Parameter tokens or hidden units of the feed-forward."""

    @property
    def parameters(self) -> int:
        """N, the number of parameters without embedding and norms."""
        return 2 * self.layers * self.width * (4 * self.attention + self.feedforward)

    def token_token_flops(self, time: int) -> int:
        """Return 4 L d T^2, the FLOPs of the attention between tokens."""
        return 4 * self.layers * self.width * time**2

    def flops(self, time: int, vocabulary: int = 0) -> int:
        """Return 2 N T + 4 L d T^2, plus 2 V d T for the logits of a vocabulary V."""
        return 2 * (self.parameters + vocabulary * self.width) * time + self.token_token_flops(time)


def model_shape(record: Mapping[Hashable, Any]) -> Shape:
    """Return the shape of a run's model from the flat columns of its record. A Transformer must have a GeLU MLP as
    feed-forward; this is not checked.
    """
    layers, width = (int(record[f"spec.model.{key}"]) for key in ("layers", "width"))
    if record["spec.model.projection.kind"] == "pattention":
        return Shape(layers, width, *(int(record[f"spec.model.{key}.tokens"]) for key in ("projection", "feedforward")))
    hidden = record.get("spec.model.feedforward.hidden")
    return Shape(layers, width, width // 2, 4 * width if not hidden or hidden != hidden else int(hidden))
