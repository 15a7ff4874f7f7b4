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

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.runs import by_seed, estimate, held_out_losses, means_by_run, subtract
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
"""Label, and signs of projection and averages, by run."""
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


PAIRS = {
    "averages with linear layers": ("linear-plain", "linear-dwa", "DenseFormer 1x1"),
    "averages with parameter tokens": ("pattention-plain", "pattention-dwa", "DenseFormer 1x1"),
    "parameter tokens without averages": ("linear-plain", "pattention-plain", "Tokenformer"),
    "parameter tokens with averages": ("linear-dwa", "pattention-dwa", "Tokenformer"),
}
"""For each label: the run without the idea, the run with it, and the name whose plot style is used."""
INTERACTION = "interaction"


def effects_on_loss(losses: DataFrame) -> DataFrame:
    """Return the change of the held-out loss in each of PAIRS, and the interaction.

    The interaction is the second change minus the first, which equals the fourth minus the third.
    """
    changes = {name: subtract(by_seed(losses, new), by_seed(losses, old)) for name, (old, new, _) in PAIRS.items()}
    first, second, *_ = changes.values()
    changes[INTERACTION] = subtract(second, first)
    rows = []
    for name, values in changes.items():
        shared = {"kind": "effect", "name": name, "run": PAIRS[name][1] if name in PAIRS else "pattention-dwa"}
        if len(values):
            rows.append(shared | estimate("effect_nats", student(values)) | {"seeds": len(values)})
        rows += [shared | {"seed": seed, "effect_nats": value} for seed, value in values.items()]
    return DataFrame(rows)


_LABELS = {
    "linear layers": "Transformer",
    "linear layers, averages": "Transformer with averages (DenseFormer)",
    "parameter tokens": "Tokenformer",
    "parameter tokens, averages": "Tokenformer with averages",
}


def _readers(rows: DataFrame) -> dict[str, DataFrame]:
    """Return three blocks: losses and the loss that pruning adds; effects on the loss; interactions with pruning."""
    pruned = rows[rows["kind"].eq("cell") & ~rows["name"].str.endswith(", full")]
    names = pruned["name"].str.rpartition(", ")
    costs = side_by_side(pruned.assign(name=names[0].map(_LABELS)), ["name"], names[2] + " adds (nats) ↓", "cost_nats")
    levels = rows[rows["kind"] == "loss"].dropna(axis=1, how="all")
    levels = levels.merge(costs, on="name", how="outer") if len(levels) else costs
    pairs = rows[rows["kind"].eq("interaction") & rows["name"].str.contains("H2O|Decay")]
    ends = dict(zip(expand_columns("effect_nats[]"), expand_columns("cost_nats[]"), strict=True))
    pairs = pairs.drop(columns=[*ends.values()]).rename(columns=ends)
    blocks = {
        "models, best first": levels.sort_values([*levels.columns.intersection(["loss_nats"])]),
        "effects on the loss": rows[rows["kind"] == "effect"],
        "interactions with a cache of 40 %": pairs.assign(name=pairs["name"].str.removesuffix(f", {BEYOND}")),
    }
    heads = dict.fromkeys(blocks, "effect") | {"models, best first": "model"}
    return {
        heading: block.drop(columns="kind", errors="ignore").rename(columns={"name": heads[heading]})
        for heading, block in blocks.items()
        if len(block)
    }


@table(reads="test.csv prune.csv", readers=_readers,
       columns="source kind name perplexity loss_nats[] effect_nats[] cost_nats[] parameters tokens seeds")  # fmt: skip
def combined_table(results: Results, runs: list[str]) -> DataFrame:
    """Do parameter tokens, averages over depth and a pruned cache add up? Held-out loss of Transformers and
    Tokenformers, without and with DenseFormer's averages over depth (1x1), on the whole test text, and the loss that
    H2O and Decay (alpha 0.2) add with 40 % of the tokens, on 256 windows. An effect is the loss with an idea minus the
    loss without it; below zero it helps. The interaction is the effect of averages with parameter tokens minus their
    effect with linear layers; zero: the two add up. An interaction with a cache is the same difference, computed from
    the loss that the cache adds. The interaction of both ideas with a cache is a difference of these differences. In
    brackets: 95 % Student t interval over seeds, paired by seed and not corrected for their number; with three seeds a
    narrow one may be chance. No paper has this comparison, so there is no verdict.
    """
    losses, pruned = held_out_losses(results, STUDY, runs), cells(results, runs)
    frames = []
    if len(losses):
        names, changes = {run: _LABELS[label] for run, (label, *_) in MODELS.items()}, effects_on_loss(losses)
        means = means_by_run(losses).assign(kind="loss", name=lambda rows: rows["run"].map(names))
        frames = [means, changes[changes["seed"].isna()] if "seed" in changes else changes]
    if len(pruned):
        rows = levels(pruned)
        rows["name"] += ", " + rows["policy"].map({"full": "full"} | PRUNED)
        frames += [rows, contrasts(pruned)]
    return pd.concat(frames, ignore_index=True) if frames else DataFrame()
