"""Shared by figures and tables of the Tokenformer study: series of sizes, their cost, formulas, and curves."""

from collections.abc import Hashable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pandas as pd
from pandas import DataFrame

from formerlab.report.claims.envelope import on_envelope
from formerlab.report.runs import GROWN, by_run, chain, held_out_losses, parent, summary, with_seeds
from formerlab.report.scaling import FROM_SCRATCH
from formerlab.results.read import Results

STUDY = "tokenformer"
SIZES = (1, 2, 3, 4)
SERIES = {
    "Transformer, full budget": "transformer-{size}",
    "Transformer, tokens of a stage": "transformer-short-{size}",
    "Tokenformer, FLOPs of the chain": "tokenformer-scratch-{size}",
    "grown, half the tokens": "grown-half-{size}",
    "grown (as published)": "grown-random-sqrt-{size}",
    "grown, twice the tokens": "grown-double-{size}",
    "parent trained on, equal FLOPs": "trained-on-{size}",
    "parent trained on, equal tokens": "trained-on-tokens-{size}",
}
"""Runs of growing size that a figure joins by a line: its name, and the run of a size."""
WAYS = ("grown-random-*-2", "grown-zero-*-2")
"""Ways to grow in the first stage."""


METHODS = {
    "Tokenformer": ("tokenformer-1", "grown-random-sqrt-{size}"),
    "Net2Net by padding": ("transformer-1", "net2net-pad-{size}"),
    "Net2Net (2015)": ("transformer-1", "net2net-{size}"),
    "HyperCloning": ("transformer-1", "hypercloning-{size}"),
}
"""Model before growth where no run says another, and the run of a stage, of each method."""
STAGES = (2, 3)


def before_growth(losses: DataFrame, method: str) -> str:
    """Return the run that the first stage of a method of METHODS grew from."""
    start, pattern = METHODS[method]
    return parent(losses, pattern.format(size=STAGES[0])) or start


def series_points(results: Results, runs: Sequence[str], *, chains: bool = True) -> DataFrame:
    """Return a row per run of `SERIES`, in the order of series and size, then of other projections.

    With `chains`, what grew begins at the run that it started from; the other `WAYS` follow, and last comes the lower
    envelope of the Transformers from scratch (arXiv:2410.23168, Fig 1). `parent` is the run that one started from.
    `part` is `mean`, or `seed` for the losses that it is the mean of.
    """
    losses = held_out_losses(results, STUDY, runs)
    points, frames = by_run(losses).set_index("run", drop=False), []
    for name in ("tokens", "training_time_s"):
        points[f"{name}_cumulative"] = [points.loc[chain(losses, run), name].sum() for run in points.index]
    points["size"] = points["run"].str.extract(r"-(\d)$", expand=False).astype(float)
    points["parent"] = [parent(losses, run) for run in points.index]
    for series, pattern in SERIES.items():
        names = [run for run in (pattern.format(size=size) for size in SIZES) if run in points.index]
        if series.startswith(GROWN) and chains and names:
            names = list(dict.fromkeys([points["parent"][names[0]] or names[0], *names]))
        frames.append(points.loc[names].assign(series=series))
    own = points[~points["run"].str.startswith((*FAMILIES, *ELSEWHERE))].sort_values("parameters", kind="stable")
    known = {pattern.format(size=size) for pattern in SERIES.values() for size in SIZES}
    ways = points[[run not in known and any(fnmatchcase(run, way) for way in WAYS) for run in points["run"]]]
    for others in (own, ways) if chains else (own,):
        frames += [rows.assign(series=variant) for variant, rows in others.groupby("variant", sort=False)]
    if chains:
        scratch = points[points["run"].str.startswith(FROM_SCRATCH)]
        lowest = on_envelope(scratch["flops_cumulative"], scratch["loss_nats"])
        frames.append(scratch.iloc[lowest].assign(series=ENVELOPE))
    means = pd.concat(frames, ignore_index=True)
    return with_seeds(means, losses, [name for name in map(str, means) if not name.startswith(_OF_SEEDS)])


ENVELOPE = "Transformers from scratch, lower envelope"
_OF_SEEDS = ("run", "loss_nats", "perplexity", "bits_per_byte", "seeds", "diverged")
"""Beginnings of columns that differ between seeds."""


def equal_to_grown(points: DataFrame, run: str) -> str:
    """Return what a parent trained on has in common with a model that grew from it: `tokens`, `FLOPs` or nothing.

    `points` has a row per run, by run: `parent`, `variant`, `tokens` and `flops`.
    """
    grown = points[(points["parent"] == points["parent"][run]) & points["variant"].str.startswith(GROWN)].index
    for word, column in (("tokens", "tokens"), ("FLOPs", "flops")):
        counts = points[column].astype(float)
        if ((counts[grown] / counts[run] - 1).abs() < 0.05).any():
            return word
    return ""


FAMILIES = ("transformer-", "tokenformer-", "grown-", "net2net-", "hypercloning-", "trained-on-", "envelope-")
"""Beginnings of the names of the runs that the study is about."""
ELSEWHERE = ("score-", "layernorm-", "matched-", "modern-", "classic-", "long-", "continued-", "searched-")
"""The same of runs that have figures and tables of their own."""


def means(curves: DataFrame, minus: Mapping[Hashable, str] | None = None) -> DataFrame:
    """Return the mean over seeds of each run and step with Student's interval; `minus` is as of `summary`."""
    found = summary(curves, "loss_nats", ["run", "step"], minus).query("part == 'mean'")
    columns = ["source", "run", "step", "loss_nats", "loss_nats_low", "loss_nats_high", "seeds"]
    return found.reindex(columns=columns).astype({"step": float})


class Shape(NamedTuple):
    """A forward pass over T tokens: 2 N T + 4 L d T^2 FLOPs (arXiv:2410.23168, Table 3).

    N = 2 L d (n_q + n_k + n_v + n_o + n_ff), without embedding and norms; a matrix of d x d has as many parameters as
    d / 2 tokens, so the 12 L d^2 of a Transformer are the same formula.
    """

    layers: int
    width: int
    attention: int
    """Parameter tokens of query, key, value and output each; half the width of a Transformer."""
    feedforward: int
    """Parameter tokens, or hidden units, of the feed-forward."""

    @property
    def parameters(self) -> int:
        """N."""
        return 2 * self.layers * self.width * (4 * self.attention + self.feedforward)

    def token_token_flops(self, time: int) -> int:
        """4 L d T^2."""
        return 4 * self.layers * self.width * time**2

    def flops(self, time: int, vocabulary: int = 0) -> int:
        """2 N T + 4 L d T^2, and 2 V d T for the logits of a vocabulary."""
        return 2 * (self.parameters + vocabulary * self.width) * time + self.token_token_flops(time)


def shape_of(record: Mapping[Hashable, Any]) -> Shape:
    """Return the shape of a run's model from the flat columns of its record; GeLU feed-forwards only."""
    layers, width = (int(record[f"spec.model.{key}"]) for key in ("layers", "width"))
    if record["spec.model.projection.kind"] == "pattention":
        return Shape(layers, width, *(int(record[f"spec.model.{key}.tokens"]) for key in ("projection", "feedforward")))
    hidden = record.get("spec.model.feedforward.hidden")
    return Shape(layers, width, width // 2, 4 * width if not hidden or hidden != hidden else int(hidden))
