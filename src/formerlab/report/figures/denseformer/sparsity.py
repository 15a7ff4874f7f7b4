"""Dilation and period (DenseFormer, arXiv:2402.02622, Fig 4, 11 and 12)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.depth import gains, published_table, speeds
from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly, points_with_bars
from formerlab.report.runs import n_seeds
from formerlab.report.style import BLUE, GREY, ORANGE, PUBLISHED_GROUND, Look, canvas, widen
from formerlab.results.read import Results
from formerlab.results.schema import TRAINING

STUDY = "denseformer"


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per k x p of the depth that has most of them; then those of Table 4."""
    ours = gains(results, STUDY, runs)
    if len(ours):
        records = results.runs(STUDY, runs).drop_duplicates("run").set_index("run")
        for name in ("dilation", "period"):
            ours[name] = ours["run"].map(records.get(f"spec.model.depth.{name}", pd.Series(dtype=float)))
        ours = ours.merge(speeds(results, STUDY), on="run", how="left")
        plain = ours[ours["dilation"].isna()].set_index("layers")[f"{TRAINING}_time_s"]
        ours["relative_speed"] = ours["layers"].map(plain) / ours[f"{TRAINING}_time_s"]
        ours = ours.dropna(subset="dilation")
        counts = ours["layers"].value_counts()
        ours = ours[ours["layers"] == max(counts[counts == counts.max()].index, default=0)]
    theirs = published_table("Table 4")
    theirs["gain_nats"] = np.log(theirs["perplexity"].iloc[0] / theirs["perplexity"])
    pattern = theirs["model"].str.extract(r"(\d+)x(\d+)").astype(float)
    theirs = theirs.assign(dilation=pattern[0], period=pattern[1], layers=48.0, run=theirs["model"])
    rows = pd.concat([ours, theirs.dropna(subset="dilation")], ignore_index=True)
    rows["follows"] = (rows["dilation"] > 1) & (rows["period"] % rows["dilation"] == 1)
    columns = ["source", "run", "layers", "dilation", "period", "follows", "gain_nats", "gain_nats_low"]
    return rows.reindex(columns=[*columns, "gain_nats_high", "interval", "relative_speed", "seeds"])


def draw(data: DataFrame) -> Figure:
    """Draw gain against dilation, period and speed."""
    ours, theirs = data[data["source"] == "ours"], data[data["source"] == "published"]
    sparse = ours.loc[ours["dilation"] > 1, "dilation"].value_counts()
    dilation = sparse.index[0] if len(sparse) else 1.0
    seeds = int(ours["seeds"].max())
    spread = "95 % Student t interval over seeds" if seeds > 1 else "95 % bootstrap over windows, these models only"
    counted = n_seeds([seeds])
    notes = [f"{ours['layers'].max():.0f} blocks, {counted}, paired by seed; bars: {spread}."]
    notes.append("Hollow: Table 4 of the paper, 48 blocks, not ours. Ringed: p = 1 mod k.")
    figure, panels = canvas([2.8, 2.8, 3.4], notes, right=[0.85, 0.85, 1.0])
    _draw(panels[0], ours[ours["period"] == 1], theirs[theirs["period"] == 1], "dilation", "dilation k (period 1)")
    mine, printed = (rows[rows["dilation"] == dilation] for rows in (ours, theirs))
    _draw(panels[1], mine, printed, "period", f"period p (dilation {dilation:.0f})")
    timed = ours.dropna(subset="relative_speed")
    _draw(panels[2], timed, theirs[:0], "relative_speed", "training steps per second, plain = 1")
    widen(panels[2], 0.15)
    places = timed[["relative_speed", "gain_nats"]].to_numpy(dtype=float)
    names = [Label(x, y, run.split("-")[1], BLUE) for (x, y), run in zip(places, timed["run"], strict=True)]
    if names:
        label_directly(panels[2], names, size=7)
    else:
        panels[2].text(0.5, 0.5, "not timed yet", transform=panels[2].transAxes, ha="center", color=GREY)
    return figure


def _draw(axes: Axes, ours: DataFrame, theirs: DataFrame, column: str, label: str) -> None:
    rows, line = ours.sort_values(column), "" if column == "relative_speed" else "-"
    ends = rows["gain_nats_low"], rows["gain_nats_high"]
    points_with_bars(axes, rows[column], rows["gain_nats"], ends, Look(BLUE, "s"), linestyle=line)
    ringed = rows[rows["follows"]]
    axes.plot(ringed[column], ringed["gain_nats"], "o", markersize=11, markerfacecolor="none", color=ORANGE)
    axes.plot(theirs[column], theirs["gain_nats"], "D", markerfacecolor=PUBLISHED_GROUND, color="#6b5510")
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set_xlabel(label)
    axes.set_ylabel("gain over plain (nats per token)")
    if column != "relative_speed":
        axes.set_xticks(sorted({*rows[column], *theirs[column]}))


denseformer_sparsity = Plot(
    reads=("test.csv", "run.json", "speed.csv"),
    runs=("plain-*", "dwa-*"),
    caption=(
        "What DenseFormers of one depth gain over the plain Transformer against dilation k at period 1, against "
        "period p at the dilation that most runs have, and against the speed of training, after Fig. 4, 11 and 12 of "
        "DenseFormer (arXiv:2402.02622). To see: how far k and p may grow before the gain is lost; whether p = 1 mod "
        "k, where the next average reads the block after the last one (ringed), does better than its neighbours and "
        "than k = p; and what sparsity buys in speed. The paper's figures give no numbers; hollow points are those "
        "its Table 4 prints, for 48 blocks, as differences of ln perplexity."
    ),
    data=data,
    draw=draw,
)
