"""The combined study, which is ours alone: losses of its twelve cells, and their factorial contrasts.

The factors are projection (Linear or Pattention), depth mixer (none or DWA) and cache (Full, H2O or Decay). With
y(p, d, c) the held-out loss of a seed, p and d being -1 or +1, and cost(c) = y(.., c) - y(.., Full) that of pruning:

- a main effect of projection or mixer is the mean over the other of a difference, at the whole cache;
- an interaction of the two is a difference of differences, zero where they add up;
- an interaction with a cache policy is the same of its cost.

Each is computed by seed, so that its interval is Student's t over seeds; seeds share data order and windows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.report.drawings import table
from formerlab.report.runs import ends
from formerlab.results.read import Results
from formerlab.statistics import student, weighted_means

STUDY = "combined"
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


def effects(cells: Cells) -> dict[str, float]:
    """Return the contrasts of the twelve losses of a seed by name, main effects first."""

    def total(sign: Callable[[int, int], float], policy: str = "") -> float:
        whole = {run: cells[run, "full"] for run in MODELS}
        values = {run: cells[run, policy] - whole[run] for run in MODELS} if policy else whole
        return sum(sign(*signs) * values[run] for run, signs in MODELS.items())

    found = {"Pattention": total(lambda p, d: p / 2), "DWA": total(lambda p, d: d / 2)}
    found |= {name: total(lambda p, d: 1 / 4, kind) for kind, name in PRUNED.items()}
    found["Pattention x DWA"] = total(lambda p, d: p * d)
    for kind, name in PRUNED.items():
        found[f"Pattention x {name}"] = total(lambda p, d: p / 2, kind)
        found[f"DWA x {name}"] = total(lambda p, d: d / 2, kind)
        found[f"Pattention x DWA x {name}"] = total(lambda p, d: p * d, kind)
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
            row: dict[str, Any] = {"kind": "cell", "run": run, "name": name, "policy": policy}
            row |= ends("loss_nats", student(losses)) | {"seeds": len(losses)}
            rows.append(row | ends("cost_nats", student(added)))
    return DataFrame(rows)


def contrasts(by_seed: Mapping[int, Cells]) -> DataFrame:
    """Return a row per effect."""
    rows = []
    for name, values in DataFrame([effects(found) for found in by_seed.values()]).items():
        row: dict[str, Any] = {"kind": "interaction" if " x " in str(name) else "main", "name": name}
        rows.append(row | ends("effect_nats", student(values)) | {"seeds": len(values)})
    return DataFrame(rows)


@table(
    reads="prune.csv run.json",
    columns="source kind name loss_nats[] effect_nats[] seeds",
)
def combined_table(results: Results, runs: Sequence[str]) -> DataFrame:
    """Linear or Pattention x plain or DWA x Full, H2O or Decay at 40 % of the tokens: held-out loss of every cell,
    main effects, and interactions as differences of differences, zero where two ideas add up (of pruning: of what
    it costs). Brackets: 95 % Student t interval over seeds, each contrast computed by seed, not corrected for their
    number.
    """
    by_seed = cells(results, runs)
    if not by_seed:
        return DataFrame()
    found = levels(by_seed)
    found["name"] += ", " + found["policy"].map({"full": "Full"} | PRUNED)
    return pd.concat([found, contrasts(by_seed)], ignore_index=True)
