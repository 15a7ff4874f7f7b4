"""Dilation and period (DenseFormer, arXiv:2402.02622, Fig 4, 11 and 12)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from formerlab.report.depth import gains, published_depths, published_table
from formerlab.report.drawings import Plot
from formerlab.report.marks import points_with_bars
from formerlab.report.runs import held_out, held_out_losses, minus, n_seeds
from formerlab.report.style import BLACK, BLUE, GREY, ORANGE, PUBLISHED_GROUND, PUBLISHED_INK, Look, canvas
from formerlab.results.read import Results

STUDY = "denseformer"
_SHARE, _GAIN = "share_percent", "gain_nats"
_ENDS = ("", "_low", "_high")


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per k x p of the depth that has most of them, with its share of what 1x1 gains; then the paper's.

    `part` is `mean`, or `seed` for a row per seed. The interval is that of the gain: 1x1's own is left out.
    """
    ours = gains(results, STUDY, runs)
    if _GAIN not in ours:
        ours = DataFrame()
    else:
        records = results.runs(STUDY, runs).drop_duplicates("run").set_index("run")
        for name in ("dilation", "period"):
            ours[name] = ours["run"].map(records.get(f"spec.model.depth.{name}", pd.Series(dtype=float)))
        ours = ours.dropna(subset=["dilation", _GAIN])
        counts = ours["layers"].value_counts()
        ours = _shares(ours[ours["layers"] == max(counts[counts == counts.max()].index, default=0)])
    seeds = _by_seed(results, ours) if len(ours) else DataFrame()
    depths = published_depths().rename(columns={"variant": "model"})
    theirs = pd.concat([depths[depths["layers"] == 48], published_table("Table 4")]).drop_duplicates("model")
    theirs[_GAIN] = np.log(theirs["perplexity"].iloc[0] / theirs["perplexity"])
    pattern = theirs["model"].str.extract(r"(\d+)x(\d+)").astype(float)
    theirs = theirs.assign(dilation=pattern[0], period=pattern[1], layers=48.0, run=theirs["model"])
    rows = pd.concat([ours, seeds, _shares(theirs.dropna(subset="dilation"))], ignore_index=True)
    rows["part"] = np.where(rows["seed"].notna() if len(seeds) else False, "seed", "mean")
    rows["follows"] = (rows["dilation"] > 1) & (rows["period"] % rows["dilation"] == 1)
    ends = [f"{name}{end}" for name in (_SHARE, _GAIN) for end in _ENDS]
    columns = ["source", "part", "run", "layers", "dilation", "period", "follows", *ends, "interval", "seeds", "seed"]
    return rows.reindex(columns=columns)


def _shares(rows: DataFrame) -> DataFrame:
    """Return rows with their gains as shares of that of 1x1; none where it has no gain to share."""
    dense = rows.loc[(rows["dilation"] == 1) & (rows["period"] == 1), _GAIN]
    whole = float(dense.iloc[0]) if len(dense) and dense.iloc[0] > 0 else np.nan
    shares = {_SHARE + end: 100 * rows[_GAIN + end] / whole for end in _ENDS if _GAIN + end in rows}
    return rows.assign(**shares).dropna(subset=_SHARE)


def _by_seed(results: Results, ours: DataFrame) -> DataFrame:
    losses, rows = held_out_losses(results, STUDY), []
    for row in ours.to_dict("records"):
        per_nat = row[_SHARE] / row[_GAIN]
        found = minus(held_out(losses, str(row["plain"])), held_out(losses, str(row["run"])))
        kept = {name: row[name] for name in ("source", "run", "layers", "dilation", "period")}
        rows += [kept | {"seed": seed, _GAIN: gain, _SHARE: gain * per_nat} for seed, gain in found.items()]
    return DataFrame(rows)


def draw(data: DataFrame) -> Figure:
    """Draw the share of the gain against dilation at period 1, and against period at one dilation."""
    ours, theirs = data[data["source"] == "ours"], data[data["source"] == "published"]
    counts = ours.loc[(ours["part"] == "mean") & (ours["dilation"] > 1), "dilation"].value_counts()
    dilation = counts.index[0] if len(counts) else 1.0
    seeds = int(ours["seeds"].max())
    spread = "95 % Student t interval over seeds" if seeds > 1 else "95 % bootstrap over windows, these models only"
    notes = [
        f"Ours: {ours['layers'].max():.0f} blocks, {n_seeds([seeds])}, paired by seed; bars: {spread}, without "
        "that of 1x1's gain; small dots: seeds. Published: Tables 1 and 4 of the paper, 48 blocks."
    ]
    figure, (left, right) = canvas([3.2, 3.2], notes, right=[0.9, 1.9])
    right.sharey(left)  # 4x1 stands in both
    _draw(left, ours[ours["period"] == 1], theirs[theirs["period"] == 1], "dilation", "dilation k (period 1)")
    mine, printed = (rows[rows["dilation"] == dilation] for rows in (ours, theirs))
    _draw(right, mine, printed, "period", f"period p (dilation {dilation:.0f})")
    right.legend(*_keys(), loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8)
    return figure


def _keys() -> tuple[list[Line2D], list[str]]:
    """Return the handles and the words of the legend."""
    ours = Line2D([], [], color=BLUE, marker="s")
    ringed = Line2D([], [], color=ORANGE, marker="o", markersize=11, markerfacecolor="none", linestyle="")
    theirs = Line2D([], [], color=PUBLISHED_INK, marker="D", markerfacecolor=PUBLISHED_GROUND, linestyle="")
    dense = Line2D([], [], color=GREY, linewidth=1, linestyle="--")
    return [ours, ringed, theirs, dense], ["ours", "p = 1 mod k", "PUBLISHED, not ours", "all of the gain"]


def _draw(axes: Axes, ours: DataFrame, theirs: DataFrame, column: str, label: str) -> None:
    rows, seeds = ours[ours["part"] == "mean"].sort_values(column), ours[ours["part"] == "seed"]
    points_with_bars(axes, rows[column], rows[_SHARE], (rows[f"{_SHARE}_low"], rows[f"{_SHARE}_high"]), Look(BLUE, "s"))
    aside = 0.03 * (max([1, *rows[column], *theirs[column]]) - 1)
    axes.plot(seeds[column] - aside, seeds[_SHARE], "o", color=BLUE, markersize=2.5, alpha=0.7)
    ringed = rows[rows["follows"]]
    axes.plot(ringed[column], ringed[_SHARE], "o", markersize=11, markerfacecolor="none", color=ORANGE)
    axes.plot(
        theirs[column] + aside, theirs[_SHARE], "D", zorder=3, markerfacecolor=PUBLISHED_GROUND, color=PUBLISHED_INK
    )
    axes.axhline(0, color=BLACK, linewidth=1)
    axes.axhline(100, color=GREY, linewidth=1, linestyle="--")
    axes.set_xlabel(label)
    axes.set_ylabel("share of the gain of 1x1 (%)")
    axes.set_xticks(sorted({*rows[column], *theirs[column]}))


denseformer_sparsity = Plot(
    reads=("test.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa"),
    needs=("depth.dilation=[!1]* depth.period=1", "depth.dilation=1[0-9]* depth.period=1"),
    caption=(
        "What DenseFormers of one depth keep of the gain of 1x1 over the plain Transformer: against dilation k at "
        "period 1, and against period p at the dilation that most runs have, after Fig. 4, 11 and 12 of DenseFormer "
        "(arXiv:2402.02622). To see: how far k and p may grow before the gain is lost; whether p = 1 mod k, where the "
        "next average reads the block after the last one (ringed), does better than other periods. "
        "What sparsity buys in speed is in denseformer_tradeoff. The paper's figures give no numbers; hollow "
        "points are those its Tables 1 and 4 print, for 48 blocks, as differences of ln perplexity. A scale "
        "that has no dilation but 1 at period 1 lacks this figure."
    ),
    data=data,
    draw=draw,
)
