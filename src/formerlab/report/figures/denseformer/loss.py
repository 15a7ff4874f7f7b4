"""Held-out loss of averages over depth, by depth, speed, tokens and sparsity (DenseFormer, arXiv:2402.02622)."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas import DataFrame

from formerlab.report.drawings import plot, shown_columns
from formerlab.report.names import data_set
from formerlab.report.panel import Panel, sheet
from formerlab.report.runs import (
    DENSEFORMER,
    INTERVALS,
    TRANSFORMER,
    by_run,
    differences,
    held_out_losses,
    labelled,
    seed_notes,
    summary,
    with_seeds,
)
from formerlab.report.style import GREY
from formerlab.report.tables import denseformer as tables
from formerlab.results.read import Results
from formerlab.results.schema import FORWARD

STUDY = "denseformer"
_TIME, _GAIN, _BEHIND = f"{FORWARD}_time_s", "gain_nats", "minus_dense_nats"
_beside_table_1 = partial(
    Panel, y="loss_nats", name="legend", perplexity=True, ylabel="held-out loss (nats per token)",
    published={"y": "perplexity", "ylabel": "perplexity", "title": "Table 1", "perplexity": False},
)  # fmt: skip


@plot(reads="test.csv", runs="depth.kind=identity depth.kind=dwa", draw=sheet(
    _beside_table_1("layers", xlabel="depth (blocks)", ticks="{:.0f}".format),
    wanted=[TRANSFORMER, f"{DENSEFORMER} 1x1"], height=2.6
))  # fmt: skip
def denseformer_depth(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of plain Transformers and DenseFormers against depth, after Table 1 of DenseFormer
    (arXiv:2402.02622); k x p is dilation k and period p. Bars of a DenseFormer are intervals of its difference to the
    plain Transformer of its depth, paired by seed. To see: how much lower the loss of a DenseFormer is than that of the
    plain Transformer of its depth, and which depth the plain one needs to reach it. If the plain line does not fall
    with depth, part of the gain is easier optimisation. Published: 378 to 676 million parameters (OWT2, 40k steps).
    """
    losses, pairs = held_out_losses(results, STUDY, runs), tables.gains(results, runs)
    means, pairs = by_run(losses), pairs[pairs["interval"] == INTERVALS["student"]].set_index("run")
    means["paired"] = means["run"].isin(pairs.index)
    for end, gain in (("low", "high"), ("high", "low")):
        paired = means["loss_nats"] + means["run"].map(pairs["gain_nats"] - pairs[f"gain_nats_{gain}"])
        means[f"loss_nats_{end}"] = paired.where(means["paired"], means[f"loss_nats_{end}"])
        means[f"perplexity_{end}"] = np.exp(means[f"loss_nats_{end}"])
    ours = with_seeds(means.sort_values(["variant", "layers"]), losses, ("source", "variant", "layers"))
    return pd.concat([ours, tables.published_depths().assign(part="mean")], ignore_index=True)


def _front(speed: "pd.Series[float]", loss: "pd.Series[float]") -> list[bool]:
    """Return for each point whether it is on the Pareto front of speed (higher is better) and loss (lower is
    better).
    """
    points = list(zip(speed, loss, strict=True))
    return [not any((s >= a and v < b) or (s > a and v <= b) for s, v in points) for a, b in points]


def _mark_depths(axes: Axes, rows: DataFrame) -> None:
    """Write the depth below each point if depths differ, and draw the Pareto front."""
    points = rows[rows["part"] == "mean"].sort_values("batches_per_s")
    column = "loss_nats" if points["source"].eq("ours").all() else "perplexity"
    if points["layers"].nunique() > 1:
        axes.margins(y=0.12)
        for layers, x, y in points[["layers", "batches_per_s", column]].itertuples(index=False, name=None):
            axes.annotate(f"{layers:.0f}", (x, y), (1, -13), textcoords="offset points", ha="center", color=GREY)
    front = points[points["front"].astype(bool)]
    axes.step(front["batches_per_s"], front[column], where="pre", color=GREY, linewidth=1, linestyle=":", zorder=0)


@plot(reads="test.csv speed.csv", draw=sheet(
    _beside_table_1("batches_per_s", xlabel=f"forward passes of {{{FORWARD}_sequences:.0f}} sequences a second",
                    finish=_mark_depths),
    height=2.6
))  # fmt: skip
def denseformer_tradeoff(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss against the speed of a full forward pass, after Fig. 3 of DenseFormer (arXiv:2402.02622). Each
    point is a model, the number below it its depth in blocks, the dotted line the Pareto front. Speeds are medians over
    repetitions, measured in turns; horizontal bars are their quartiles. To see: whether the front consists of
    DenseFormers, and how much faster a DenseFormer is than a plain Transformer that reaches its loss, if there is one.
    """
    ours = tables.gains(results, runs)
    ours = ours[ours["setting"] == "main"].merge(tables.speeds(results), on="run")
    for end, time in (("", ""), ("_low", "_high"), ("_high", "_low")):
        ours[f"batches_per_s{end}"] = 1 / ours[f"{FORWARD}_time_s{time}"]
    ours["front"] = _front(ours["batches_per_s"], ours["loss_nats"])
    ours = with_seeds(ours, held_out_losses(results, STUDY), ("source", "variant", "layers", "batches_per_s"))
    theirs = tables.published_depths().rename(columns={"inference_batches_per_s": "batches_per_s"})
    theirs = theirs.assign(front=_front(theirs["batches_per_s"], theirs["perplexity"]), part="mean")
    columns = f"source part run variant layers batches_per_s[] {FORWARD}_sequences loss_nats[] perplexity seeds seed"
    return pd.concat([ours, theirs], ignore_index=True).reindex(columns=shown_columns(f"{columns} diverged front"))


@plot(reads="test.csv",
      runs=("depth.kind=identity", "depth.kind=dwa depth.dilation=1 depth.period=1", "long-plain-*", "long-dwa-1x1-*"),
      needs="long-dwa-1x1-*", within=True, draw=sheet(
    Panel("difference_nats", "_label", by="_label", kind="forest", zero=0.0,
          xlabel="plain minus DenseFormer (nats per token)")
))  # fmt: skip
def denseformer_gain(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of the plain Transformer minus that of DenseFormer 1x1 of the same depth, for each depth, text and
    number of training tokens (arXiv:2402.02622), paired by seed. Every run has its own full schedule. To see: whether
    the gain grows with depth, and whether it lasts when both train longer or only makes the first steps easier.
    """
    losses = held_out_losses(results, STUDY, runs)
    losses["plain"] = losses["run"].map(tables.plains(losses))
    dense = losses[losses["variant"].str.startswith(DENSEFORMER)].dropna(subset="plain").drop_duplicates("run")
    dense = dense.sort_values(["layers", "variant", "tokens"]).astype({"tokens": float})
    texts = dense["data.name"].map(lambda name: f", {data_set(name, None, results.scale)}")
    pairs = dense.assign(series=dense["variant"] + dense["layers"].map(", {:.0f} blocks".format) + texts)
    rows = differences(losses, pairs[["series", "tokens", "run", "plain"]], "plain", "run")
    return labelled(rows, float(np.log(18.61 / 17.84)), "1x1 at 48 blocks (Table 1)")


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
_sparse = partial(_forest, _BEHIND, title="{setting}", xlabel="loss minus that of 1 x 1 (nats per token)")
_time = partial(_forest, "_slower", title="{setting}: time", xlabel="forward pass, % slower than 1 x 1")


@plot(reads="test.csv", runs="depth.kind=identity depth.kind=dwa",
      needs=("depth.dilation=[!1]* depth.period=1", "depth.dilation=1[0-9]* depth.period=1"), draw=sheet(
    _sparse(where={"source": "ours"}),
    _time(where={"source": "ours"}),
    _sparse(where={"source": "published"}, title="48 blocks"),
    _time(where={"source": "published"}, title="48 blocks: time"),
    notes=lambda rows: seed_notes(rows.drop(columns="interval")), order="dilation period"
))  # fmt: skip
def denseformer_sparsity(results: Results, runs: list[str]) -> DataFrame:
    """Sparse averages over depth against the dense average (1 x 1) of the same depth, by dilation k x period p, after
    Fig. 4, 11 and 12 of DenseFormer (arXiv:2402.02622). Left: held-out loss minus that of 1 x 1, paired by seed. Right:
    time of a full forward pass, if it was measured; bars there are quartiles of the repetitions. A star marks p = 1 mod
    k, where each average reads the block that follows the previous average. Below: Tables 1 and 4, as differences of ln
    perplexity. To see: which bars are right of zero, where the sparse average is worse, and whether the time that it
    saves is worth the loss.
    """
    ours = tables.gains(results, runs)
    ours["dilation"], ours["period"] = ours["spec.model.depth.dilation"], ours["spec.model.depth.period"]
    ours = ours.dropna(subset=["dilation", _GAIN])
    ours = ours[ours["layers"] == ours["layers"].mode().max()].merge(tables.speeds(results), on="run", how="left")
    dense = ours[(ours["dilation"] == 1) & (ours["period"] == 1)]
    if dense.empty:
        return DataFrame()
    against = dict.fromkeys(ours["run"], str(dense["run"].iloc[0]))
    behind = summary(held_out_losses(results, STUDY), "loss_nats", ["run"], against, _BEHIND)
    of_seed = behind["part"] == "seed"
    seeds = behind[of_seed].merge(ours[["run", "layers", "dilation", "period"]], on="run")
    ours = ours.merge(behind[~of_seed].drop(columns=["source", "seeds"]), on="run", how="left")
    ours = pd.concat([ours.assign(part="mean"), seeds])
    rows: DataFrame = pd.concat([ours, _published_sparsity()], ignore_index=True)
    rows["follows"] = (rows["dilation"] > 1) & (rows["period"] % rows["dilation"] == 1)
    columns = f"source part run layers dilation period follows {_GAIN}[] {_BEHIND}[] {_TIME}[] interval seeds seed"
    rows = rows.reindex(columns=shown_columns(columns))
    label = rows["dilation"].map("{:.0f}".format) + " x " + rows["period"].map("{:.0f}".format)
    rows["_label"] = label + rows["follows"].map({True: " *", False: ""})
    whole = rows["source"].map(rows[rows["dilation"].eq(1) & rows["period"].eq(1)].groupby("source")[_TIME].first())
    for end in ("", "_low", "_high"):
        rows[f"_slower{end}"] = 100 * (rows[f"{_TIME}{end}"] / whole - 1)
    return rows.assign(_look=rows[["_slower", _BEHIND]].notna().any(axis=1).map({True: "ours", False: None}))
