"""Figures of the translation study (arXiv:1706.03762)."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.panel import Panel, Style, setting, sheet
from formerlab.report.style import BLACK, BLUE, GREEN, LETTER, VERMILION, canvas, one_large
from formerlab.report.transformer import complexity
from formerlab.results.read import Results

STUDY = "transformer"
_PARTS = ("encoder", "decoder", "cross")
_END = "<|endoftext|>"
_MOST_HEADS = 4


def attention_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the weights of the last layer of one seed on its first sentence, of at most four heads."""
    rows = results.rows("attention.csv", STUDY, runs)
    first = rows.iloc[0]
    rows = rows[(rows["seed"] == first["seed"]) & (rows["sentence"] == first["sentence"])]
    rows = rows[(rows["layer"] == rows["layer"].max()) & (rows["head"] < _MOST_HEADS)]
    shown: DataFrame = rows.assign(source="ours").reset_index(drop=True)
    return shown


def draw_attention(data: DataFrame) -> Figure:
    """Draw the head of the cross-attention that chooses most sharply large, and all heads small, a column per kind."""
    heads = sorted(data["head"].unique())
    sharpest = data[data["part"] == "cross"].groupby(["head", "query"])["weight"].max().groupby("head").mean()
    sharp = heads[int(sharpest.argmax())]
    small = [(part, head) for head in heads for part in _PARTS]
    longest = max(len(_shown(str(token))) for side in ("query", "key") for token in data[f"{side}_token"].unique())
    room = 0.5 + LETTER * longest
    figure, axes = one_large(len(small), len(_PARTS), left=room, below=room, right=0.85)
    figure.set_label(f"Seed {data['seed'].iloc[0]}, layer {data['layer'].iloc[0] + 1}, one sentence.")
    for panel, (part, head) in zip(axes, [("cross", sharp), *small], strict=True):
        image = _draw_map(panel, data[(data["part"] == part) & (data["head"] == head)])
        panel.set_title(part if head == heads[0] else "")
        if panel is not axes[0]:
            panel.set(xticks=[], yticks=[], ylabel=f"head {head + 1}" if part == _PARTS[0] else "")
    axes[0].set(title=f"{setting(data) or 'Model'}: from decoder to encoder, head {sharp + 1}",
                xlabel="piece looked at", ylabel="piece that is written next")  # fmt: skip
    figure.colorbar(image, cax=axes[0].inset_axes((1.03, 0.0, 0.03, 1.0)), label="share of the attention")
    return figure


def _draw_map(panel: Axes, rows: DataFrame) -> AxesImage:
    weights = rows.pivot(index="query", columns="key", values="weight").fillna(0.0)
    image = panel.imshow(weights.to_numpy(), cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    panel.grid(visible=False)
    for axis, side in ((panel.yaxis, "query"), (panel.xaxis, "key")):
        tokens = rows.drop_duplicates(side).sort_values(side)[f"{side}_token"].tolist()
        if side == "query" and rows["part"].iloc[0] == "cross":
            tokens = [*tokens[1:], _END]  # the decoder reads a piece to write the one after it
        axis.set_ticks(range(len(tokens)), [_shown(str(token)) for token in tokens])
    panel.tick_params(axis="x", rotation=90)
    return image


def _shown(token: str) -> str:
    """Return a token with its leading space visible and the end of a sentence short."""
    return "</s>" if token == _END else token.replace(" ", "\u2423")


transformer_attention = Plot(
    reads=("attention.csv", "run.json"),
    runs=("base",),
    caption=(
        "Attention probabilities of the base model on one test sentence, after Figures 3 to 5 of arXiv:1706.03762. "
        "Large: of the heads from decoder to encoder in the last layer the one that chooses most sharply; a row is the "
        "piece that is written from what was looked at, a column a piece looked at. Small: heads of the same layer, in "
        "the encoder, in the decoder and from decoder to encoder (cross). To see: a trace of "
        "which source piece each target piece is written from, across the different word orders of the two languages."
    ),
    data=attention_data,
    draw=draw_attention,
)


_COLOURS = {"self-attention": BLACK, "recurrent": VERMILION, "convolution": BLUE, "restricted": GREEN}
_PANELS = (("n", "multiply_adds"), ("d", "multiply_adds"), ("n", "time_s"), ("d", "time_s"))
_TITLES = {"multiply_adds": "Counted", "time_s": "Measured"}
_AXES = {"n": "length n", "d": "width d", "multiply_adds": "multiply-adds", "time_s": "time of a call (s)"}


def complexity_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return one row per layer type, length and width."""
    return complexity(results, runs).assign(source="ours")


def _of_layer(name: str, rows: DataFrame) -> Style:
    """Return a style; recurrence is dashed, since restricted attention with r = d / 2 counts the same."""
    return {"color": _COLOURS[name], "marker": "o", "linestyle": "--" if name == "recurrent" else "-"}


def draw_complexity(data: DataFrame) -> Figure:
    """Draw counts and times against length and width."""
    panels = [
        Panel(axis, column, by="operation", kind="band", where={"axis": axis}, log="xy", ticks="{:g}".format,
              name="legend", style=_of_layer, xlabel=_AXES[axis], ylabel=_AXES[column],
              title=partial(_titled, axis=axis, column=column))
        for axis, column in _PANELS
    ]  # fmt: skip
    first = data.iloc[0]
    notes = [f"Fastest of several calls on one machine; kernel k = {first['k']}, neighbourhood r = {first['r']}."]
    return sheet(*panels, notes=notes)(data.assign(operation=data["operation"].str.replace("_", "-"), data_set=None))


def _titled(rows: DataFrame, *, axis: str, column: str) -> str:
    other = "d" if axis == "n" else "n"
    return f"{_TITLES[column]}, {_AXES[other]} = {rows[other].iloc[0]}"


transformer_complexity = Plot(
    reads=("complexity.csv", "run.json"),
    runs=("*",),
    caption=(
        "Self-attention, recurrence, convolution and self-attention restricted to a neighbourhood, after Table 1 of "
        "arXiv:1706.03762: counted multiply-adds of the mixing operation and measured time of one call, against "
        "length n and width d. Points are measured, both axes are logarithmic, so a slope is an exponent; the table "
        "transformer_layers has the fitted slopes beside the published ones. To see: self-attention steepest in n, "
        "recurrence and convolution in d, and times that follow the counts only where these are large."
    ),
    data=complexity_data,
    draw=draw_complexity,
)


_POSITIONS = 64
_CHANNELS = 64


def positions_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the encoding of the first positions at the base model's width, and the products by distance."""
    records = results.runs(STUDY, runs)
    if records.iloc[0].get("spec.model.position.kind") != "sinusoidal":
        return DataFrame()
    encoding = sinusoids(_POSITIONS, int(records.iloc[0]["spec.model.width"]))
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


def draw_positions(data: DataFrame) -> Figure:
    """Draw the encoding as a map and the products as a line."""
    values, products = data[data["what"] == "encoding"], data[data["what"] == "product"]
    notes = [
        f"The first {_POSITIONS} positions; left at most {_CHANNELS} channels, right all of the model's. "
        "Nothing here is learned."
    ]
    figure, (left, right) = canvas(2, 2, 2.0, notes, right=0.7)
    weights = values.pivot(index="position", columns="channel", values="value")
    shown = left.imshow(weights.to_numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    figure.colorbar(shown, cax=left.inset_axes((1.04, 0.0, 0.04, 1.0)), label="value", ticks=[-1, 0, 1])
    left.set_title("The encoding")
    right.set_title("Two positions, by distance")
    left.grid(visible=False)
    left.set_xlabel("channel")
    left.set_ylabel("position")
    right.plot(products["position"], products["value"], color=BLACK)
    right.set_xlabel("distance between two positions")
    right.set_ylabel("relative inner product")
    return figure


transformer_positions = Plot(
    reads=("run.json",),
    runs=("base",),
    caption=(
        "The sinusoidal position encoding of the base model, and what it says of distance. Left: sin(p 10000^(-2i/d)) "
        "in even and the cosine in odd channels (arXiv:1706.03762, section 3.5), from wavelengths of 2 pi to nearly "
        "constant. To see: on the right, the inner product of the encodings of two positions, over its largest value: "
        "it depends on their distance alone, since moving by k positions is one rotation of each pair of channels."
    ),
    data=positions_data,
    draw=draw_positions,
)
