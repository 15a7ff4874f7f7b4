"""The one style of all figures: sizes, colours per variant, axes, notes, published values.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; the marker says the same again.
"""

import textwrap
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

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
PUBLISHED_GROUND = "#f6f2e7"
"""Ground of a panel with published values."""
PUBLISHED_INK = "#6b5510"
"""Colour of published values and of the titles of their panels."""
LEGEND_ON_GROUND: dict[str, Any] = {"frameon": True, "facecolor": "white", "edgecolor": "none", "framealpha": 1}
"""Of a legend inside a panel, which no grid line crosses."""


_LEAST_FACTOR = 2.5
"""The ends of a logarithmic axis are at least this factor apart."""


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


def canvas(
    widths: Sequence[float],
    notes: Sequence[str],
    height: float = 3.4,
    right: float | Sequence[float] = 1.45,
    columns: int = 4,
    below: float = 0.55,
    left: float = 0.95,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels in rows of at most `columns`, and the notes for its caption.

    `widths` and `height` are inches of the panels themselves, less where a row would be too wide, `right` the room
    beside each for labels or a second axis,
    `below` that under each for its ticks, `left` that before the first of a row.
    Positions are fixed, not found by a layout engine, so that labels can be set against the final size.
    """
    top = 0.45
    rights = [right] * len(widths) if isinstance(right, float | int) else list(right)
    sizes = list(zip(widths, rights, strict=True))
    for most in range(columns, 0, -1):  # fewer in a row, where they would be too narrow
        rows = [sizes[first : first + most] for first in range(0, len(sizes), most)]
        shares = [(WIDEST - left - sum(room for _, room in row)) / sum(panel for panel, _ in row) for row in rows]
        share = min(1.0, *shares)
        if share > 0.35:
            break
    width = left + max(sum(share * panel + room for panel, room in row) for row in rows)
    height *= max(share, 0.75)
    total = len(rows) * (top + height + below)
    figure = Figure(figsize=(width, total))
    axes = []
    for place, row in enumerate(rows):
        x, y = left, total - (place + 1) * (top + height) - place * below
        for panel, room in row:
            axes.append(figure.add_axes((x / width, y / total, share * panel / width, height / total)))
            x += share * panel + room
    figure.set_label(" ".join(note for note in notes if note))
    return figure, axes


def loss_axis(axes: Axes) -> None:
    """Label the left axis in nats; the right one reads the same losses as perplexity."""
    axes.set_ylabel("held-out loss (nats per token)")
    right = axes.secondary_yaxis("right", functions=(np.exp, lambda value: np.log(np.maximum(value, 1e-9))))
    right.set_ylabel("perplexity")
    right.spines["right"].set_visible(True)
    right.spines["right"].set_color("#bbbbbb")


def widen(axes: Axes, share: float) -> None:
    """Make room for labels on the right: `share` of the axis, in its own scale, without ticks there."""
    low, high = axes.get_xlim()
    logarithmic = axes.get_xscale() == "log"
    if logarithmic and high / low < _LEAST_FACTOR:  # else the ticks of a narrow range run into each other
        spread = (_LEAST_FACTOR * low / high) ** 0.5
        low, high = low / spread, high * spread
        axes.set_xlim(low, high)
    ticks = {minor: [tick for tick in axes.get_xticks(minor=minor) if low <= tick <= high] for minor in (False, True)}
    axes.set_xlim(low, high * (high / low) ** share if logarithmic else high + (high - low) * share)
    for minor, places in ticks.items():
        axes.xaxis.set_ticks(places, minor=minor)
    if logarithmic:
        axes.xaxis.set_minor_formatter(_some_minor if len(ticks[False]) < 2 else NullFormatter())


def _some_minor(value: float, _: float) -> str:
    """Label 2 and 5 times a power of ten; more would run into each other."""
    exponent = int(np.floor(np.log10(value)))
    factor = round(value / 10.0**exponent)
    return f"${factor} \\times 10^{{{exponent}}}$" if factor in (2, 5) else ""


def mark_published(axes: Axes, title: str) -> None:
    """Make a panel visibly one of published values, which are not ours and have another scale."""
    axes.set_facecolor(PUBLISHED_GROUND)
    axes.set_title(f"PUBLISHED, not ours: {title}", color=PUBLISHED_INK)


def empty(message: str) -> Figure:
    """Return a figure that only says why there is nothing to draw."""
    figure = Figure(figsize=(6, 1.6))
    figure.text(0.5, 0.5, "\n".join(textwrap.wrap(message, 80)), ha="center", va="center", color="#555555")
    return figure
