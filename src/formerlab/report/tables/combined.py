"""The combined study, which is ours alone: losses of its twelve cells, and their factorial contrasts.

The factors are projection (linear layers or parameter tokens), averages over depth (none or 1x1) and cache (full, H2O
or Decay). y(p, d, c) is the held-out loss of a seed, p and d being -1 or +1; cost(c) = y(.., c) - y(.., full) is that
of pruning:

- a main effect of projection or mixer is the mean over the other of a difference, at the whole cache;
- an interaction of the two is a difference of differences, zero where they add up;
- an interaction with a cache policy is the same of its cost.

Each is computed by seed, so that its interval is Student's t over seeds; seeds share data order and windows.
"""

from collections.abc import Sequence
from itertools import product

import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import table
from formerlab.report.runs import estimate
from formerlab.report.studies.pruning import is_published_setting, nearest_budget_rows
from formerlab.results.read import Results
from formerlab.statistics import student, weighted_means

STUDY = "combined"
MODELS = {
    "linear-plain": ("linear layers", -1, -1),
    "linear-dwa": ("linear layers, averages", -1, 1),
    "pattention-plain": ("parameter tokens", 1, -1),
    "pattention-dwa": ("parameter tokens, averages", 1, 1),
}
"""Run to its label, and to the signs of projection and averages."""
PRUNED = {"h2o": "H2O", "decay": "Decay"}
"""Policies beside the full cache."""
BEYOND = "beyond the sum"
"""The last words of the label of an interaction."""


def cells(results: Results, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return the losses of every seed that has all twelve, in nats per token: a column per run and policy."""
    rows = results.rows("prune.csv", STUDY, runs)
    rows = nearest_budget_rows(rows[is_published_setting(rows) | rows["policy"].eq("full")])
    wanted = pd.MultiIndex.from_product([MODELS, ["full", *PRUNED]], names=["run", "policy"])
    losses = weighted_means(rows, ["seed", "run", "policy"]).unstack(["run", "policy"])
    return DataFrame(losses).reindex(columns=wanted).sort_index().dropna()


def effects(cells: DataFrame) -> DataFrame:
    """Return the contrasts of the twelve losses of every seed, a column each, main effects first."""
    whole = DataFrame(cells.xs("full", axis=1, level="policy"))
    cost = {name: DataFrame(cells.xs(kind, axis=1, level="policy")) - whole for kind, name in PRUNED.items()}
    p, d = (pd.Series({run: said[sign] for run, said in MODELS.items()}) for sign in (1, 2))
    found = {"parameter tokens": whole * p / 2, "averages": whole * d / 2}
    found |= {name: added / 4 for name, added in cost.items()}
    found[f"parameter tokens with averages, {BEYOND}"] = whole * p * d
    for name, added in cost.items():
        found[f"parameter tokens with {name}, {BEYOND}"] = added * p / 2
        found[f"averages with {name}, {BEYOND}"] = added * d / 2
        found[f"parameter tokens and averages with {name}, {BEYOND}"] = added * p * d
    return DataFrame({name: terms.sum(axis=1) for name, terms in found.items()})


def levels(cells: DataFrame) -> DataFrame:
    """Return a row per cell: its loss, and what its policy costs beside the whole cache, over seeds."""
    return DataFrame(
        {"kind": "cell", "run": run, "name": MODELS[run][0], "policy": policy}
        | estimate("loss_nats", student(cells[run, policy]))
        | {"seeds": len(cells)}
        | estimate("cost_nats", student(cells[run, policy] - cells[run, "full"]))
        for run, policy in product(MODELS, ("full", *PRUNED))
    )


def contrasts(cells: DataFrame) -> DataFrame:
    """Return a row per effect."""
    return DataFrame(
        {"kind": "interaction" if str(name).endswith(BEYOND) else "main", "name": name}
        | estimate("effect_nats", student(values))
        | {"seeds": len(values)}
        for name, values in effects(cells).items()
    )


@table(reads="prune.csv", columns="source kind name loss_nats[] effect_nats[] seeds")
def combined_table(results: Results, runs: list[str]) -> DataFrame:
    """Linear layers or parameter tokens, without or with averages over depth (1x1), with the full cache, H2O or Decay
    at 40 % of the tokens: held-out loss of every combination, main effects, and interactions as differences of
    differences, zero where two ideas add up (of pruning: of what it costs). Brackets: 95 % Student t interval over
    seeds, each contrast computed by seed, not corrected for their number.
    """
    found = cells(results, runs)
    table = levels(found)
    table["name"] += ", " + table["policy"].map({"full": "Full"} | PRUNED)
    return pd.concat([table, contrasts(found)], ignore_index=True) if len(found) else DataFrame()
