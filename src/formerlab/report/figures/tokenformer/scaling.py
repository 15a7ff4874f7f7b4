"""Loss of Transformers from scratch against FLOPs, tokens and parameters, and grown models beside their envelope."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.runs import GROWN, TOKENFORMER, TRAINED_ON, short
from formerlab.report.scaling import FLOPS, PARAMETERS, STUDY, TOKENS, scaling
from formerlab.report.style import GREY, look
from formerlab.report.tokenformer import equal_to_grown
from formerlab.results.read import Results

SHOWN = {
    f"{GROWN}: random keys, tau sqrt(n)": "grown: random keys, tau sqrt(n)",
    f"{GROWN}: zero keys, tau kept": "grown: zero keys, tau kept",
    f"{TOKENFORMER}, {TRAINED_ON}": "parent trained on",
}
"""The runs of chains that are drawn, and their labels; the table has the others."""


def named(data: DataFrame) -> DataFrame:
    """Return the rows with what the series of the panels are called, `model` and `size`, and how these are drawn."""
    chain, scratch = data[data["part"] == "chain"], data[data["part"] == "scratch"]
    shown = chain[chain["variant"].isin(SHOWN)]
    names: dict[str, str] = dict.fromkeys(shown["parent"].dropna(), "before growth")
    for run, variant, equal in shown[["run", "variant", "equal"]].itertuples(index=False, name=None):
        names[run] = SHOWN[variant] + (f", equal {equal}" if isinstance(equal, str) and equal else "")
    sizes = data[PARAMETERS].map(lambda size: f"{short(size, 3)} parameters", na_action="ignore")
    known = sorted(scratch[PARAMETERS].unique())
    shades = dict(zip(known, map(to_hex, colormaps["PuRd"](np.linspace(0.45, 1, len(known)))), strict=True))
    own = data["run"].isin(set(scratch["run"]) - set(names))
    return data.assign(
        size=sizes,
        model=data["run"].map(names).where(~own, sizes),
        color=data[PARAMETERS].map(shades).where(own),
        marker=data[PARAMETERS].map(dict(zip(known, "osD^vPX" * len(known), strict=False))).where(own),
        linestyle=own.map({True: "-", False: ""}),
    )


def draw(data: DataFrame) -> Figure:
    """Draw the envelope with the chains, then the same runs by tokens."""
    rows = named(data)
    rows = rows[rows["model"].notna() & rows["part"].isin(["scratch", "chain", "seed"])]
    scratch = rows["run"].isin(rows.loc[rows["part"] == "scratch", "run"])
    part = rows["part"].replace({"scratch": "mean", "chain": "mean"})
    rows = rows.assign(part=part, scratch=scratch)
    rows = rows.sort_values(["scratch", TOKENS, PARAMETERS], ascending=[False, True, True])
    shared: dict[str, Any] = {"log": "xy", "ylabel": "held-out loss (nats per token)"}
    return sheet(
        Panel(FLOPS, "loss_nats", by="model", title="{setting}: grown models and the envelope",
              xlabel="cumulative FLOPs", finish=partial(_envelope, data=data), **shared),
        Panel(TOKENS, "loss_nats", by="size", where={"scratch": True}, title="From scratch, size by size",
              xlabel="tokens", **shared),
        columns=1, height=2.6,
    )(rows)  # fmt: skip


def _envelope(axes: Axes, rows: DataFrame, *, data: DataFrame) -> None:
    """Draw the envelope, and join what started from another run to that run."""
    lowest = data[data["part"].eq("scratch") & data["lowest"].eq(True)].sort_values(FLOPS)
    axes.plot(lowest[FLOPS], lowest["loss_nats"], color=GREY, linewidth=4, alpha=0.4, zorder=0)
    chain = data[data["part"] == "chain"]
    at = chain.set_index("run")[[FLOPS, "loss_nats"]]
    joined = chain[chain["parent"].isin(at.index) & chain["variant"].isin(SHOWN)]
    for run, parent, variant in joined[["run", "parent", "variant"]].to_numpy():
        axes.plot(*at.loc[[parent, run]].to_numpy(float).T, color=look(variant).colour, linewidth=1)


@plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    needs=("envelope-*",),
    draw=draw,
)
def tokenformer_scaling(results: Results, runs: Sequence[str]) -> DataFrame:
    """Tokenformers that grow or train on beside Transformers from scratch (arXiv:2410.23168). Those are of three sizes
    and three lengths, every one with its own full schedule, against FLOPs and tokens; these pay for all their
    ancestors. To see: growing saves cost where a grown model lies below and to the left of the grey envelope; how much,
    at equal loss, is in the table tokenformer_envelope. The parent that was trained on is the other control: growing
    helps where the grown model is lower at equal FLOPs. Small models and few tokens: the slopes are those of this
    range.
    """
    rows = scaling(results, runs)
    if rows.empty:
        return rows
    rows = rows.dropna(axis=1, how="all")
    records = results.runs(STUDY, runs).drop_duplicates("run").set_index("run")
    chain = rows[rows["part"] == "chain"].set_index("run")
    trained = [run for run in chain.index if str(chain.loc[run, "variant"]).endswith(TRAINED_ON)]
    rows["equal"] = rows["run"].map({run: equal_to_grown(chain, run) for run in trained})
    return rows.assign(lr=rows["run"].map(records["spec.optimizer.lr"]))
