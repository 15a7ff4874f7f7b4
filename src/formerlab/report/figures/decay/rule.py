"""Example of how Decay scores and evicts tokens, computed from the rule itself (Decay article, Fig 1 and 2)."""

from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
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
    (NAME_INDEX, "name", BLACK, "*-"), (0, "old topic", GREY, "s--"), (TOPIC_CHANGE, "new topic", "#8C8C8C", "o:")
)  # fmt: skip
"""Tokens whose scores are plotted: index, label, grey, marker and line. Policies have colours."""
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


def pruned(logits: Numbers, alpha: float, budget: int, recent: int = 0) -> NDArray[np.bool_]:
    """Return which keys each query sees: the retained keys and its own.

    If the cache is then over budget, the key with the lowest score is evicted; the `recent` newest keys are protected.
    A test compares the result with the policies `Decay` and `H2O`.
    """
    seen: NDArray[np.bool_] = np.zeros(logits.shape, dtype=bool)
    retained: list[int] = []
    scores: Numbers = np.zeros(len(logits))
    for query in range(len(logits)):
        retained.append(query)
        seen[query, retained] = True
        scores = alpha * scores + attention(logits[[query]], seen[[query]])[0]
        if len(retained) > budget:
            retained.remove(min(retained[: budget + 1 - recent], key=scores.__getitem__))
    return seen


def draw(data: DataFrame) -> Figure:
    """Draw the scores by query for each alpha, and below them the retained tokens of each policy."""
    note = f"Example of {LENGTH} tokens, cache of {BUDGET}. Light grey: evicted."
    figure = Figure((NARROW, 3.7), label=f"{note} Not measured.")
    figure.text(0.012, 0.01, note, va="bottom", color=GREY, fontsize=FONT_SIZE - 1)
    above = figure.add_gridspec(1, 2, left=0.14, right=0.97, bottom=0.6, top=0.84, wspace=0.3)
    below = figure.add_gridspec(1, len(ARMS), left=0.14, right=0.97, bottom=0.18, top=0.42, wspace=0.15)
    alphas = dict.fromkeys(alpha for alpha, *_ in ARMS)
    for column, alpha in enumerate(alphas):
        title = "Score: sum, H2O" if alpha == 1 else f"Score: Decay {alpha:g}"
        _draw_scores(figure.add_subplot(above[column]), data[data["alpha"].eq(alpha) & data["recent"].eq(0)], title)
    for column, (alpha, recent, name) in enumerate(ARMS):
        axes, rows = figure.add_subplot(below[column]), data[data["alpha"].eq(alpha) & data["recent"].eq(recent)]
        heat(axes, rows, "key", "query", "seen", vmin=0, vmax=1, cmap=ListedColormap(["#e4e4e4", COLOURS[name]]))
        axes.set(xlabel="token", ylabel="" if column else "query", aspect="equal", xticks=(0, 8, 15), yticks=(0, 8, 15))
        axes.set_title(name, color=COLOURS[name], fontsize=FONT_SIZE)
        axes.tick_params(labelleft=not column)
        for key, _, colour, style in FOLLOWED:
            axes.plot(key, -1.2, style[0], color=colour, markersize=4, clip_on=False)
    for axes in figure.axes:
        axes.axvline(TOPIC_CHANGE - 0.5, color=BLACK, linestyle=":", linewidth=1)
        for text in (axes.xaxis.label, axes.yaxis.label):
            text.set_fontsize(FONT_SIZE)
        axes.tick_params(labelsize=FONT_SIZE - 1)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", ncols=3, fontsize=FONT_SIZE, handlelength=1, columnspacing=1,
                  labelcolor=[colour for *_, colour, _ in FOLLOWED], borderaxespad=0)  # fmt: skip
    return figure


def _draw_scores(axes: Axes, rows: DataFrame, title: str) -> None:
    for key, name, colour, style in FOLLOWED:
        points = rows[rows["key"] == key].sort_values("query")
        axes.plot(points["query"], points["score"], style, color=colour, markersize=3.5, label=name)
    axes.set_title(title, fontsize=FONT_SIZE)
    axes.set(xlabel="query", ylabel="score" if "sum" in title else "", xticks=(0, 8, 15))
    axes.set_ylim(bottom=0)


@plot(runs="decoder released-*", draw=draw)
def decay_rule(results: Results, runs: list[str]) -> DataFrame:
    """How a plain sum of attention, H2O and Decay select the tokens that a cache retains, after Fig. 1 and 2 of the
    Decay article. The rules themselves compute this example of 16 tokens and a cache of 6; it is not a measurement.
    Above: the scores of three tokens, by query; each query adds its attention. Below: the tokens (across) that each
    query (down) sees. The topic changes at the dotted line. To see: under the plain sum the old topic has gathered so
    much score that no token of the new topic can replace it. H2O uses the same scores but reserves half of the cache
    for recent tokens; Decay forgets old attention. Both retain new tokens and the name. The masks of a trained model
    are in decay_masks.
    """
    logits, rows = example(), []
    weights_by_query = attention(logits, np.tri(LENGTH, dtype=bool))
    for alpha, recent, name in ARMS:
        seen, scores = pruned(logits, alpha, BUDGET, recent), np.zeros(LENGTH)
        for query, weights in enumerate(weights_by_query):
            scores = alpha * scores + weights
            shared = {"source": "ours", "policy": name, "alpha": alpha, "recent": recent, "budget": BUDGET}
            shared["query"] = query
            rows += [
                shared | {"key": key, "attention": weights[key], "score": scores[key], "seen": int(seen[query, key])}
                for key in range(query + 1)
            ]
    return DataFrame(rows)
