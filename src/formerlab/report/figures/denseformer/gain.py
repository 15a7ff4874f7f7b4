"""What averages over depth gain: by budget, and by how sparse they are (DenseFormer, arXiv:2402.02622)."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot, shown_columns
from formerlab.report.panel import Panel, sheet
from formerlab.report.runs import (
    DENSEFORMER,
    differences,
    held_out,
    held_out_losses,
    published_difference,
    short,
    summary,
)
from formerlab.report.tables.denseformer import gains, plains, published_depths, published_table, speeds
from formerlab.results.read import Results
from formerlab.results.schema import FORWARD

STUDY = "denseformer"
PUBLISHED_GAIN = float(np.log(18.61 / 17.84))
"""Of 1x1 at 48 blocks (arXiv:2402.02622, Table 1), nats."""


def forest_of_differences(xlabel: str) -> Callable[[DataFrame], Figure]:
    """Return what draws differences as a forest: a line for each series and budget, published ones last."""

    def draw(data: DataFrame) -> Figure:
        tokens = [f", {short(count)} tokens" if count == count else "" for count in data["tokens"]]
        head = data["source"].map({"ours": "", "published": "PUBLISHED, not ours:\n"})
        rows = data.assign(label=head + data["series"] + tokens, look=data["source"], source="ours")
        panel = Panel("difference_nats", "label", by="label", kind="forest", zero=0.0, xlabel=xlabel, style="look")
        return sheet(panel)(rows)

    return draw


@plot(
    reads=("test.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa depth.dilation=1 depth.period=1", "long-plain-*", "long-dwa-1x1-*"),
    needs=("long-dwa-1x1-*",),
    draw=forest_of_differences("plain minus DenseFormer (nats per token)"),
)
def denseformer_gain(results: Results, runs: Sequence[str]) -> DataFrame:
    """Held-out loss of the plain Transformer minus that of DenseFormer 1x1 of the same depth, for each depth and number
    of tokens seen, every run with its own full schedule (arXiv:2402.02622). Differences are paired by seed; above zero
    the DenseFormer is better. To see: whether the gain lasts when both train longer, or only makes the first steps
    easier.
    """
    losses = held_out_losses(results, STUDY, runs)
    plain_of, rows = plains(losses), []
    dense = losses[losses["variant"].str.startswith(DENSEFORMER)].drop_duplicates("run")
    for record in dense.sort_values(["layers", "variant", "tokens"]).to_dict("records"):
        run, plain = record["run"], plain_of.get(record["run"])
        series = f"{record['variant']}, {record['layers']:.0f} blocks"
        shared = {"series": series, "tokens": float(record["tokens"]), "run": run, "plain": plain}
        rows += differences(held_out(losses, plain), held_out(losses, run), **shared) if plain is not None else []
    rows += [published_difference(PUBLISHED_GAIN, "1x1 at 48 blocks (Table 1)")] * bool(rows)
    return DataFrame(rows)


_GAIN, _BEHIND = "gain_nats", "minus_dense_nats"
_TIME = f"{FORWARD}_time_s"


def _published_sparsity() -> DataFrame:
    """Return the same of the models of 48 blocks in Tables 1 and 4."""
    depths = published_depths().rename(columns={"variant": "model"})
    rows = pd.concat([depths[depths["layers"] == 48], published_table("Table 4")]).drop_duplicates("model")
    rows[_GAIN] = np.log(rows["perplexity"].iloc[0] / rows["perplexity"])
    rows[["dilation", "period"]] = rows["model"].str.extract(r"(\d+)x(\d+)").astype(float)
    rows = rows.assign(layers=48.0, run=rows["model"], part="mean").dropna(subset=["dilation", _GAIN])
    whole = rows.loc[rows["dilation"].eq(1) & rows["period"].eq(1), _GAIN].iloc[0]
    return rows.assign(**{_BEHIND: whole - rows[_GAIN], _TIME: 1 / rows["inference_batches_per_s"]})


def draw_sparsity(data: DataFrame) -> Figure:
    """Draw losses beside the dense average's, and the time of a forward pass beside it, ours above the published."""
    stars = data["follows"].map({True: " *", False: ""})
    label = data["dilation"].map("{:.0f}".format) + " x " + data["period"].map("{:.0f}".format) + stars
    base = data["source"].map(data[data["dilation"].eq(1) & data["period"].eq(1)].groupby("source")[_TIME].first())
    slower = {f"slower{end}": 100 * (data[f"{_TIME}{end}"] / base - 1) for end in ("", "_low", "_high")}
    rows = data.assign(label=label, look="ours", **slower).sort_values(["dilation", "period"], kind="stable")
    panels = [
        Panel(x, "label", by="look", kind="forest", zero=0.0, name="none", where={"source": source}, title=title,
              xlabel=xlabel)
        for source, known in (("ours", "{setting}"), ("published", "48 blocks"))
        for x, title, xlabel in (
            (_BEHIND, known, "loss minus that of 1 x 1 (nats per token)"),
            ("slower", f"{known}: time", "forward pass, % slower than 1 x 1"),
        )
    ]  # fmt: skip
    return sheet(*panels)(rows[rows[["slower", _BEHIND]].notna().any(axis=1)])


@plot(
    reads=("test.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa"),
    needs=("depth.dilation=[!1]* depth.period=1", "depth.dilation=1[0-9]* depth.period=1"),
    draw=draw_sparsity,
)
def denseformer_sparsity(results: Results, runs: Sequence[str]) -> DataFrame:
    """What sparse averages over depth lose against the dense one (1 x 1) of the same depth, and what they save, by
    dilation k x period p, after Fig. 4, 11 and 12 of DenseFormer (arXiv:2402.02622). Left: held-out loss minus that of
    1 x 1, paired by seed. Right: time of a full forward pass, where it was measured. A star marks p = 1 mod k, where
    the next average reads the block after the last one. To see: which bars lie right of zero, where the sparse one is
    worse, and whether the time that it saves is worth it. Below: what Tables 1 and 4 print, as differences of ln
    perplexity. A scale that has no dilation but 1 at period 1 lacks this figure.
    """
    ours = gains(results, runs)
    if _GAIN in ours:
        records = results.runs(STUDY, runs).drop_duplicates("run").set_index("run")
        for name in ("dilation", "period"):
            ours[name] = ours["run"].map(records.get(f"spec.model.depth.{name}", pd.Series(dtype=float)))
        ours = ours.dropna(subset=["dilation", _GAIN])
        ours = ours[ours["layers"] == ours["layers"].mode().max()].merge(speeds(results), on="run", how="left")
    dense = ours[(ours["dilation"] == 1) & (ours["period"] == 1)] if _GAIN in ours else ours[:0]
    if dense.empty:
        return DataFrame()
    losses = held_out_losses(results, STUDY)
    gain = summary(losses, "loss_nats", ["run"], dict(zip(ours["run"], ours["plain"], strict=True)), _GAIN)
    seeds = gain[gain["part"] == "seed"].assign(gain_nats=lambda rows: -rows[_GAIN])
    behind = summary(losses, "loss_nats", ["run"], dict.fromkeys(ours["run"], str(dense["run"].iloc[0])), _BEHIND)
    ours = pd.concat([ours.assign(part="mean"), seeds.merge(ours[["run", "layers", "dilation", "period"]], on="run")])
    ours = ours.merge(behind.drop(columns=["source", "seeds"]), on=["run", "part", "seed"], how="left")
    rows = pd.concat([ours, _published_sparsity()], ignore_index=True)
    rows["follows"] = (rows["dilation"] > 1) & (rows["period"] % rows["dilation"] == 1)
    columns = f"source part run layers dilation period follows {_GAIN}[] {_BEHIND}[] {_TIME}[] interval seeds seed"
    return rows.reindex(columns=shown_columns(columns))
