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
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.patheffects import withStroke

from formerlab.report.names import look_of

BLACK, GREY = "#222222", "#7f7f7f"
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#D9B500"
ORANGE, VERMILION, PURPLE, BROWN = "#E69F00", "#D55E00", "#CC79A7", "#8C564B"
LEAF, TAN = "#66A61E", "#B5651D"

SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.titley": 1.0,  # fixed, since finding it takes time and no label stands above a panel
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "image.interpolation": "nearest",
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "figure.dpi": 100,
    "pdf.fonttype": 42,  # conferences refuse Type 3 fonts
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
    line: str = "-"
    hollow: bool = False

    def style(self) -> dict[str, Any]:
        """Return it in the words of matplotlib."""
        filled = {"markerfacecolor": "white"} if self.hollow else {}
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line} | filled


_LOOKS = {
    "grown: random keys, tau sqrt(n)": Look(VERMILION, "^"),
    "grown: random keys, tau kept": Look(ORANGE, "v"),
    "grown: zero keys, tau kept": Look(GREEN, "D"),
    "grown: zero keys, tau sqrt(n)": Look(PURPLE, "P"),
    "grown: random keys, tau sqrt(n), optimizer carried": Look(YELLOW, "<", "--"),
    "grown: zero keys, tau kept, optimizer carried": Look(SKY, ">", "--"),
    "grown: random keys, tau sqrt(n), old tokens frozen": Look(BROWN, "X", ":"),
    "grown: zero keys, tau kept, old tokens frozen": Look(GREY, "p", ":"),
    "grown: Net2Net by padding": Look(ORANGE, "v"),
    "Tokenformer, trained on": Look(BLUE, "*"),
    "the parent, trained on": Look(BLUE, "*"),
    "from scratch,": Look(SKY, "s"),
    "from scratch, full steps": Look(BLACK, "s"),
    "Transformer, trained on": Look(BLACK, "*"),
    "DenseFormer 1x1": Look(BLUE, "s"),
    "DenseFormer 4x1": Look(SKY, "v"),
    "DenseFormer 4x5": Look(ORANGE, "^"),
    "DenseFormer 2x3": Look(LEAF, "D"),
    "DenseFormer 2x1": Look(GREEN, "P"),
    "DenseFormer 8x1": Look(PURPLE, "d"),
    "DenseFormer 4x3": Look(VERMILION, ">"),
    "DenseFormer 4x8": Look(TAN, "<"),
    "dynamic_cache": Look(VERMILION, "<"),
    "Decay, half recent": Look(SKY, "o"),
    "h2o variant=global_statistics": Look(TAN, "<"),
    "h2o variant=local_statistics": Look(TAN, ">"),
    "streaming_llm positions=reindexed": Look(LEAF, "h"),
    "Transformer, full budget": Look(BLACK, "o", "--"),
    "Transformer, tokens of a stage": Look(GREY, "X", ":"),
    "Tokenformer, FLOPs of the chain": Look(SKY, "s", "--"),
    "before growth": Look(BLACK, "s", ""),
    "grown, half the tokens": Look(ORANGE, "v"),
    "grown (as published)": Look(VERMILION, "^"),
    "grown, twice the tokens": Look(PURPLE, "P"),
    "parent trained on": Look(BLUE, "*"),
    "parent trained on, equal FLOPs": Look(BLUE, "*"),
    "parent trained on, equal tokens": Look(BLUE, "*", "--", hollow=True),
    "Transformer, 300B tokens": Look(BLACK, "o", "--"),
    "Transformer, 30B tokens": Look(GREY, "o", "--"),
    "grown, 60B a stage": Look(PURPLE, "^"),
    "grown, 30B a stage": Look(VERMILION, "^"),
    "grown, 15B a stage": Look(ORANGE, "^"),
    "Net2Net by padding": Look(ORANGE, "v"),
    "Net2Net (2015)": Look(BROWN, "P"),
    "HyperCloning": Look(SKY, "X"),
    "Tokenformer, zero keys, tau kept": Look(GREEN, "D"),
    "Tokenformer, zero keys, tau sqrt(n)": Look(PURPLE, "P"),
    "Tokenformer, not grown": Look(BLUE, "s"),
    "Transformer, not grown": Look(BLACK, "o"),
    "Linear, plain": Look(BLACK, "o"),
    "Linear, DWA": Look(GREY, "s"),
    "Pattention, plain": Look(BLUE, "^"),
    "Pattention, DWA": Look(SKY, "D"),
    "sizes": Look(BLACK, "o"),
    "scores": Look(BLUE, "o"),
    "norms": Look(GREEN, "o"),
    "growth": Look(ORANGE, "o"),
    "depth": Look(PURPLE, "o"),
    "floor": Look(GREY, "o"),
    "self-attention": Look(BLACK, "o"),
    "recurrent": Look(VERMILION, "o", "--"),
    "convolution": Look(BLUE, "o"),
    "restricted": Look(GREEN, "o"),
    "main": Look(BLACK, "o"),
    "interaction": Look(VERMILION, "o"),
    "important": Look(PURPLE, ""),
    "unimportant": Look(BLACK, ""),
    "ours": Look(BLUE, "s"),
    "published": Look(PUBLISHED_INK, "D", hollow=True),
}
"""Looks beside those of specs: ways to grow, settings of one mixer or policy, the cache of transformers, and series of
single figures."""
_SPARE = (Look(YELLOW, "h"), Look(BROWN, "h"), Look("#6A51A3", "h"))


def look(name: str) -> Look:
    """Return the look of a policy by its kind, or of another variant or series by its readers' name. Specs have their
    own; a name without one always gets the same spare look.
    """
    found = _LOOKS.get(name) or look_of(name)
    return Look(*found) if found else _SPARE[zlib.crc32(name.encode()) % len(_SPARE)]


def placed(
    count: int,
    width: float,
    lefts: Sequence[float],
    rights: Sequence[float],
    heights: Sequence[float],
    tops: Sequence[float],
    below: float,
    head: float,
    heading: str,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels in rows below a heading; sizes are inches: of panels, around them and above all.

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
    figure.text(0.012, 1 - 0.06 / total, heading, va="top", color=GREY)
    return figure, axes


def box(axes: Axes, x: float, y: float, width: float, height: float, words: str = "", **style: Any) -> None:
    """Draw a box, its lower left corner at (x, y), with words in its middle."""
    drawn: dict[str, Any] = {"edgecolor": BLACK, "linewidth": 0.8} | style
    axes.add_patch(Rectangle((x, y), width, height, **drawn))
    axes.text(x + width / 2, y + 0.47 * height, words, ha="center", va="center", fontsize=7)


def arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], **style: Any) -> None:
    """Draw an arrow between two points."""
    drawn: dict[str, Any] = {"arrowstyle": "-|>", "color": BLACK, "linewidth": 1, "mutation_scale": 9} | style
    axes.add_patch(FancyArrowPatch(begin, end, shrinkA=0, shrinkB=0, **drawn))


class Label(NamedTuple):
    """A text beside a point given in data coordinates."""

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
    # the label of a point outside the panel moves to the edge
    ends = np.sort(axes.get_xlim()), np.sort(axes.get_ylim())
    points = [(np.clip(label.x, *ends[0]), np.clip(label.y, *ends[1])) for label in labels]
    across, heights = axes.transData.transform(points).T
    halves = 4.5 * dots * np.array([text.count("\n") + 1.15 for text in texts])
    moved = (_spread(heights, halves, (axes.bbox.y0, axes.bbox.y1)) - heights) / dots
    halo = [withStroke(linewidth=2.5, foreground=axes.get_facecolor())]
    for label, point, text, up, right in zip(labels, points, texts, moved, (across.max() - across) / dots, strict=True):
        # The line ends at the left edge of the text, so that it crosses no other; dotted, it is no curve of the data.
        leader = {"arrowstyle": "-", "color": label.colour, "linewidth": 0.6, "linestyle": (0, (1, 3))}
        leader |= {"shrinkA": 1, "shrinkB": 3, "relpos": (0.0, 0.5)}
        axes.annotate(
            text,
            point,
            xytext=(9 + right, up),
            textcoords="offset points",
            va="center",
            color=label.colour,
            path_effects=halo,
            arrowprops=leader if abs(up) > 3 or right > 8 else None,
        )


def _spread(heights: Any, halves: Any, bounds: tuple[float, float]) -> Any:
    """Return heights moved apart by the halves of both texts, within bounds as far as there is room."""
    order = np.argsort(heights, kind="stable")
    low, high = bounds[0] + halves, np.maximum(bounds[0] + halves, bounds[1] - halves)
    found = np.clip(heights, low, high)
    for _ in range(200):  # neighbours push each other apart until all have room
        for one, other in pairwise(order):
            short = max(0.0, halves[one] + halves[other] - (found[other] - found[one]))
            found[one] -= short / 2
            found[other] += short / 2
        found = np.clip(found, low, high)
    return found


def empty(message: str) -> Figure:
    """Return a figure that only says why there is nothing to draw."""
    figure = Figure(figsize=(6, 1.6))
    figure.text(0.5, 0.5, textwrap.fill(message, 80), ha="center", va="center", color="#555555")
    return figure
