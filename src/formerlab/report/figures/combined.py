"""Figure of the combined study of arXiv:2410.23168, arXiv:2402.02622 and arXiv:2407.20485."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.columns import with_interval
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import estimate, held_out_losses, seed_notes
from formerlab.report.style import BETTER, BLACK, GREY, NARROW
from formerlab.report.tables.combined import (
    BEYOND,
    INTERACTION,
    PAIRS,
    PRUNED,
    STUDY,
    cells,
    contrasts,
    effects_on_loss,
    levels,
)
from formerlab.results.read import Results
from formerlab.statistics import student


def _main_effects(effects: DataFrame) -> DataFrame:
    """Return the effects of averages and of parameter tokens, each averaged over the other, as rows like `effects`."""
    seeds, rows = effects.dropna(subset="seed"), []
    for name in ("averages", "parameter tokens"):
        values = seeds[seeds["name"].isin(PAIRS) & seeds["name"].str.startswith(name)].groupby("seed")["effect_nats"]
        mean = values.mean()
        rows.append(DataFrame([estimate("effect_nats", student(mean)) | {"seeds": len(mean)}]).assign(name=name))
        rows.append(mean.reset_index().assign(name=name))
    return pd.concat(rows).assign(kind="main", run="pattention-dwa", _panel="main")


def _finish(axes: Axes, rows: DataFrame) -> None:
    """Draw a line between the interactions and the effects, and make the labels of the interactions bold."""
    interactions = {*rows.loc[rows["_interaction"], "_label"]}
    axes.axhline(rows["_label"].nunique() - len(interactions) - 0.5, color=GREY, linewidth=0.6)
    for text in axes.get_yticklabels():
        text.set_fontweight("bold" if text.get_text() in interactions else "normal")


_effects = partial(Panel, "effect_nats", "_label", by="_label", kind="forest", zero=0.0, finish=_finish,
                   xlabel=f"change of held-out loss\n(nats; {BETTER})")  # fmt: skip


def _notes(rows: DataFrame) -> list[str]:
    return [f"{note[:-1]}; not corrected for several rows; bold: interactions." for note in seed_notes(rows)[:1]]


@plot(reads="test.csv prune.csv", draw=layout(
    _effects(where={"_panel": "models"}), notes=_notes, columns=1, order="_order", width=NARROW
))  # fmt: skip
def combined_effects(results: Results, runs: list[str]) -> DataFrame:
    """Parameter tokens and averages over depth together, at equal training tokens and about equal parameters: the
    change of the held-out loss by each of them. The first row is the interaction: the effect of averages with parameter
    tokens minus their effect with linear layers. The last two rows are averaged over the models with and without the
    other change. Differences are paired by seed. To see: if the interval of the interaction includes zero, these seeds
    do not show that one change alters the effect of the other. The intervals are not corrected for multiple
    comparisons. The CSV also has all contrasts with a pruned cache, which combined_caches draws. No paper combines the
    methods.
    """
    return _rows(results, runs)


@plot(reads="prune.csv", draw=layout(
    _effects(where={"_panel": "caches"}, title="Cache of 40 %, {_windows} windows"), notes=_notes, columns=1,
    order="_order", width=NARROW
))  # fmt: skip
def combined_caches(results: Results, runs: list[str]) -> DataFrame:
    """Loss that a pruned cache adds, averaged over the models of combined_effects, and how parameter tokens and
    averages over depth change it (interactions). H2O and Decay (alpha 0.2, no recent tokens) keep 40 % of the tokens.
    Differences are paired by seed. To see: if the interval of an interaction includes zero, these seeds do not show
    that the model changes the cost of the cache. The intervals are not corrected for multiple comparisons. The CSV also
    has the interactions of parameter tokens, averages and a cache: below 0.001 nats for H2O; for Decay the interval is
    wider than this panel.
    """
    rows = _rows(results, runs)
    if rows.empty:
        return rows
    columns = ["source", "kind", "name", "run", *expand_columns("effect_nats[]"), "seeds", "seed", "text"]
    of_cache = rows["kind"].isin(("main", "interaction")) & rows["name"].str.contains("|".join(PRUNED.values()))
    hidden = [name for name in rows if str(name).startswith("_")]
    return rows.loc[of_cache, [*columns, *hidden]].assign(run="pattention-dwa")


def _rows(results: Results, runs: list[str]) -> DataFrame:
    """Return the losses of the twelve cells and all contrasts, over seeds and by seed."""
    effects, pruned = effects_on_loss(held_out_losses(results, STUDY, runs)), cells(results, runs)
    selections = (
        [(pruned, np.nan), *((pruned.loc[[seed]], float(seed)) for seed in pruned.index)] if len(pruned) else []
    )
    frames = [frame.assign(seed=seed) for losses, seed in selections for frame in (levels(losses), contrasts(losses))]
    if not (frames := [*frames, *([effects, _main_effects(effects)] if len(effects) else [])]):
        return DataFrame()
    rows = pd.concat(frames, ignore_index=True).assign(source="ours")
    whole = rows["kind"].eq("effect") | rows.get("_panel", rows["name"]).eq("main")
    rows["text"] = whole.map({True: "whole test text", False: "windows of the pruning test"})
    of_cache = rows["name"].str.contains("|".join(PRUNED.values()))
    ends = (rows[name].astype(float) for name in expand_columns("effect_nats[]"))
    words = [with_interval(mean, low, high, "z.4f" if fine else "z.3f")
             for mean, low, high, fine in zip(*ends, of_cache, strict=True)]  # fmt: skip
    values = Series(words, rows.index).where(rows["effect_nats"].notna() & rows["seed"].isna())
    all_three = rows["name"].str.contains(" and .* with ")
    label = rows["name"].str.removesuffix(f", {BEYOND}").replace(INTERACTION, "parameter tokens with averages")
    interaction = rows["name"].eq(INTERACTION) | rows["kind"].eq("interaction")
    swapped = label.str.replace("^(.*) with (.*)$", r"\2: with \1 minus without", regex=True)
    swapped = swapped.str.replace(": ", ":\n").str.replace(" minus without", "\nminus without")
    swapped = swapped.str.replace("tokens\nminus without", "tokens\nminus with linear layers")
    label = label.mask(interaction, swapped).str.replace("averages with ", "averages with\n")
    label = label.mask(rows.get("_panel", rows["name"]).eq("main"), label + ",\nmean of both")
    styles = {name: "DenseFormer 1x1" for name in (*PAIRS, "averages") if name.startswith("averages")}
    styles |= {"parameter tokens": "Tokenformer"} | {v: k for k, v in PRUNED.items()}
    names = [INTERACTION, *styles]
    return rows.assign(
        _panel=np.select([of_cache & ~all_three, whole & rows["name"].isin(names)], ["caches", "models"], "none"),
        _label=label + "\n" + values.groupby([label, rows["text"]]).transform("first"),
        _interaction=interaction,
        _windows=results.rows("prune.csv", STUDY, runs)["window"].nunique(),
        _order=rows["name"].map({name: at for at, name in enumerate(names)}).fillna(-1) - interaction * len(names),
        _color=rows["name"].map(dict.fromkeys(rows.loc[interaction, "name"], BLACK)),
        _marker=rows["name"].map(dict.fromkeys(rows.loc[interaction, "name"], "D")),
        _style=rows["name"].map(styles),
    )
