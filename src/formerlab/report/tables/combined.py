"""The study that combines the three methods: losses of its twelve cells, and their factorial contrasts. No paper has
such a study.

The factors are the projection (linear layers or parameter tokens), averages over depth (no or 1x1) and the cache (full,
H2O or Decay). y(p, d, c) is the held-out loss of a seed, where p and d are -1 or +1, and
cost(c) = y(.., c) - y(.., full) is the cost of pruning.

- A main effect of the projection or the averages is a difference of losses with the full cache, averaged over the other
  factor.
- The interaction of projection and averages is a difference of differences; it is zero if the two effects add up.
- An interaction with a cache policy is a difference of its costs.

Contrasts are computed by seed, so their intervals are Student's t over seeds. Seeds share data order and windows.
"""

from collections.abc import Sequence
from itertools import product

import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.columns import count
from formerlab.report.runs import by_seed, estimate, held_out_losses, means_by_run, subtract, validation_losses
from formerlab.report.studies.pruning import is_published_setting, nearest_budget_rows
from formerlab.report.tables.cells import first_row, in_words, ngram_levels, ngrams, side_by_side, with_prefix
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
"""Policies other than the full cache."""
BEYOND = "beyond the sum"
"""The last words of the label of an interaction."""


def cells(results: Results, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return the losses in nats per token, a row per seed with losses of all twelve cells and a column per run and
    policy.
    """
    rows = results.rows("prune.csv", STUDY, runs)
    rows = nearest_budget_rows(rows[is_published_setting(rows) | rows["policy"].eq("full")])
    columns = pd.MultiIndex.from_product([MODELS, ["full", *PRUNED]], names=["run", "policy"])
    losses = weighted_means(rows, ["seed", "run", "policy"]).unstack(["run", "policy"])
    return DataFrame(losses).reindex(columns=columns).sort_index().dropna()


def effects(cells: DataFrame) -> DataFrame:
    """Return the contrasts of the twelve losses, a row per seed and a column per contrast, main effects first."""
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
    """Return a row per cell over seeds: its loss, and the loss minus the loss with the full cache; cells of Decay also
    have the loss minus the loss with H2O.
    """
    return DataFrame(
        {"kind": "cell", "run": run, "name": MODELS[run][0], "policy": policy}
        | estimate("loss_nats", student(cells[run, policy]))
        | {"seeds": len(cells)}
        | estimate("cost_nats", student(cells[run, policy] - cells[run, "full"]))
        | (estimate("minus_h2o_nats", student(cells[run, policy] - cells[run, "h2o"])) if policy == "decay" else {})
        for run, policy in product(MODELS, ("full", *PRUNED))
    )


def contrasts(cells: DataFrame) -> DataFrame:
    """Return a row per effect: `kind` (main or interaction), `name`, `effect_nats` with its ends, and `seeds`."""
    return DataFrame(
        {"kind": "interaction" if str(name).endswith(BEYOND) else "main", "name": name}
        | estimate("effect_nats", student(values))
        | {"seeds": len(values)}
        for name, values in effects(cells).items()
    )


PAIRS = {
    "averages with linear layers": ("linear-plain", "linear-dwa"),
    "averages with parameter tokens": ("pattention-plain", "pattention-dwa"),
    "parameter tokens without averages": ("linear-plain", "pattention-plain"),
    "parameter tokens with averages": ("linear-dwa", "pattention-dwa"),
}
"""By label: the run without the change and the run with the change."""
INTERACTION = "interaction"


def effects_on_loss(losses: DataFrame) -> DataFrame:
    """Return the change of the held-out loss in each of PAIRS, and the interaction.

    The interaction is the second change minus the first, which equals the fourth minus the third.
    """
    changes = {name: subtract(by_seed(losses, new), by_seed(losses, old)) for name, (old, new) in PAIRS.items()}
    first, second, *_ = changes.values()
    changes[INTERACTION] = subtract(second, first)
    rows = []
    for name, values in changes.items():
        shared = {"kind": "effect", "name": name, "run": PAIRS[name][1] if name in PAIRS else "pattention-dwa"}
        if len(values):
            rows.append(shared | estimate("effect_nats", student(values)) | {"seeds": len(values)})
        rows += [shared | {"seed": seed, "effect_nats": value} for seed, value in values.items()]
    return DataFrame(rows, columns=["kind", "name", "run", *expand_columns("effect_nats[]"), "seeds", "seed"])


def effects_during_training(results: Results) -> DataFrame:
    """Return the means of `effects_on_loss` on validation text after each evaluated step of training."""
    curves = validation_losses(results, STUDY, [*MODELS])
    frames = [effects_on_loss(rows).assign(step=step) for step, rows in curves.groupby("step") if step]
    return pd.concat(frames).dropna(subset="seeds").assign(kind="validation") if frames else DataFrame()


_LABELS = {
    "linear layers": "Transformer",
    "linear layers, averages": "Transformer with averages (DenseFormer)",
    "parameter tokens": "Tokenformer",
    "parameter tokens, averages": "Tokenformer with averages",
}
_MARGINS = {
    "Transformer": ("Transformer", "Transformer with averages (DenseFormer)", "averages with linear layers"),
    "Tokenformer": ("Tokenformer", "Tokenformer with averages", "averages with parameter tokens"),
    "Tokenformer minus Transformer": (
        *("parameter tokens without averages", "parameter tokens with averages", "interaction"),
    ),
}
"""For each row of the 2 x 2 table: the names of the rows that fill its columns."""
_WITHOUT, _WITH, _MINUS = "without averages (nats) ↓", "with averages (nats) ↓", "with minus without (nats)"


def _with_margins(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the losses of the four models with their differences and the interaction, if all are known."""
    named = rows[rows["kind"].isin(("loss", "effect"))].set_index("name")
    if not {name for names in _MARGINS.values() for name in names} <= {*named.index}:
        return {}
    means = named["loss_nats"].fillna(named["effect_nats"])
    columns: dict[str, object] = {"model": [*_MARGINS]}
    for column, *names in zip((_WITHOUT, _WITH, _MINUS), *_MARGINS.values(), strict=True):
        columns |= {column: means[names].to_numpy()}
        columns |= {f"{column}_{end}": named.loc[names, f"effect_nats_{end}"].to_numpy() for end in ("low", "high")}
    first = rows[rows["kind"] == "loss"].iloc[0]
    level, ngram = named["perplexity"].dropna(), with_prefix("; ", ngram_levels(rows))
    heading = (
        f"loss on {first['regime'].partition(', ')[0]}\n{count(first['tokens'])} training tokens, "
        f"{first['seeds']:.0f} seeds; perplexity {level.min():.1f} to {level.max():.1f}{ngram}"
    )
    return {heading: DataFrame(columns)}


def _added_by_pruning(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the loss that each policy adds to each model, and Decay minus H2O."""
    pruned = rows[rows["kind"].eq("cell") & ~rows["name"].str.endswith(", full")]
    if pruned.empty:
        return {}
    parts = pruned["name"].str.rpartition(", ")
    pruned, policies = pruned.assign(model=parts[0].map(_LABELS)), parts[2]
    table = side_by_side(pruned, ["model"], policies.replace({"Decay": "Decay 0.2"}) + " (nats) ↓", "cost_nats")
    minus = pruned[policies.eq("Decay")].set_index("model")[expand_columns("minus_h2o_nats[]")]
    minus.columns = expand_columns("Decay~minus~H2O~(nats)~↓[]")
    return {"loss added by a cache of 40 % of the tokens": table.join(minus, on="model")}


def _answer(rows: DataFrame) -> str:
    interaction = first_row(rows, kind="effect", name=INTERACTION)
    if interaction is None:
        return ""
    low, high = interaction["effect_nats_low"], interaction["effect_nats_high"]
    words = "We cannot tell" if low < 0 < high else "They do not add up"
    return f"{words}: the interaction is {in_words(interaction, 'effect_nats')} nats (no claim is registered)."


@table(reads="eval.csv test.csv prune.csv", answer=_answer,
       readers=lambda rows: _with_margins(rows) | _added_by_pruning(rows),
       columns="source kind name run variant perplexity loss_nats[] effect_nats[] cost_nats[] minus_h2o_nats[] "
               "parameters_non_embedding "
               "regime blocks width tokens step seeds")  # fmt: skip
def combined_table(results: Results, runs: list[str]) -> DataFrame:
    """Are the effects of parameter tokens and averages over depth additive?

    - Test loss, without and with DenseFormer's averages (1x1). The last cell of the first block is the interaction; if
    it is zero, parameter tokens and averages add up.
    - Brackets: 95 % Student t interval over seeds, paired.
    - Doubt: caches have 256 windows. All four models share one learning rate, which may cause
    an interaction. The CSV has more contrasts.
    """
    losses, pruned = held_out_losses(results, STUDY, runs), cells(results, runs)
    if losses.empty and pruned.empty:
        return DataFrame()
    frames = [effects_during_training(results)]
    if len(pruned):
        rows = levels(pruned)
        rows["name"] += ", " + rows["policy"].map({"full": "full"} | PRUNED)
        frames = [rows, contrasts(pruned), *frames]
    if len(losses):
        sizes = {"spec.model.layers": "blocks", "spec.model.width": "width"}
        means = means_by_run(losses, first=["regime", *sizes]).rename(columns=sizes)
        names = means["run"].map({run: _LABELS[label] for run, (label, *_) in MODELS.items()})
        changes = effects_on_loss(losses).dropna(subset="seeds")
        frames = [ngrams(results, STUDY, runs), means.assign(kind="loss", name=names), changes, *frames]
    return pd.concat(frames, ignore_index=True)
