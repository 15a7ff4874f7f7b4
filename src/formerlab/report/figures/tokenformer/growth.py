"""Loss curves after growth, and on a second domain (Tokenformer, arXiv:2410.23168, sections 3.3, 4.3, Fig 6)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, curve_in_band, label_directly
from formerlab.report.runs import GROWN, held_out_losses, missing_note
from formerlab.report.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, Look, canvas, look
from formerlab.report.tokenformer import FIRST, at_step, by_step, means, seeds_note
from formerlab.results.read import Results

STUDY = "tokenformer"
_WANTED = [f"{GROWN}: {keys} keys, {tau}" for keys in ("random", "zero") for tau in ("tau kept", "tau sqrt(n)")]


def growth_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and evaluated step; `part` is `curve`, or `parent` for the level that all grew from."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty or not losses["variant"].str.startswith(GROWN).any():
        return DataFrame()
    curves = means(by_step(results, runs))
    curves["variant"] = curves["run"].map(losses.drop_duplicates("run").set_index("run")["variant"])
    level = curves[curves["run"] == FIRST].tail(1).assign(part="parent", step=np.nan)
    return pd.concat([curves[curves["run"] != FIRST].assign(part="curve"), level], ignore_index=True)


def draw_growth(data: DataFrame) -> Figure:
    """Draw the whole stage, and its second half enlarged."""
    curves, levels = data[data["part"] == "curve"], data.loc[data["part"] == "parent", "loss_nats"]
    notes = [seeds_note(curves), *missing_note(list(curves["variant"].unique()), _WANTED)]
    figure, (whole, later) = canvas([3.4, 3.0], notes, height=3.8, right=[0.9, 3.0])
    _draw_stage(whole, curves, "Whole stage")
    half = curves["step"] >= curves["step"].max() / 2
    labels = _draw_stage(later, curves[half], "Second half, enlarged")
    for level in levels:
        whole.axhline(level, color=GREY, linestyle="--", linewidth=1)
        whole.set_title(f"Whole stage (dashed: end of {FIRST})")
    label_directly(later, labels)
    return figure


def _draw_stage(axes: Axes, curves: DataFrame, title: str) -> list[Label]:
    labels = []
    for variant, curve in curves.groupby("variant", sort=False):
        kind, end = look(str(variant)), curve.iloc[-1]
        curve_in_band(axes, curve, kind)
        labels.append(Label(end["step"], end["loss_nats"], str(variant).removeprefix(f"{GROWN}: "), kind.colour))
    axes.set_title(title)
    axes.set_xlabel("step of this stage")
    axes.set_ylabel("validation loss (nats per token)")
    return labels


tokenformer_growth = Plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("tokenformer-1", "grown-random-*-2", "grown-zero-*-2", "trained-on-2", "trained-on-tokens-2"),
    caption=(
        "Validation loss of the first stage after growth, by how the new keys start, whether tau keeps its value, "
        "whether the optimizer's moments are carried over and whether old tokens are trained (Tokenformer, "
        "arXiv:2410.23168, section 3.3 and Appendix B). The grey line is the loss of the parent at the end of its own "
        "training; the blue curve is that parent trained on. To see: only zero keys with tau kept start on the grey "
        "line, because only they keep the function; who is lowest at the end, enlarged on the right, is another "
        "question. The paper prints no values for its curves."
    ),
    data=growth_data,
    draw=draw_growth,
)


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
"""Name for readers, look, and the run whose loss before its first step is subtracted, of every arm."""

YLABELS = {
    "loss": "validation loss, second domain (nats per token)",
    "relative": "minus the ungrown model's before training (nats)",
}
"""What stands beside the panel of a part."""


def continued_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and step; `part` is `loss`, or `relative` to the start of the family, paired by seed."""
    curves = by_step(results, runs)
    curves = curves[curves["run"].isin(ARMS)]
    if curves.empty:
        return DataFrame()
    relative = []
    for run, curve in curves.groupby("run", sort=False):
        start = at_step(curves, ARMS[str(run)][2], 0)
        relative.append(curve.assign(loss_nats=curve["loss_nats"] - curve["seed"].map(start)).dropna())
    parts = {"loss": curves, "relative": pd.concat(relative)}
    rows = pd.concat([means(part).assign(part=name) for name, part in parts.items()], ignore_index=True)
    return rows.assign(variant=[ARMS[run][0] for run in rows["run"]])


def draw_continued(data: DataFrame) -> Figure:
    """Draw the losses and, where there is an ungrown model, the losses relative to its start."""
    names = [name for name, _, _ in ARMS.values()]
    notes = [seeds_note(data), *missing_note(list(data["variant"].unique()), names)]
    shown = [part for part in YLABELS if (data["part"] == part).any()]
    figure, panels = canvas([3.6] * len(shown), notes, height=3.8, right=[0.9, 2.6][-len(shown) :])
    for axes, part in zip(panels, shown, strict=True):
        labels = _draw_curves(axes, data[data["part"] == part])
        axes.set_ylabel(YLABELS[part])
        if part == "relative":
            axes.axhline(0, color=GREY, linestyle="--", linewidth=1)
        if part == shown[-1]:
            label_directly(axes, labels)
    return figure


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
        "from before the first step. Right: minus the loss that each family's model before growth has there without "
        "any training, because the two families start from different places. To see: a grown model that keeps its "
        "function starts on zero; padding with new blocks, the paper's form of Net2Net, does not, and copies (the "
        "Net2Net of 2015, HyperCloning) do by construction. The paper prints no values for its curves."
    ),
    data=continued_data,
    draw=draw_continued,
)
