"""Structure, weights and flow of averages over depth (DenseFormer, arXiv:2402.02622, Fig 1, 5 to 10 and 13)."""

import re
from functools import partial
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator, NullLocator
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.quantity import Agreement
from formerlab.report.claims.registry import Arm, ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    DENSEFORMER,
    TRANSFORMER,
    difference,
    estimate,
    held_out_losses,
    load_runs,
    seed_count,
    summarize,
)
from formerlab.report.studies.denseformer import STUDY, compared_runs
from formerlab.report.style import (
    BLACK,
    GREY,
    LETTER,
    NARROW,
    ORANGE,
    PUBLISHED_GROUND,
    RUST,
    WIDEST,
    arrow,
    box,
    ink,
)
from formerlab.report.tables.cells import NEEDED_BLOCKS, claim_verdicts, claim_words, pooled_estimate
from formerlab.results.read import Results
from formerlab.results.schema import COSINE, PRUNED, SINGULAR
from formerlab.statistics import CONFIDENCE

MAX_BLOCKS = 6
"""Number of blocks that a panel shows, counted from the first block. With more blocks, a dense average is a blur."""
SCHEMES = [f"{DENSEFORMER} {scheme}" for scheme in ("1x1", "4x1", "4x5")]
"""A dense scheme, a dilated scheme, and a scheme that is dilated and periodic."""


def averages(layers: int, dilation: int, period: int) -> dict[int, list[int]]:
    """Return the sources of every average by the block that it follows: S_i = {j <= i : j = i mod k} if p divides i.

    Blocks count from 1; source 0 is the embedding. A test compares the result with the table of the mixer.
    """
    return {i: list(range(i % dilation, i + 1, dilation)) for i in range(period, layers + 1, period)}


def draw_architecture(data: DataFrame) -> Figure:
    """Draw a row of blocks per scheme, with an arc from every source of an average."""
    by_scheme = dict(list(data.groupby("variant", sort=False)))
    groups = [by_scheme[name] for name in SCHEMES if name in by_scheme] or list(by_scheme.values())[: len(SCHEMES)]
    blocks = int(min(data["layers"].iloc[0], MAX_BLOCKS))
    note = (f"Boxes: embedding X0 and the first {blocks} blocks; dots: averages, which the next block reads; arcs: "
            "the outputs X that one average (orange) sums, weighted by learned alpha; numbers: outputs that the other "
            "averages sum.")  # fmt: skip
    figure = Figure((WIDEST, 1.8), layout="constrained", label=note)
    figure.supxlabel(fill(note, int(WIDEST / LETTER)), x=0.01, ha="left", color=GREY, fontsize=7)
    for number, rows in enumerate(groups, start=1):
        panel = figure.add_subplot(1, len(SCHEMES), number)
        _draw_averages(panel, rows[rows["after_block"] <= blocks], blocks)
        dilation, period = (int(rows[key].iloc[0]) for key in ("dilation", "period"))
        panel.set_title(f"{dilation} x {period}: every {_nth(dilation)}source (k = {dilation}),\n"
                        f"after every {_nth(period)}block (p = {period}):\n"
                        f"{len(rows)} weights for {rows['layers'].iloc[0]} blocks")  # fmt: skip
    return figure


def _nth(number: int) -> str:
    return {1: "", 2: "2nd ", 3: "3rd "}.get(number, f"{number}th ")


def _draw_averages(axes: Axes, rows: DataFrame, layers: int) -> None:
    """Draw blocks in a row, arrows between them, a dot for each average with the number of its sources, and the sources
    of one average (orange) as arcs.
    """
    after = sorted(set(rows["after_block"]))
    for block in range(layers + 1):
        box(axes, block - 0.25, -0.31, 0.5, 0.62, f"{block}" if block else "X0", facecolor="#eef2f6", edgecolor=GREY)
        way = ((block + (0.58 if block in after else 0.26), 0), (block + 0.76, 0))
        arrow(axes, *way, mutation_scale=5, color=GREY, linewidth=0.8)
    bold = 5 if 5 in after else max(after, default=0)
    for read in rows.loc[rows["after_block"].eq(bold), "reads"]:
        arrow(axes, (read, 0.32), (bold + 0.48, 0.45), arrowstyle="-", connectionstyle="arc3,rad=-0.32", color=ORANGE,
              linewidth=1.6, zorder=3)  # fmt: skip
    for block in after:
        colour, top = (ORANGE, 0.45) if block == bold else (_OTHER_AVERAGES, 0.0)
        axes.plot([block + 0.48] * 2, [top, 0.0], "-o", color=colour, markevery=[1], markersize=5, zorder=3)
        if block != bold:
            count = rows["after_block"].eq(block).sum()
            axes.text(block + 0.48, -0.16, f"{count}", ha="center", va="top", fontsize=7, color=GREY)
    if after:
        axes.text(bold + 0.48, -0.38, rf"$\sum_j\,\alpha_{{{bold},j}}\,X_j$", ha="center", va="top", color=ink(ORANGE))
    axes.set(xlim=(-0.4, layers + 0.9), ylim=(-0.85, 0.5 + 0.1 * (layers + 0.5)))
    axes.set_axis_off()


_OTHER_AVERAGES = "#a9b4bf"
"""Colour of all averages but one."""


@plot(reads="run.json", runs="depth.kind=dwa", draw=draw_architecture)
def denseformer_architecture(results: Results, runs: list[str]) -> DataFrame:
    """Sources of DenseFormer's averages over depth, after Fig. 1 of DenseFormer (arXiv:2402.02622), from the settings
    of the runs. An average follows every p-th block (period p). It is a weighted sum of the output of this block and of
    every k-th earlier output (dilation k). To see: with 1 x 1 each average reads all earlier outputs, so the number of
    weights grows with the square of the depth. A larger dilation or period has fewer, and with a dilation above 1 the
    embedding enters only some of the averages. The CSV has all schemes and blocks of this depth.
    """
    records = load_runs(results, STUDY, runs)
    keys = ["spec.model.layers", "spec.model.depth.dilation", "spec.model.depth.period"]
    kinds = records.drop_duplicates(keys).sort_values(keys)
    counts = kinds["spec.model.layers"].value_counts()
    depth = counts.index[counts == counts.max()].max()
    rows = []
    for record in kinds[kinds["spec.model.layers"] == depth].to_dict("records"):
        layers, dilation, period = (int(record[key]) for key in keys)
        shared = {"source": "ours", "variant": record["variant"], "layers": layers, "dilation": dilation}
        sources = averages(layers, dilation, period).items()
        rows += [shared | {"period": period, "after_block": i, "reads": j} for i, reads in sources for j in reads]
    return DataFrame(rows)


_PAPER: dict[str, Any] = {"color": GREY, "fontsize": 7}
"""The font of texts about the paper."""
_PATTERN = "denseformer-weight-pattern"
_ASKED = {"first_third": (0.0, np.inf), "last_third": (0.0, -np.inf), "seed_correlation": (0.8, np.inf)}
"""Limits of the claim for its quantities, and the values beyond them that meet it."""
THIRDS = tuple(_ASKED)[:2]


def _show_map(axes: Axes, rows: DataFrame) -> None:
    """Show all blocks of a model, including blocks without an average. Sources without a weight are grey. A line
    separates the last average. In the empty corner of the first map is the colour bar, and of others the pattern of the
    paper, as its text describes it.
    """
    layers = rows["layers"].iloc[0]
    axes.set(xlim=(-0.5, layers + 0.5), ylim=(layers + 0.5, 0.5), facecolor="#ececec")
    axes.axhline(layers - 0.5, color=BLACK, linewidth=0.6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MultipleLocator(8))
    if sum(bool(panel.images) for panel in axes.figure.axes) == 1:
        corner = axes.inset_axes((0.62, 0.52, 0.06, 0.4))
        bar = axes.figure.colorbar(axes.images[0], corner, ticks=[-1, -0.1, 0, 0.1, 1], format="%g")
        bar.minorticks_off()
        bar.ax.tick_params(labelsize=7, length=2, pad=1)
        return
    corner = axes.inset_axes((0.54, 0.54, 0.44, 0.44), facecolor=PUBLISHED_GROUND, xlim=(0, 1), ylim=(1, 0))
    corner.set(xticks=[], yticks=[])
    corner.text(0.96, 0.06, "paper,\nsketch", ha="right", va="top", **_PAPER)
    red, blue = (axes.images[0].cmap(shade) for shade in (0.9, 0.1))
    corner.plot([0, 1], [0, 1], color=red, linewidth=3)
    corner.plot([0.03, 0.03], [0.05, 0.5], color=red, linewidth=4)
    corner.plot([0.03, 0.03], [0.5, 1], color=blue, linewidth=4)
    corner.fill([0.6, 1, 0.6], [0.6, 1, 1], color=axes.images[0].cmap(0.75), linewidth=0)


def _same_axis(axes: Axes, rows: DataFrame) -> None:
    """Give both panels of the embedding the same axis."""
    values = rows[expand_columns(" ".join(f"{third}[]" for third in THIRDS))].to_numpy(float)
    axes.set_xlim(min(np.nanmin(values), 0) - 0.05, max(np.nanmax(values), 0) + 0.05)


_asked = partial(Panel, y="_model_name", by="_model_name", style="variant", kind="forest", where={"part": "run"},
                 zero=0.0, share_y=True)  # fmt: skip


PUBLISHED_MOMENT = 100 * 5000 / 40_000
"""Percentage of the steps after which the paper finds the final pattern."""


def _mark_published_moment(axes: Axes, rows: DataFrame) -> None:
    axes.axvline(PUBLISHED_MOMENT, color=GREY, linestyle=":", linewidth=1)
    axes.text(0.98, 0.04, "dotted: pattern\ncomplete in the paper", transform=axes.transAxes, ha="right", **_PAPER)
    for nth, (colour, blocks) in enumerate(rows[["_color", "_moment"]].drop_duplicates().to_numpy()):
        axes.text(0.98, 0.3 + 0.1 * nth, blocks, transform=axes.transAxes, ha="right", fontsize=7, color=ink(colour))


def _correlations_with_end(rows: DataFrame) -> DataFrame:
    """Return the correlation of the off-diagonal weights of each seed with its weights at the end, by run and step, and
    the means over seeds.
    """
    frames = []
    for run, of_model in rows[rows["destination"] != rows["source_block"]].groupby("run", sort=False):
        pairs = of_model.pivot(index=["step", "seed"], columns=["destination", "source_block"], values="weight")
        last = of_model["step"].max()
        with np.errstate(invalid="ignore"):  # weights that are all alike have no correlation
            ends = pairs.loc[last].loc[pairs.index.get_level_values("seed")].to_numpy()
            end_correlations = [np.corrcoef(*weights)[0, 1] for weights in zip(pairs.to_numpy(), ends, strict=True)]
        of_run = DataFrame({"correlation_with_end": end_correlations}, pairs.index).reset_index()
        frames.append(of_run.assign(run=run, percent_of_steps=100 * of_run["step"] / last))
    correlations = summarize(pd.concat(frames), "correlation_with_end", ["run", "step", "percent_of_steps"])
    return correlations.drop(columns=["correlation_with_end_low", "correlation_with_end_high"])


@plot(reads="depth.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    _asked("_first_third", title="First third: above 0?", xlabel="weight of the embedding",
           finish=_same_axis),
    _asked("_last_third", title="Last third: below 0?", xlabel="weight of the embedding", finish=_same_axis),
    _asked("_seed_correlation", title="Seeds agree: above 0.8?", xlabel="correlation r of two seeds"),
    Panel("source_block", "destination", "weight", kind="heat", facet="_title", where={"part": "mean"},
          colours={"cmap": "RdBu_r", "norm": SymLogNorm(0.1, vmin=-1, vmax=1)}, finish=_show_map,
          xlabel="source j (0: embedding)", ylabel="average after block i"),
    Panel("percent_of_steps", "correlation_with_end", by="_moment", kind="band", title="Pattern over training",
          name="none", xlabel="training steps (%)", ylabel="correlation with the end",
          finish=_mark_published_moment),
    notes=lambda rows: [f"trained on books; {seed_count(rows['seeds'])} (thin lines); maps: means, linear up to 0.1, "
                        "then logarithmic; bars: 95 % interval; green: the claim asks for this range, and for r above "
                        "0.5 in the whole interval; below the line: the last average, in no third; grey: no weight."],
    columns=3, height=1.7, order="_rank _depth destination source_block"
))  # fmt: skip
def denseformer_weights(results: Results, runs: list[str]) -> DataFrame:
    """Mixing weights alpha that DenseFormer learned, after Fig. 5 and 10 of arXiv:2402.02622, for the deepest 1x1 of
    each of two data sets, which have the same training books. Top: the quantities of the claim. It asks for a positive
    mean weight of the embedding over the first third of the averages, a negative one over the last third (without the
    last average), and off-diagonal weights that agree between seeds (mean correlation r: Fisher's z, jackknife over
    seeds). Maps: row i is the average after block i, column j the source X_j, and X_0 the embedding; training starts
    from 1 on the diagonal. Sketch: the paper describes weight on the diagonal and just beside it, a column at X_0 that
    is positive early and negative late, and a triangle of large weights over the last blocks. Lower right: correlation
    of the off-diagonal weights with those at the end; the paper has its final pattern after 5000 of 40,000 steps. To
    see: whether the paper's pattern appears in all seeds, and when. The CSV has all schemes.
    """
    rows = results.rows("depth.csv", STUDY, runs)
    models = compared_runs(results, runs).drop_duplicates("run")
    models = models[models["run"].isin(rows["run"])].groupby(["data.name", "variant"]).tail(1)
    models = models.rename(columns={"spec.model.width": "width"})
    keys = ["run", "variant", "layers", "width", "destination", "source_block"]
    rows = rows.merge(models[keys[:4]]).rename(columns={"source": "source_block"})
    moments = _correlations_with_end(rows[rows["variant"] == SCHEMES[0]]).merge(models[keys[:4]])
    rows = rows[rows["step"] == rows.groupby(["run", "seed"])["step"].transform("max")]
    means = rows.groupby(keys)["weight"].agg(weight="mean", weight_sd="std", seeds="count").reset_index()
    reader, verdicts = ClaimRows(results, STUDY, ClaimArms()), claim_verdicts(results, STUDY, _PATTERN)
    claim = verdicts[_PATTERN]
    seeds = rows[[*keys, "seed", "weight"]].assign(part="seed")
    of_runs = []
    for record in models[keys[:4]].to_dict("records"):
        with np.errstate(all="ignore"):  # weights that are all alike have no correlation
            row = record | estimate(
                "seed_correlation", Agreement(reader.mixing_weights(Arm(run=record["run"]))).interval(CONFIDENCE)
            )
        for third in THIRDS:
            row |= pooled_estimate(reader, third, {record["run"]: 1.0}, f"embedding_weight_{third}")
        of_runs.append(row | {"part": "run", "verdict": claim.word if record["run"] in claim.runs else None})
    rows = pd.concat([means.assign(part="mean"), DataFrame(of_runs), seeds, moments], ignore_index=True)
    dense, moment = rows["variant"].eq(SCHEMES[0]), rows["correlation_with_end"].notna()
    blocks = rows["layers"].map("{:.0f} blocks".format)
    labels = "1x1, " * (not dense.any()) + blocks + rows["width"].map(", width {:.0f}".format)
    least = re.search(NEEDED_BLOCKS, " ".join(claim.reasons))
    needed = f" (needs {least[1]} blocks)" if least else ""
    drawn = rows.filter(regex="|".join(_ASKED)).add_prefix("_")
    for name, ends in _ASKED.items():
        drawn[[f"_{name}_limit", f"_{name}_met"]] = ends
    rows = rows.assign(
        source="ours",
        _data_set="",
        _title=labels.where(dense | (not dense.any())),
        _model_name=blocks.where(dense),
        **drawn,
        _claims=claim_words(verdicts, {_PATTERN: "the pattern of the embedding"}) + needed,
        _moment=blocks.where(moment),
        _color=np.where(moment & (rows["layers"] < rows["layers"].max()), RUST, ORANGE),
        _style=rows["variant"],
        _rank=(~dense).astype(int),
        _depth=-rows["layers"],
    )
    return rows[rows["part"].isin(["mean", "run"]) | dense & rows["source_block"].eq(0) | moment]


def _at_common_depth(results: Results, rows: DataFrame, runs: list[str]) -> DataFrame:
    """Return the rows of flow.csv at the depth that most variants have (the largest such depth), with variant and
    depth.
    """
    models = compared_runs(results, runs).drop_duplicates("run")
    models = models[models["run"].isin(rows["run"])]
    kinds = models.groupby("layers")["variant"].nunique()
    deepest = models[models["layers"] == kinds.index[kinds == kinds.max()].max()]
    return rows.merge(deepest[["run", "variant", "layers"]], on="run")


MOST_DROPPED = 0.4
"""Largest fraction of dropped weights that is shown. Beyond it the losses of the seeds have little in common."""


def _mark_knee(axes: Axes, rows: DataFrame) -> None:
    axes.axvline(15, color=GREY, linestyle=":", linewidth=1)
    axes.text(16, 0.97, "paper: sharp\nrise from here", transform=axes.get_xaxis_transform(), va="top", **_PAPER)
    for gain in rows["gain_over_transformer_nats"].dropna().unique():
        axes.axhline(gain, color=GREY, linestyle="--", linewidth=1)
        axes.annotate("gain\nof 1x1", (0.01, gain), (0, 2), ("axes fraction", "data"), "offset points", color=GREY,
                      fontsize=7)  # fmt: skip


def _number_blocks(axes: Axes, rows: DataFrame) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _show_cosines(axes: Axes, rows: DataFrame) -> None:
    """Extend the axis to the cosines of the paper, which are near 1."""
    _number_blocks(axes, rows)
    axes.axhspan(0.74, 1.05, color=PUBLISHED_GROUND, linewidth=0, zorder=0)
    axes.text(0.03, 0.79, "paper: 1x1 near 1,\nTransformer leaves early", transform=axes.get_yaxis_transform(),
              **_PAPER)  # fmt: skip
    axes.set_ylim(min(axes.get_ylim()[0], -0.2), 1.05)


@plot(reads="flow.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    Panel("place", "_cosine", kind="band", title="Cosine with the embedding", zero=0.0, name="legend",
          xlabel="output of block", ylabel="mean cosine", finish=_show_cosines),
    Panel("place", "minus_plain", kind="band", title="DenseFormer minus Transformer", zero=0.0, name="none",
          xlabel="output of block", ylabel="difference of cosines", finish=_number_blocks),
    Panel("_percent", "_added", kind="band", title="Small weights of 1x1 dropped", zero=0.0, name="none",
          finish=_mark_knee, xlabel="dropped weights (%)", ylabel="added loss (nats)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (thin lines; left: means); bands: 95 % Student t interval."],
    columns=3, height=1.8
))  # fmt: skip
def denseformer_flow(results: Results, runs: list[str]) -> DataFrame:
    """Flow of information through the blocks, for models of one depth. Left: mean cosine between the representation Y_i
    that each block passes on and the embedding X_0, after Fig. 6 and 9 of DenseFormer (arXiv:2402.02622). Middle: the
    cosine of DenseFormer minus the cosine of the Transformer, paired by seed. Right: increase in held-out loss if the
    smallest mixing weights are dropped after training, after Fig. 7. In the paper perplexity rises sharply beyond 15 %
    (dotted). Dashed: the loss of the Transformer minus the loss of 1x1. To see: how much of the embedding remains after
    each block. In the paper a DenseFormer stays near it over most of its depth, and the plain Transformer leaves it
    early. The paper prints no numbers. The CSV also has larger fractions.
    """
    rows = results.rows("flow.csv", STUDY, runs)
    rows = _at_common_depth(results, rows[rows["measure"].isin([COSINE, PRUNED])], runs)
    unpruned = rows[(rows["measure"] == PRUNED) & (rows["place"] == 0)].set_index(["run", "seed"])["value"]
    shift = [unpruned.get((row.run, row.seed), 0.0) if row.measure == PRUNED else 0.0 for row in rows.itertuples()]
    rows, keys = rows.assign(value=rows["value"] - np.array(shift)), ["variant", "run", "layers", "measure", "place"]
    table = summarize(rows, "value", keys)
    table.insert(9, "kept", rows.groupby(keys, sort=False)["kept"].mean().reset_index()["kept"])
    others = _minus_transformer(rows)
    minus = summarize(rows[rows["measure"] == COSINE], "value", ["run", "measure", "place"], others, "minus_plain")
    pairs = ["run", "measure", "place", "part", "seed"]
    table = table.merge(minus.reindex(columns=[*pairs, *expand_columns("minus_plain[]")]), "left", pairs)
    dropped = table["measure"].eq(PRUNED) & table["place"].le(MOST_DROPPED)
    losses = held_out_losses(results, STUDY)
    gains = {run: difference(losses, plain, run, "gain").get("gain") for run, plain in others.items()}
    drawn = {f"_added{end}": table[f"value{end}"].where(dropped) for end in ("", "_low", "_high")}
    mean_cosine = table["value"].where(table["measure"].eq(COSINE) & table["part"].eq("mean"))
    return table.assign(
        **drawn,
        _cosine=mean_cosine,
        _percent=100 * table["place"],
        gain_over_transformer_nats=table["run"].map(gains).where(dropped),
    )


def _minus_transformer(rows: DataFrame) -> dict[str, str]:
    """Map every other run of these rows to the Transformer, if there is one."""
    plain = rows.loc[rows["variant"] == TRANSFORMER, "run"].unique()
    return {run: plain[0] for run in rows["run"].unique() if len(plain) and run != plain[0]}


def _show_chance(axes: Axes, rows: DataFrame) -> None:
    """Show the ratio of two seeds of the Transformer in each row, on a logarithmic axis."""
    for tick, name in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        largest = rows.loc[rows["matrix"].eq(name.get_text()), "_of_seeds"].max()
        axes.fill_betweenx([tick - 0.4, tick + 0.4], 1 / largest, largest, color="#dddddd", linewidth=0, zorder=0)
    limits = axes.get_xlim()
    axes.set(xscale="log", xlim=limits)
    axes.xaxis.set_major_locator(MultipleLocator(0.1))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:.1f}")


@plot(reads="flow.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    Panel("ratio", "matrix", kind="forest", zero=1.0, name="none", finish=_show_chance,
          title="Singular values of {variant}, divided by the Transformer's",
          xlabel="ratio, log (1: equal, as in the paper)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); bars: 95 % Student t interval over seeds; grey, for the "
                        "dots: largest ratio of two Transformers that differ in the seed alone."],
    width=NARROW, columns=1
))  # fmt: skip
def denseformer_spectra(results: Results, runs: list[str]) -> DataFrame:
    """Singular values of the trained weights of DenseFormers, divided by the singular values of the Transformer, after
    Fig. 13 of DenseFormer (arXiv:2402.02622). The models have the depth with the most measured variants. Each spectrum
    is first divided by its largest value and averaged over blocks. The ratio is the geometric mean over all values but
    the last, paired by seed. Query, key and value count as one matrix. To see: whether averages over depth change how
    many directions the weights use. Above 1 a DenseFormer uses more; within the grey bar, two Transformers that differ
    in the seed alone may differ as much. The paper finds no difference, and prints no numbers.
    """
    rows = results.rows("flow.csv", STUDY, runs)
    rows = _at_common_depth(results, rows[rows["measure"].str.startswith(SINGULAR) & rows["place"].lt(1)], runs)
    rows = rows.assign(matrix=rows["measure"].str.removeprefix(SINGULAR), ratio=np.log(rows["value"]))
    means = rows.groupby(["run", "seed", "variant", "layers", "matrix"], sort=False)["ratio"].mean().reset_index()
    table = summarize(means, "ratio", ["run", "matrix"], _minus_transformer(rows))
    ends = [end for end in expand_columns("ratio[]") if end in table]
    table[ends] = np.exp(table[ends].astype(float))
    of_seeds = np.exp(means[means["variant"].eq(TRANSFORMER)].groupby("matrix")["ratio"].agg(np.ptp))
    table["_of_seeds"] = table["matrix"].map(of_seeds)
    return table.merge(means[["run", "variant", "layers"]].drop_duplicates())
