"""Where DenseFormer averages over depth, and over what (arXiv:2402.02622, Fig 1), drawn from the specs of the runs."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.runs import variant
from formerlab.report.style import GREY, arrow, box, canvas, look
from formerlab.results.read import Results

MOST = 8
"""Panels."""
SHOWN = 8
"""Blocks of a panel, from the first on: more make a dense average a blur."""


def averages(layers: int, dilation: int, period: int) -> dict[int, list[int]]:
    """Return the sources of every average by the block that it follows: S_i = {j <= i : j = i mod k} where p divides i.

    Blocks count from 1; source 0 are the embedded tokens. A test holds it equal to the mixer's own table.
    """
    return {i: list(range(i % dilation, i + 1, dilation)) for i in range(period, layers + 1, period)}


def draw(data: DataFrame) -> Figure:
    """Draw a row of blocks per kind, with an arc from everything that an average reads."""
    groups, layers = list(data.groupby("variant", sort=False)), int(data["layers"].iloc[0])
    shown = min(layers, SHOWN)
    note = f"The first {shown} of {layers} blocks." if shown < layers else ""
    figure, axes = canvas(len(groups), 2, 1.1, note, left=0.1, right=0.1, below=0.1)
    for panel, (name, rows) in zip(axes, groups, strict=True):
        _draw(panel, rows[rows["after_block"] <= shown], shown, look(str(name)).colour)
        panel.set_title(f"{name}: {len(rows)} weights in {rows['after_block'].nunique()} averages")
    return figure


def _draw(axes: Axes, rows: DataFrame, layers: int, colour: str) -> None:
    """Draw blocks in a row, after each what averages, and an arrow to the next block."""
    after = set(rows["after_block"])
    for block in range(layers + 1):
        box(axes, block - 0.25, -0.31, 0.5, 0.62, f"{block}" if block else "X0", facecolor="#eef2f6", edgecolor=GREY)
        way = ((block + (0.58 if block in after else 0.26), 0), (block + 0.76, 0))
        arrow(axes, *way, mutation_scale=5, color=GREY, linewidth=0.8)
    for block, read in rows[["after_block", "reads"]].itertuples(index=False, name=None):
        arrow(axes, (read, 0.32), (block + 0.48, 0.45), arrowstyle="-", connectionstyle="arc3,rad=-0.32", color=colour,
              alpha=0.55, linewidth=0.8)  # fmt: skip
    places = [block + 0.48 for block in after]
    axes.plot(places, [0.0] * len(places), "o", color=colour, markersize=5, zorder=3)
    axes.vlines(places, 0, 0.45, color=colour, linewidth=0.8)
    axes.set(xlim=(-0.4, layers + 0.9), ylim=(-0.5, 0.5 + 0.14 * (layers + 0.5)))
    axes.set_axis_off()


@plot(
    reads=("run.json",),
    runs=("depth.kind=dwa",),
    draw=draw,
)
def denseformer_architecture(results: Results, runs: Sequence[str]) -> DataFrame:
    """Where DenseFormer averages over depth and what each average reads, after Fig. 1 of DenseFormer
    (arXiv:2402.02622), drawn from the settings of the runs. Boxes are the embedding X0 and the raw outputs of the
    blocks, circles the averages that the next block reads: after every p-th block (period p) a weighted sum of that
    block's output and of every k-th earlier one (dilation k). To see: with dilation 1 and period 1 each average reads
    all earlier outputs, so arcs grow with the square of the depth; dilation and period thin them out, and with a
    dilation above 1 the embedding enters only some of the averages.
    """
    records = results.runs("denseformer", runs)
    records = records[records["spec.model.depth.kind"] == "dwa"]
    keys = ["spec.model.layers", "spec.model.depth.dilation", "spec.model.depth.period"]
    kinds = records.drop_duplicates(keys).sort_values(keys)
    counts = kinds["spec.model.layers"].value_counts()
    depth = counts.index[counts == counts.max()].max()
    rows = []
    for record in kinds[kinds["spec.model.layers"] == depth].head(MOST).to_dict("records"):
        layers, dilation, period = (int(record[key]) for key in keys)
        shared = {"source": "ours", "variant": variant(record), "layers": layers, "dilation": dilation}
        found = averages(layers, dilation, period).items()
        rows += [shared | {"period": period, "after_block": i, "reads": j} for i, reads in found for j in reads]
    return DataFrame(rows)
