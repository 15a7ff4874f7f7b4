"""What figures and tables know of the combined study: losses of its twelve cells, and their factorial contrasts.

The factors are projection (Linear or Pattention), depth mixer (none or DWA) and cache (Full, H2O or Decay). With
y(p, d, c) the held-out loss of a seed, p and d being -1 or +1, and cost(c) = y(.., c) - y(.., Full) that of pruning:

- a main effect of projection or mixer is the mean over the other of a difference, at the whole cache;
- an interaction of the two is a difference of differences, zero where they add up;
- an interaction with a cache policy is the same of its cost.

Each is computed by seed, so that its interval is Student's t over seeds; seeds share data order and windows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pandas import DataFrame

from formerlab.report.runs import ends
from formerlab.results.read import Results
from formerlab.statistics import student, weighted_means

STUDY = "combined"
READS = ("prune.csv", "run.json")
MODELS = {
    "linear-plain": (-1, -1),
    "linear-dwa": (-1, 1),
    "pattention-plain": (1, -1),
    "pattention-dwa": (1, 1),
}
"""Run to the signs of projection and depth mixer."""
NAMES = {
    "linear-plain": "Linear, plain",
    "linear-dwa": "Linear, DWA",
    "pattention-plain": "Pattention, plain",
    "pattention-dwa": "Pattention, DWA",
}
PRUNED = {"h2o": "H2O", "decay": "Decay"}
"""Policies beside the whole cache."""

Cells = Mapping[tuple[str, str], float]
"""Loss of a seed by run and policy."""


Row = dict[str, str | float | int]


class Effect(NamedTuple):
    """A contrast of the twelve losses of a seed."""

    name: str
    kind: str
    """main or interaction."""
    of: Callable[[Cells], float]


def _models(sign: Callable[[int, int], float], value: Callable[[Cells, str], float]) -> Callable[[Cells], float]:
    """Return the sum over the four models of a sign times a value."""
    return lambda cells: sum(sign(*signs) * value(cells, run) for run, signs in MODELS.items())


def _whole(cells: Cells, run: str) -> float:
    return cells[run, "full"]


def _cost(policy: str) -> Callable[[Cells, str], float]:
    return lambda cells, run: cells[run, policy] - cells[run, "full"]


def effects() -> list[Effect]:
    """Return all contrasts, main effects first."""
    found = [
        Effect("Pattention", "main", _models(lambda p, d: p / 2, _whole)),
        Effect("DWA", "main", _models(lambda p, d: d / 2, _whole)),
    ]
    found += [Effect(name, "main", _models(lambda p, d: 1 / 4, _cost(kind))) for kind, name in PRUNED.items()]
    found.append(Effect("Pattention x DWA", "interaction", _models(lambda p, d: p * d, _whole)))
    for kind, name in PRUNED.items():
        found += [
            Effect(f"Pattention x {name}", "interaction", _models(lambda p, d: p / 2, _cost(kind))),
            Effect(f"DWA x {name}", "interaction", _models(lambda p, d: d / 2, _cost(kind))),
            Effect(f"Pattention x DWA x {name}", "interaction", _models(lambda p, d: p * d, _cost(kind))),
        ]
    return found


def cells(results: Results, runs: Sequence[str] = ("*",)) -> dict[int, Cells]:
    """Return the losses of every seed that has all twelve, in nats per token."""
    rows = results.rows("prune.csv", STUDY, runs)
    rows = rows[rows["run"].isin(MODELS) & rows["policy"].isin(["full", *PRUNED])]
    by_seed: dict[int, dict[tuple[str, str], float]] = {}
    means = weighted_means(rows, ["seed", "run", "policy"]).sort_index().reset_index()
    for seed, run, policy, loss in means.itertuples(index=False, name=None):
        by_seed.setdefault(int(str(seed)), {})[str(run), str(policy)] = loss
    return {seed: losses for seed, losses in by_seed.items() if len(losses) == len(MODELS) * (1 + len(PRUNED))}


def levels(by_seed: Mapping[int, Cells]) -> DataFrame:
    """Return a row per cell: its loss, and what its policy costs beside the whole cache, over seeds."""
    rows = []
    for run, name in NAMES.items():
        for policy in ("full", *PRUNED):
            losses = [found[run, policy] for found in by_seed.values()]
            added = [found[run, policy] - found[run, "full"] for found in by_seed.values()]
            row: Row = {"kind": "cell", "run": run, "name": name, "policy": policy}
            rows.append(row | _ends("loss_nats", losses) | _ends("cost_nats", added))
    return DataFrame(rows)


def contrasts(by_seed: Mapping[int, Cells]) -> DataFrame:
    """Return a row per effect."""
    rows = []
    for effect in effects():
        values = [effect.of(found) for found in by_seed.values()]
        row: Row = {"kind": effect.kind, "name": effect.name}
        rows.append(row | _ends("effect_nats", values))
    return DataFrame(rows)


def _ends(name: str, values: list[float]) -> Row:
    return {**ends(name, student(values)), "seeds": len(values)}
