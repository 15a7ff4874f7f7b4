"""What growth does to the loss (Tokenformer, arXiv:2410.23168, section 3.3, Appendix B, Fig 6, 7 and Table 8)."""

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, say_starts
from formerlab.report.panel import Panel, Style, hollow, sheet
from formerlab.report.runs import GROWN, TRAINED_ON, held_out_losses, parent
from formerlab.report.style import BLACK, look
from formerlab.report.summary import summary
from formerlab.report.tokenformer import at_step, by_step, equal_to_grown, means
from formerlab.results.read import Results

STUDY = "tokenformer"
PUBLISHED = f"{GROWN}: random keys, tau sqrt(n)"
KEEPING = f"{GROWN}: zero keys, tau kept"
_SAID = {PUBLISHED: "the published way", KEEPING: "keeps the function"}
_LOSS = "loss_minus_parent_nats"


def growth_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return losses minus the parent's, paired by seed, of what grew from a run and of that run trained on.

    `part` is `curve` for a row per run and evaluated step (validation), `end` for one per run and `seed` for one per
    run and seed (held-out text, after the last step).
    """
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return DataFrame()
    found = [(run, parent(losses, run)) for run in losses["run"].unique()]
    started = {run: start for run, start in found if start is not None}
    if not losses[losses["run"].isin(started)]["variant"].str.startswith(GROWN).any():
        return DataFrame()
    curves, parts = by_step(results, runs), []
    for run, start in started.items():
        own = losses[losses["run"].isin((run, start))]
        ended = summary(own, "loss_nats", ["run"], {run: start}, _LOSS)
        parts += [_curve(curves, run, start), ended.assign(part=ended["part"].replace("mean", "end"))]
    rows = pd.concat(parts, ignore_index=True).assign(source="ours")
    first = losses.drop_duplicates("run").set_index("run")
    first["parent"] = first.index.map(started)
    equal = {run: equal_to_grown(first, run) for run in started if str(first.loc[run, "variant"]).endswith(TRAINED_ON)}
    share = rows["step"] / rows["run"].map(first["spec.steps"])
    rows["flops_of_stage"] = share * rows["run"].map(first["flops"])
    rows["variant"] = rows["run"].map(first["variant"])
    rows["parent"] = rows["run"].map(started)
    rows["equal"] = rows["run"].map(equal)
    rows["label"] = [_label(str(name), equal.get(run)) for run, name in zip(rows["run"], rows["variant"], strict=True)]
    return rows


def _label(variant: str, equal: str | None) -> str:
    """Return what a reader calls a run; a parent trained on is told by what it shares with a model that grew."""
    if equal is not None:
        return "the parent, trained on" + (f"\n(not grown, equal {equal})" if equal else "\n(not grown)")
    keys, tau, *changes = variant.removeprefix(f"{GROWN}: ").split(", ")
    said = [f"({_SAID[variant]})"] if variant in _SAID else [", ".join(changes)] if changes else []
    return "\n".join([f"{keys}, {tau}", *said])


def _curve(curves: DataFrame, run: str, start: str) -> DataFrame:
    """Return the validation loss of a run by step, minus the parent's last one of the same seed."""
    of_run = curves[curves["run"] == run]
    level = at_step(curves, start, None)
    differences = of_run.assign(loss_nats=of_run["loss_nats"] - of_run["seed"].map(level)).dropna()
    named = {f"loss_nats{end}": f"{_LOSS}{end}" for end in ("", "_low", "_high")}
    return means(differences).rename(columns=named).assign(part="curve")


def line_and_marker(name: str, rows: DataFrame) -> Style:
    """Return how a run is drawn: keys and tau have the colour, what else is changed the marker and the line."""
    variant = str(rows["variant"].iloc[0])
    base, *changes = variant.split(", optimizer")
    base, *frozen = base.split(", old tokens")
    fewer = rows["equal"].iloc[0] == "tokens"  # the control on fewer FLOPs; else it would look like the other one
    line = ":" if frozen else "--" if changes or fewer else "-"
    return {"color": look(base).colour, "marker": look(variant).marker, "linestyle": line} | hollow(fewer)


def cut_starts(axes: Axes, rows: DataFrame, *, y: str, after: float, form: str) -> None:
    """Show the losses after a share of the steps alone, where those before would flatten them, and say these."""
    later = rows[rows["step"] >= after * rows["step"].max()]
    if after == 0:
        later = rows[rows["step"] > rows["step"].min()]
    ends = later[[y, f"{y}_low", f"{y}_high"]]
    low, high = (float(end) for end in (ends.min().min(), ends.max().max()))
    bottom, top = (min(low, 0.0), max(high, 0.0)) if low < 0 else (low, high)
    room = 0.1 * (top - bottom)
    if bottom == top or not (rows[y] > top + 5 * room).any():
        return
    axes.set_ylim(min(bottom, rows[y].min()) - room, top + room)
    first = rows[rows["step"] == rows["step"].min()]
    lines = {line.get_label(): str(line.get_color()) for line in axes.get_lines()}
    said = [
        Label(0, row[y], row["label"].replace("\n", " "), lines.get(row["label"], BLACK))
        for row in first.to_dict("records")
    ]
    say_starts(axes, said, form)


def draw_growth(data: DataFrame) -> Figure:
    """Draw the stage against its cost, and where every run ends."""
    order = data[data["part"] == "end"].sort_values(_LOSS)["label"]
    rows = data.assign(tera=data["flops_of_stage"] / 1e12, label=pd.Categorical(data["label"], order.unique()))
    rows = rows.sort_values(["label", "step"], kind="stable").astype({"label": str})
    return sheet(
        Panel(_LOSS, "label", by="label", kind="forest", where={"part": ["end", "seed"]}, zero=0.0,
              title="At the end of the stage", xlabel="test loss minus the parent's (nats)", style=line_and_marker),
        Panel("tera", _LOSS, by="label", kind="band", where={"part": "curve"}, zero=0.0, name="none",
              title="From the moment of growth on", xlabel="training cost since then (TFLOP)",
              ylabel="validation loss minus the parent's (nats)", style=line_and_marker,
              finish=partial(cut_starts, y=_LOSS, after=0.5, form="+.2f")),
        notes=["Differences are paired by seed. The lines at zero are the parent, below is better. The two panels are "
               "of two texts, on which a model need not lie equally far from its parent."],
        height=2.8,
    )(rows)  # fmt: skip


tokenformer_growth = Plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("tokenformer-1", "long-matched-chosen", "grown-random-*-2", "grown-zero-*-2", "trained-on-*2"),
    needs=("grown-random-*-2", "grown-zero-*-2"),
    caption=(
        "The first stage after growth: loss minus that of the parent at the end of its own training, by how the new "
        "keys start, whether tau keeps its value, whether the optimizer's moments are carried over and whether old "
        "tokens are trained (Tokenformer, arXiv:2410.23168, section 3.3 and Appendix B). "
        "The line at zero is the parent as it was; a start far above it is given in words. The control is the parent "
        "trained on, without growth. Left are losses on the test text, right on the validation text. To see: of the "
        "grown models only zero keys with tau kept start on the line, because only they keep the function. Growing has "
        "helped where a model ends left of the parent trained on. Small models, so signs and sizes here need not hold "
        "at scale. The paper prints no values for its curves."
    ),
    data=growth_data,
    draw=draw_growth,
)
