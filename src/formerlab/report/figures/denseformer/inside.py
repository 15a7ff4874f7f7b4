"""Structure, weights and flow of averages over depth (DenseFormer, arXiv:2402.02622, Fig 1, 5 to 10 and 13)."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.quantity import Agreement
from formerlab.report.claims.registry import Arm, ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.names import data_set_labels
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import DENSEFORMER, TRANSFORMER, load_runs, seed_count, summarize
from formerlab.report.style import GREY, WIDEST, arrow, box, plot_style
from formerlab.results.read import Results
from formerlab.results.schema import COSINE, PRUNED, SINGULAR
from formerlab.statistics import CONFIDENCE

STUDY = "denseformer"
MOST = 8
"""Maximum number of panels."""
MAX_BLOCKS = 10
"""Number of blocks in a panel, from the first on. More blocks make a dense average a blur."""


def averages(layers: int, dilation: int, period: int) -> dict[int, list[int]]:
    """Return the sources of every average by the block that it follows: S_i = {j <= i : j = i mod k} if p divides i.

    Blocks count from 1; source 0 is the embedding. A test compares the result with the table of the mixer.
    """
    return {i: list(range(i % dilation, i + 1, dilation)) for i in range(period, layers + 1, period)}


def draw_architecture(data: DataFrame) -> Figure:
    """Draw a row of blocks per variant, with an arc from every source of an average."""
    groups, layers = list(data.groupby("variant", sort=False)), int(data["layers"].iloc[0])
    blocks = min(layers, MAX_BLOCKS)
    some = f" (the first {blocks} of {layers})" if blocks < layers else ""
    note = f"Boxes: embedding X0 and blocks{some}; dots: averages that the next block reads; arcs: what they average."
    lines = -(-len(groups) // 2)
    figure = Figure((WIDEST, 1.55 * lines + 0.2), layout="constrained", label=note)
    figure.supxlabel(note, x=0.01, ha="left", color=GREY, fontsize=7)
    for number, (name, rows) in enumerate(groups, start=1):
        panel = figure.add_subplot(lines, 2, number)
        _draw_averages(panel, rows[rows["after_block"] <= blocks], blocks, plot_style(str(name))["color"])
        panel.set_title(f"{name}: {(rows['after_block'] <= blocks).sum()} weights in {blocks} blocks")
    return figure


def _draw_averages(axes: Axes, rows: DataFrame, layers: int, colour: str) -> None:
    """Draw blocks in a row, the averages after them, and an arrow to each next block."""
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


@plot(runs="depth.kind=dwa", draw=draw_architecture)
def denseformer_architecture(results: Results, runs: list[str]) -> DataFrame:
    """Sources of DenseFormer's averages over depth, after Fig. 1 of DenseFormer (arXiv:2402.02622), from the settings
    of the runs. Boxes are the embedding X0 and the raw outputs of the blocks. Circles are the averages that the next
    block reads: after every p-th block (period p), a weighted sum of that block's output and of every k-th earlier
    output (dilation k). To see: with dilation 1 and period 1 each average reads all earlier outputs, so the number of
    arcs grows with the square of the depth. A larger dilation or period gives fewer arcs, and with a dilation above 1
    the embedding enters only some of the averages.
    """
    records = load_runs(results, STUDY, runs)
    records = records[records["spec.model.depth.kind"] == "dwa"]
    keys = ["spec.model.layers", "spec.model.depth.dilation", "spec.model.depth.period"]
    kinds = records.drop_duplicates(keys).sort_values(keys)
    counts = kinds["spec.model.layers"].value_counts()
    depth = counts.index[counts == counts.max()].max()
    rows = []
    for record in kinds[kinds["spec.model.layers"] == depth].head(MOST).to_dict("records"):
        layers, dilation, period = (int(record[key]) for key in keys)
        shared = {"source": "ours", "variant": record["variant"], "layers": layers, "dilation": dilation}
        sources = averages(layers, dilation, period).items()
        rows += [shared | {"period": period, "after_block": i, "reads": j} for i, reads in sources for j in reads]
    return DataFrame(rows)


def _frame(axes: Axes, rows: DataFrame) -> None:
    """Show all blocks of a model, including blocks without an average. Grey cells are sources without a weight."""
    layers = rows["layers"].iloc[0]
    axes.set(xlim=(-0.5, layers + 0.5), ylim=(layers + 0.5, 0.5), facecolor="#eeeeee")


_draw_weights = layout(
    Panel("source_block", "destination", "weight", kind="heat", facet="_title", finish=_frame,
          bar="mixing weight (0: not read; logarithmic beyond 0.05)",
          colours={"cmap": "RdBu_r", "norm": SymLogNorm(0.05, vmin=-1.0, vmax=1.0, base=10)},
          xlabel="source j (0: embedding)", ylabel="average after block i"),
    notes=lambda rows: [f"Mean over {seed_count(rows['seeds'])}; grey cells: no weight."],
    columns=3, height=1.6, order="_rank destination source_block"
)  # fmt: skip


_LIKENESS = ", r\u00a0=\u00a0{:.2f}".format


@plot(reads="depth.csv", runs="depth.kind=dwa", within_regime=True, draw=_draw_weights)
def denseformer_weights(results: Results, runs: list[str]) -> DataFrame:
    """Mixing weights alpha that DenseFormer learned, after Fig. 5 of arXiv:2402.02622: row i is the average after block
    i, column j the source X_j, and X_0 the embedding. For each dilation and period, the deepest model on a text is
    shown, as the mean over seeds; r is the mean correlation of the off-diagonal weights of two seeds (Fisher's z), if
    there are three. Training starts from 1 on the diagonal. To see: whether the pattern of the paper appears, with
    weight on the diagonal and just beside it, a column at X_0 that is positive early and negative late, and a triangle
    of large weights over the last blocks. Colours are linear between -0.05 and 0.05, logarithmic beyond.
    """
    rows = results.rows("depth.csv", STUDY, runs)
    rows = rows[rows["step"] == rows.groupby(["run", "seed"])["step"].transform("max")]
    records = load_runs(results, STUDY, runs).drop_duplicates("run")
    deepest = records[records["run"].isin(rows["run"])].sort_values("layers").groupby(["data.name", "variant"]).tail(1)
    chosen = rows.merge(deepest[["run", "variant", "layers", "data.name"]]).rename(columns={"source": "source_block"})
    grouped = chosen.groupby(["variant", "run", "layers", "data.name", "destination", "source_block"])["weight"]
    means = grouped.agg(weight="mean", weight_sd="std", seeds="count").reset_index()
    means = means.sort_values(["variant", "layers", "run", "destination", "source_block"], ignore_index=True)
    text = data_set_labels(means.pop("data.name"), results.scale)
    blocks = means["layers"].map(", {:.0f} blocks, ".format)
    reader = ClaimRows(results, STUDY, ClaimArms())
    with np.errstate(all="ignore"):  # weights that are all alike have no correlation
        alike = {run: Agreement(reader.mixing_weights(Arm(run=run))).interval(CONFIDENCE).mean
                 for run in means["run"].unique()}  # fmt: skip
    likeness = means["run"].map(alike).map(_LIKENESS, na_action="ignore").fillna("")
    title = means["variant"].str.removeprefix(f"{DENSEFORMER} ") + blocks + text + likeness
    return means.assign(source="ours", _title=title, _rank=means["variant"].ne(f"{DENSEFORMER} 1x1"))


PANELS = 6
"""Maximum number of evaluation steps that are shown."""


@plot(reads="depth.csv", runs=("depth.kind=dwa depth.dilation=1 depth.period=1",), within_regime=True,
      draw=_draw_weights)  # fmt: skip
def denseformer_evolution(results: Results, runs: list[str]) -> DataFrame:
    """Mixing weights of the deepest DenseFormer 1x1 during training, after Fig. 10 of arXiv:2402.02622: row i is the
    average after block i, column j the source X_j, and X_0 the embedding; mean over seeds. The number above each panel
    is the correlation of the off-diagonal weights of a seed with its own at the end, as the mean over seeds. To see:
    when the final pattern appears. In the paper it is present after 5000 of 40,000 steps.
    """
    rows = results.rows("depth.csv", STUDY, runs)
    depths = rows.groupby("run")["destination"].max()
    rows = rows[rows["run"] == depths[::-1].idxmax()]  # of equals the last by name
    grouped = rows.groupby(["run", "step", "destination", "source"])["weight"]
    means = grouped.agg(weight="mean", seeds="count").reset_index().rename(columns={"source": "source_block"})
    steps = np.array(sorted(means["step"].unique()))
    steps = steps[1:] if len(steps) > PANELS else steps  # the identity at the start needs no panel
    chosen = steps[np.unique(np.linspace(0, len(steps) - 1, PANELS).round().astype(int))]
    means = means[means["step"].isin(chosen)]
    beside = rows[rows["destination"] != rows["source"]]
    table = beside.pivot(index=["step", "seed"], columns=["destination", "source"], values="weight")
    ends = table.loc[steps[-1]]
    with np.errstate(invalid="ignore"):  # weights that are all alike have no correlation
        by_step = {
            step: np.mean([np.corrcoef(row, ends.loc[seed])[0, 1] for seed, row in table.loc[step].iterrows()])
            for step in chosen
        }
    means = means.assign(layers=float(depths.max()), correlation_with_end=means["step"].map(by_step), source="ours")
    likeness = means["correlation_with_end"].map(_LIKENESS, na_action="ignore").fillna("")
    return means.assign(_title=means["step"].map("step {:.0f}".format) + likeness, _rank=means["step"])


def compared(results: Results, rows: DataFrame, runs: list[str]) -> DataFrame:
    """Return the rows of flow.csv at the depth that most variants have (the largest such depth), with variant and
    depth.
    """
    records = load_runs(results, STUDY, runs).drop_duplicates("run")
    records = records[records["run"].isin(rows["run"])]
    kinds = records.groupby("layers")["variant"].nunique()
    deepest = records[records["layers"] == kinds.index[kinds == kinds.max()].max()]
    return rows.merge(deepest[["run", "variant", "layers"]], on="run")


_blocks = partial(Panel, "place", kind="band", where={"measure": COSINE, "part": "mean"}, ticks="{:.0f}".format,
                  xlabel="block")  # fmt: skip


@plot(reads="flow.csv", runs="depth.kind=identity depth.kind=dwa", draw=layout(
    _blocks("_cosine", title="What each block passes on", name="legend",
            ylabel="cosine of the output\nwith the embedding"),
    _blocks("minus_plain", title="Minus Transformer, paired", name="none", zero=0.0, ylabel="cosine difference"),
    Panel("place", "value", kind="band", where={"measure": PRUNED}, title="Smallest weights dropped", zero=0.0,
          xlabel="fraction of the\nmixing weights dropped", ylabel="added loss\n(nats per token)", name="none",
          outlier_factor=2.0, finish=lambda axes, _: axes.axvline(0.15, color=GREY, linestyle=":", linewidth=1)),
    columns=3, height=1.7
))  # fmt: skip
def denseformer_flow(results: Results, runs: list[str]) -> DataFrame:
    """Flow of information over depth. Left: mean cosine between the representation Y_i that each block passes on and
    the embedding X_0, for the deepest models that were measured, after Fig. 6 and 9 of DenseFormer (arXiv:2402.02622).
    Middle: the same minus the Transformer, paired by seed. To see: how much of the embedding remains after each block;
    in the paper a DenseFormer stays near it over most of its depth and the plain Transformer leaves it early. Right:
    increase in held-out loss if the smallest mixing weights are dropped after training, after Fig. 7; in the paper
    perplexity rises sharply beyond 15 % (dotted). The paper prints no numbers.
    """
    rows = results.rows("flow.csv", STUDY, runs)
    rows = compared(results, rows[rows["measure"].isin([COSINE, PRUNED])], runs)
    unpruned = rows[(rows["measure"] == PRUNED) & (rows["place"] == 0)].set_index(["run", "seed"])["value"]
    shift = [unpruned.get((row.run, row.seed), 0.0) if row.measure == PRUNED else 0.0 for row in rows.itertuples()]
    rows, keys = rows.assign(value=rows["value"] - np.array(shift)), ["variant", "run", "layers", "measure", "place"]
    table = summarize(rows, "value", keys)
    table.insert(9, "kept", rows.groupby(keys, sort=False)["kept"].mean().reset_index()["kept"])
    plain = rows.loc[rows["variant"] == TRANSFORMER, "run"].unique()
    others = {run: plain[0] for run in rows["run"].unique() if len(plain) and run != plain[0]}
    minus = summarize(rows[rows["measure"] == COSINE], "value", ["run", "measure", "place"], others, "minus_plain")
    ends = expand_columns("minus_plain[]")
    minus = minus[minus["part"] == "mean"].reindex(columns=["run", "measure", "place", "part", *ends])
    table = table.merge(minus, "left", ["run", "measure", "place", "part"])
    return table.assign(_cosine=table["value"].where(table["measure"] == COSINE))


@plot(reads="flow.csv", runs="depth.kind=identity depth.kind=dwa", draw=layout(
    Panel("place", "_minus_plain", by="_series", kind="band", facet="matrix", name="legend",
          xlabel="rank (fraction of all)", same_limits="y", share_y=True, zero=0.0,
          ylabel="singular value / largest,\nminus Transformer"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])}; bands: lowest to highest seed."], columns=3, height=1.3
))  # fmt: skip
def denseformer_spectra(results: Results, runs: list[str]) -> DataFrame:
    """Singular values of the trained weights, divided by the largest of each matrix and averaged over blocks, after
    Fig. 13 of DenseFormer (arXiv:2402.02622), for the deepest models that were measured. Query, key and value count as
    one matrix. The figure shows the value minus the Transformer's value for the same seed. Bands range from the lowest
    seed to the highest. To see: whether averages over depth change how many directions the weights use; the paper finds
    no difference to the Transformer, and prints no numbers.
    """
    rows = results.rows("flow.csv", STUDY, runs)
    rows = rows[rows["measure"].str.startswith(SINGULAR)]
    rows = compared(results, rows, runs).assign(matrix=lambda rows: rows["measure"].str.removeprefix(SINGULAR))
    plain = rows[rows["variant"] == TRANSFORMER].set_index(["seed", "matrix", "place"])["value"]
    minus = rows["value"] - plain.reindex(pd.MultiIndex.from_frame(rows[["seed", "matrix", "place"]])).to_numpy()
    rows = rows.assign(_minus_plain=minus.mask(rows["variant"] == TRANSFORMER))
    of_seeds = rows.groupby(["variant", "run", "layers", "matrix", "place"], sort=False)
    table = of_seeds["value"].agg(value="mean", lowest="min", highest="max", seeds="count")
    minus_plain, low, high = (of_seeds["_minus_plain"].agg(end) for end in ("mean", "min", "max"))
    table = table.assign(_minus_plain=minus_plain, _minus_plain_low=low, _minus_plain_high=high).reset_index()
    shown: DataFrame = table.assign(
        source="ours", _marker="", _series=table["variant"].mask(table["variant"] == TRANSFORMER)
    )
    return shown
