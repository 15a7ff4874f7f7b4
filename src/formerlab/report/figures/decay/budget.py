"""Loss against cache budget for each eviction policy (Decay article; A2SF, arXiv:2407.20485, Fig 5)."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.panel import Panel, Style, sheet
from formerlab.report.pruning import (
    CONFIGURATION,
    NAMES,
    RELEASED_RUNS,
    configurations,
    interval_notes,
    main_configurations,
    size_of,
    with_seeds,
)
from formerlab.report.runs import missing_note
from formerlab.report.style import look
from formerlab.results.read import Results

STUDY = "decay"
POLICIES_BUDGET = ("local", "streaming_llm", "h2o", "spatten", "decay")
"""Those of the article, and StreamingLLM; decay_baselines draws the others."""
ARTICLE_ALONE = ("local", "spatten")
"""Policies that decay_budget shows, and decay_baselines does not."""
FAR = 3
"""A policy is far off where its largest loss is more than this times that of all the policies below it."""
_ADDED = "loss above that of the whole cache\n(nats per token)"


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


def style_of_policy(name: str, rows: DataFrame) -> Style:
    """Return the style of one configuration."""
    policy, recent = rows["policy"].iloc[0], rows["recent"].iloc[0]
    colour, marker = look("Decay, half recent" if policy == "decay" and recent == 0.5 else policy)
    return {"color": colour, "marker": marker}


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


def _leave_far(axes: Axes, rows: DataFrame, *, across: bool = False) -> None:
    """Let policies that are far above most leave the panel, and write their losses where they do."""
    ends = limits(rows[rows["part"] == "mean"])
    (axes.set_xlim if across else axes.set_ylim)(*ends)
    names, place = [label.get_text() for label in axes.get_yticklabels()], 0
    for name, points in rows[rows["part"] == "mean"].groupby("configuration", sort=False):
        low, high = points["increase_nats"].min(), points["increase_nats"].max()
        colour = style_of_policy(str(name), points)["color"]
        if across and high > ends[1]:
            words = f"{high:.2g} \N{BLACK RIGHT-POINTING TRIANGLE}"
            axes.text(ends[1], names.index(str(name)), words, ha="right", va="center", color=colour)
        elif not across and low > ends[1]:
            words = f"{name}, not drawn: {high:.2g} to {low:.2g}"
            axes.text(0.99, 0.98 - 0.08 * place, words, color=colour, ha="right", va="top", transform=axes.transAxes)
            place += 1


def draw_budget(data: DataFrame) -> Figure:
    """Draw one panel per run, a line per policy, on one linear axis."""
    texts = data["text"] + ", " + data["windows"].map("{:.0f} windows of ".format) + data["window_tokens"].map(
        "{:.0f} tokens".format
    )  # fmt: skip
    of_run = texts[data["part"] == "mean"].groupby(data["run"]).first()
    titles = {run: f"{run}: {text}" if (of_run == text).sum() > 1 else text for run, text in of_run.items()}
    rows = data[data["policy"] != "full"]
    rows = rows.assign(percent=100 * rows["realised_budget"], text=rows["run"].map(titles))
    first = rows["run"].str.startswith(RELEASED_RUNS)
    notes = [
        *interval_notes(data),
        "Budgets are those realised; points of different policies are moved sideways so that no bar hides another.",
        *missing_note([NAMES.get(name, name) for name in data["policy"]], [NAMES[name] for name in ("full", *_WANTED)]),
    ]
    panel = Panel("percent", "increase_nats", by="configuration", each="text", zero=0.0, name="legend",
                  xlabel="kept tokens, realised budget (%)", ylabel=_ADDED, style=style_of_policy,
                  finish=_leave_far)  # fmt: skip
    return sheet(panel, notes=notes, height=2.4)(pd.concat([rows[first], rows[~first]]).drop(columns="seeds"))


_WANTED = ("local", "h2o", "spatten", "decay")

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


def baselines_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return one configuration per policy at every budget, and Decay with half of it recent.

    `part` is mean, or seed.
    """
    table = configurations(results, STUDY, runs)
    return with_seeds(results, STUDY, with_half_recent(table[~table["policy"].isin(ARTICLE_ALONE)]))


def draw_baselines(data: DataFrame) -> Figure:
    """Draw a panel per run and budget; its rows are policies, the one that loses least on top."""
    rows = data[data["policy"] != "full"]
    order = rows[rows["part"] == "mean"].groupby("configuration")["increase_nats"].mean().rank()
    several = rows["run"].nunique() > 1
    cells = [f"{run}: {size_of(budget)}" if several else f"{size_of(budget)} of the tokens kept"
             for run, budget in zip(rows["run"], rows["budget"], strict=True)]  # fmt: skip
    rows = rows.assign(cell=cells, place=rows["configuration"].map(order)).sort_values(["run", "budget", "place"])
    panel = Panel("increase_nats", "configuration", by="configuration", kind="forest", each="cell", zero=0.0,
                  xlabel="loss above the whole cache's (nats per token)", style=style_of_policy,
                  finish=partial(_leave_far, across=True))  # fmt: skip
    return sheet(panel, notes=interval_notes(data))(rows.drop(columns="seeds"))


decay_baselines = Plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Held-out loss above that with the whole cache (line), for what is used today and for the other algorithms "
        "called H2O, all evicting step by step; a panel per budget. Random is the floor; Ideal, which takes the best "
        "keys of each row anew and so is no cache, the bound. Decay is drawn as published and, like H2O, with half of "
        "the budget for recent tokens. To see: which rules that need no accumulated score come near Decay. The "
        "official mask with global statistics chooses with later queries and is marked as such: its loss is that of "
        "no cache. StreamingLLM is run with the positions of the text and with those within the cache. Bars: 95 % "
        "interval of the paired difference; a number with an arrow is a loss to the right of the panel. Realised "
        "budgets, which differ a little from those in the titles, are among the numbers."
    ),
    data=baselines_data,
    draw=draw_baselines,
)
