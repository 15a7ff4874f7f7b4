"""How Decay scores and drops tokens, on an example (Decay article, Fig 1 and 2): the rule itself, computed here."""

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
"""Length of the example, the token at which its topic changes, the one that matters to the end, and the cache."""
ALPHAS = (1.0, PUBLISHED_ALPHA)
FOLLOWED = ((0, "first\ntopic", GREY), (NAME, "the\nname", ORANGE), (CHANGE, "second\ntopic", BLUE))
"""Tokens whose scores are drawn: index, what they are, colour."""

Numbers: TypeAlias = NDArray[np.float64]


def example() -> Numbers:
    """Return attention logits, queries x keys: each query looks at its own topic and at the name, a little at the rest.

    Nearer tokens weigh a trace more, so that no two scores are equal.
    """
    query, key = np.indices((TOKENS, TOKENS))
    same_topic = (query < CHANGE) == (key < CHANGE)
    logits: Numbers = np.where(key == NAME, 2.5, 2.0 * same_topic) - 0.05 * (query - key)
    return logits


def attention(logits: Numbers, seen: NDArray[np.bool_]) -> Numbers:
    """Return the attention of every query, which is zero but for the keys that it sees."""
    weights: Numbers = np.exp(logits) * seen
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def pruned(logits: Numbers, alpha: float, budget: int) -> NDArray[np.bool_]:
    """Return which keys each query sees: those kept so far and its own; then the one of least score is dropped.

    A test holds it equal to what the policy `Decay` does.
    """
    seen: NDArray[np.bool_] = np.zeros(logits.shape, dtype=bool)
    kept: list[int] = []
    scores: Numbers = np.zeros(len(logits))
    for query in range(len(logits)):
        kept.append(query)
        seen[query, kept] = True
        scores = alpha * scores + attention(logits[[query]], seen[[query]])[0]
        if len(kept) > budget:
            kept.remove(min(kept, key=scores.__getitem__))
    return seen


RULE = f"""1. The query attends to the
    tokens kept and to itself,
    with weights p.
2. The score of each becomes
    S  =  alpha S + p
3. Of more than {BUDGET} tokens,
    the one of the lowest score
    is dropped for good.
alpha = 1 is the plain sum,
alpha = 0 the last attention."""


def draw(data: DataFrame) -> Figure:
    """Draw the attention and the rule left, then a row per alpha: scores from query to query, and what is kept."""
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
        _draw_scores(scores, rows, "alpha 1: sums never fade" if alpha == 1 else f"alpha {alpha:g}: unused fade")
        colours = ListedColormap(["#e9e9e9", BLUE])
        _draw_square(kept, rows, "seen", "Kept (grey: dropped)", cmap=colours, vmax=1)
        late = rows[rows["query"] >= CHANGE]
        share = (late["attention"] * late["seen"]).sum() / late["attention"].sum()
        words = f"these have\n{100 * share:.0f} % of the\nattention after\nthe change"
        kept.text(CHANGE - 0.2, 0.0, words, va="top", fontsize=7.5)
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
    axes.set(title=title, xlabel="query", ylabel="score S, nothing dropped", xticks=range(0, TOKENS, 4))
    axes.set_ylim(bottom=0)
    label_at_edge(axes, labels)


@plot(runs="decoder released-*", draw=draw)
def decay_rule(results: Results, runs: list[str]) -> DataFrame:
    """How Decay decides which tokens a cache keeps, with forgetting and without it, after Fig. 1 and 2 of the Decay
    article, drawn by the rule itself on an example of 16 tokens. Left: the attention with a whole cache. Middle: the
    scores of three tokens, query by query. Right: the tokens that each query finds in a cache of six, and its own. To
    see: without forgetting (above) the first topic has gathered so much that no token of the second can replace it;
    with it (below) the first topic goes, the second comes in, and the name stays. A real model's masks are in
    decay_masks.
    """
    logits, rows = example(), []
    whole = attention(logits, np.tri(TOKENS, dtype=bool))
    for alpha in ALPHAS:
        seen, scores = pruned(logits, alpha, BUDGET), np.zeros(TOKENS)
        for query, weights in enumerate(whole):
            scores = alpha * scores + weights
            shared = {"source": "ours", "alpha": alpha, "budget": BUDGET, "query": query}
            rows += [
                shared | {"key": key, "attention": weights[key], "score": scores[key], "seen": int(seen[query, key])}
                for key in range(query + 1)
            ]
    return DataFrame(rows)
