"""Growth on a second domain, and growth by tokens against growth in width (arXiv:2410.23168, Fig 6, 7, Table 8)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.figures.tokenformer.growth import cut_starts
from formerlab.report.panel import Panel, Style, hollow, sheet
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.runs import held_out, held_out_losses, minus
from formerlab.report.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, Look
from formerlab.report.summary import summary
from formerlab.report.tokenformer import METHODS, STAGES, before_growth, by_step, means
from formerlab.results.read import Results

STUDY = "tokenformer"
TOKENFORMER_START, TRANSFORMER_START = "continued-tokenformer-ungrown", "continued-transformer-ungrown"

ARMS = {
    "continued-tokenformer": ("Tokenformer, zero keys, tau kept", Look(GREEN, "D"), TOKENFORMER_START),
    "continued-tokenformer-sqrt": ("Tokenformer, zero keys, tau sqrt(n)", Look(PURPLE, "P"), TOKENFORMER_START),
    TOKENFORMER_START: ("Tokenformer, not grown", Look(BLUE, "s"), TOKENFORMER_START),
    "continued-net2net-pad": ("Net2Net by padding", Look(ORANGE, "v"), TRANSFORMER_START),
    "continued-net2net": ("Net2Net (2015)", Look("#8C564B", "^"), TRANSFORMER_START),
    "continued-hypercloning": ("HyperCloning", Look(SKY, "X"), TRANSFORMER_START),
    TRANSFORMER_START: ("Transformer, not grown", Look(BLACK, "o"), TRANSFORMER_START),
}
"""Name for readers, look, and the ungrown run of its family, of every arm."""


def continued_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and step; `part` is `loss`, or `relative` to the ungrown model, paired by seed and step."""
    curves = by_step(results, runs)
    curves = curves[curves["run"].isin(ARMS)]
    if curves.empty:
        return DataFrame()
    levels = curves.set_index(["run", "seed", "step"])["loss_nats"]
    grown = curves[[ARMS[run][2] != run for run in curves["run"]]]
    places = [(ARMS[run][2], seed, step) for run, seed, step in grown[["run", "seed", "step"]].itertuples(index=False)]
    relative = grown.assign(loss_nats=grown["loss_nats"] - levels.reindex(places).to_numpy()).dropna()
    parts = {"loss": curves, "relative": relative}
    rows = pd.concat([means(part).assign(part=name) for name, part in parts.items()], ignore_index=True)
    return rows.assign(variant=[ARMS[run][0] for run in rows["run"]])


def _of_arm(name: str, rows: DataFrame) -> Style:
    _, kind, start = next(arm for arm in ARMS.values() if arm[0] == name)
    return {"color": kind.colour, "marker": kind.marker, "linestyle": "--" if name == ARMS[start][0] else "-"}


def draw_continued(data: DataFrame) -> Figure:
    """Draw the losses and, where there is an ungrown model, the losses relative to it."""
    return sheet(
        *(
            Panel("step", "loss_nats", by="label", kind="band", where={"part": part}, zero=zero, style=_of_arm,
                  xlabel="step on the second domain", ylabel=label, name="legend",
                  finish=partial(cut_starts, y="loss_nats", after=0, form=form))
            for part, zero, label, form in (
                ("loss", None, "validation loss, second domain\n(nats per token)", ".2f"),
                ("relative", 0.0, "minus the ungrown model's\nafter as many steps (nats)", "+.2f"),
            )
        ),
        wanted=[name for name, _, _ in ARMS.values()],
        height=2.6,
    )(data.assign(label=data["variant"]))  # fmt: skip


tokenformer_continued = Plot(
    reads=("eval.csv", "run.json"),
    runs=("continued-*",),
    caption=(
        "Continued training on a second domain at a constant learning rate, after Fig. 6 of Tokenformer "
        "(arXiv:2410.23168): models grown one size, and models not grown. Left: validation loss on the new domain "
        "from before the first step. Right: minus the loss of the ungrown model of the same family after as many "
        "steps, paired by seed, because the two families start from different places. To see: a line below zero is a "
        "model that growing has helped; one that keeps its function starts on zero; padding with new blocks, the "
        "paper's form of Net2Net, does not, and copies (the Net2Net of 2015, HyperCloning) do by construction. Losses "
        "before the first step that would flatten the rest are said in words. The paper prints no values."
    ),
    data=continued_data,
    draw=draw_continued,
)


_PRINTED = {
    "TokenFormer": "Tokenformer",
    "Net2Net (Transformer)": "Net2Net by padding",
    "HyperCloning (Transformer)": "HyperCloning",
}


def rivals_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return rows: `curve` by step, `gain` by stage with that of every `seed`, and the published `gain`s."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return DataFrame()
    curves = means(by_step(results, runs))
    first = {pattern.format(size=2): method for method, (_, pattern, _) in METHODS.items()}
    curves = curves[curves["run"].isin(first)].assign(part="curve")
    curves["method"] = curves["run"].map(first)
    return pd.concat([curves, gains(losses), published_gains()], ignore_index=True)


def gains(losses: DataFrame) -> DataFrame:
    """Return how much lower the held-out loss of each stage is than before growth, paired by seed, in nats.

    `part` is `gain` for the mean, `seed` for a row per seed.
    """
    frames = []
    for method, (_, pattern, _) in METHODS.items():
        start = held_out(losses, before_growth(losses, method))
        for size in STAGES:
            run = pattern.format(size=size)
            if gained := minus(start, held_out(losses, run)):
                rows = DataFrame({"run": run, "seed": [*gained], "gain_nats": [*gained.values()]})
                frames.append(summary(rows, "gain_nats", ["run"]).assign(method=method, size=size))
    found = pd.concat(frames, ignore_index=True) if frames else DataFrame(columns=["part"])
    return found.assign(part=found["part"].replace("mean", "gain"))


def published_gains() -> DataFrame:
    """Return the gains that the perplexities of Table 8 mean."""
    table = published(PAPER, "Table 8").query("metric == 'perplexity'")
    rows = []
    for name, group in table.groupby(table["model"].str.rsplit(" ", n=1).str[0], sort=False):
        values = group["value"].astype(float).to_list()
        for size, model, value in zip(STAGES, group["model"].to_list()[1:], values[1:], strict=True):
            shared = {"source": "published", "part": "gain", "method": _PRINTED[str(name)]}
            rows.append(shared | {"run": model, "size": size, "gain_nats": float(np.log(values[0] / value))})
    return DataFrame(rows).assign(gain_nats_low=np.nan, gain_nats_high=np.nan)


def _of_method(name: str, rows: DataFrame) -> Style:
    kind: Any = METHODS[name][2]
    return {"color": kind.colour, "marker": kind.marker} | hollow(rows["source"].eq("published").all())


def draw_rivals(data: DataFrame) -> Figure:
    """Draw the first stage, our gains and the published ones."""
    stage = partial(Panel, "size", "gain_nats", by="method", zero=0.0, xlabel="stage", ticks="{:.0f}".format,
                    name="legend", style=_of_method)  # fmt: skip
    return sheet(
        Panel("step", "loss_nats", by="method", kind="band", where={"part": "curve"}, title="First stage",
              name="legend", xlabel="step of the stage", ylabel="validation loss (nats)", style=_of_method),
        stage(where={"part": ["gain", "seed"], "source": "ours"}, title="Gain over the own start",
              ylabel="loss before growth minus loss after"),
        stage(where={"part": "gain", "source": "published"}, title="Table 8"),
        wanted=list(METHODS),
        columns=3,
    )(data)  # fmt: skip


tokenformer_rivals = Plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("tokenformer-1", "transformer-1", "long-*-chosen", "grown-random-sqrt-[23]", "net2net-*", "hypercloning-*"),
    needs=("net2net-*", "hypercloning-*"),
    caption=(
        "Growing a Tokenformer by tokens against growing a Transformer in width, after Fig. 7 and Table 8 of "
        "Tokenformer (arXiv:2410.23168). Left: validation loss of the first stage, from before its first step. "
        "Middle: what the held-out loss has gained on the family's own model before growth, after each stage, because "
        "the starts differ. To see: whose line lies highest has gained most from growing. "
        "Right: the same gains out of the published perplexities. Padding is the form of Net2Net that the paper used; "
        "Net2Net (2015) and HyperCloning copy units and keep the function where the factor is whole."
    ),
    data=rivals_data,
    draw=draw_rivals,
)
