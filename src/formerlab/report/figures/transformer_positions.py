"""The sinusoidal position encoding (arXiv:1706.03762, section 3.5)."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame

from formerlab.report.figures._style import BLACK, canvas
from formerlab.results.read import Results

STUDY = "transformer"
READS = ("run.json",)
RUNS = ("base",)
CAPTION = (
    "To see on the left: the sinusoidal position encoding of the base model, sin(p 10000^(-2i/d)) in even and the "
    "cosine in odd channels (arXiv:1706.03762, section 3.5), from wavelengths of 2 pi on the left to nearly constant "
    "on the right. On the right: the inner product of the encodings of two positions, over its largest value: it "
    "depends on their distance alone, since moving by k positions is one rotation of each pair of channels."
)
_POSITIONS = 64
_CHANNELS = 64


def data(results: Results) -> DataFrame:
    """Return the encoding of the first positions at the base model's width, and the products by distance."""
    runs = results.runs(STUDY, RUNS)
    if runs.empty or runs.iloc[0].get("spec.model.position.kind") != "sinusoidal":
        return DataFrame(columns=["source"])
    encoding = sinusoids(_POSITIONS, int(runs.iloc[0]["spec.model.width"]))
    shown = encoding[:, :_CHANNELS]
    position, channel = (grid.ravel() for grid in np.indices(shown.shape))
    values = DataFrame({"what": "encoding", "position": position, "channel": channel, "value": shown.ravel()})
    products = encoding @ encoding[0] / (encoding[0] @ encoding[0])
    by_distance = DataFrame({"what": "product", "position": np.arange(_POSITIONS), "channel": -1, "value": products})
    return DataFrame({**{key: [*values[key], *by_distance[key]] for key in values}}).assign(source="ours")


def sinusoids(positions: int, width: int) -> NDArray[np.float64]:
    """Return the encoding, positions x width; the model's own is held equal to it by a test."""
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.outer(np.arange(positions), frequencies)
    encoding: NDArray[np.float64] = np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(positions, -1)
    return encoding[:, :width]


def draw(data: DataFrame) -> Figure:
    """Draw the encoding as a map and the products as a line."""
    values, products = data[data["what"] == "encoding"], data[data["what"] == "product"]
    notes = [f"The first {_POSITIONS} positions and at most {_CHANNELS} channels; nothing here is learned."]
    figure, (left, right) = canvas([3.2, 3.2], notes, height=2.8, right=0.9)
    weights = values.pivot(index="position", columns="channel", values="value")
    left.imshow(weights.to_numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    left.grid(visible=False)
    left.set_xlabel("channel")
    left.set_ylabel("position")
    right.plot(products["position"], products["value"], color=BLACK)
    right.set_xlabel("distance between two positions")
    right.set_ylabel("relative inner product")
    return figure
