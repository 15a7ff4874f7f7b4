"""The plot style of all figures: sizes, colours per variant, axes, labels, published values. `SIGNS` explains it.

The green of Decay is much darker than the greys and vermilion, so that readers with red-green colour blindness can tell
them apart.
"""

import textwrap
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from scipy.optimize import isotonic_regression

from formerlab.report.names import color_and_marker

BLACK, GREY, RUST, GREEN, LIGHT_GREEN = "#222222", "#595959", "#8C3B00", "#005C3E", "#6FB59A"
BLUE, ORANGE, _, VERMILION, PURPLE, BROWN, _, _, _, SKY = sns.color_palette("colorblind").as_hex()
"""Colours of the colour-blind palette of seaborn. Its light pink, grey and yellow are too light, and `GREEN` replaces
its green. Text uses `ink(colour)`, a darker shade of the colour of its series.
"""

SETTINGS: dict[Any, Any] = {
    **sns.plotting_context("paper", font_scale=8 / 9.6),
    **sns.axes_style("whitegrid", {"axes.spines.top": False, "axes.spines.right": False, "grid.color": "#e6e6e6"}),
    "font.family": "DejaVu Sans",
    "lines.solid_capstyle": "butt",  # round ends would make intervals longer
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.titley": 1.0,  # fixed, since automatic placement takes time and no label is above a panel
    "xtick.bottom": True,
    "ytick.left": True,
    "image.interpolation": "nearest",
    "legend.frameon": False,
    "pdf.fonttype": 42,  # conferences refuse Type 3 fonts
}
"""The theme of seaborn for papers, with 8-point text."""

WIDEST, NARROW = 7.0, 3.5
"""Widths of a figure in inches: two columns of a paper and one column."""
LETTER = 0.063
"""Approximate width of an 8-point letter in inches."""
EDGES = (24, 16)
"""Letters per line of a series name beside its last point: wide, and narrow for panels side by side."""
PUBLISHED_GROUND = "#f6f2e7"
"""Background colour of a panel with published values."""
MET_GROUND = "#e2f3e4"
"""Background colour of the values that meet a claim."""
LIMIT_STYLE: dict[str, Any] = {"color": GREY, "linestyle": (0, (3, 2)), "linewidth": 1.2}
"""Line style of the limit of a claim."""
BETTER = "\N{LEFTWARDS ARROW}\N{NO-BREAK SPACE}better"
"""Marks the better side in the label of an axis where it is left or, in the rotated label of a y axis, below."""
SIGNS = {
    "black": "Transformer, full cache, ideal selection (grey: a Transformer with fewer tokens)",
    "blue, light blue, pink": "Tokenformer, grown with zero keys, parent that is trained further",
    "orange or brown, teal": "DenseFormer, Hyper-Connections",
    "dark green, light green": "Decay, Decay with half of the budget for recent tokens",
    "vermilion, violet": "H2O, TOVA",
    "grey": "most other variants, interactions, notes and names of published rows",
    "shades of a colour": "settings or sizes of one variant",
    "upward triangle, circle": "in figures of growth: grown as published, the parent; other ways to grow differ",
    "hollow mark, tinted panel, row or strip": "published values, not ours",
    "dashed grey line, green ground": "limit of a claim (also where it is zero), values that meet it",
    "bold name": "a claim uses the row",
    "thick pale bar": "interval that verdicts use, with the spread of similar runs",
    "thin bar, band": "interval of these seeds or examples alone",
    "small dots, thin lines": "single seeds",
    "hatching": "no mixing weight; in tokenformer_layer, parameter tokens that growth adds",
    "number with an arrow at the edge": "a value beyond the axis",
    "arrow and `better` beside an axis": "the better side, where it is neither right nor up",
}
"""The meaning of colours, marks and grounds in all figures; the notes of a figure have its own intervals and counts."""


PlotStyle = dict[str, Any]
"""Plot style of a variant in every figure, as keyword arguments of matplotlib."""
HOLLOW: PlotStyle = {"markerfacecolor": "white"}


def _style(colour: str, marker: str, line: str = "-", **style: Any) -> PlotStyle:
    # dashed lines are drawn over solid lines of the same values, which stay visible between the dashes
    return {"color": colour, "marker": marker, "linestyle": line, "zorder": 2 if line == "-" else 2.1} | style


_GROUPS = {
    "random keys, tau sqrt(n); grown as published; grown, 30B a stage": _style(BLUE, "^"),
    "random keys, tau kept": _style(BLUE, "s", "--"),
    "zero keys, tau kept; grown with zero keys; by tokens, zero keys, tau kept": _style(SKY, "D"),
    "zero keys, tau sqrt(n); by tokens, zero keys, tau = sqrt(n)": _style(SKY, "P", "--"),
    "random keys, tau sqrt(n), optimizer state kept": _style(BLUE, "<", "--"),
    "zero keys, tau kept, optimizer state kept": _style(SKY, ">", "--"),
    "random keys, tau sqrt(n), old tokens frozen": _style(BLUE, "X", ":"),
    "zero keys, tau kept, old tokens frozen": _style(SKY, "p", ":"),
    "Net2Net by padding; in width by new blocks (the paper's Net2Net)": _style(GREY, "v"),
    "Tokenformer, trained further; parent trained further; parent trained further, equal FLOPs": _style(PURPLE, "D"),
    "parent; Tokenformer, not grown": _style(BLUE, "o"),
    "Transformer, trained further": _style(BLACK, "D"),
    "DenseFormer 1x1": _style(ORANGE, "s"),
    "DenseFormer 4x1": _style(BROWN, "v"),
    "DenseFormer 4x5": _style(RUST, "^"),
    "h2o variant=global_statistics": _style(VERMILION, "<"),
    "dynamic_cache": _style(GREY, "<"),
    "decay, half recent; Decay 0.2, half recent; Decay 0.95, half recent": _style(LIGHT_GREEN, "o"),
    "plain sum (alpha 1)": _style(BLACK, "s", ":"),
    "h2o variant=local_statistics": _style(VERMILION, ">"),
    "streaming_llm positions=reindexed": _style("#A6A6A6", "h"),
    "Transformer, full budget; Transformer, 300B tokens": _style(BLACK, "o", "--"),
    "Transformer, tokens of a stage; Transformer, rate to 0": _style(GREY, "X", ":"),
    "Transformer from scratch; Transformer, not grown; self-attention": _style(BLACK, "o"),
    "Tokenformer from scratch": _style(BLUE, "s", "--"),
    "grown, half the tokens; grown, 15B a stage": _style(BLUE, "v", ":"),
    "grown, twice the tokens; grown, 60B a stage": _style(BLUE, "P", "--"),
    "parent trained further, equal tokens": _style(PURPLE, "p", "--"),
    "Transformer, 30B tokens": _style(GREY, "o", "--"),
    "recurrent": _style("#666666", "s"),
    "Net2Net (2015); in width by copies (Net2Net of 2015)": _style("#8C8C8C", "*"),
    "HyperCloning; in width by copies (HyperCloning)": _style("#A6A6A6", "X", "--"),
    "convolution": _style("#8C8C8C", "^", "-."),
    "restricted": _style("#A6A6A6", "D", "--"),
}
"""Plot styles of names that are not in names.yaml: ways to grow, settings of one mixer or policy, the DynamicCache
of the transformers library, and series of single figures. Synonyms share a style, as do names that never
appear in the same figure."""
_STYLES = {name: style for names, style in _GROUPS.items() for name in names.split("; ")}
_SPARE = (_style(GREY, "h"), _style("#8C8C8C", "p"), _style("#B0B0B0", "H"))


def plot_style(name: str) -> PlotStyle:
    """Return the plot style of a policy (by its kind) or of another variant or series (by its label).

    An unlisted name gets a spare style selected by its hash, so it is the same in all figures. A way to grow has one
    style, with and without `grown: ` before its name.
    """
    name = name.removeprefix("grown: ")
    listed = color_and_marker(name)
    return _STYLES.get(name) or (_style(*listed) if listed else _SPARE[zlib.crc32(name.encode()) % len(_SPARE)])


def ink(colour: str) -> str:
    """Return a colour darkened until text in it has a contrast of at least 4.5 on white (WCAG 2.2, 1.4.3)."""
    rgb = np.array(to_rgb(colour))
    while np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722) > 0.183:
        rgb *= 0.97
    return to_hex((rgb[0], rgb[1], rgb[2]))


def box(axes: Axes, x: float, y: float, width: float, height: float, words: str = "", **style: Any) -> None:
    """Draw a box with its lower left corner at (x, y) and centred text."""
    drawn: dict[str, Any] = {"edgecolor": BLACK, "linewidth": 0.8} | style
    axes.add_patch(Rectangle((x, y), width, height, **drawn))
    axes.text(x + width / 2, y + 0.47 * height, words, ha="center", va="center", fontsize=7)


def arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], **style: Any) -> None:
    """Draw an arrow between two points."""
    drawn: dict[str, Any] = {"arrowstyle": "-|>", "color": BLACK, "linewidth": 1, "mutation_scale": 9}
    axes.add_patch(FancyArrowPatch(begin, end, **drawn | {"shrinkA": 0, "shrinkB": 0} | style))


class Label(NamedTuple):
    """A text beside a point (x, y) in data coordinates."""

    x: float
    y: float
    text: str
    colour: str


def wrap(name: object, letters: int = EDGES[0]) -> str:
    """Wrap a name at `letters` characters, as in the labels of series."""
    lines = str(name).split("\n")
    return "\n".join(textwrap.fill(line, letters, break_on_hyphens=False, break_long_words=False) for line in lines)


def label_at_edge(axes: Axes, labels: Sequence[Label], letters: int = EDGES[0]) -> None:
    """Write names to the right of the panel, moved up or down so that they do not overlap.

    A dotted line connects each moved label with its point. Call this last, when the limits are final.
    """
    labels = [label for label in labels if np.isfinite([label.x, label.y]).all()]
    if not labels:
        return
    axes.autoscale_view()  # otherwise the limits are computed only when the figure is rendered
    dots = axes.figure.dpi / 72
    texts = [wrap(label.text, letters) for label in labels]
    # the label of a point outside the panel moves to the edge
    ends = np.sort(axes.get_xlim()), np.sort(axes.get_ylim())
    points = [(np.clip(label.x, *ends[0]), np.clip(label.y, *ends[1])) for label in labels]
    across, heights = axes.transData.transform(points).T
    halves = 4.5 * dots * np.array([text.count("\n") + 1.45 for text in texts])
    moved = (_spread(heights, halves, (axes.bbox.y0, axes.bbox.y1)) - heights) / dots
    beside, rights = 0.06 * axes.bbox.width / dots, (axes.bbox.x1 - across) / dots
    for label, point, text, up, right in zip(labels, points, texts, moved, rights, strict=True):
        # The line ends at the left edge of the text, so it crosses no other text. It is dotted, unlike curves of data.
        leader = {"arrowstyle": "-", "color": label.colour, "linewidth": 0.6, "linestyle": (0, (1, 3))}
        leader |= {"shrinkA": 1, "shrinkB": 3, "relpos": (0.0, 0.5)}
        axes.annotate(text, point, (4 + right, up), textcoords="offset points", va="center", color=ink(label.colour),
                      arrowprops=leader if abs(up) > 3 or right > beside else None)  # fmt: skip


def _spread(heights: Any, halves: Any, bounds: tuple[float, float]) -> Any:
    """Return the vertical centres, moved as little as possible, so that texts with these half-heights stay apart and
    within the bounds.
    """
    order = np.argsort(heights, kind="stable")
    piled = np.cumsum(2 * halves[order]) - halves[order]  # the heights of all texts if they are stacked from 0
    apart = isotonic_regression(heights[order] - piled).x
    moved = np.empty_like(heights)
    moved[order] = piled + np.clip(apart, bounds[0], max(bounds[0], bounds[1] - 2 * halves.sum()))
    return moved


def empty(message: str) -> Figure:
    """Return a figure that contains only a message, such as the reason why there is nothing to draw."""
    figure = Figure(figsize=(6, 1.6))
    figure.text(0.5, 0.5, textwrap.fill(message, 80), ha="center", va="center", color="#555555")
    return figure
