"""What figures draw again and again: points with bars, curves in bands, and labels where a reader looks."""

from collections.abc import Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from formerlab.report.style import BLACK

Heights = NDArray[np.float64]

_COLUMN = 0.1
"""Share of the axes' width within which labels share a column."""


class Label(NamedTuple):
    """A text beside a point, in data coordinates."""

    x: float
    y: float
    text: str
    colour: str


def label_directly(axes: Axes, labels: Sequence[Label], *, size: float = 8, column: float = _COLUMN) -> None:
    """Write each text to the right of its point, moved up or down so that no two overlap and none leaves the axes.

    Texts of points that are less than `column` apart, a share of the axes' width, stand in one column. A dotted line
    leads to a text that is not beside its point. Call it last, when the limits are final.
    """
    figure = axes.figure
    axes.autoscale_view()  # limits are otherwise found only when the figure is drawn
    lines = max((label.text.count("\n") + 1 for label in labels), default=1)
    gap = size * (1.3 if lines == 1 else 1.15 * lines) * figure.dpi / 72
    places, heights = axes.transData.transform([(label.x, label.y) for label in labels]).T
    asides = _columns(places, column * axes.bbox.width) * 72 / figure.dpi
    placed = _spread(heights, gap, (axes.bbox.y0 + gap / 2, axes.bbox.y1 - gap / 2))
    halo = [withStroke(linewidth=2.5, foreground=axes.get_facecolor())]
    for label, old, new, right in zip(labels, heights, placed, asides, strict=True):
        offset = (new - old) * 72 / figure.dpi
        # The line ends at the left edge of the text, so that it crosses no other; dotted, it is no curve of the data.
        arrow = {"arrowstyle": "-", "color": label.colour, "linewidth": 0.6, "linestyle": (0, (1, 3))}
        arrow |= {"shrinkA": 1, "shrinkB": 3, "relpos": (0.0, 0.5)}
        axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=(9 + right, offset),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=label.colour,
            path_effects=halo,
            arrowprops=arrow if abs(offset) > size / 3 or right > size else None,
        )


def _columns(places: Heights, width: float) -> Heights:
    """Return how far each x is left of the rightmost one that is at most `width` away from it; 0 for no number."""
    return np.array([max((places[(places >= x) & (places <= x + width)] - x).tolist(), default=0.0) for x in places])


def _spread(heights: Heights, gap: float, bounds: tuple[float, float]) -> Heights:
    """Return heights moved apart to at least `gap`, within bounds as far as there is room."""
    order = np.argsort(heights, kind="stable")
    placed = np.clip(heights, *bounds)
    for _ in range(200):  # neighbours push each other apart until all have room
        for low, high in pairwise(order):
            if (short := gap - (placed[high] - placed[low])) > 1e-6:
                placed[low] -= short / 2
                placed[high] += short / 2
        placed = np.clip(placed, *bounds)
    return placed


def label_at_edge(axes: Axes, labels: Sequence[Label], *, size: float = 8) -> None:
    """Write the names below each other, to the right of the last of all points. Call it last."""
    if labels:
        label_directly(axes, labels, size=size, column=1.0)


def say_starts(axes: Axes, starts: Sequence[Label], form: str) -> None:
    """Write which of the curves start above all that is shown, and where, in the corner that falling curves leave.

    Of more than two the range alone. `form` is the format of a value. Call it when the limits are final.
    """
    starts = [start for start in starts if start.y > axes.get_ylim()[1]]
    corner: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top", "fontsize": 8}
    if len(starts) > 2:
        low, high = (format(end(start.y for start in starts), form) for end in (min, max))
        corner |= {"ha": "right", "xytext": (-4, -4)}
        axes.annotate(f"what is cut starts at\n{low} to {high} nats", (1, 1), color=BLACK, **corner)
        return
    corner |= {"ha": "right", "path_effects": [withStroke(linewidth=2.5, foreground="white")]}
    below = 20  # points: under the line of the parent's loss
    for start in starts:
        words = f"{fill(start.text, 26)}:\nstarts at {start.y:{form}} nats"
        axes.annotate(words, (1, 1), xytext=(-4, -below), color=start.colour, **corner)
        below += 11 * (words.count("\n") + 1)
