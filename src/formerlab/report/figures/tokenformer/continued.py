"""Loss curves on a second domain (Tokenformer, arXiv:2410.23168, section 4.3, Fig 6)."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, curve_in_band, label_directly, say_starts
from formerlab.report.runs import missing_note
from formerlab.report.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, Look, canvas
from formerlab.report.tokenformer import by_step, means, seeds_note
from formerlab.results.read import Results

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

YLABELS = {
    "loss": "validation loss, second domain (nats per token)",
    "relative": "minus the ungrown model's\nafter as many steps (nats per token)",
}
"""What stands beside the panel of a part."""


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


def draw_continued(data: DataFrame) -> Figure:
    """Draw the losses and, where there is an ungrown model, the losses relative to it."""
    names = [name for name, _, _ in ARMS.values()]
    notes = [seeds_note(data), *missing_note(list(data["variant"].unique()), names)]
    shown = [part for part in YLABELS if (data["part"] == part).any()]
    figure, panels = canvas([3.6] * len(shown), notes, height=3.8, right=[2.9] * len(shown))
    for axes, part in zip(panels, shown, strict=True):
        labels = _draw_curves(axes, data[data["part"] == part])
        axes.set_ylabel(YLABELS[part])
        if part == "relative":
            last = data["step"].max()
            axes.hlines(0, 0, last, color=GREY, linestyle="--", linewidth=1)
            labels.append(Label(last, 0.0, "not grown", GREY))
        _cut_starts(axes, data[data["part"] == part], "+.2f" if part == "relative" else ".2f")
        label_directly(axes, labels)
    return figure


def _cut_starts(axes: Axes, rows: DataFrame, form: str) -> None:
    """Show the losses after the first steps alone, where those before would flatten them, and say these in words."""
    first = rows["step"] == rows["step"].min()
    later = rows.loc[~first, ["loss_nats", "loss_nats_low", "loss_nats_high"]]
    low, high = later.min().min(), later.max().max()
    room = 0.1 * (high - low)
    if low == high or not (rows["loss_nats"] > high + 5 * room).any():
        return
    axes.set_ylim(min(low, rows["loss_nats"].min()) - room, high + room)
    starts = rows[first].to_dict("records")
    say_starts(axes, [Label(0, row["loss_nats"], row["variant"], ARMS[row["run"]][1].colour) for row in starts], form)


def _draw_curves(axes: Axes, rows: DataFrame) -> list[Label]:
    labels = []
    for run, curve in rows.groupby("run", sort=False):
        name, kind, start = ARMS[str(run)]
        curve_in_band(axes, curve, kind, "--" if run == start else "-")
        labels.append(Label(curve["step"].iloc[-1], curve["loss_nats"].iloc[-1], name, kind.colour))
    axes.set_xlabel("step on the second domain")
    return labels


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
