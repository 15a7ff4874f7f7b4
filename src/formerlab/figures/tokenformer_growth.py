"""Loss curves of a stage after growth (Tokenformer, arXiv:2410.23168, sections 3.3 and 4.3, Fig 6)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.figures._runs import GROWN, held_out_losses, missing_note, parent
from formerlab.figures._style import GREY, Label, canvas, label_directly, look
from formerlab.results import Results
from formerlab.statistics import student

STUDY = "tokenformer"
READS = ("eval.csv", "test.csv", "run.json")
RUNS = ("*",)
CATEGORY = "Tokenformer"
CAPTION = (
    "Validation loss of a stage after growth, by how the new keys start and whether tau keeps its value "
    "(Tokenformer, arXiv:2410.23168, section 3.3 and Appendix B). The grey line is the loss of the parent at the "
    "end of its own training. To see: only zero keys with tau kept start on the grey line, because only they keep "
    "the function; who is lowest at the end, enlarged on the right, is another question. The paper prints no values "
    "for its curves."
)


def data(results: Results) -> DataFrame:
    """Return a row per run and evaluated step; `part` is `curve`, or `parent` for the level that a run grew from."""
    runs = held_out_losses(results, STUDY, RUNS)
    grown = runs[runs["variant"].str.startswith(GROWN)] if len(runs) else runs
    if grown.empty:
        return DataFrame(columns=["source"])
    evaluated = results.rows("eval.csv", STUDY, RUNS)
    evaluated = evaluated[evaluated["split"] == "valid"]
    rows = []
    for run, variant in grown[["run", "variant"]].drop_duplicates().itertuples(index=False):
        ancestor = parent(runs, run)
        shared = {"source": "ours", "run": run, "variant": variant, "parent": ancestor}
        rows += [shared | {"part": "curve"} | step for step in _curve(evaluated[evaluated["run"] == run])]
        if ancestor is not None and (level := _curve(evaluated[evaluated["run"] == ancestor])):
            rows.append(shared | level[-1] | {"part": "parent", "step": np.nan})
    return DataFrame(rows)


def _curve(rows: DataFrame) -> list[dict[str, float]]:
    """Return mean loss over batches (by tokens) and seeds, with Student's interval over seeds, for each step."""
    weighted = rows.assign(loss=rows["tokens"] * rows["loss_nats"])
    sums = weighted.groupby(["step", "seed"], as_index=False)[["loss", "tokens"]].sum()
    curve = []
    for step, group in sums.groupby(sums["step"].astype(float)):
        interval = student(group["loss"] / group["tokens"])
        ends = {"loss_nats": interval.mean, "loss_nats_low": interval.low, "loss_nats_high": interval.high}
        curve.append({"step": float(step), **ends, "seeds": interval.seeds})
    return curve


def draw(data: DataFrame) -> Figure:
    """Draw, for each parent, the whole stage and its second half enlarged."""
    curves = data[data["part"] == "curve"]
    seeds = int(curves["seeds"].max())
    spread = "bands: 95 % Student t interval over seeds" if seeds > 1 else "one seed: no interval"
    present = list(curves["variant"].unique())
    wanted = [f"{GROWN}: {keys} keys, {tau}" for keys in ("random", "zero") for tau in ("tau kept", "tau sqrt(n)")]
    notes = [f"n = {seeds} seed{'s' if seeds > 1 else ''}; {spread}.", *missing_note(present, wanted)]
    parents = list(dict.fromkeys(data["parent"].fillna("")))
    figure, axes = canvas([2.8, 2.8] * len(parents), notes, right=[1.0, 2.3] * len(parents), columns=2)
    for index, name in enumerate(parents):
        stage = data[data["parent"].fillna("") == name]
        origin = f"grown from {name}" if name else "parent's rows missing"
        _draw_stage(axes[2 * index], stage, f"Whole stage, {origin}")
        later = stage[(stage["part"] == "curve") & (stage["step"] >= stage["step"].max() / 2)]
        _draw_stage(axes[2 * index + 1], later, "Second half, enlarged", labelled=True)
    return figure


def _draw_stage(axes: Axes, stage: DataFrame, title: str, *, labelled: bool = False) -> None:
    labels = []
    for run, curve in stage[stage["part"] == "curve"].groupby("run", sort=False):
        variant = curve["variant"].iloc[0]
        colour, marker = look(variant)
        axes.plot(curve["step"], curve["loss_nats"], color=colour, marker=marker, markevery=0.2, markersize=4)
        if curve["loss_nats_low"].notna().any():
            axes.fill_between(
                curve["step"], curve["loss_nats_low"], curve["loss_nats_high"], color=colour, alpha=0.15, linewidth=0
            )
        unique = (stage.groupby("variant")["run"].nunique()[variant]) == 1
        labels.append(
            Label(
                curve["step"].iloc[-1],
                curve["loss_nats"].iloc[-1],
                variant.removeprefix(f"{GROWN}: ") if unique else str(run),
                colour,
            )
        )
    levels = stage[stage["part"] == "parent"]["loss_nats"]
    if len(levels):
        axes.axhline(levels.iloc[0], color=GREY, linestyle="--", linewidth=1)
        title = f"{title} (dashed)"
    axes.set_title(title)
    axes.set_xlabel("step of this stage")
    axes.set_ylabel("validation loss (nats per token)")
    if labelled:
        label_directly(axes, labels)
