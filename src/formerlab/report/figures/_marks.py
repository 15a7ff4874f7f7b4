"""What figures draw again and again: points with bars, curves in bands, names at the right edge."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from pandas import DataFrame, Series

from formerlab.report.figures._labels import Label, label_directly
from formerlab.report.figures._style import Look


def points_with_bars(axes: Axes, x: Series, y: Series, ends: tuple[Series, Series], look: Look, **style: Any) -> None:
    """Join points by a line, each with a bar from low to high end; one without ends has no bar."""
    low, high = ends
    bars = np.nan_to_num([y - low, high - y])
    axes.errorbar(x, y, bars, color=look.colour, marker=look.marker, capsize=2, elinewidth=1, **style)


def curve_in_band(axes: Axes, curve: DataFrame, look: Look, line: str = "-") -> None:
    """Draw the validation loss by step, in the band of its interval."""
    steps, low, high = curve["step"], curve["loss_nats_low"], curve["loss_nats_high"]
    axes.plot(steps, curve["loss_nats"], line, color=look.colour, marker=look.marker, markevery=0.2, markersize=4)
    axes.fill_between(steps, low, high, color=look.colour, alpha=0.12, linewidth=0)


def label_at_edge(axes: Axes, labels: Sequence[Label], *, size: float = 8) -> None:
    """Write the names below each other, to the right of the last of all points. Call it last."""
    if labels:
        edge = max(label.x for label in labels)
        label_directly(axes, [label._replace(x=edge) for label in labels], size=size)
