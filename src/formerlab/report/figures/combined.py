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
from formerlab.report.style import BETTER, GREY
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


def _separate(axes: Axes, rows: DataFrame) -> None:
    """Draw a line between the effects and the interactions."""
    axes.axhline(rows.loc[rows["_interaction"], "_label"].nunique() - 0.5, color=GREY, linewidth=0.6)


_effects = partial(Panel, "_thousandths", "_label", by="_label", kind="forest", zero=0.0, finish=_separate,
                   xlabel=f"change of held-out loss\n(0.001 nats; {BETTER})")  # fmt: skip


@plot(reads="test.csv prune.csv", draw=layout(
    _effects(where={"_panel": "models"}, title="Full cache, whole test text"),
    _effects(where={"_panel": "caches"}, title="Cache of 40 %, {_windows} windows (finer scale)"),
    notes=lambda rows: [f"{note[:-1]}; grey: interactions." for note in seed_notes(rows)[:1]], order="_order"
))  # fmt: skip
def combined_effects(results: Results, runs: list[str]) -> DataFrame:
    """Parameter tokens, averages over depth and a pruned cache together, at equal training tokens and about equal
    parameters: the change of the held-out loss by each of them, averaged over the models with and without the others.
    H2O and Decay (alpha 0.2, no recent tokens) keep 40 % of the tokens. Grey: the interactions, the part of the joint
    effect that is not the sum of the single effects, such as the effect of averages with parameter tokens minus the
    effect of averages with linear layers. The right scale is finer. Differences are paired by seed. To see: if
    the interval of an interaction includes zero, these seeds do not show that one change alters the effect of the
    other. The intervals are not corrected for multiple comparisons: with so many intervals, one may exclude zero by
    chance. The CSV also has the interaction of parameter tokens, averages and a cache: below 0.001 nats for H2O; for
    Decay its interval is wider than this panel. No paper combines the three.
    """
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
    thousandths = {name.replace("effect_nats", "_thousandths"): 1000 * rows[name].astype(float)
                   for name in expand_columns("effect_nats[]")}  # fmt: skip
    of_cache = rows["name"].str.contains("|".join(PRUNED.values()))
    words = [with_interval(mean, low, high, "z.1f" if fine else "z.0f")
             for mean, low, high, fine in zip(*thousandths.values(), of_cache, strict=True)]  # fmt: skip
    values = Series(words, rows.index).where(rows["effect_nats"].notna() & rows["seed"].isna())
    all_three = rows["name"].str.contains(" and .* with ")
    label = rows["name"].str.removesuffix(f", {BEYOND}").replace(INTERACTION, "parameter tokens with averages")
    interaction = rows["name"].eq(INTERACTION) | rows["kind"].eq("interaction")
    swapped = label.str.replace("^(?:parameter )?(.*) with (.*)$", r"\2: with \1 minus without", regex=True)
    label = label.mask(interaction, swapped.str.replace(": ", ":\n").str.replace(" minus", "\nminus"))
    label = label.str.replace("averages with ", "averages with\n")
    styles = {name: "DenseFormer 1x1" for name in ("averages", *PAIRS) if name.startswith("averages")}
    styles |= {"parameter tokens": "Tokenformer"} | {v: k for k, v in PRUNED.items()}
    names = [*dict.fromkeys(["averages", "parameter tokens", *styles, INTERACTION])]
    return rows.assign(
        **thousandths,
        _panel=np.select([of_cache & ~all_three, whole & rows["name"].isin(names)], ["caches", "models"], "none"),
        _label=label + "\n" + values.groupby([label, rows["text"]]).transform("first"),
        _interaction=interaction,
        _windows=results.rows("prune.csv", STUDY, runs)["window"].nunique(),
        _order=rows["name"].map({name: at for at, name in enumerate(names)}).fillna(-1) + interaction * len(names),
        _color=rows["name"].map(dict.fromkeys(rows.loc[interaction, "name"], GREY)),
        _marker=rows["name"].map(dict.fromkeys(rows.loc[interaction, "name"], "D")),
        _style=rows["name"].map(styles),
    )
