"""Loss by cache budget, policy and alpha of Decay (Decay article, Fig 4b, 4c; A2SF, arXiv:2407.20485, Fig 5)."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.marks import embolden_claims
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import seed_count
from formerlab.report.studies import policy_comparison, pruning
from formerlab.report.studies.pruning import MINUS_H2O
from formerlab.report.style import GREY, VERMILION, ink
from formerlab.report.tables.cells import claim_verdicts, claim_words
from formerlab.results.read import Results

STUDY = "decay"


def _notes(rows: DataFrame, base: str = "H2O", more: str = "") -> list[str]:
    """Return a note on the models, the windows of each text, and the bars of paired differences to `base`."""
    models = ", ".join(filter(None, rows["run"].map(pruning.model_label).unique())) or seed_count(rows["seeds"])
    windows = rows.groupby("text", sort=False)["windows"].max()
    texts = ", ".join(f"{count:.0f} windows of {text}" for text, count in windows.items())
    return [f"{models}; bars: 95 % interval of the paired difference to {base}, over {texts}{more}."]


def with_text_and_model(table: DataFrame) -> "pd.Series[str]":
    """Return the text of each row, followed by its run if a text has several runs."""
    several = table.groupby("text")["run"].transform("nunique") > 1
    return table["text"] + (", " + table["run"]).where(several & table["run"].ne(""), "")


LEAGUE = ("H2O", "Decay 0.95, half recent", "Decay 0.2, half recent", "Decay 0.2", "TOVA", "StreamingLLM",
          "Random, protected")  # fmt: skip
"""Policies that `decay_league` draws."""
_LEAGUE_CLAIM = "decay-score-beats-protected-random"


def _mark_budgets(axes: Axes, rows: DataFrame) -> None:
    """Label the measured budgets in percent, and name the policies that the first panel, whose curves have names, does
    not have.
    """
    budgets = sorted(rows["budget"].unique())
    axes.set_xticks(budgets, list(map(pruning.budget_text, budgets)))
    axes.set_xticks([], minor=True)
    for name, points in rows[rows["_unnamed"]].groupby("configuration"):
        at = points.sort_values("budget")[["_at", "increase_nats"]].to_numpy()[0]
        axes.annotate(str(name), at, (6, 0), textcoords="offset points", fontsize=7, color=GREY)


_league = partial(
    Panel, "budget", "increase_nats", by="configuration", facet="_title", log="xy", share_y=True, same_limits="y",
    apart=0.035, xlabel="cache budget (log)", finish=_mark_budgets,
    ylabel="loss added by pruning\n(nats per token, log;\nlower: better)",
)  # fmt: skip


@plot(reads="prune.csv", runs="decoder* released-* random-* novels-* tight-* wikitext-*", draw=layout(
    _league(where={"configuration": [*LEAGUE], "_first": True}),
    _league(where={"configuration": [*LEAGUE], "_first": False}, name="none"),
    notes=partial(_notes, base="the full cache",
                  more="; marks of one budget are drawn apart; titles: loss of the full cache"),
    columns=3, height=2.6, order="_row text _rank budget"
))  # fmt: skip
def decay_league(results: Results, runs: list[str]) -> DataFrame:
    """Which policy at which budget: the loss that each cache policy adds to the loss of the full cache, with
    step-by-step eviction. At each budget, the caches of all policies have the same size in bytes. The number after
    Decay is its alpha; half recent means that half of the budget is for recent keys, as in H2O. Random, protected
    keeps the first 4 keys and gives a quarter of the budget to recent keys. A row has all windows of its text. A
    text has no line for a policy that was not run on it; colours and marks are the same in all panels. The claim on
    protected random eviction has no verdict: its threshold exceeds even the advantage of the full cache. The CSV
    also has the paired differences to H2O, whose intervals are shorter than the bars suggest, and random eviction
    without protection; decay_table has further policies. To see: which line is lowest at which budget.
    """
    table = policy_comparison.losses(results, STUDY, runs)
    table = table[table["configuration"].isin([*LEAGUE, "Full", "Random", "Local"]) & table[MINUS_H2O].notna()]
    if table.empty:
        return table
    table["text"] = with_text_and_model(table)
    full = table[table["configuration"].eq("Full")].groupby("text")["loss_nats"].max()
    names, windows = table["configuration"], table.groupby("text")["windows"].transform("max")
    first = table["text"].eq(table["text"][windows.eq(windows.max())].min())
    verdicts = claim_verdicts(results, STUDY, _LEAGUE_CLAIM)
    return table.assign(
        source="ours",
        _row=-windows,
        _first=first,
        _unnamed=~first & ~names.isin(names[first]),
        _rank=names.map({name: rank for rank, name in enumerate(LEAGUE)}),
        _title=table["text"] + table["text"].map(full).map(", full cache {:.2f}".format),
        _style=table["policy"].map(pruning.scorer).mask(names.str.contains("half"), names),
        _linestyle=names.map({"Decay 0.2, half recent": "--"}),
        _claims=claim_words(verdicts, {_LEAGUE_CLAIM: "Decay 0.2 beats protected random eviction"}),
        verdict=names.map({"Random, protected": verdicts[_LEAGUE_CLAIM].word}),
    )


ALPHA_LABEL = "alpha (dotted: published)"
_CLAIM = "decay-half-recent-beats-h2o"
_HIGHEST = 0.16
"""Upper end of the y axis of `decay_alpha`; the plain sum (alpha 1) is far above."""


def mark_alpha(axes: Axes, rows: DataFrame) -> None:
    """Mark the published alpha on the axis, and name the line at zero."""
    axes.axvline(pruning.PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    axes.set(xlim=(-0.06, 1.25), xticks=np.linspace(0, 1, 6))
    axes.annotate("H2O", (1.24, 0), (0, -2), textcoords="offset points", ha="right", va="top", color=ink(VERMILION),
                  fontsize=7)  # fmt: skip


def _finish_alpha(axes: Axes, rows: DataFrame) -> None:
    """Mark the published alpha, and cut the values far above."""
    mark_alpha(axes, rows)
    axes.set_ylim(rows["_minus_h2o_low"].min() - 0.015, _HIGHEST)


@plot(reads="prune.csv", runs="decoder* released-* random-* novels-*", draw=layout(
    Panel("alpha", "_minus_h2o", by="policy", facet="_title", zero=0.0, name="none", same_limits="y", share_y=True,
          xlabel=ALPHA_LABEL, where={"_curve": True}, style="policy",
          ylabel="loss, Decay minus H2O\n(nats per token;\nbelow 0: Decay is better)", finish=_finish_alpha),
    Panel("_minus_h2o", "_label", by="_label", kind="forest", facet="_cell", zero=0.0, same_limits="x", share_y=True,
          where={"_listed": True}, xlabel="loss, Decay minus H2O\n(nats; left: better)", finish=embolden_claims),
    notes=lambda rows: [_notes(rows)[0].replace(".", "; green: meets the claim.")],
    columns=3, height=2.0, order="budget _few text _half alpha"
))  # fmt: skip
def decay_alpha(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss with Decay minus the loss with H2O (half recent), against the decay factor alpha, with a panel for
    each budget. Both policies have the same budget and windows. After Fig. 4b and 4c of the Decay article, which show
    accuracies. Above: the text on which all values of alpha were run, with the whole budget selected by score. alpha
    0 retains the keys that the last query attended to, alpha 1 is the plain sum; an arrow gives a difference beyond
    the axis. Below: the alphas that were run on several texts, and (light) with half of the budget for recent keys,
    as in H2O. Bold: the row of the claim, at 10 and 20 %; docs/verdicts.md has these two differences with the
    opposite sign, as H2O minus Decay. To see: where the curve is lowest, and which bars exclude zero.
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
    cache, verdicts = "ache of " + table["budget"].map(pruning.budget_text), claim_verdicts(results, STUDY, _CLAIM)
    items, word = verdicts[_CLAIM].items, verdicts[_CLAIM].word
    deciding = [item.removeprefix("budget_").removesuffix("_percent") for item in items if items[item] == word]
    name = "half recent at alpha 0.2 beats H2O" + f" (at {' and '.join(deciding)} %)" * bool(deciding)
    return table.assign(
        source="ours",
        **table[expand_columns(f"{MINUS_H2O}[]")].rename(columns=lambda name: f"_{name.replace('_nats', '')}"),
        _minus_h2o_limit=claimed.map({True: 0.0}),
        _minus_h2o_met=-np.inf,
        _cell="C" + cache,
        _title=names + ", c" + cache,
        _style=table["policy"].mask(half, table["configuration"]),
        _half=half,
        _few=-alphas,
        _curve=curve,
        _listed=listed,
        _label=names + ": " + table["configuration"],
        _claims=claim_words(verdicts, {_CLAIM: name}),
        verdict=claimed.map({True: verdicts[_CLAIM].word, False: None}),
    )
