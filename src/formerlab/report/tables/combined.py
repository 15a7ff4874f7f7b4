"""The combined study, which no paper has: losses of its twelve cells, and their factorial contrasts.

The factors are the projection (linear layers or parameter tokens), averages over depth (no or 1x1) and the cache (full,
H2O or Decay). y(p, d, c) is the held-out loss of a seed, where p and d are -1 or +1, and
cost(c) = y(.., c) - y(.., full) is the cost of pruning.

- A main effect of the projection or the averages is a difference of losses with the full cache, averaged over the other
  factor.
- An interaction of the two is a difference of differences; it is zero if the two effects add up.
- An interaction with a cache policy is a difference of its costs.

Contrasts are computed by seed, so their intervals are Student's t over seeds. Seeds share data order and windows.
"""

from collections.abc import Sequence
from itertools import product

import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import table
from formerlab.report.runs import estimate
from formerlab.report.studies.pruning import is_published_setting, nearest_budget_rows
from formerlab.report.tables.blocks import side_by_side
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
    """Return the losses of the seeds that have all twelve, in nats per token: a column per run and policy."""
    rows = results.rows("prune.csv", STUDY, runs)
    rows = nearest_budget_rows(rows[is_published_setting(rows) | rows["policy"].eq("full")])
    columns = pd.MultiIndex.from_product([MODELS, ["full", *PRUNED]], names=["run", "policy"])
    losses = weighted_means(rows, ["seed", "run", "policy"]).unstack(["run", "policy"])
    return DataFrame(losses).reindex(columns=columns).sort_index().dropna()


def effects(cells: DataFrame) -> DataFrame:
    """Return the contrasts of the twelve losses of every seed, a column each, main effects first."""
    full = DataFrame(cells.xs("full", axis=1, level="policy"))
    cost = {name: DataFrame(cells.xs(kind, axis=1, level="policy")) - full for kind, name in PRUNED.items()}
    p, d = (pd.Series({run: model[sign] for run, model in MODELS.items()}) for sign in (1, 2))
    terms = {"parameter tokens": full * p / 2, "averages": full * d / 2}
    terms |= {name: added / 4 for name, added in cost.items()}
    terms[f"parameter tokens with averages, {BEYOND}"] = full * p * d
    for name, added in cost.items():
        terms[f"parameter tokens with {name}, {BEYOND}"] = added * p / 2
        terms[f"averages with {name}, {BEYOND}"] = added * d / 2
        terms[f"parameter tokens and averages with {name}, {BEYOND}"] = added * p * d
    return DataFrame({name: by_run.sum(axis=1) for name, by_run in terms.items()})


def levels(cells: DataFrame) -> DataFrame:
    """Return a row per cell: its loss, and the loss minus the loss with the full cache, over seeds."""
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


_LABELS = {
    "linear layers": "Transformer",
    "linear layers, averages": "Transformer with averages (DenseFormer)",
    "parameter tokens": "Tokenformer",
    "parameter tokens, averages": "Tokenformer with averages",
}


def _readers(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the losses with a row per model and a column per cache, and the effects."""
    cell = rows["kind"] == "cell"
    names = rows.loc[cell, "name"].str.rpartition(", ")
    losses = rows[cell].assign(model=names[0].map(_LABELS))
    effects = rows[~cell].drop(columns="name")
    effects.insert(1, "effect of", rows.loc[~cell, "name"].str.removesuffix(f", {BEYOND}"))
    return {
        "held-out loss": side_by_side(losses, "model", names[2] + " cache (nats) ↓", "loss_nats").assign(
            seeds=losses["seeds"].iloc[0]
        ),
        "main effects and interactions": effects.replace({"kind": {"main": "main effect"}}),
    }


@table(reads="prune.csv", columns="source kind name loss_nats[] effect_nats[] seeds", readers=_readers)
def combined_table(results: Results, runs: list[str]) -> DataFrame:
    """Do parameter tokens, averages over depth and a pruned cache add up? Held-out loss of Transformers and
    Tokenformers, without and with DenseFormer's averages over depth (1x1), with the full cache and with caches that
    keep 40 % of the tokens (H2O, Decay). Loss is the mean negative log-likelihood per token; lower is better. A main
    effect is the change of the loss that an idea brings on average; below zero it helps. An interaction is the change
    beyond the sum of the two; zero: they add up. In brackets: 95 % Student t interval over seeds; contrasts are
    computed by seed and not corrected for their number. No paper has this comparison.
    """
    losses = cells(results, runs)
    table = levels(losses)
    table["name"] += ", " + table["policy"].map({"full": "Full"} | PRUNED)
    return pd.concat([table, contrasts(losses)], ignore_index=True) if len(losses) else DataFrame()
