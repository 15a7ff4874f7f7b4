"""Singular values of the weights (DenseFormer, arXiv:2402.02622, Fig 13)."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.figures.denseformer.flow import compared
from formerlab.report.runs import TRANSFORMER, n_seeds
from formerlab.report.style import canvas, look
from formerlab.results.read import Results
from formerlab.results.schema import SINGULAR

STUDY = "denseformer"


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return singular values over the largest by matrix and rank, mean and ends over seeds, of models of one depth."""
    rows = results.rows("flow.csv", STUDY, runs)
    rows = rows[rows["measure"].str.startswith(SINGULAR)] if len(rows) else rows
    if rows.empty:
        return DataFrame()
    rows = compared(results, rows, runs).assign(matrix=lambda rows: rows["measure"].str.removeprefix(SINGULAR))
    of_seeds = rows.groupby(["variant", "run", "layers", "matrix", "place"], sort=False)["value"]
    table = of_seeds.agg(value="mean", lowest="min", highest="max", seeds="count").reset_index()
    return table.assign(source="ours")


def draw(data: DataFrame) -> Figure:
    """Draw a panel per matrix."""
    matrices = list(data["matrix"].unique())
    notes = [
        f"{data['layers'].max():.0f} blocks, {n_seeds(data['seeds'])}; lines: means over blocks and seeds; "
        "bands: from the lowest to the highest seed."
    ]
    figure, axes = canvas([2.3] * len(matrices), notes, height=2.3, right=0.5, columns=3)
    for panel, matrix in zip(axes, matrices, strict=True):
        for name, rows in data[data["matrix"] == matrix].groupby("variant"):
            rows, colour = rows.sort_values("place"), look(str(name)).colour
            line = "--" if name == TRANSFORMER else "-"  # it may lie on another
            panel.plot(100 * rows["place"], rows["value"], line, color=colour, label=str(name))
            panel.fill_between(
                100 * rows["place"], rows["lowest"], rows["highest"], color=colour, alpha=0.2, linewidth=0
            )
        panel.set_title(matrix)
        panel.set_ylim(0, 1.05)
        panel.set_xlabel("rank (% of all)")
    for panel in axes[::3]:
        panel.set_ylabel("singular value / largest")
    axes[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.1, 1.0))
    return figure


denseformer_spectra = Plot(
    reads=("flow.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa"),
    caption=(
        "Singular values of the weights of trained models, each over the largest of its matrix and averaged over "
        "blocks, after Fig. 13 of DenseFormer (arXiv:2402.02622), of the deepest models that were looked at. Query, "
        "key and value count as one matrix. To see: whether averages over depth change how many directions the "
        "weights use; the paper finds no difference to the Transformer, and prints no numbers."
    ),
    data=data,
    draw=draw,
)
