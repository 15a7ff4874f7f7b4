"""Example of how Decay scores and evicts tokens, computed from the rule itself (Decay article, Fig 1 and 2)."""

from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.marks import heat
from formerlab.report.studies.pruning import PUBLISHED_ALPHA
from formerlab.report.style import BLUE, GREY, ORANGE, VERMILION, WIDEST, Label, label_at_edge
from formerlab.results.read import Results

TOKENS, CHANGE, NAME, BUDGET = 16, 8, 2, 6
"""Length of the example, token at which its topic changes, token that matters to the end, and cache budget, in tokens.
"""
ALPHAS = (1.0, PUBLISHED_ALPHA)
FOLLOWED = ((0, "first\ntopic", GREY), (NAME, "the\nname", ORANGE), (CHANGE, "second\ntopic", BLUE))
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


RULE = f"""1. The query attends to the
    retained tokens and itself,
    with weights p.
2. Each score becomes
    S  =  alpha S + p
3. Over {BUDGET} tokens,
    the one with the lowest
    score is evicted.
alpha = 1 is the plain sum,
alpha = 0 the last attention."""


def draw(data: DataFrame) -> Figure:
    """Draw the attention and the rule on the left, and a row per alpha: scores by query, and retained tokens."""
    figure = Figure((WIDEST, 5.0), label="An example made to show the rule; nothing is measured.")
    margins = {"left": 0.07, "right": 0.92, "bottom": 0.1, "top": 0.93, "wspace": 0.75, "hspace": 0.5}
    axes = figure.subplots(2, 3, gridspec_kw=margins).flat
    _draw_square(axes[0], data[data["alpha"] == ALPHAS[0]], "attention", "Attention", cmap="Blues", vmax=0.5)
    axes[0].text(NAME + 0.7, 0.8, "the\nname", color=ORANGE, va="center", fontsize=7)
    axes[0].text(CHANGE - 0.2, 1.2, "here the\ntopic changes", color=VERMILION, va="center", fontsize=7)
    axes[3].set_axis_off()
    axes[3].set_title("The rule, at each query")
    axes[3].text(0, 0.97, RULE, va="top", fontsize=7.5, linespacing=1.3, transform=axes[3].transAxes)
    for row, alpha in enumerate(ALPHAS):
        rows, (scores, kept) = data[data["alpha"] == alpha], axes[3 * row + 1 : 3 * row + 3]
        _draw_scores(scores, rows, "alpha 1: sums never fade" if alpha == 1 else f"alpha {alpha:g}: sums fade")
        colours = ListedColormap(["#e9e9e9", BLUE])
        _draw_square(kept, rows, "seen", "Retained (grey: evicted)", cmap=colours, vmax=1)
        after_change = rows[rows["query"] >= CHANGE]
        fraction = (after_change["attention"] * after_change["seen"]).sum() / after_change["attention"].sum()
        note = f"these have\n{100 * fraction:.0f} % of the\nattention after\nthe change"
        kept.text(CHANGE - 0.2, 0.0, note, va="top", fontsize=7.5)
    return figure


def _draw_square(axes: Axes, rows: DataFrame, column: str, title: str, **image: Any) -> None:
    heat(axes, rows, "key", "query", column, vmin=0, **image)
    axes.set(title=title, xlabel="token", ylabel="query (time runs down)", aspect="equal")
    axes.axvline(CHANGE - 0.5, color=VERMILION, linestyle=":", linewidth=1)


def _draw_scores(axes: Axes, rows: DataFrame, title: str) -> None:
    labels = []
    for key, name, colour in FOLLOWED:
        points = rows[rows["key"] == key].sort_values("query")
        axes.plot(points["query"], points["score"], color=colour, marker=".")
        labels.append(Label(points["query"].iloc[-1], points["score"].iloc[-1], name, colour))
    axes.axvline(CHANGE - 0.5, color=VERMILION, linestyle=":", linewidth=1)
    axes.set(title=title, xlabel="query", ylabel="score S, without eviction", xticks=range(0, TOKENS, 4))
    axes.set_ylim(bottom=0)
    label_at_edge(axes, labels)


@plot(runs="decoder released-*", draw=draw)
def decay_rule(results: Results, runs: list[str]) -> DataFrame:
    """How Decay selects the tokens that a cache retains, with and without forgetting, after Fig. 1 and 2 of the Decay
    article. The rule itself computes this example of 16 tokens. Left: the attention with a full cache. Middle: the
    scores of three tokens, by query. Right: the tokens that each query sees, which are those in a cache of six and its
    own. To see: without forgetting (top), the first topic has gathered so much score that no token of the second can
    replace it. With forgetting (bottom), the cache evicts the first topic, retains the second, and keeps the name. The
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
