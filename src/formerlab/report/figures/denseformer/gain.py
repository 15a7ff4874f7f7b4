"""What averages over depth gain: by budget, by sparsity, and the search for their rates (arXiv:2402.02622)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.depth import gains, plains, published_depths, published_table
from formerlab.report.drawings import Plot
from formerlab.report.panel import Panel, Style, figure, hollow, sheet
from formerlab.report.rates import draw as draw_rates
from formerlab.report.rates import searches
from formerlab.report.runs import DENSEFORMER, held_out, held_out_losses, minus, seed_notes, short
from formerlab.report.style import BLUE, PUBLISHED_INK
from formerlab.report.summary import differences, published_difference
from formerlab.results.read import Results

STUDY = "denseformer"
PUBLISHED_GAIN = float(np.log(18.61 / 17.84))
"""Of 1x1 at 48 blocks (arXiv:2402.02622, Table 1), nats."""


def gain_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return rows of plain minus DenseFormer, by depth and budget."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return DataFrame()
    plain_of, rows = plains(losses), []
    dense = losses[losses["variant"].str.startswith(DENSEFORMER)].drop_duplicates("run")
    for record in dense.sort_values(["layers", "variant", "tokens"]).to_dict("records"):
        run, plain = record["run"], plain_of.get(record["run"])
        series = f"{record['variant']}, {record['layers']:.0f} blocks"
        shared = {"series": series, "tokens": float(record["tokens"]), "run": run, "plain": plain}
        rows += differences(held_out(losses, plain), held_out(losses, run), **shared) if plain is not None else []
    rows += [published_difference(PUBLISHED_GAIN, "1x1 at 48 blocks (Table 1)")] * bool(rows)
    return DataFrame(rows)


denseformer_gain = Plot(
    reads=("test.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa depth.dilation=1 depth.period=1", "long-plain-*", "long-dwa-1x1-*"),
    needs=("long-dwa-1x1-*",),
    caption=(
        "Held-out loss of the plain Transformer minus that of DenseFormer 1x1 of the same depth, against the tokens "
        "that each saw, every run with its own full schedule (arXiv:2402.02622). Differences are paired by seed; above "
        "zero the DenseFormer is better. To see: whether the gain lasts when both train longer, or only makes the "
        "first steps easier."
    ),
    data=gain_data,
    draw=sheet(
        Panel("tokens", "difference_nats", by="series", log="x", ticks=short, zero=0.0,
              xlabel="tokens of each run", ylabel="plain minus DenseFormer\n(nats per token)")
    ),
)  # fmt: skip


_SHARE, _GAIN, _ENDS = "share_percent", "gain_nats", ("", "_low", "_high")


def sparsity_data(results: Results, runs: Sequence[str]) -> DataFrame:
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
        shared = {name: row[name] for name in ("source", "run", "layers", "dilation", "period")}
        rows += [shared | {"seed": seed, _GAIN: gain, _SHARE: gain * per_nat} for seed, gain in found.items()]
    return DataFrame(rows)


def _of_source(name: str, rows: DataFrame) -> Style:
    published = name.startswith("PUBLISHED")
    return {"color": PUBLISHED_INK if published else BLUE, "marker": "D" if published else "s"} | hollow(published)


def draw_sparsity(data: DataFrame) -> Figure:
    """Draw the gain against dilation at period 1, and against period at the dilation that most runs have."""
    counts = data.loc[data["source"].eq("ours") & data["part"].eq("mean") & data["dilation"].gt(1), "dilation"]
    most = counts.mode().min() if len(counts) else 1.0
    names = {"ours": "measured", "published": "PUBLISHED, not ours: 48 blocks"}
    data = data.assign(series=data["source"].map(names), source="ours")
    shared: dict[str, Any] = {
        "by": "series",
        "zero": 0.0,
        "name": "legend",
        "ring": "follows",
        "style": _of_source,
        "ticks": "{:.0f}".format,
    }
    panel = partial(Panel, y=_GAIN, ylabel="loss below the plain Transformer's\n(nats per token)", **shared)
    notes = [*seed_notes(data[data["series"] == "measured"]), f"Measured at {data['layers'].min():.0f} blocks."]
    panels = [panel(x="dilation", where={"period": 1.0}, xlabel="dilation k (period 1)")]
    panels.append(panel(x="period", where={"dilation": most}, xlabel=f"period p (dilation {most:.0f})"))
    return figure(data, panels, notes)


denseformer_sparsity = Plot(
    reads=("test.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa"),
    needs=("depth.dilation=[!1]* depth.period=1", "depth.dilation=1[0-9]* depth.period=1"),
    caption=(
        "What DenseFormers of one depth gain over the plain Transformer, paired by seed: against dilation k at "
        "period 1, and against period p at the dilation that most runs have, after Fig. 4, 11 and 12 of DenseFormer "
        "(arXiv:2402.02622). To see: how far k and p may grow before the gain is lost; whether p = 1 mod k, where the "
        "next average reads the block after the last one (ringed), does better than other periods. "
        "What sparsity buys in speed is in denseformer_tradeoff. The paper's figures give no numbers; hollow "
        "points are those its Tables 1 and 4 print, for 48 blocks, as differences of ln perplexity. A scale "
        "that has no dilation but 1 at period 1 lacks this figure."
    ),
    data=sparsity_data,
    draw=draw_sparsity,
)


denseformer_rates = Plot(
    reads=("eval.csv", "run.json"),
    runs=("*",),
    varied="optimizer.lr",
    caption=(
        "Search for the rates of the DenseFormer study (arXiv:2402.02622): validation loss at the end of training "
        "against the peak learning rate, for every stack whose rate was searched: runs that differ in nothing else. "
        "Each depth has a panel. To see: each ringed rate has a higher and a lower one beside it in the grid; where "
        "it has not, the last sentence says so, and no comparison at that rate is fair."
    ),
    data=partial(searches, study="denseformer"),
    draw=draw_rates,
)
