"""Structure, weights and flow of averages over depth (DenseFormer, arXiv:2402.02622, Fig 1, 5 to 10 and 13)."""

from functools import partial
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.quantity import Agreement
from formerlab.report.claims.registry import Arm, ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.names import data_set_labels
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import DENSEFORMER, TRANSFORMER, estimate, load_runs, seed_count, summarize
from formerlab.report.studies.denseformer import STUDY, compared_runs
from formerlab.report.style import BLACK, GREY, LETTER, ORANGE, PUBLISHED_INK, WIDEST, arrow, box, ink
from formerlab.report.tables.blocks import claim_verdicts, in_words, pooled_estimate
from formerlab.results.read import Results
from formerlab.results.schema import COSINE, PRUNED, SINGULAR
from formerlab.statistics import CONFIDENCE

MAX_BLOCKS = 6
"""Number of blocks in a panel, from the first on. More blocks make a dense average a blur."""
SCHEMES = [f"{DENSEFORMER} {scheme}" for scheme in ("1x1", "4x1", "4x5")]
"""The dense average, a dilated one, and one that is also periodic."""


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
    note = (f"Boxes: embedding X0 and the first {blocks} blocks; dots: averages that the next block reads, sums of the "
            "outputs X at the arcs times learned weights alpha; orange: one of them.")  # fmt: skip
    figure = Figure((WIDEST, 1.75), layout="constrained", label=note)
    figure.supxlabel(fill(note, int(WIDEST / LETTER)), x=0.01, ha="left", color=GREY, fontsize=7)
    for number, rows in enumerate(groups, start=1):
        panel = figure.add_subplot(1, len(SCHEMES), number)
        _draw_averages(panel, rows[rows["after_block"] <= blocks], blocks)
        dilation, period = (int(rows[key].iloc[0]) for key in ("dilation", "period"))
        panel.set_title(f"{dilation} x {period}: every {_nth(dilation)}source (k = {dilation}),\n"
                        f"after every {_nth(period)}block (p = {period})")  # fmt: skip
    return figure


def _nth(number: int) -> str:
    return {1: "", 2: "2nd ", 3: "3rd "}.get(number, f"{number}th ")


def _draw_averages(axes: Axes, rows: DataFrame, layers: int) -> None:
    """Draw blocks in a row, the averages after them with one of them in orange, and an arrow to each next block."""
    after = sorted(set(rows["after_block"]))
    for block in range(layers + 1):
        box(axes, block - 0.25, -0.31, 0.5, 0.62, f"{block}" if block else "X0", facecolor="#eef2f6", edgecolor=GREY)
        way = ((block + (0.58 if block in after else 0.26), 0), (block + 0.76, 0))
        arrow(axes, *way, mutation_scale=5, color=GREY, linewidth=0.8)
    bold = 5 if 5 in after else max(after, default=0)
    for block, read in rows[["after_block", "reads"]].itertuples(index=False, name=None):
        colour, width, order = (ORANGE, 1.6, 3) if block == bold else (LIGHT, 0.8, 1)
        arrow(axes, (read, 0.32), (block + 0.48, 0.45), arrowstyle="-", connectionstyle="arc3,rad=-0.32", color=colour,
              linewidth=width, zorder=order)  # fmt: skip
    for block in after:
        colour = ORANGE if block == bold else LIGHT
        axes.plot([block + 0.48] * 2, [0.45, 0.0], "-o", color=colour, markevery=[1], markersize=5, zorder=3)
    if after:
        axes.text(bold + 0.48, -0.38, rf"$\sum_j\,\alpha_{{{bold},j}}\,X_j$", ha="center", va="top", color=ink(ORANGE))
    axes.set(xlim=(-0.4, layers + 0.9), ylim=(-0.85, 0.5 + 0.1 * (layers + 0.5)))
    axes.set_axis_off()


LIGHT = "#a9b4bf"
"""Colour of the averages that are not explained."""


@plot(reads="run.json", runs="depth.kind=dwa", draw=draw_architecture)
def denseformer_architecture(results: Results, runs: list[str]) -> DataFrame:
    """Sources of DenseFormer's averages over depth, after Fig. 1 of DenseFormer (arXiv:2402.02622), from the settings
    of the runs. Boxes are the embedding X0 and the raw outputs of the blocks. Circles are the averages that the next
    block reads: after every p-th block (period p), a weighted sum of that block's output and of every k-th earlier
    output (dilation k); k x p names the scheme. To see: with dilation 1 and period 1 each average reads all earlier
    outputs, so the number of arcs grows with the square of the depth. A larger dilation or period gives fewer arcs, and
    with a dilation above 1 the embedding enters only some of the averages. The CSV has all schemes and blocks.
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


def _frame(axes: Axes, rows: DataFrame) -> None:
    """Show all blocks of a model, including blocks without an average. Hatched cells are sources without a weight."""
    layers = rows["layers"].iloc[0]
    axes.set(xlim=(-0.5, layers + 0.5), ylim=(layers + 0.5, 0.5))
    axes.patch.set(hatch="////", edgecolor="#d9d9d9", linewidth=0)


_weights = partial(
    Panel, "source_block", "destination", "weight", kind="heat", facet="_title", finish=_frame,
    bar="mixing weight (darkest: 0.3 and beyond)", colours={"cmap": "RdBu_r", "vmin": -0.3, "vmax": 0.3},
    xlabel="source j (0: embedding)", ylabel="average after block i"
)  # fmt: skip


THIRDS = ("first_third", "last_third")
_PATTERN = "denseformer-weight-pattern"


def _draw_thirds(axes: Axes, rows: DataFrame) -> None:
    """Draw the mean weight of the embedding in the first and the last third of the averages, with its interval."""
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    of_run, blocks = rows[rows["part"] == "run"], sorted(rows["destination"].dropna().unique())
    if of_run.empty or len(blocks) < 3:
        return
    count = len(blocks) // 3
    for third, ends, right in zip(THIRDS, (blocks[:count], blocks[:-1][-count:]), (0, 1), strict=True):
        mean, low, high = of_run.iloc[0].reindex(expand_columns(f"{third}[]"))
        axes.fill_between([ends[0] - 0.5, ends[-1] + 0.5], low, high, color=GREY, alpha=0.35, linewidth=0, zorder=3)
        axes.hlines(mean, ends[0] - 0.5, ends[-1] + 0.5, color=BLACK, linewidth=2, zorder=4)
        words = f"{third.replace('_', ' ')}: {in_words(of_run.iloc[0], third)}" + right * of_run["_claim"].iloc[0]
        axes.text(0.99, 0.98 - 0.1 * right, words, transform=axes.transAxes, ha="right", va="top", fontsize=7)


@plot(reads="depth.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    _weights(where={"part": "mean"}),
    Panel("destination", "_embedding", kind="band", facet="_model", name="none", zero=0.0, share_y=True,
          same_limits="y", xlabel="average after block i", ylabel="weight of\nthe embedding", finish=_draw_thirds),
    notes=lambda rows: [f"mean over {seed_count(rows['seeds'])}; thin lines: seeds; hatched: no weight; r: correlation "
                        "of pairs of seeds; grey: mean of a third; intervals: 95 %."],
    height=1.6, order="_rank destination source_block"
))  # fmt: skip
def denseformer_weights(results: Results, runs: list[str]) -> DataFrame:
    """Mixing weights alpha that DenseFormer learned, after Fig. 5 of arXiv:2402.02622: row i is the average after block
    i, column j the source X_j, and X_0 the embedding. The deepest 1x1 on each text is shown; the CSV has all schemes.
    Training starts from 1 on the diagonal. r is the mean correlation of the off-diagonal weights of two seeds
    (Fisher's z, jackknife over seeds). Below: the weight of the embedding, by seed, with its mean over the first and
    the last third of the averages (without the last), which the claim has above and below zero. To see: whether the
    pattern of the paper appears, with weight on the diagonal and just beside it, a column at X_0 that is positive early
    and negative late, a triangle of large weights over the last blocks, and the same pattern in all seeds.
    """
    rows = results.rows("depth.csv", STUDY, runs)
    rows = rows[rows["step"] == rows.groupby(["run", "seed"])["step"].transform("max")]
    models = compared_runs(results, runs).drop_duplicates("run")
    models = models[models["run"].isin(rows["run"])].groupby(["data.name", "variant"]).tail(1)
    models = models.assign(_text=data_set_labels(models["data.name"], results.scale))
    keys = ["run", "variant", "layers", "_text", "destination", "source_block"]
    rows = rows.merge(models[keys[:4]]).rename(columns={"source": "source_block"})
    means = rows.groupby(keys)["weight"].agg(weight="mean", weight_sd="std", seeds="count").reset_index()
    reader, claim = ClaimRows(results, STUDY, ClaimArms()), claim_verdicts(results, STUDY, _PATTERN)[_PATTERN]
    seeds = rows[[*keys, "seed", "weight"]].assign(part="seed")
    of_runs = []
    for record in models[keys[:4]].to_dict("records"):
        with np.errstate(all="ignore"):  # weights that are all alike have no correlation
            row = record | estimate("_r", Agreement(reader.mixing_weights(Arm(run=record["run"]))).interval(CONFIDENCE))
        for third in THIRDS:
            row |= pooled_estimate(reader, third, {record["run"]: 1.0}, f"embedding_weight_{third}")
        of_runs.append(row | {"part": "run"})
    rows = pd.concat([means.assign(part="mean"), DataFrame(of_runs), seeds], ignore_index=True)
    dense = rows["variant"].eq(SCHEMES[0])
    blocks = rows["variant"].str.removeprefix(f"{DENSEFORMER} ") + rows["layers"].map(", {:.0f} blocks, ".format)
    model = blocks + rows.pop("_text")
    alike = DataFrame(of_runs).set_index("run").apply(in_words, axis=1, name="_r").radd("r = ")
    rows = rows.assign(
        source="ours",
        _title=(model + ", " + rows["run"].map(alike).str.replace(" ", "\N{NO-BREAK SPACE}")).where(
            dense | (not dense.any())
        ),
        _model=model.where(dense & rows["part"].isin(["mean", "seed", "run"])),
        _style=rows["variant"],
        _claim=rows["run"].isin(claim.runs).map({True: f"\nclaim: below 0, {claim.word}", False: ""}),
        _embedding=rows["weight"].where(rows["source_block"].eq(0)),
        _rank=(~dense).astype(int),
    )
    return rows[rows["part"].isin(["mean", "run"]) | dense & rows["source_block"].eq(0)]


PUBLISHED_MOMENT = 5000 / 40_000
"""Fraction of the steps after which the paper finds the final pattern."""
MOMENTS = (PUBLISHED_MOMENT, 0.5, 1)
"""Fractions of the steps at which the weights are shown."""


def _mark_published_moment(axes: Axes, rows: DataFrame) -> None:
    at = PUBLISHED_MOMENT * rows["step"].max()
    means = rows[rows["part"] == "mean"].dropna(subset="correlation_with_end").sort_values("step")
    ours = np.interp(at, means["step"], means["correlation_with_end"], left=np.nan)
    words = "dotted: the paper has its\npattern" + f"; ours: {ours:.2f}" * bool(np.isfinite(ours))
    axes.axvline(at, color=GREY, linestyle=":", linewidth=1)
    axes.text(0.95, 0.05, words, transform=axes.transAxes, ha="right", fontsize=7)


@plot(reads="depth.csv", needs="depth.kind=dwa depth.dilation=1 depth.period=1", within_regime=True, draw=layout(
    _weights(where={"part": "weights"}),
    Panel("step", "correlation_with_end", kind="band", where={"part": ["mean", "seed"]}, name="none",
          title="Correlation with the end", xlabel="training step", ylabel="", finish=_mark_published_moment),
    notes=lambda rows: [f"mean over {seed_count(rows['seeds'])}; thin lines: seeds; hatched: no weight."],
    columns=2, height=1.7
))  # fmt: skip
def denseformer_evolution(results: Results, runs: list[str]) -> DataFrame:
    """Mixing weights of the deepest DenseFormer 1x1 during training, after Fig. 10 of arXiv:2402.02622: row i is the
    average after block i, column j the source X_j, and X_0 the embedding; mean over seeds. Last panel: correlation of
    the off-diagonal weights of a seed with the weights of the same seed at the end. To see: when the final pattern
    appears. In the paper, the pattern is present after 5000 of 40,000 steps (dotted: the same fraction of our steps).
    """
    models = compared_runs(results, runs)
    dense = models[models["variant"].eq(SCHEMES[0])].drop_duplicates("run", keep="last")
    rows = results.rows("depth.csv", STUDY, dense["run"].tolist())
    rows = rows[rows["run"] == dense.loc[dense["run"].isin(rows["run"]), "run"].iloc[-1]]  # the deepest
    steps = np.array(sorted(rows["step"].unique()))
    later = steps[min(1, len(steps) - 1) :]  # the identity at the start needs no panel
    chosen = {later[np.abs(later - fraction * later[-1]).argmin()] for fraction in MOMENTS}
    beside = rows[rows["destination"] != rows["source"]]
    pairs = beside.pivot(index=["step", "seed"], columns=["destination", "source"], values="weight")
    ends = pairs.loc[steps[-1]]
    with np.errstate(invalid="ignore"):  # weights that are all alike have no correlation
        alike = [np.corrcoef(row, ends.loc[seed])[0, 1] for (_, seed), row in pairs.iterrows()]
    seeds = DataFrame({"correlation_with_end": alike}, pairs.index).reset_index().assign(part="seed")
    means = seeds.groupby("step")["correlation_with_end"].mean().reset_index().assign(part="mean")
    weights = rows[rows["step"].isin(chosen)].groupby(["step", "destination", "source"])["weight"]
    weights = weights.agg(weight="mean", seeds="count").reset_index().rename(columns={"source": "source_block"})
    table: DataFrame = pd.concat([weights.assign(part="weights"), means, seeds], ignore_index=True)
    names = {"run": rows["run"].iloc[0], "variant": SCHEMES[0], "layers": float(rows["destination"].max())}
    return table.assign(source="ours", _title=table["step"].map("step {:.0f}".format), **names)


def compared(results: Results, rows: DataFrame, runs: list[str]) -> DataFrame:
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
    axes.axvline(0.15, color=GREY, linestyle=":", linewidth=1)
    axes.text(0.145, 0.95, "paper: sharp\nrise from 15 %", transform=axes.get_xaxis_transform(), ha="right", va="top",
              color=PUBLISHED_INK, fontsize=7)  # fmt: skip


def _show_cosines(axes: Axes, rows: DataFrame) -> None:
    """Show the range of our cosines; cosines of the paper are near 1."""
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_ylim(-0.15, max(0.2, axes.get_ylim()[1]))
    axes.text(0.02, 0.97, "paper, DenseFormer: near 1 over most blocks", transform=axes.transAxes, va="top",
              color=PUBLISHED_INK, fontsize=7)  # fmt: skip


@plot(reads="flow.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    Panel("place", "_cosine", kind="band", where={"measure": COSINE}, title="Output of each block", zero=0.0,
          name="legend", xlabel="block", ylabel="cosine of the output\nwith the embedding", finish=_show_cosines),
    Panel("place", "_added", kind="band", title="Small weights of 1x1 dropped", zero=0.0, name="none",
          finish=_mark_knee, xlabel="fraction of the mixing weights dropped", ylabel="added loss\n(nats per token)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (thin lines); bands: 95 % Student t interval over seeds."],
    height=1.8
))  # fmt: skip
def denseformer_flow(results: Results, runs: list[str]) -> DataFrame:
    """Flow of information over depth. Left: mean cosine between the representation Y_i that each block passes on and
    the embedding X_0, for the deepest models that were measured, after Fig. 6 and 9 of DenseFormer (arXiv:2402.02622).
    To see: how much of the embedding remains after each block; in the paper a DenseFormer stays near it over most of
    its depth and the plain Transformer leaves it early. Right: increase in held-out loss if the smallest mixing weights
    are dropped after training, after Fig. 7; in the paper perplexity rises sharply beyond 15 % (dotted). The paper
    prints no numbers. The CSV also has larger fractions, and the cosine minus the cosine of the Transformer, paired by
    seed.
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
    pairs = ["run", "measure", "place", "part", "seed"]
    table = table.merge(minus.reindex(columns=[*pairs, *expand_columns("minus_plain[]")]), "left", pairs)
    added = {f"_added{end}": table[f"value{end}"].where(table["measure"].eq(PRUNED) & table["place"].le(MOST_DROPPED))
             for end in ("", "_low", "_high")}  # fmt: skip
    cosine = table["measure"].eq(COSINE)
    added |= {f"_cosine{end}": table[f"value{end}"].where(cosine) for end in ("", "_low", "_high")}
    return table.assign(**added)


SHOWN = ("query-key-value", "attention output", "feed-forward up", "feed-forward down")
"""The matrices of a block whose spectra are shown."""


@plot(reads="flow.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    Panel("place", "ratio", kind="band", where={"matrix": list(SHOWN)}, facet="matrix", name="legend", zero=1.0,
          xlabel="rank (fraction)", same_limits="y", share_y=True, ylabel="singular value,\ndivided by Transformer's"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (thin lines); bands: 95 % Student t interval over seeds; line at "
                        "1: equal, as the paper finds."],
    columns=4, height=1.6
))  # fmt: skip
def denseformer_spectra(results: Results, runs: list[str]) -> DataFrame:
    """Singular values of the trained weights of DenseFormers, divided by those of the Transformer, after Fig. 13 of
    DenseFormer (arXiv:2402.02622), for the deepest models that were measured. Each spectrum is first divided by its
    largest value and averaged over blocks; ratios are paired by seed, and their mean is geometric. Query, key and value
    count as one matrix; the CSV also has the embedding and the spectra. To see: whether averages over depth change how
    many directions the weights use: above 1 a DenseFormer uses more. The paper finds no difference, and prints no
    numbers.
    """
    rows = results.rows("flow.csv", STUDY, runs)
    rows = compared(results, rows[rows["measure"].str.startswith(SINGULAR)], runs)
    rows = rows.assign(matrix=rows["measure"].str.removeprefix(SINGULAR), logarithm=np.log(rows["value"]))
    table = summarize(rows, "value", ["variant", "run", "layers", "matrix", "place"])
    plain = rows.loc[rows["variant"] == TRANSFORMER, "run"].unique()
    others = {run: plain[0] for run in rows["run"].unique() if len(plain) and run != plain[0]}
    ratios = summarize(rows, "logarithm", ["run", "matrix", "place"], others, "ratio")
    keys, ends = ["run", "matrix", "place", "part", "seed"], expand_columns("ratio[]")
    ratios = ratios.reindex(columns=[*keys, *ends])
    ratios[ends] = np.exp(ratios[ends].astype(float))
    table = table.drop(columns=["value_low", "value_high"], errors="ignore").merge(ratios, "left", keys)
    return table.assign(_marker="")
