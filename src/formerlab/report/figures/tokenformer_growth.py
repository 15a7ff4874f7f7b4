"""Loss curves of the first stage after growth (Tokenformer, arXiv:2410.23168, section 3.3 and Appendix B)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._labels import Label, label_directly
from formerlab.report.figures._marks import curve_in_band
from formerlab.report.figures._runs import GROWN, held_out_losses, missing_note
from formerlab.report.figures._style import GREY, canvas, look
from formerlab.report.figures._tokenformer import FIRST, by_step, means, seeds_note
from formerlab.results.read import Results

STUDY = "tokenformer"
READS = ("eval.csv", "test.csv", "run.json")
RUNS = ("tokenformer-1", "grown-random-*-2", "grown-zero-*-2")
CAPTION = (
    "Validation loss of the first stage after growth, by how the new keys start, whether tau keeps its value, whether "
    "the optimizer's moments are carried over and whether old tokens are trained (Tokenformer, arXiv:2410.23168, "
    "section 3.3 and Appendix B). The grey line is the loss of the parent at the end of its own training. To see: "
    "only zero keys with tau kept start on the grey line, because only they keep the function; who is lowest at the "
    "end, enlarged on the right, is another question. The paper prints no values for its curves."
)

_WANTED = [f"{GROWN}: {keys} keys, {tau}" for keys in ("random", "zero") for tau in ("tau kept", "tau sqrt(n)")]


def data(results: Results) -> DataFrame:
    """Return a row per run and evaluated step; `part` is `curve`, or `parent` for the level that all grew from."""
    runs = held_out_losses(results, STUDY, RUNS)
    if runs.empty or not runs["variant"].str.startswith(GROWN).any():
        return DataFrame(columns=["source"])
    curves = means(by_step(results, RUNS))
    curves["variant"] = curves["run"].map(runs.drop_duplicates("run").set_index("run")["variant"])
    level = curves[curves["run"] == FIRST].tail(1).assign(part="parent", step=np.nan)
    return pd.concat([curves[curves["run"] != FIRST].assign(part="curve"), level], ignore_index=True)


def draw(data: DataFrame) -> Figure:
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
