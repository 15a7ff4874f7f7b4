"""Held-out loss of averages over depth, by depth, speed, tokens and sparsity (DenseFormer, arXiv:2402.02622)."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.names import data_set_labels
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    DENSEFORMER,
    INTERVALS,
    TRANSFORMER,
    differences,
    held_out_losses,
    means_by_run,
    seed_count,
    seed_notes,
    summarize,
    with_published,
    with_seeds,
)
from formerlab.report.style import GREY, NARROW
from formerlab.report.tables import denseformer as tables
from formerlab.results.read import Results
from formerlab.results.schema import FORWARD

STUDY = "denseformer"
_TIME, _GAIN, _BEHIND = f"{FORWARD}_time_s", "gain_nats", "minus_dense_nats"
_beside_table_1 = partial(
    Panel, name="legend", published={"y": "perplexity", "ylabel": "perplexity", "title": "Table 1"}
)


@plot(reads="test.csv", runs="depth.kind=identity depth.kind=dwa", within_regime=True, draw=layout(
    Panel("layers", "_gain", by="_of_text", where={"source": "ours"}, style="variant", name="legend", zero=0.0,
          title="Gain over plain", ticks="{:.0f}".format, xlabel="depth (blocks)",
          ylabel="lower loss (nats per token)"),
    _beside_table_1("layers", y="_loss", by="_series", style="variant", title="Loss, {_text}", xlabel="depth (blocks)",
                    ticks="{:.0f}".format, ylabel="held-out loss (nats per token)"),
    wanted=[TRANSFORMER, f"{DENSEFORMER} 1x1"], columns=3, height=2.0
))  # fmt: skip
def denseformer_depth(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of plain Transformers and DenseFormers against depth, after Table 1 of DenseFormer
    (arXiv:2402.02622); k x p is dilation k and period p. Left: the gain of a DenseFormer over the plain Transformer of
    its depth and text, paired by seed. Middle: the losses on the text with the most runs. To see: how much lower
    the loss of a DenseFormer is than that of the plain Transformer of its depth, and which depth the plain one needs to
    reach it. If the plain line does not fall with depth, part of the gain is easier optimisation. Published:
    378 to 676 million parameters (OWT2, 40k steps).
    """
    losses, pairs = held_out_losses(results, STUDY, runs), tables.gains(results, runs)
    means, pairs = means_by_run(losses), pairs[pairs["interval"] == INTERVALS["student"]].set_index("run")
    means["paired"] = means["run"].isin(pairs.index)
    for end, gain in (("low", "high"), ("high", "low")):
        paired = means["loss_nats"] + means["run"].map(pairs["gain_nats"] - pairs[f"gain_nats_{gain}"])
        means[f"loss_nats_{end}"] = paired.where(means["paired"], means[f"loss_nats_{end}"])
        means[f"perplexity_{end}"] = np.exp(means[f"loss_nats_{end}"])
    ours = with_seeds(means.sort_values(["variant", "layers"]), losses, ("source", "variant", "layers"))
    rows = pd.concat([ours, tables.published_depths().assign(part="mean")], ignore_index=True)
    texts = losses.drop_duplicates("run").set_index("run")["data.name"]
    rows["_text"] = data_set_labels(rows["run"].map(texts), results.scale)
    theirs = rows["source"].eq("published")
    main = str(rows["_text"].value_counts().idxmax())
    depths = rows.groupby(["_text", "variant"], dropna=False)["layers"].transform("nunique")
    of_main = rows["_text"].eq(main)
    plotted = theirs | of_main & (depths.gt(1) | (depths[of_main].max() == 1))
    rows["_series"] = rows["variant"].where(plotted)
    rows["_of_text"] = rows["variant"].where(plotted, (rows["variant"] + ", " + rows["_text"]).mask(of_main))
    rows["_marker"] = (theirs | of_main).map({True: None, False: "D"})
    of_mean = rows["part"].eq("mean") & ~theirs
    for end in ("", "_low", "_high"):
        rows[f"_gain{end}"] = rows["run"].map(pairs[f"gain_nats{end}"]).where(of_mean)
    rows["_of_text"] = rows["_of_text"].where(rows["_gain"].notna())
    return rows.assign(_loss=rows["loss_nats"])


def _front(speed: "pd.Series[float]", loss: "pd.Series[float]") -> list[bool]:
    """Return for each point whether it is on the Pareto front of speed (higher is better) and loss (lower is
    better).
    """
    points = list(zip(speed, loss, strict=True))
    return [not any((s >= a and v < b) or (s > a and v <= b) for s, v in points) for a, b in points]


def _mark_depths(axes: Axes, rows: DataFrame) -> None:
    """Write the depth below each point if depths differ, and draw the Pareto front."""
    points = rows[rows["part"] == "mean"].sort_values("batches_per_s")
    if points["layers"].nunique() > 1:
        axes.margins(y=0.12)
        for layers, x, y in points[["layers", "batches_per_s", "perplexity"]].itertuples(index=False, name=None):
            axes.annotate(f"{layers:.0f}", (x, y), (1, -13), textcoords="offset points", ha="center", color=GREY)
    front = points[points["front"].astype(bool)]
    axes.step(
        front["batches_per_s"], front["perplexity"], where="pre", color=GREY, linewidth=1, linestyle=":", zorder=0
    )


@plot(reads="test.csv speed.csv", draw=layout(
    _beside_table_1("batches_per_s", y="_perplexity", title="{setting}", ylabel="perplexity", finish=_mark_depths,
                    xlabel=f"forward passes of {{{FORWARD}_sequences:.0f}} sequences a second"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])}; bars: 95 % interval of the gain over the Transformer, paired by "
                        "seed; quartiles of speed."],
    height=2.6
))  # fmt: skip
def denseformer_tradeoff(results: Results, runs: list[str]) -> DataFrame:
    """Held-out perplexity against the speed of a full forward pass, after Fig. 3 of DenseFormer (arXiv:2402.02622).
    Each point is a model, the number below it its depth in blocks, the dotted line the Pareto front. Speeds are medians
    over repetitions, measured in turns; horizontal bars are their quartiles. Vertical bars are those of the gain over
    the plain Transformer of the same depth, paired by seed. To see: whether the front consists of DenseFormers, and how
    much faster a DenseFormer is than a plain Transformer that reaches its loss, if there is one.
    """
    ours = tables.gains(results, runs)
    ours = ours[ours["setting"] == "main"].merge(tables.speeds(results), on="run")
    for end, time in (("", ""), ("_low", "_high"), ("_high", "_low")):
        ours[f"batches_per_s{end}"] = 1 / ours[f"{FORWARD}_time_s{time}"]
    ours["front"] = _front(ours["batches_per_s"], ours["loss_nats"])
    for end, gain in (("", ""), ("_low", "_high"), ("_high", "_low")):
        ours[f"_perplexity{end}"] = np.exp(
            ours["loss_nats"] + (ours["gain_nats"] - ours[f"gain_nats{gain}"]).fillna(0.0)
        )
    ours = with_seeds(ours, held_out_losses(results, STUDY), ("source", "variant", "layers", "batches_per_s"))
    theirs = tables.published_depths().rename(columns={"inference_batches_per_s": "batches_per_s"})
    theirs = theirs.assign(front=_front(theirs["batches_per_s"], theirs["perplexity"]), part="mean")
    columns = f"source part run variant layers batches_per_s[] {FORWARD}_sequences loss_nats[] perplexity seeds seed"
    rows = pd.concat([ours, theirs], ignore_index=True)
    return rows.reindex(columns=expand_columns(f"{columns} diverged front _perplexity[]"))


@plot(reads="test.csv",
      runs=("depth.kind=identity", "depth.kind=dwa depth.dilation=1 depth.period=1", "long-plain-*", "long-dwa-1x1-*"),
      needs="long-dwa-1x1-*", within_regime=True, draw=layout(
    Panel("difference_nats", "_label", by="_label", kind="forest", each="_text", zero=0.0, alike="x",
          title="DenseFormer 1x1, test text: {_text}", xlabel="loss saved (nats per token)",
          published={"each": "", "title": "Table 1"}),
    width=NARROW, columns=1
))  # fmt: skip
def denseformer_gain(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of the plain Transformer minus that of DenseFormer 1x1 of the same depth, for each depth and number
    of training tokens, with a panel per test text (arXiv:2402.02622), paired by seed. Every run has its own full
    schedule. To see: whether the gain grows with depth, and whether it lasts when both train longer or only makes the
    first steps easier.
    """
    losses = held_out_losses(results, STUDY, runs)
    losses["plain"] = losses["run"].map(tables.plains(losses))
    dense = losses[losses["variant"].str.startswith(DENSEFORMER)].dropna(subset="plain").drop_duplicates("run")
    dense = dense.sort_values(["layers", "variant", "tokens"]).astype({"tokens": float})
    texts = data_set_labels(dense["data.name"], results.scale)
    pairs = dense.assign(series=dense["variant"] + dense["layers"].map(", {:.0f} blocks, ".format) + texts)
    rows = differences(losses, pairs[["series", "tokens", "run", "plain"]], "plain", "run")
    rows = with_published(rows, float(np.log(18.61 / 17.84)), "1x1 at 48 blocks (Table 1)")
    if rows.empty:
        return rows
    names = rows["_label"].str.replace(f"^({DENSEFORMER} )?1x1(,| at) | [(]Table 1[)]", "", regex=True)
    return rows.assign(_label=names, _look=f"{DENSEFORMER} 1x1")


def _published_sparsity() -> DataFrame:
    """Return gain, loss difference and time of the published models of 48 blocks (Tables 1 and 4)."""
    depths = tables.published_depths().rename(columns={"variant": "model"})
    rows = pd.concat([depths[depths["layers"] == 48], tables.published_table("Table 4")]).drop_duplicates("model")
    rows[_GAIN] = np.log(rows["perplexity"].iloc[0] / rows["perplexity"])
    rows[["dilation", "period"]] = rows["model"].str.extract(r"(\d+)x(\d+)").astype(float)
    rows = rows.assign(layers=48.0, run=rows["model"], part="mean").dropna(subset=["dilation", _GAIN])
    whole = rows.loc[rows["dilation"].eq(1) & rows["period"].eq(1), _GAIN].iloc[0]
    return rows.assign(**{_BEHIND: whole - rows[_GAIN], _TIME: 1 / rows["inference_batches_per_s"]})


_forest = partial(Panel, y="_label", by="_look", kind="forest", zero=0.0, name="none")
_sparse = partial(_forest, _BEHIND, title="{setting}: loss", xlabel="nats per token above 1 x 1")
_time = partial(_forest, "_slower", title="{setting}: time", xlabel="forward pass, % slower than 1 x 1")


@plot(reads="test.csv", runs="depth.kind=identity depth.kind=dwa",
      needs=("depth.dilation=[!1]* depth.period=1", "depth.dilation=1[0-9]* depth.period=1"), within_regime=True,
      draw=layout(
    _sparse(where={"source": "ours"}, each="_model"),
    _sparse(where={"source": "published"}, title="48 blocks: loss"),
    _time(where={"source": "ours"}, each="_model", title="{_model}: time"),
    _time(where={"source": "published"}, title="48 blocks: time"),
    notes=lambda rows: [f"{seed_notes(rows.drop(columns='interval'))[0][:-1]}; a star: period = 1 mod dilation."],
    columns=3, order="layers dilation period"
))  # fmt: skip
def denseformer_sparsity(results: Results, runs: list[str]) -> DataFrame:
    """Sparse averages over depth against the dense average (1 x 1) of the same depth, by dilation k x period p, after
    Fig. 4, 11 and 12 of DenseFormer (arXiv:2402.02622). Above: held-out loss minus that of 1 x 1, paired by seed.
    Below: time of a full forward pass, if it was measured; bars there are quartiles of the repetitions. A star marks
    p = 1 mod k, where each average reads the block that follows the previous average. Published: Tables 1 and 4, as
    differences of ln perplexity. To see: which bars are right of zero, where the sparse average is worse, and whether
    the time that it saves is worth the loss.
    """
    ours = tables.gains(results, runs)
    ours["dilation"], ours["period"] = ours["spec.model.depth.dilation"], ours["spec.model.depth.period"]
    ours = ours.dropna(subset=["dilation", _GAIN])
    models, whole = ["data.name", "layers"], ours["dilation"].eq(1) & ours["period"].eq(1)
    dense = ours[whole].drop_duplicates(models).set_index(models)["run"].rename("dense")
    ours = ours.join(dense, on=models, how="inner").merge(tables.speeds(results), on="run", how="left")
    ours = ours[ours.groupby("dense")["run"].transform("size") > 1]
    if ours.empty:
        return DataFrame()
    against = ours.set_index("run")["dense"].to_dict()
    behind = summarize(held_out_losses(results, STUDY), "loss_nats", ["run"], against, _BEHIND)
    of_seed = behind["part"] == "seed"
    seeds = behind[of_seed].merge(ours[["run", "layers", "dilation", "period"]], on="run")
    ours = ours.merge(behind[~of_seed].drop(columns=["source", "seeds"]), on="run", how="left")
    ours = pd.concat([ours.assign(part="mean"), seeds])
    rows: DataFrame = pd.concat([ours, _published_sparsity()], ignore_index=True)
    rows["follows"] = (rows["dilation"] > 1) & (rows["period"] % rows["dilation"] == 1)
    columns = f"source part run layers dilation period follows {_GAIN}[] {_BEHIND}[] {_TIME}[] interval seeds seed"
    texts = data_set_labels(ours.drop_duplicates("run").set_index("run")["data.name"], results.scale)
    rows = rows.reindex(columns=expand_columns(columns))
    rows["_model"] = rows["run"].map(texts) + rows["layers"].map(", {:.0f} blocks".format)
    label = rows["dilation"].map("{:.0f}".format) + " x " + rows["period"].map("{:.0f}".format)
    rows["_label"] = label + rows["follows"].map({True: " *", False: ""})
    whole = rows["source"].map(rows[rows["dilation"].eq(1) & rows["period"].eq(1)].groupby("source")[_TIME].first())
    for end in ("", "_low", "_high"):
        rows[f"_slower{end}"] = 100 * (rows[f"{_TIME}{end}"] / whole - 1)
    return rows.assign(
        _look=rows[["_slower", _BEHIND]].notna().any(axis=1).map({True: f"{DENSEFORMER} 1x1", False: None})
    )
