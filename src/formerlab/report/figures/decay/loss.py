"""Loss by cache budget, policy and alpha of Decay (Decay article, Fig 4b, 4c; A2SF, arXiv:2407.20485, Fig 5)."""

from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.marks import embolden_claims
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import seed_count
from formerlab.report.studies import policy_comparison, pruning
from formerlab.report.studies.pruning import MINUS_H2O
from formerlab.report.style import GREEN, GREY, LIGHT_GREEN, VERMILION, ink, plot_style
from formerlab.report.tables.cells import claim_verdicts, claim_words
from formerlab.results.read import Results

STUDY = "decay"


def minus_h2o_notes(rows: DataFrame) -> list[str]:
    """Return a note on the models, the windows of each text, and the bars of differences to H2O."""
    models = ", ".join(filter(None, rows["run"].map(pruning.model_label).unique())) or seed_count(rows["seeds"])
    windows = rows.groupby("text", sort=False)["windows"].max()
    texts = ", ".join(f"{count:.0f} windows of {text}" for text, count in windows.items())
    return [f"{models}; bars: 95 % interval of the paired difference, over {texts}."]


def with_text_and_model(table: DataFrame) -> "pd.Series[str]":
    """Return the text of each row, followed by its run if a text has several runs."""
    several = table.groupby("text")["run"].transform("nunique") > 1
    return table["text"] + (", " + table["run"]).where(several & table["run"].ne(""), "")


KINDS = {"Full": "full", "Decay 0.95, half recent": "decay", "Decay 0.2, half recent": "decay", "Decay 0.2": "decay",
         "TOVA": "tova", "StreamingLLM": "streaming_llm", "Random, protected": "random"}  # fmt: skip
"""The kind of each policy of `decay_league`, from top to bottom."""
_TEXT_MARKERS = "Dso"
"""Marker of each text, the text with the most budgets first."""


def _mark_policies(axes: Axes, rows: DataFrame) -> None:
    """Name the line at zero, shade the better side, and colour names and marks by policy."""
    axes.annotate("H2O", (0, 0), (2, 2), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
                  color=ink(VERMILION), fontsize=7)  # fmt: skip
    names = [label.get_text() for label in axes.get_yticklabels()]
    kinds = [KINDS[name.rpartition(": ")[2].strip().removesuffix(" cache")] for name in names]
    colours = [
        LIGHT_GREEN if "half" in name else plot_style(kind)["color"] for name, kind in zip(names, kinds, strict=True)
    ]
    for bars in axes.collections:  # the series are the texts, so each series has the marks of all policies
        bars.set_color([colours[round(bar[0][1])] for bar in cast("LineCollection", bars).get_segments()])
    for point in (line for line in axes.get_lines() if np.size(line.get_ydata()) == 1):
        colour = colours[round(float(np.ravel(point.get_ydata())[0]))]
        point.set(markerfacecolor=colour, markeredgewidth=0, markersize=2.8)
    for colour, label in zip(colours, axes.get_yticklabels(), strict=True):
        label.set_color(ink(colour))
    left, right = axes.get_xlim()
    axes.axvspan(-9, 0, color="#f0f0f0", linewidth=0, zorder=0)
    axes.set_xlim(left, right)
    for at in (at for at, kind in enumerate(kinds) if kind == "full" and at < len(names) - 1):
        axes.axhline(at + 0.5, color=GREY, linewidth=0.6)  # between the texts, whose first row is the full cache


@plot(reads="prune.csv", runs="decoder* released-* random-* novels-* tight-* wikitext-*", draw=layout(
    Panel(MINUS_H2O, "_policy", by="text", kind="forest", facet="_panel", zero=0.0, name="legend", share_y=True,
          where={"configuration": [*KINDS]}, xlabel="loss minus H2O (nats)",
          finish=_mark_policies),
    notes=minus_h2o_notes, columns=4, order="_row text _rank budget"
))  # fmt: skip
def decay_league(results: Results, runs: list[str]) -> DataFrame:
    """Which policy at which budget: loss minus the loss with H2O (zero) at the same budget, with step-by-step eviction.
    At each budget, the caches of all policies that evict have the same size in bytes. The number after Decay is its
    alpha; half recent means that half of the budget is for recent keys, as in H2O. Random, protected keeps the first 4
    keys and gives a quarter of the budget to recent keys. The full cache, without eviction, is the first row of each
    text. Shaded: better than H2O. A row has all windows of its text. Two policies are paired on the windows on which
    both were evaluated. The claim on protected random eviction has no verdict: its threshold exceeds even the advantage
    of the full cache. Each panel has its own scale. The CSV also has random eviction without protection, and
    decay_table has further policies. To see: below which budget a policy beats H2O (left of zero), and how far
    protection alone goes.
    """
    table = policy_comparison.losses(results, STUDY, runs)
    table = table[table["configuration"].isin([*KINDS, "H2O", "Random", "Local"]) & table[MINUS_H2O].notna()]
    if table.empty:
        return table
    table["text"] = with_text_and_model(table)
    table["_row"] = -table.groupby("text")["budget"].transform("nunique")  # the text with the most budgets is first
    texts = table.sort_values("_row", kind="stable")["text"].unique()
    names, several = table["configuration"].replace("Full", "Full cache"), len(texts) > 1
    number = table["text"].map(list(texts).index)
    heading = (table["text"] + ": ").where(table["configuration"].eq("Full") & several, "")
    of_panel = table.groupby("budget")["text"].agg(
        lambda of_panel: f", {of_panel.iloc[0]}" * (of_panel.nunique() == 1 < len(texts))
    )
    return table.assign(
        source="ours",
        _marker=table["text"].map(dict(zip(texts, _TEXT_MARKERS, strict=False))),
        _color=GREY,
        _panel="Cache of " + table["budget"].map(pruning.budget_text) + table["budget"].map(of_panel),
        _rank=table["configuration"].map({name: rank for rank, name in enumerate(KINDS)}),
        _policy=number.map(" ".__mul__) + heading + names,  # spaces, since a label names one row
    )


def mark_alpha(axes: Axes, rows: DataFrame) -> None:
    """Mark the published alpha on the axis."""
    axes.axvline(pruning.PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    axes.set(xlim=(-0.06, 1.06), xticks=np.linspace(0, 1, 6))


ALPHA_LABEL = "alpha (dotted: published)"
_CLAIM = "decay-half-recent-beats-h2o"
_HIGHEST = 0.16
"""Upper end of the y axis of `decay_alpha`; the plain sum (alpha 1) is far above."""


def _finish_alpha(axes: Axes, rows: DataFrame) -> None:
    """Mark the published alpha, name the line at zero, and cut the values far above."""
    mark_alpha(axes, rows)
    axes.set_xlim(right=1.25)
    axes.set_ylim(rows[f"{MINUS_H2O}_low"].min() - 0.015, _HIGHEST)
    axes.text(1.24, 0, "H2O", ha="right", va="bottom", color=ink(VERMILION), fontsize=7)


@plot(reads="prune.csv", runs="decoder* released-* random-* novels-*", draw=layout(
    Panel("alpha", MINUS_H2O, by="_series", facet="_cell", zero=0.0, name="none", same_limits="y", share_y=True,
          style="policy", xlabel=ALPHA_LABEL, where={"_curve": True},
          ylabel="loss, Decay minus H2O\n(nats per token;\nbelow 0: Decay is better)", finish=_finish_alpha),
    Panel(MINUS_H2O, "_label", by="_series", kind="forest", facet="_cell", zero=0.0, name="legend", same_limits="x",
          share_y=True, style="policy", where={"_listed": True}, xlabel="loss, Decay minus H2O\n(nats; left: better)",
          finish=embolden_claims),
    notes=minus_h2o_notes, columns=3, height=2.0, order="budget _half _few alpha"
))  # fmt: skip
def decay_alpha(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss with Decay minus the loss with H2O (half recent), against the decay factor alpha, with a panel for
    each budget. Both policies have the same budget and windows. After Fig. 4b and 4c of the Decay article, which show
    accuracies. Above: the text on which all values of alpha were run, with the whole budget selected by score. alpha 0
    retains the keys that the last query attended to, alpha 1 is the plain sum; an arrow gives a difference beyond the
    axis. Below: the alphas that were run on several texts, and (light) with half of the budget for recent keys, as in
    H2O. Bold: the row of the claim, at 10 and 20 %. To see: where the curve is lowest, and which bars exclude zero.
    """
    table = policy_comparison.losses(results, STUDY, runs, policies=None)
    table = table[table["policy"].eq("decay") & table[MINUS_H2O].notna()]
    alphas = table.groupby(["text", "run", "budget"])["alpha"].transform("nunique")
    table = table[table["budget"].isin(table.loc[alphas > 2, "budget"])]
    if table.empty:
        return table
    names, half = with_text_and_model(table), table["recent"].eq(0.5)
    claimed = half & table["alpha"].eq(pruning.PUBLISHED_ALPHA) & table["budget"].le(0.2)
    curve, listed = ~half & alphas.gt(2), half | alphas.le(2)
    listed |= curve & table["alpha"].eq(pruning.PUBLISHED_ALPHA) & bool(listed.any())
    series = names[alphas[table.index].sort_values(ascending=False).index].unique()
    verdicts = claim_verdicts(results, STUDY, _CLAIM)
    return table.assign(
        source="ours",
        _cell="Cache of " + table["budget"].map(pruning.budget_text),
        _series=names + half.map({True: ", half recent", False: ""}),
        _color=half.map({True: LIGHT_GREEN, False: GREEN}),
        _marker=names.map(dict(zip(series, "sD^v", strict=False))),
        _linestyle=half.map({True: "", False: "-"}),
        _half=half,
        _few=-alphas,
        _curve=curve,
        _listed=listed,
        _label=half.map({True: "half recent", False: "none recent"}) + table["alpha"].map(", alpha {:g}".format),
        _claims=claim_words(verdicts, {_CLAIM: "half recent at alpha 0.2 beats H2O"}),
        verdict=claimed.map({True: verdicts[_CLAIM].word, False: None}),
    )
