"""What figures and tables of the Tokenformer study share: its series of sizes, their whole cost, and curves by step."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import pandas as pd
from pandas import DataFrame

from formerlab.report.claims.envelope import on_envelope
from formerlab.report.runs import GROWN as GREW
from formerlab.report.runs import by_run, chain, ends, held_out_losses, parent
from formerlab.report.scaling import FROM_SCRATCH
from formerlab.report.style import BLACK, BLUE, GREY, ORANGE, PURPLE, SKY, VERMILION, Look
from formerlab.results.read import Results
from formerlab.statistics import student, weighted_means

STUDY = "tokenformer"
SIZES = (1, 2, 3, 4)


class Series(NamedTuple):
    """Runs of growing size that a figure joins by a line."""

    name: str
    pattern: str
    """Run of a size, whose number stands for {size}."""
    look: Look
    line: str
    grows: bool = False
    """Whether its line begins at the run that its first one started from."""
    hollow: bool = False
    """Whether its markers are, as those of a parent trained on for the tokens of what grew."""

    def runs(self) -> list[str]:
        """Return the names of the runs, by size."""
        return [self.pattern.format(size=size) for size in SIZES]


FULL, SHORT = "Transformer, full budget", "Transformer, tokens of a stage"
SCRATCH, GROWN = "Tokenformer, FLOPs of the chain", "grown (as published)"

SERIES = (
    Series(FULL, "transformer-{size}", Look(BLACK, "o"), "--"),
    Series(SHORT, "transformer-short-{size}", Look(GREY, "X"), ":"),
    Series(SCRATCH, "tokenformer-scratch-{size}", Look(SKY, "s"), "--"),
    Series("grown, half the tokens", "grown-half-{size}", Look(ORANGE, "v"), "-", grows=True),
    Series(GROWN, "grown-random-sqrt-{size}", Look(VERMILION, "^"), "-", grows=True),
    Series("grown, twice the tokens", "grown-double-{size}", Look(PURPLE, "P"), "-", grows=True),
    Series("parent trained on, equal FLOPs", "trained-on-{size}", Look(BLUE, "*"), "-"),
    Series("parent trained on, equal tokens", "trained-on-tokens-{size}", Look(BLUE, "*"), "--", hollow=True),
)
WAYS = ("grown-random-*-2", "grown-zero-*-2")
"""Ways to grow in the first stage."""


METHODS = {
    "Tokenformer": ("tokenformer-1", "grown-random-sqrt-{size}", Look(VERMILION, "^")),
    "Net2Net by padding": ("transformer-1", "net2net-pad-{size}", Look(ORANGE, "v")),
    "Net2Net (2015)": ("transformer-1", "net2net-{size}", Look("#8C564B", "P")),
    "HyperCloning": ("transformer-1", "hypercloning-{size}", Look(SKY, "X")),
}
"""Model before growth where no run says another, the run of a stage, and the look of each method."""
STAGES = (2, 3)


def before_growth(losses: DataFrame, method: str) -> str:
    """Return the run that the first stage of a method of METHODS grew from."""
    start, pattern, _ = METHODS[method]
    return parent(losses, pattern.format(size=STAGES[0])) or start


def size_of(run: str) -> int | None:
    """Return the size that a run's name ends with."""
    found = re.search(r"-(\d)$", run)
    return int(found[1]) if found else None


def costs(losses: DataFrame) -> DataFrame:
    """Return `by_run` with the tokens and the training time of the whole chain, `..._cumulative`, by run."""
    points = by_run(losses).set_index("run", drop=False)
    chains = {run: chain(losses, run) for run in points.index}
    for name, whole in (("tokens", "tokens_cumulative"), ("training_time_s", "training_time_s_cumulative")):
        points[whole] = [points.loc[chains[run], name].sum() for run in points.index]
    points["size"] = [size_of(run) for run in points.index]
    points["parent"] = [parent(losses, run) for run in points.index]
    return points


def series_points(results: Results, runs: Sequence[str], *, chains: bool = True) -> DataFrame:
    """Return a row per run of `SERIES`, in the order of series and size, then of other projections.

    With `chains`, what grew begins at the run that it started from; the other `WAYS` follow, and last comes the lower
    envelope of the Transformers from scratch (arXiv:2410.23168, Fig 1). `parent` is the run that one started from.
    `part` is `mean`, or `seed` for the losses that it is the mean of.
    """
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return DataFrame()
    points = costs(losses)
    frames = []
    for series in SERIES:
        names = [run for run in series.runs() if run in points.index]
        if series.grows and chains and names:
            names = list(dict.fromkeys([(parent(losses, names[0]) or names[0]), *names]))
        frames.append(points.loc[names].assign(series=series.name))
    others = set(losses.loc[of_ones_own(losses), "run"])
    frames += [
        rows.sort_values("parameters").assign(series=variant)
        for variant, rows in points[points["run"].isin(others)].groupby("variant", sort=False)
    ]
    if chains:
        known = {run for series in SERIES for run in series.runs()}
        ways = points[[_is_way(run) and run not in known for run in points["run"]]]
        frames += [rows.assign(series=variant) for variant, rows in ways.groupby("variant", sort=False)]
        frames.append(_lowest(points[points["run"].str.startswith(FROM_SCRATCH)]).assign(series=ENVELOPE))
    means = pd.concat(frames, ignore_index=True).assign(part="mean")
    seeds = losses[["run", "seed", "loss_nats"]].merge(means.drop(columns=_OF_SEEDS), on="run")
    return pd.concat([means, seeds.assign(part="seed")], ignore_index=True)


ENVELOPE = "Transformers from scratch, lower envelope"
_OF_SEEDS = ["loss_nats", *(f"{name}_{end}" for name in ("loss_nats", "perplexity") for end in ("low", "high"))]
_OF_SEEDS += ["perplexity", "bits_per_byte", "seeds", "diverged"]


def _is_way(run: str) -> bool:
    return any(fnmatchcase(run, pattern) for pattern in WAYS)


def _lowest(points: DataFrame) -> DataFrame:
    """Return the points on the lower envelope, the cheapest first."""
    return points.iloc[on_envelope(points["flops_cumulative"], points["loss_nats"])] if len(points) else points


def equal_to_grown(points: DataFrame, run: str) -> str:
    """Return which a parent trained on shares with a model that grew from that parent: `tokens`, `FLOPs` or neither.

    `points` has a row per run, by run: `parent`, `variant`, `tokens` and `flops`.
    """
    grown = points[(points["parent"] == points["parent"][run]) & points["variant"].str.startswith(GREW)].index
    for word, column in (("tokens", "tokens"), ("FLOPs", "flops")):
        counts = points[column].astype(float)
        if ((counts[grown] / counts[run] - 1).abs() < 0.05).any():
            return word
    return ""


FAMILIES = ("transformer-", "tokenformer-", "grown-", "net2net-", "hypercloning-", "trained-on-", "envelope-")
"""Beginnings of the names of the runs that the study is about."""
ELSEWHERE = ("score-", "layernorm-", "matched-", "modern-", "classic-", "long-", "continued-", "searched-")
"""The same of runs that have figures and tables of their own."""


def of_ones_own(records: DataFrame) -> "pd.Series[bool]":
    """Say of each run whether no family of the study has its name: those stand for themselves, by what they are."""
    return ~records["run"].str.startswith((*FAMILIES, *ELSEWHERE))


def by_step(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the validation loss of every run, seed and evaluated step: the mean over batches, by tokens, in nats."""
    rows = results.rows("eval.csv", STUDY, runs)
    return weighted_means(rows[rows["split"] == "valid"], ["run", "seed", "step"]).reset_index()


def means(curves: DataFrame) -> DataFrame:
    """Return the mean over seeds of each run and step with Student's interval."""
    rows = []
    for (run, step), group in curves.groupby(["run", "step"], sort=False):
        interval = student(group["loss_nats"])
        rows.append(
            {
                "source": "ours",
                "run": run,
                "step": float(str(step)),
                **ends("loss_nats", interval),
                "seeds": interval.seeds,
            }
        )
    numbers = ["step", "loss_nats", "loss_nats_low", "loss_nats_high", "seeds"]
    return DataFrame(rows, columns=["source", "run", *numbers]).astype(dict.fromkeys(numbers, float))


def at_step(curves: DataFrame, run: str, step: float | None) -> dict[int, float]:
    """Return a run's validation loss by seed at a step, or at its last one where `step` is None."""
    rows = curves[curves["run"] == run]
    rows = rows[rows["step"] == (rows.groupby("seed")["step"].transform("max") if step is None else step)]
    return dict(zip(rows["seed"].astype(int), rows["loss_nats"].astype(float), strict=True))
