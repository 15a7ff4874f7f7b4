"""Attention of a translator on one sentence (arXiv:1706.03762, Figures 3 to 5)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._style import canvas
from formerlab.results.read import Results

STUDY = "transformer"
READS = ("attention.csv", "run.json")
RUNS = ("base",)
CAPTION = (
    "Attention probabilities of the base model on one test sentence, after Figures 3 to 5 of arXiv:1706.03762: every "
    "head of the last layer, in the encoder, in the decoder and from decoder to encoder. Rows are the tokens that "
    "look, columns the tokens looked at; white is 0, black 1. To see: in the cross-attention a trace of which source "
    "piece each target piece is written from, across the different word orders of the two languages."
)
_PARTS = ("encoder", "decoder", "cross")
_MOST_HEADS = 4


def data(results: Results) -> DataFrame:
    """Return the weights of the last layer of one seed on its first sentence, of at most four heads."""
    rows = results.rows("attention.csv", STUDY, RUNS)
    if rows.empty:
        return DataFrame(columns=["source"])
    first = rows.iloc[0]
    rows = rows[(rows["seed"] == first["seed"]) & (rows["sentence"] == first["sentence"])]
    rows = rows[(rows["layer"] == rows["layer"].max()) & (rows["head"] < _MOST_HEADS)]
    shown: DataFrame = rows.assign(source="ours").reset_index(drop=True)
    return shown


def draw(data: DataFrame) -> Figure:
    """Draw one row of panels per kind of attention, one panel per head."""
    heads = sorted(data["head"].unique())
    panels = [(part, head) for part in _PARTS for head in heads]
    notes = [
        f"Run {data['run'].iloc[0]}, seed {data['seed'].iloc[0]}, layer {data['layer'].iloc[0] + 1}, one sentence."
    ]
    figure, axes = canvas([2.3] * len(panels), notes, height=2.3, right=0.75, columns=len(heads))
    for panel, (part, head) in zip(axes, panels, strict=True):
        _draw_map(panel, data[(data["part"] == part) & (data["head"] == head)])
        panel.set_title(f"{part}, head {head + 1}")
    return figure


def _draw_map(panel: Axes, rows: DataFrame) -> None:
    weights = rows.pivot(index="query", columns="key", values="weight").fillna(0.0)
    panel.imshow(weights.to_numpy(), cmap="Greys", vmin=0.0, vmax=1.0, aspect="auto")
    panel.grid(visible=False)
    for axis, place in ((panel.yaxis, "query"), (panel.xaxis, "key")):
        tokens = rows.drop_duplicates(place).sort_values(place)[f"{place}_token"]
        axis.set_ticks(range(len(tokens)), [_shown(str(token)) for token in tokens])
    panel.tick_params(labelsize=6)
    panel.tick_params(axis="x", rotation=90)


def _shown(token: str) -> str:
    """Return a token with its leading space visible and the end of a sentence short."""
    return "</s>" if token == "<|endoftext|>" else token.replace(" ", "\u2423")
