"""Example of how Decay scores and evicts tokens, computed from the rule itself (Decay article, Fig 1 and 2)."""

from typing import TypeAlias

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.marks import heat
from formerlab.report.studies.pruning import PUBLISHED_ALPHA
from formerlab.report.style import BLACK, GREEN, GREY, NARROW, VERMILION, Label, label_at_edge
from formerlab.results.read import Results

TOKENS, CHANGE, NAME, BUDGET = 16, 8, 2, 6
"""Length of the example, token at which its topic changes, token that matters to the end, and cache budget, in tokens.
"""
ARMS = ((1.0, 0, "Plain sum"), (1.0, 3, "H2O"), (PUBLISHED_ALPHA, 0, "Decay"))
"""Decay factor, tokens of the budget that are reserved for the most recent keys, and label of each policy."""
COLOURS = {"Plain sum": BLACK, "H2O": VERMILION, "Decay": GREEN}
FOLLOWED = ((0, "0: old\ntopic", GREY, "--"), (NAME, "2: name", BLACK, "-"),
            (CHANGE, "8: new\ntopic", GREY, ":"))  # fmt: skip
"""Tokens whose scores are plotted: index, label, colour, line. Policies have other colours."""

Numbers: TypeAlias = NDArray[np.float64]


def example() -> Numbers:
    """Return attention logits, queries x keys: each query attends to its own topic and the name, and a little to other
    tokens.

    Nearer tokens have slightly larger logits, so that no two scores are equal.
    """
    query, key = np.indices((TOKENS, TOKENS))
    same_topic = (query < CHANGE) == (key < CHANGE)
    logits: Numbers = np.where(key == NAME, 2.5, 2.0 * same_topic) - 0.05 * (query - key)
    return logits


def attention(logits: Numbers, seen: NDArray[np.bool_]) -> Numbers:
    """Return the attention weights of every query, which are zero for the keys that it does not see."""
    weights: Numbers = np.exp(logits) * seen
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def pruned(logits: Numbers, alpha: float, budget: int, recent: int = 0) -> NDArray[np.bool_]:
    """Return which keys each query sees: the retained keys and its own. Over budget, the key of lowest score is then
    evicted, except the `recent` newest keys.

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
    note = f"An example of {TOKENS} tokens and a cache of {BUDGET}, not measured.\n"
    note += "Dotted: the topic changes. Below: colour is retained, grey evicted."
    figure = Figure((NARROW, 3.6), label=note)
    figure.text(0.012, 0.005, note, va="bottom", color=GREY, fontsize=7)
    above = figure.add_gridspec(1, 2, left=0.13, right=0.85, bottom=0.64, top=0.93, wspace=1.12)
    below = figure.add_gridspec(1, len(ARMS), left=0.13, right=0.98, bottom=0.18, top=0.45, wspace=0.15)
    alphas = dict.fromkeys(alpha for alpha, *_ in ARMS)
    for column, alpha in enumerate(alphas):
        title = "Score: sum of attention" if alpha == 1 else "Score of Decay"
        _draw_scores(figure.add_subplot(above[column]), data[data["alpha"].eq(alpha) & data["recent"].eq(0)], title)
    for column, (alpha, recent, name) in enumerate(ARMS):
        axes, rows = figure.add_subplot(below[column]), data[data["alpha"].eq(alpha) & data["recent"].eq(recent)]
        heat(axes, rows, "key", "query", "seen", vmin=0, vmax=1, cmap=ListedColormap(["#e9e9e9", COLOURS[name]]))
        axes.axvline(CHANGE - 0.5, color=BLACK, linestyle=":", linewidth=1)
        axes.set(title=name, xlabel="token", aspect="equal", xticks=(0, 5, 10, 15), yticks=(0, 5, 10, 15))
        axes.tick_params(labelleft=name == ARMS[0][2])
    for axes, label in ((figure.axes[0], "score of a token"), (figure.axes[2], "query (down)")):
        axes.set_ylabel(label)
    return figure


def _draw_scores(axes: Axes, rows: DataFrame, title: str) -> None:
    labels = []
    for key, name, colour, line in FOLLOWED:
        points = rows[rows["key"] == key].sort_values("query")
        sns.lineplot(points, x="query", y="score", color=colour, linestyle=line, marker=".", markeredgecolor=colour,
                     ax=axes)  # fmt: skip
        labels.append(Label(points["query"].iloc[-1], points["score"].iloc[-1], name, colour))
    axes.axvline(CHANGE - 0.5, color=BLACK, linestyle=":", linewidth=1)
    axes.set(title=title, xlabel="query", ylabel="", xticks=range(0, TOKENS, 5))
    axes.set_ylim(bottom=0)
    label_at_edge(axes, labels)


@plot(runs="decoder released-*", draw=draw)
def decay_rule(results: Results, runs: list[str]) -> DataFrame:
    """How a plain sum of attention, H2O and Decay select the tokens that a cache retains, after Fig. 1 and 2 of the
    Decay article. The rules themselves compute this example of 16 tokens and a cache of 6; it shows how they work and
    not how good they are. Above: the scores S of three tokens, by query; each query adds its attention p. Below: the
    tokens that each query sees (grey: evicted). The topic changes at the dotted line. To see: under the plain sum the
    old topic has gathered so much score that no token of the new topic can replace it. H2O scores alike but reserves
    half of the cache for recent tokens; Decay forgets old attention. Both retain new tokens and the name. The masks of
    a trained model are in decay_masks.
    """
    logits, rows = example(), []
    weights_by_query = attention(logits, np.tri(TOKENS, dtype=bool))
    for alpha, recent, name in ARMS:
        seen, scores = pruned(logits, alpha, BUDGET, recent), np.zeros(TOKENS)
        for query, weights in enumerate(weights_by_query):
            scores = alpha * scores + weights
            shared = {"source": "ours", "policy": name, "alpha": alpha, "recent": recent, "budget": BUDGET}
            shared["query"] = query
            rows += [
                shared | {"key": key, "attention": weights[key], "score": scores[key], "seen": int(seen[query, key])}
                for key in range(query + 1)
            ]
    return DataFrame(rows)
