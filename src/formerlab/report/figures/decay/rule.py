"""Example of how Decay scores and evicts tokens, computed from the rule itself (Decay article, Fig 1 and 2)."""

from textwrap import fill
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.marks import heat
from formerlab.report.studies.pruning import PUBLISHED_ALPHA
from formerlab.report.style import BLACK, GREEN, GREY, NARROW, VERMILION
from formerlab.results.read import Results

LENGTH, TOPIC_CHANGE, NAME_INDEX, BUDGET = 16, 8, 2, 6
"""Length of the example, index of the first token of the new topic, index of the token that all queries attend to, and
cache budget.
"""
ARMS = ((1.0, 0, "Plain sum"), (1.0, 3, "H2O"), (PUBLISHED_ALPHA, 0, "Decay"))
"""Decay factor, tokens of the budget that are reserved for the most recent keys, and label of each policy."""
COLOURS = {"Plain sum": "#777777", "H2O": VERMILION, "Decay": GREEN}
FOLLOWED = (
    (NAME_INDEX, "name", BLACK, "*-"), (5, "old topic", GREY, "s--"), (TOPIC_CHANGE, "new topic", "#8C8C8C", "o:")
)  # fmt: skip
"""Tokens whose scores are plotted: index, label, grey, marker and line. Policies have colours. Under the plain sum, the
token of the old topic has the lowest score in the cache, so a new token must exceed it.
"""
FONT_SIZE = 8
"""Size of the text in points."""

Numbers: TypeAlias = NDArray[np.float64]


def example() -> Numbers:
    """Return attention logits, queries x keys: each query attends to its own topic and the name, and a little to other
    tokens.

    Nearer tokens have slightly larger logits, so that no two scores are equal.
    """
    query, key = np.indices((LENGTH, LENGTH))
    same_topic = (query < TOPIC_CHANGE) == (key < TOPIC_CHANGE)
    logits: Numbers = np.where(key == NAME_INDEX, 2.5, 2.0 * same_topic) - 0.05 * (query - key)
    return logits


def attention(logits: Numbers, seen: NDArray[np.bool_]) -> Numbers:
    """Return the attention weights of every query, which are zero for the keys that it does not see."""
    weights: Numbers = np.exp(logits) * seen
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def pruned(logits: Numbers, alpha: float, budget: int, recent: int = 0) -> tuple[NDArray[np.bool_], Numbers]:
    """Return which keys each query sees (the retained keys and its own), and their scores, both queries x keys.

    If the cache is then over budget, the key with the lowest score is evicted; the `recent` newest keys are protected.
    A key has no score (NaN) before it is read and after it is evicted. A test compares the result with the policies
    `Decay` and `H2O`.
    """
    seen: NDArray[np.bool_] = np.zeros(logits.shape, dtype=bool)
    scores: Numbers = np.full(logits.shape, np.nan)
    retained: list[int] = []
    score: Numbers = np.zeros(len(logits))
    for query in range(len(logits)):
        retained.append(query)
        seen[query, retained] = True
        score = alpha * score + attention(logits[[query]], seen[[query]])[0]
        scores[query, retained] = score[retained]
        if len(retained) > budget:
            retained.remove(min(retained[: budget + 1 - recent], key=score.__getitem__))
    return seen, scores


def draw(data: DataFrame) -> Figure:
    """Draw for each policy the scores by query, and below them the tokens that each query sees."""
    note = (f"Example of {LENGTH} tokens, cache of {BUDGET}. X: evicted after this query. Light grey: evicted. "
            "Pale: reserved for recent tokens.")  # fmt: skip
    figure = Figure((NARROW, 3.7), label=f"{note} Not measured.")
    figure.text(0.012, 0.01, fill(note, 64), va="bottom", color=GREY, fontsize=FONT_SIZE - 1)
    above = figure.add_gridspec(1, len(ARMS), left=0.14, right=0.97, bottom=0.6, top=0.84, wspace=0.15)
    below = figure.add_gridspec(1, len(ARMS), left=0.14, right=0.97, bottom=0.2, top=0.44, wspace=0.15)
    followed = data.loc[data["key"].isin([key for key, *_ in FOLLOWED]), "score"]
    for column, (alpha, recent, name) in enumerate(ARMS):
        rows = data[data["alpha"].eq(alpha) & data["recent"].eq(recent)]
        axes = figure.add_subplot(above[column])
        _draw_scores(axes, rows)
        axes.set_title(f"{name} {alpha:g}" if alpha < 1 else name, color=COLOURS[name], fontsize=FONT_SIZE)
        axes.set(ylabel="" if column else "score (log)", ylim=(0.7 * followed.min(), 1.4 * followed.max()))
        axes.tick_params(labelleft=not column)
        axes = figure.add_subplot(below[column])
        shades = rows.assign(seen=rows["seen"] * (2 - (rows["key"] > rows["query"] - recent)))  # reserved: 1, others: 2
        colours = ["#e4e4e4", "#f0b48f", COLOURS[name]]
        heat(axes, shades, "key", "query", "seen", vmin=0, vmax=2, cmap=ListedColormap(colours))
        axes.set(xlabel="token", ylabel="" if column else "query", aspect="equal", xticks=(0, 8, 15), yticks=(0, 8, 15))
        axes.tick_params(labelleft=not column)
        for key, _, colour, style in FOLLOWED:
            axes.plot(key, -2, style[0], color=colour, markersize=4, clip_on=False)
    for axes in figure.axes:
        axes.axvline(TOPIC_CHANGE - 0.5, color=BLACK, linestyle=":", linewidth=1)
        for text in (axes.xaxis.label, axes.yaxis.label):
            text.set_fontsize(FONT_SIZE)
        axes.tick_params(labelsize=FONT_SIZE - 1)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", ncols=3, fontsize=FONT_SIZE, handlelength=1, columnspacing=1,
                  labelcolor=[colour for *_, colour, _ in FOLLOWED], borderaxespad=0)  # fmt: skip
    return figure


def _draw_scores(axes: Axes, rows: DataFrame) -> None:
    """Draw the scores of the followed tokens while they are in the cache, with a cross where one is evicted."""
    for key, name, colour, style in FOLLOWED:
        points = rows[rows["key"].eq(key)].dropna(subset="score").sort_values("query")
        axes.plot(points["query"], points["score"], style, color=colour, markersize=3, linewidth=1, label=name)
        if points["query"].iloc[-1] < LENGTH - 1:
            axes.plot(*points[["query", "score"]].iloc[-1], "x", color=BLACK, markersize=6)
    axes.set(xlabel="query", xticks=(0, 8, 15), xlim=(-0.5, LENGTH - 0.5), yscale="log", yticks=(0.1, 1))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


@plot(runs="decoder released-*", draw=draw)
def decay_rule(results: Results, runs: list[str]) -> DataFrame:
    """How a plain sum of attention, H2O and Decay select the tokens that a cache retains, after Fig. 1 and 2 of the
    Decay article. The rules themselves compute this example of 16 tokens and a cache of 6; it is not a measurement.
    Above: the scores of three tokens, by query, while they are in the cache; each query adds its attention to the
    tokens that it sees. Below: the tokens (across) that each query (down) sees. The topic changes at the dotted line.
    To see: under the plain sum each token of the new topic has a lower score than all tokens of the old topic, and is
    evicted at once. H2O sums too but reserves half of the cache for recent tokens; Decay forgets old attention. Both
    retain new tokens and the name. The masks of a trained model are in decay_masks.
    """
    logits, rows = example(), []
    for alpha, recent, name in ARMS:
        seen, scores = pruned(logits, alpha, BUDGET, recent)
        weights = attention(logits, seen)
        for query in range(LENGTH):
            shared = {"source": "ours", "policy": name, "alpha": alpha, "recent": recent, "budget": BUDGET}
            shared["query"] = query
            rows += [
                shared
                | {"key": key, "attention": weights[query, key], "score": scores[query, key]}
                | {"seen": int(seen[query, key])}
                for key in range(query + 1)
            ]
    return DataFrame(rows)
