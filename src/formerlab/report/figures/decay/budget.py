"""Loss against cache budget for each eviction policy (Decay article; A2SF, arXiv:2407.20485, Fig 5)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import points_with_bars
from formerlab.report.pruning import (
    CONFIGURATION,
    NAMES,
    RELEASED_RUNS,
    configurations,
    interval_notes,
    main_configurations,
    with_seeds,
)
from formerlab.report.runs import missing_note
from formerlab.report.style import Look, aside, canvas, look
from formerlab.results.read import Results

STUDY = "decay"
POLICIES_BUDGET = ("local", "streaming_llm", "h2o", "spatten", "decay")
"""Those of the article, and StreamingLLM; decay_baselines draws the others."""
HALF_RECENT = "Decay, half recent"


def budget_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return one configuration per policy of the article at every budget, and Decay with half of it recent.

    `part` is mean, or seed.
    """
    table = configurations(results, STUDY, runs)
    table = with_seeds(results, STUDY, with_half_recent(table[table["policy"].isin(["full", *POLICIES_BUDGET])]))
    if table.empty:
        return table
    records = results.runs(STUDY, runs).to_dict("records")
    texts = {record["run"]: _text(record["data.name"], record.get("spec.released")) for record in records}
    sizes = results.rows("prune.csv", STUDY, runs).groupby("run")["tokens"].max()
    return table.assign(text=table["run"].map(texts), window_tokens=table["run"].map(sizes))


def _text(data: str, released: object) -> str:
    """Return what a reader calls a data set; the name of one for a released model ends in that of the model."""
    own = data.removesuffix(released).strip("-") if isinstance(released, str) else data
    return own if own not in ("", "text") else "the text of the scale"


def with_half_recent(table: DataFrame) -> DataFrame:
    """Return one configuration per policy, and Decay with half of the budget for recent tokens, as H2O divides it."""
    if table.empty:
        return table
    main = main_configurations(table)
    alphas = main.loc[main["policy"] == "decay", "alpha"].unique()
    split = table[(table["policy"] == "decay") & (table["recent"] == 0.5) & table["alpha"].isin(alphas)]
    return pd.concat([main, split]).drop_duplicates(CONFIGURATION, ignore_index=True)


def draw_budget(data: DataFrame) -> Figure:
    """Draw one panel per run, a line per policy, on one linear axis."""
    pruned = data[data["policy"] != "full"]
    seeds = pruned[pruned["part"] == "seed"]
    pruned = pruned[pruned["part"] == "mean"]
    runs = sorted(data["run"].unique(), key=lambda run: not run.startswith(RELEASED_RUNS))
    names = list(pruned["configuration"].unique())
    ends = {run: limits(pruned[pruned["run"] == run]) for run in runs}
    lowest, highest, least = (
        min(low for low, _ in ends.values()),
        *(f(high for _, high in ends.values()) for f in (max, min)),
    )
    shared = highest <= SHARED * least
    notes = [
        *interval_notes(data),
        "Budgets are those realised, but points of different policies are moved sideways so that no bar hides another, "
        f"by {_STEP * (len(names) - 1) / 2:g} % of all tokens at most. "
        + ("" if len(runs) == 1 else "All panels have the same axis." if shared else "Every panel has its own axis."),
        *missing_note([NAMES.get(name, name) for name in data["policy"]], _WANTED),
    ]
    columns = min(len(runs), 3)
    rights = [2.4 if place % columns == columns - 1 else 0.55 for place in range(len(runs))]
    figure, axes = canvas([3.3] * len(runs), notes, height=3.4, right=rights, columns=columns)
    drawn: set[str] = set()
    for panel, run in zip(axes, runs, strict=True):
        rows = pruned[pruned["run"] == run]
        drawn |= _draw_run(panel, rows, seeds[seeds["run"] == run], names, ends[run][1])
        panel.set_ylim((lowest, highest) if shared else ends[run])
        panel.set_title(f"Run {run}\n{_windows(data[data['run'] == run])}")
    for panel in axes[::columns]:
        panel.set_ylabel("loss above that of the whole cache\n(nats per token)")
    handles, words = _keys(pruned[pruned["configuration"].isin(drawn)])
    axes[columns - 1].legend(handles, words, loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8)
    return figure


def _windows(rows: DataFrame) -> str:
    """Return what was read: the text, and its windows."""
    text, windows, tokens = rows.loc[rows["part"] == "mean", ["text", "windows", "window_tokens"]].iloc[0]
    return f"{text}, {windows:.0f} windows of {tokens:.0f} tokens"


_WANTED = [NAMES[name] for name in ("full", "local", "h2o", "spatten", "decay")]
SHARED = 3
"""Panels have one axis where the largest loss of one is at most this times that of another: else some are flat."""
_STEP = 0.5
"""How far the policies of one budget stand beside each other, in points of the budget."""
FAR = 3
"""A policy is far off where its largest loss is more than this times that of all the policies below it."""


def limits(pruned: DataFrame) -> tuple[float, float]:
    """Return the ends of a linear axis for `increase_nats` of a run, for the policies that are not far above most."""
    pruned = pruned.dropna(subset="increase_nats")
    if pruned.empty:
        return 0.0, 1.0
    largest = np.sort(pruned.groupby("configuration")["increase_nats"].max())
    ratios = largest[1:] / np.maximum(largest[:-1], 1e-9)
    gaps = [place for place in range(len(largest) // 2, len(ratios)) if ratios[place] > FAR]
    highest = largest[gaps[0]] if gaps else largest[-1]
    near = pruned[pruned["increase_nats"] <= highest]
    top = min(near["increase_nats_high"].max(), 1.6 * highest) if highest > 0 else near["increase_nats_high"].max()
    bottom = min(max(near["increase_nats_low"].min(), -0.25 * abs(highest)), 0.0)
    margin = 0.05 * (top - bottom)
    return bottom - margin, top + margin


def look_of_rows(rows: DataFrame) -> Look:
    """Return the look of one configuration."""
    policy, recent = rows["policy"].iloc[0], rows["recent"].iloc[0]
    return look(HALF_RECENT if policy == "decay" and recent == 0.5 else policy)


def _draw_run(axes: Axes, rows: DataFrame, seeds: DataFrame, names: Sequence[str], top: float) -> set[str]:
    """Draw the policies side by side at each budget, and return which are drawn; what is far above `top` is written."""
    above, drawn = [], set()
    axes.axhline(0, color=look("full").colour, linestyle="--", linewidth=1)
    for place, name in enumerate(names):
        points = rows[rows["configuration"] == name].sort_values("realised_budget", kind="stable")
        if points.empty:
            continue
        if points["increase_nats"].min() > top:
            high, low = points["increase_nats"].max(), points["increase_nats"].min()
            above.append((f"{name}, not drawn: {high:.2g} to {low:.2g}", look_of_rows(points).colour))
            continue
        drawn.add(name)
        x = aside(100 * points["realised_budget"], place, len(names), _STEP)
        ends = points["increase_nats_low"], points["increase_nats_high"]
        points_with_bars(axes, x, points["increase_nats"], ends, look_of_rows(points))
        own = seeds[seeds["configuration"] == name]
        beside = aside(100 * own["realised_budget"], place, len(names), _STEP) + 0.2
        axes.plot(beside, own["increase_nats"], "o", color=look_of_rows(points).colour, markersize=2, alpha=0.7)
    for place, (words, colour) in enumerate(above):
        axes.text(
            0.99, 0.98 - 0.07 * place, words, color=colour, ha="right", va="top", transform=axes.transAxes, size=8
        )
    axes.set_xlabel("kept tokens, realised budget (% of all tokens)")
    return drawn


def _keys(pruned: DataFrame) -> tuple[list[Line2D], list[str]]:
    """Return the handles and the words of the legend."""
    looks = {str(name): look_of_rows(rows) for name, rows in pruned.groupby("configuration", sort=False)}
    handles = [Line2D([], [], color=kind.colour, marker=kind.marker) for kind in looks.values()]
    full = Line2D([], [], color=look("full").colour, linestyle="--", linewidth=1)
    return [full, *handles], ["Full (no pruning)", *looks]


decay_budget = Plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder*", "released-*", "wikitext-*", "long-*"),
    caption=(
        "Held-out loss of a decoder above that with the whole cache, against the share of tokens that its cache may "
        "keep, for each eviction policy. A panel per run: released-* and long-* read the held-out text of the scale "
        "(at pretrained, books in the public domain), wikitext-* WikiText-2. Policies are compared at their realised "
        "budgets; the query's own key comes on top of them. To see: which policy stays closest to zero as the budget "
        "shrinks, and whether the bars of two policies part. Of a policy that is far worse than most, only its losses "
        "are written, at the upper edge. Decay is drawn at the published alpha of 0.2 where that was run, as published "
        "and with half of the budget for recent tokens, which is how H2O divides it; decay_alpha shows the others. "
        "SpAtten's rule was written for encoders and sees later queries, which no real decoder cache can. No "
        "perplexities were published; the published accuracies stand in decay_table."
    ),
    data=budget_data,
    draw=draw_budget,
)
