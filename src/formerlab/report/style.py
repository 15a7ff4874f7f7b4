"""The one style of all figures: sizes, colours per variant, axes, labels, published values.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; the marker says the same again.
"""

import textwrap
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from formerlab.report.names import look_of

BLACK, GREY = "#222222", "#7f7f7f"
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#D9B500"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"

SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.titley": 1.0,  # no label stands above a panel, and looking for one takes time
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "figure.dpi": 100,
}

WIDEST = 7.0
"""Inches of a figure, as wide as the text of a paper."""
LETTER = 0.063
"""Inches that a letter of 8 points takes, about."""
EDGE = 24
"""Letters in a line of a name beside its last point."""
PUBLISHED_GROUND = "#f6f2e7"
"""Ground of a panel with published values."""
PUBLISHED_INK = "#6b5510"
"""Colour of published values and of the titles of their panels."""


class Look(NamedTuple):
    """How a variant is drawn, in every figure."""

    colour: str
    marker: str


_LOOKS = {
    "grown: random keys, tau sqrt(n)": Look(VERMILION, "^"),
    "grown: random keys, tau kept": Look(ORANGE, "v"),
    "grown: zero keys, tau kept": Look(GREEN, "D"),
    "grown: zero keys, tau sqrt(n)": Look(PURPLE, "P"),
    "grown: random keys, tau sqrt(n), optimizer carried": Look(YELLOW, "<"),
    "grown: zero keys, tau kept, optimizer carried": Look(SKY, ">"),
    "grown: random keys, tau sqrt(n), old tokens frozen": Look("#8C564B", "X"),
    "grown: zero keys, tau kept, old tokens frozen": Look(GREY, "p"),
    "grown: Net2Net by padding": Look(ORANGE, "v"),
    "Tokenformer, trained on": Look(BLUE, "*"),
    "Transformer, trained on": Look(BLACK, "*"),
    "DenseFormer 1x1": Look(BLUE, "s"),
    "DenseFormer 4x1": Look(SKY, "v"),
    "DenseFormer 4x5": Look(ORANGE, "^"),
    "DenseFormer 2x3": Look("#66A61E", "D"),
    "DenseFormer 2x1": Look(GREEN, "P"),
    "DenseFormer 8x1": Look(PURPLE, "d"),
    "DenseFormer 4x3": Look(VERMILION, ">"),
    "DenseFormer 4x8": Look("#B5651D", "<"),
    "dynamic_cache": Look(VERMILION, "<"),
    "Decay, half recent": Look(SKY, "o"),
    "h2o variant=global_statistics": Look("#B5651D", "<"),
    "h2o variant=local_statistics": Look("#B5651D", ">"),
    "streaming_llm positions=reindexed": Look("#66A61E", "h"),
}
"""Of ways to grow, of settings of one mixer or policy that stand beside each other, and of a cache that is no policy of
ours."""
_SPARE = tuple(Look(colour, "h") for colour in (YELLOW, "#8C564B", "#6A51A3"))


def look(name: str) -> Look:
    """Return colour and marker of a policy by its kind, of another variant by what readers call it.

    Specs say their own; what has none always gets the same spare one.
    """
    if name in _LOOKS:
        return _LOOKS[name]
    found = look_of(name)
    return Look(*found) if found else _SPARE[zlib.crc32(name.encode()) % len(_SPARE)]


def placed(
    count: int,
    width: float,
    lefts: Sequence[float],
    rights: Sequence[float],
    heights: Sequence[float],
    tops: Sequence[float],
    below: float,
    head: float = 0.0,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels in rows; sizes are inches: of every panel, and of the room around it and above all.

    Positions are fixed, not found by a layout engine, so that labels can be set against the final size.
    """
    total = head + sum(tops) + sum(heights) + below * len(heights)
    figure, y = Figure(figsize=(WIDEST, total)), total - head
    axes: list[Axes] = []
    for top, tall in zip(tops, heights, strict=True):
        y -= top + tall
        x = 0.0
        for left, right in list(zip(lefts, rights, strict=True))[: count - len(axes)]:
            axes.append(figure.add_axes(((x + left) / WIDEST, y / total, width / WIDEST, tall / total)))
            x += left + width + right
        y -= below
    return figure, axes


def headed(figure: Figure, words: str) -> None:
    """Write words above all panels."""
    figure.text(0.012, 1 - 0.06 / figure.get_size_inches()[1], words, va="top", color=GREY)


def canvas(
    count: int,
    columns: int,
    height: float,
    notes: Sequence[str] = (),
    left: float = 0.6,
    right: float = 0.15,
    below: float = 0.55,
    top: float = 0.35,
    heading: str = "",
    first: float = 0.0,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of one size for drawings by hand, a heading, and notes for its caption."""
    rows, lefts, rights = -(-count // columns), [left] * columns, [right] * columns
    lefts[0] += first
    width = (WIDEST - sum(lefts) - sum(rights)) / columns
    figure, axes = placed(count, width, lefts, rights, [height] * rows, [top] * rows, below, 0.17 * bool(heading))
    headed(figure, heading)
    figure.set_label(" ".join(note for note in notes if note))
    return figure, axes


def one_large(small: int, columns: int, left: float, below: float, right: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with a large square panel, first, and small ones in rows beside it; inches of room around it."""
    size, high = 2.9, 0.35 + 2.9 + below
    figure = Figure(figsize=(WIDEST, high))
    axes = [figure.add_axes((left / WIDEST, below / high, size / WIDEST, size / high))]
    start, step = left + size + right, (WIDEST - left - size - right) / columns
    for number in range(small):
        down, across = divmod(number, columns)
        x, y, wide = start + across * step, high - 0.25 - (down + 1) * (step - 0.1) - 0.3 * down, step - 0.1
        axes.append(figure.add_axes((x / WIDEST, y / high, wide / WIDEST, wide / high)))
    return figure, axes


class Label(NamedTuple):
    """A text beside a point, in data coordinates."""

    x: float
    y: float
    text: str
    colour: str


def wrapped(name: object) -> str:
    """Return a name in lines as short as stand beside a panel."""
    return "\n".join(textwrap.fill(line, EDGE) for line in str(name).split("\n"))


def label_at_edge(axes: Axes, labels: Sequence[Label]) -> None:
    """Write names below each other, right of the last of all points, moved up or down so that no two overlap.

    A dotted line leads to a text that is not beside its point. Call it last, when the limits are final.
    """
    labels = [label for label in labels if np.isfinite([label.x, label.y]).all()]
    if not labels:
        return
    axes.autoscale_view()  # limits are otherwise found only when the figure is drawn
    dots = axes.figure.dpi / 72
    texts = [wrapped(label.text) for label in labels]
    lines = np.array([text.count("\n") + 1 for text in texts])
    # nothing is written beside a point outside the panel, so that of one is moved to the edge
    ends = np.sort(axes.get_xlim()), np.sort(axes.get_ylim())
    points = [(np.clip(label.x, *ends[0]), np.clip(label.y, *ends[1])) for label in labels]
    across, heights = axes.transData.transform(points).T
    placed = _spread(heights, 4.5 * dots * (lines + 0.15), (axes.bbox.y0, axes.bbox.y1))
    asides = (np.nanmax(across) - across) / dots
    halo = [withStroke(linewidth=2.5, foreground=axes.get_facecolor())]
    for label, point, text, old, new, right in zip(labels, points, texts, heights, placed, asides, strict=True):
        # The line ends at the left edge of the text, so that it crosses no other; dotted, it is no curve of the data.
        arrow = {"arrowstyle": "-", "color": label.colour, "linewidth": 0.6, "linestyle": (0, (1, 3))}
        arrow |= {"shrinkA": 1, "shrinkB": 3, "relpos": (0.0, 0.5)}
        axes.annotate(
            text,
            point,
            xytext=(9 + right, (new - old) / dots),
            textcoords="offset points",
            va="center",
            color=label.colour,
            path_effects=halo,
            arrowprops=arrow if abs(new - old) > 3 * dots or right > 8 else None,
        )


def _spread(heights: Any, halves: Any, bounds: tuple[float, float]) -> Any:
    """Return heights moved apart by the halves of both texts, within bounds as far as there is room."""
    order = np.argsort(heights, kind="stable")
    low, high = bounds[0] + halves, np.maximum(bounds[0] + halves, bounds[1] - halves)
    placed = np.clip(heights, low, high)
    for _ in range(200):  # neighbours push each other apart until all have room
        for one, other in pairwise(order):
            short = halves[one] + halves[other] - (placed[other] - placed[one])
            if short > 1e-6:
                placed[one] -= short / 2
                placed[other] += short / 2
        placed = np.clip(placed, low, high)
    return placed


def loss_axis(axes: Axes) -> None:
    """Label the left axis in nats; the right one reads the same losses as perplexity."""
    axes.set_ylabel("held-out loss (nats per token)")
    right = axes.secondary_yaxis("right", functions=(np.exp, lambda value: np.log(np.maximum(value, 1e-9))))
    right.set_ylabel("perplexity")
    right.spines["right"].set_visible(True)
    right.spines["right"].set_color("#bbbbbb")


def empty(message: str) -> Figure:
    """Return a figure that only says why there is nothing to draw."""
    figure = Figure(figsize=(6, 1.6))
    figure.text(0.5, 0.5, "\n".join(textwrap.wrap(message, 80)), ha="center", va="center", color="#555555")
    return figure
