"""Retained keys and the scores that select them (Decay article, Fig 3 and 5)."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.panel import Panel, layout
from formerlab.report.studies.pruning import (
    PUBLISHED_ALPHA,
    budget_text,
    first_model_rows,
    label_and_sort,
    pruning_sample,
)
from formerlab.report.style import GREEN, GREY, PINK
from formerlab.results.read import Results

STUDY = "decay"
WANTED = ("Ideal", "Local", "H2O", "Decay, alpha 0.2", "Decay, alpha 0.8")


def _masks_note(rows: DataFrame) -> list[str]:
    layer, head, seed = rows[["layer", "head", "seed"]].iloc[0]
    return [f"First {rows['key'].max() + 1} tokens of the held-out text, layer {layer + 1}, head {head + 1}, seed "
            f"{seed}. Each query also sees its own key."]  # fmt: skip


def draw_masks(data: DataFrame) -> Figure:
    """Draw a row of panels per budget: the WANTED configurations, and all policies of other kinds."""
    kinds = data["policy"].str.split().str[0]
    rank = data["configuration"].map({name: place for place, name in enumerate(WANTED)})
    data = data.assign(
        _rank=rank.fillna(len(WANTED)), _style=kinds, key=data["kept"].map(lambda kept: range(len(kept)))
    )
    data = data[rank.notna() | ~kinds.isin(["ideal", "local", "h2o", "decay"])]
    caches = "cache of " + data["budget"].map(budget_text)
    cells = data.assign(_panel=data["configuration"] + caches, _cache=caches, _seen=data["kept"].map(list))
    cells = cells.explode(["key", "_seen"])
    panel = Panel("key", "query", by="_seen", kind="heat", facet="_panel", title="{configuration}",
                  xlabel="key (token)", ylabel="{_cache}:\nquery (token)",
                  share_y=True)  # fmt: skip
    return layout(panel, notes=_masks_note, columns=5, height=1.0, order="budget _rank configuration")(cells)


@plot(reads="prune_mask_dumps.csv", runs="decoder released-*", draw=draw_masks)
def decay_masks(results: Results, runs: list[str]) -> DataFrame:
    """Keys (across) that each query (down) sees in one head of one trained decoder, at equal budgets; after Fig. 3 of
    the Decay article. All policies select from the attention of the same unpruned pass. Ideal selects the best keys for
    each query separately, which no cache can do. To see: vertical lines are keys that a policy retains for long, the
    diagonal are recent keys. H2O retains early keys once it has them; a small alpha evicts them.
    """
    rows = first_model_rows(results.rows("prune_mask_dumps.csv", STUDY, runs))
    rows = rows[rows["seed"] == rows["seed"].min()]
    return label_and_sort(rows).sort_values(["budget", "query"], kind="stable").assign(source="ours")


LOWEST = 1e-5
"""Lower limit of plotted bands of scores, because the axis is logarithmic."""


_GROUPS = {"important": PINK, "unimportant": GREY}
SMOOTHED = 15
"""Number of queries over which missed tokens are averaged."""


def draw_scores(data: DataFrame) -> Figure:
    """Draw a panel of missed tokens with a line per alpha, and a panel of scores for Decay and for the plain sum."""
    important = data[data["group"] == "important"]
    smooth = important.groupby("alpha")["missed"].transform(lambda rows: rows.rolling(SMOOTHED, min_periods=1).mean())
    lines = important["alpha"].map({PUBLISHED_ALPHA: "-", 1: "--", 0: ":"}).fillna("-.")
    missed = important.assign(_of_alpha=important["_alpha"], _missed=100 * smooth, _color=GREEN, _linestyle=lines,
                              _marker="", alpha=-1)  # fmt: skip
    data = data.assign(_linestyle=data["group"].map({"unimportant": "--"}), _color=data["group"].map(_GROUPS))
    position = "query (token)"
    return layout(
        Panel("query", "_missed", by="_of_alpha", kind="band", title="Missed: important, but not in the best 40 %",
              xlabel=position, ylabel="missed (%)"),
        Panel("query", "_value", by="group", kind="band", where={"alpha": [PUBLISHED_ALPHA, 1]}, facet="_alpha",
              log="y", name="legend", title="Scores: {_alpha}", xlabel=position, ylabel="score (mean of attention)",
              finish=lambda axes, rows: axes.set(ylim=(LOWEST, 0.1), yticks=np.logspace(-5, -1, 5))),
        notes=lambda rows: [f"{pruning_sample(rows)}; left: means over {SMOOTHED} queries, without "
                            "intervals; middle and right: means, bands: middle 80 % of the tokens, cut at 1e-5."],
        columns=3, height=1.9,
    )(pd.concat([missed, data], ignore_index=True))  # fmt: skip


@plot(reads="prune_score_trajectories.csv", runs="decoder released-*", draw=draw_scores)
def decay_scores(results: Results, runs: list[str]) -> DataFrame:
    """Attention to important and unimportant tokens, query by query, after Fig. 5 of the Decay article (an image
    without values), from unpruned attention over layers and heads. Important tokens are the tenth of the tokens in the
    first half of the text that receive the most attention from the second half. Left: how often an important token is
    not among the best 40 % of all tokens so far, and would be evicted, as the mean over 15 queries. Middle and right:
    scores of both groups under Decay and under the plain sum, which are weighted means of the attention so far, as the
    mean and a band of the middle 80 % of tokens; the axis and the bands are cut at 0.00001. H2O has no line, because
    its protected recent tokens have no score. To see: the article expects small alphas to miss fewest important tokens.
    At the end of the text the plain sum misses fewest, but it adds up the very attention by which the important tokens
    are defined.
    """
    rows = first_model_rows(results.rows("prune_score_trajectories.csv", STUDY, runs))
    keys = ["run", "group", "alpha", "query"]
    means = rows.groupby(keys, as_index=False)[["mean", "low", "high", "missed"]].mean()
    names = {PUBLISHED_ALPHA: "\n(Decay)", 1: "\n(plain sum)"}
    return means.assign(
        seeds=rows["seed"].nunique(),
        source="ours",
        _alpha=means["alpha"].map("alpha {:g}".format) + means["alpha"].map(names).fillna(""),
        _value=means["mean"],
        _value_low=means["low"].clip(lower=LOWEST),
        _value_high=means["high"],
    )
