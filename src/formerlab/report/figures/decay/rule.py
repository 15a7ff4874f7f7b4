"""Example of how Decay scores and evicts tokens, computed from the rule itself (Decay article, Fig 1 and 2)."""

from typing import TypeAlias

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.marks import heat
from formerlab.report.studies.pruning import PUBLISHED_ALPHA
from formerlab.report.style import BLACK, BLUE, GREEN, GREY, NARROW, VERMILION, Label, label_at_edge
from formerlab.results.read import Results

TOKENS, CHANGE, NAME, BUDGET = 16, 8, 2, 6
"""Length of the example, token at which its topic changes, token that matters to the end, and cache budget, in tokens.
"""
ALPHAS = (1.0, PUBLISHED_ALPHA)
FOLLOWED = ((0, "old\ntopic", GREY), (NAME, "name", VERMILION), (CHANGE, "new\ntopic", BLUE))
"""Tokens whose scores are plotted: index, label, colour."""

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


def pruned(logits: Numbers, alpha: float, budget: int) -> NDArray[np.bool_]:
    """Return which keys each query sees: the retained keys and its own. Over budget, the key of lowest score is then
    evicted.

    A test compares the result with the policy `Decay`.
    """
    seen: NDArray[np.bool_] = np.zeros(logits.shape, dtype=bool)
    retained: list[int] = []
    scores: Numbers = np.zeros(len(logits))
    for query in range(len(logits)):
        retained.append(query)
        seen[query, retained] = True
        scores = alpha * scores + attention(logits[[query]], seen[[query]])[0]
        if len(retained) > budget:
            retained.remove(min(retained, key=scores.__getitem__))
    return seen


def draw(data: DataFrame) -> Figure:
    """Draw a column per alpha: the scores by query, and below them the retained tokens."""
    figure = Figure((NARROW, 4.1), label="An example made to show the rule; nothing is measured.")
    margins = {"left": 0.13, "right": 0.87, "bottom": 0.1, "top": 0.93, "wspace": 0.85, "hspace": 0.6}
    for (scores, retained), alpha in zip(figure.subplots(2, 2, gridspec_kw=margins).T, ALPHAS, strict=True):
        rows = data[data["alpha"] == alpha]
        _draw_scores(scores, rows, "No decay: alpha 1" if alpha == 1 else f"Decay: alpha {alpha:g}")
        heat(retained, rows, "key", "query", "seen", vmin=0, vmax=1, cmap=ListedColormap(["#e9e9e9", GREEN]))
        retained.axvline(CHANGE - 0.5, color=BLACK, linestyle=":", linewidth=1)
        after_change = rows[rows["query"] >= CHANGE]
        fraction = (after_change["attention"] * after_change["seen"]).sum() / after_change["attention"].sum()
        title = f"{BUDGET} tokens: retains {100 * fraction:.0f} %\nof the later attention"
        retained.set(title=title, xlabel="token", ylabel="query (time runs down)", aspect="equal")
    for axes in figure.axes[1::2]:
        axes.set_ylabel("")
    return figure


def _draw_scores(axes: Axes, rows: DataFrame, title: str) -> None:
    labels = []
    for key, name, colour in FOLLOWED:
        points = rows[rows["key"] == key].sort_values("query")
        sns.lineplot(points, x="query", y="score", color=colour, marker=".", markeredgecolor=colour, ax=axes)
        labels.append(Label(points["query"].iloc[-1], points["score"].iloc[-1], name, colour))
    axes.axvline(CHANGE - 0.5, color=BLACK, linestyle=":", linewidth=1)
    axes.set(title=title, xlabel="query", ylabel="score S = alpha S + p", xticks=range(0, TOKENS, 5))
    axes.set_ylim(bottom=0)
    label_at_edge(axes, labels)


@plot(runs="decoder released-*", draw=draw)
def decay_rule(results: Results, runs: list[str]) -> DataFrame:
    """How Decay selects the tokens that a cache retains, with and without forgetting, after Fig. 1 and 2 of the Decay
    article. The rule itself computes this example of 16 tokens. Above: the scores S of three tokens, by query; each
    query adds its attention p. Below: the tokens that each query sees (grey: evicted). The topic changes at the dotted
    line. To see: without forgetting (left), the old topic has gathered so much score that no token of the new topic can
    replace it. With forgetting (right), the cache evicts the old topic, retains the new one, and keeps the name. The
    masks of a trained model are in decay_masks.
    """
    logits, rows = example(), []
    weights_by_query = attention(logits, np.tri(TOKENS, dtype=bool))
    for alpha in ALPHAS:
        seen, scores = pruned(logits, alpha, BUDGET), np.zeros(TOKENS)
        for query, weights in enumerate(weights_by_query):
            scores = alpha * scores + weights
            shared = {"source": "ours", "alpha": alpha, "budget": BUDGET, "query": query}
            rows += [
                shared | {"key": key, "attention": weights[key], "score": scores[key], "seen": int(seen[query, key])}
                for key in range(query + 1)
            ]
    return DataFrame(rows)
