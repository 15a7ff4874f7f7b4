"""Loss after growth, minus that of the model that grew (Tokenformer, arXiv:2410.23168, section 3.3, Appendix B)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_at_edge, say_starts
from formerlab.report.runs import GROWN, TRAINED_ON, ends, held_out, held_out_losses, minus, parent
from formerlab.report.style import BLACK, canvas, look
from formerlab.report.tokenformer import at_step, by_step, equal_to_grown, means, seeds_note
from formerlab.results.read import Results
from formerlab.statistics import student

STUDY = "tokenformer"
PUBLISHED = f"{GROWN}: random keys, tau sqrt(n)"
KEEPING = f"{GROWN}: zero keys, tau kept"
_SAID = {PUBLISHED: "the published way", KEEPING: "keeps the function"}
_TERA = 1e12
_SHOWN = 0.5
"""The last part of the stage whose losses all lie inside the panel; what lies higher before is cut."""


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
        differences = minus(held_out(losses, run), held_out(losses, start))
        parts += [
            _curve(curves, run, start),
            DataFrame([{"part": "end", "run": run, **_ends(differences)}]),
            DataFrame([{"part": "seed", "run": run, "seed": seed, _LOSS: differences[seed]} for seed in differences]),
        ]
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


def _name(row: "pd.Series[Any]") -> str:
    """Return the same in one line, for the end of a curve."""
    name = str(row["variant"])
    equal = f", equal {row['equal']}" if row["equal"] in ("FLOPs", "tokens") else ""
    return f"{TRAINED_ON}{equal}" if name.endswith(TRAINED_ON) else name.removeprefix(f"{GROWN}: ")


_LOSS = "loss_minus_parent_nats"


def _ends(differences: dict[int, float]) -> dict[str, float]:
    interval = student(list(differences.values()))
    return {**ends(_LOSS, interval), "seeds": interval.seeds}


def _curve(curves: DataFrame, run: str, start: str) -> DataFrame:
    """Return the validation loss of a run by step, minus the parent's last one of the same seed."""
    of_run = curves[curves["run"] == run]
    level = at_step(curves, start, None)
    differences = of_run.assign(loss_nats=of_run["loss_nats"] - of_run["seed"].map(level)).dropna()
    named = {f"loss_nats{end}": f"{_LOSS}{end}" for end in ("", "_low", "_high")}
    return means(differences).rename(columns=named).assign(part="curve")


def draw_growth(data: DataFrame) -> Figure:
    """Draw the stage against its cost, and where every run ends."""
    ended = data[data["part"] == "end"].sort_values(_LOSS, ascending=False, ignore_index=True)
    notes = [
        f"{seeds_note(ended, 'bands and bars')[:-1]}; differences are paired by seed; small dots: seeds.",
        "Left and right are two texts, on which a model need not lie equally far from its parent.",
    ]
    height = max(3.0, 0.44 * len(ended) + 0.4)
    names = max(len(_name(row)) for _, row in ended.iterrows())
    room = [2.05 + 0.062 * names, 0.3]  # names of curves, then those of the other panel
    figure, (stage, end) = canvas([3.7, 3.3], notes, height=height, right=room, below=0.75)
    _draw_stage(stage, data[data["part"] == "curve"])
    _draw_ends(end, ended, data[data["part"] == "seed"])
    return figure


def _draw_stage(axes: Axes, curves: DataFrame) -> None:
    labels, last = [Label(curves["flops_of_stage"].max() / _TERA, 0.0, "the parent", BLACK)], []
    for _, curve in curves.groupby("run", sort=False):
        style, flops = line_and_marker(curve.iloc[0]), curve["flops_of_stage"] / _TERA
        low, high = curve[f"{_LOSS}_low"], curve[f"{_LOSS}_high"]
        axes.fill_between(flops, low, high, color=style["color"], alpha=0.1, linewidth=0)
        axes.plot(flops, curve[_LOSS], markersize=4, markevery=max(1, len(curve) // 12), **style)
        last.append(curve[curve["step"] >= (1 - _SHOWN) * curve["step"].max()])
        labels.append(Label(flops.iloc[-1], curve[_LOSS].iloc[-1], _name(curve.iloc[0]), style["color"]))
    axes.axhline(0, color=BLACK, linewidth=1)
    axes.set_title("From the moment of growth on")
    axes.set_xlabel("training cost since then (TFLOP)")
    axes.set_ylabel("validation loss minus the parent's\n(nats per token)")
    shown = pd.concat(last)[[_LOSS, f"{_LOSS}_low", f"{_LOSS}_high"]]
    low, high = np.nanmin([0.0, shown.min(axis=None)]), np.nanmax([0.0, shown.max(axis=None)])
    axes.set_ylim(low - 0.12 * (high - low), high + 0.12 * (high - low))
    starts = [row for _, row in curves[curves["step"] == 0].iterrows()]
    say_starts(axes, [Label(0, row[_LOSS], _name(row), line_and_marker(row)["color"]) for row in starts], "+.2f")
    _name_curves(axes, labels)


def _name_curves(axes: Axes, labels: list[Label]) -> None:
    """Write names at the right edge; those of curves that end well before it, below their ends."""
    edge = 0.9 * max(label.x for label in labels)
    for name in [label for label in labels if label.x < edge]:
        below: dict[str, Any] = {
            "xytext": (0, -7),
            "textcoords": "offset points",
            "ha": "center",
            "va": "top",
            "fontsize": 8,
        }
        axes.annotate(name.text, (name.x, name.y), color=name.colour, **below)
    label_at_edge(axes, [label for label in labels if label.x >= edge])


def _draw_ends(axes: Axes, ended: DataFrame, seeds: DataFrame) -> None:
    for place, run in enumerate(ended["run"]):
        row = ended[ended["run"] == run]
        style, own = line_and_marker(row.iloc[0]), seeds.loc[seeds["run"] == run, _LOSS]
        line = style.pop("linestyle")
        bars = np.nan_to_num([row[_LOSS] - row[f"{_LOSS}_low"], row[f"{_LOSS}_high"] - row[_LOSS]])
        drawn = axes.errorbar(row[_LOSS], [place], xerr=bars, capsize=3, markersize=7, **style)
        drawn.lines[2][0].set_linestyle(line)
        axes.plot(own, np.full(len(own), place - 0.25), "o", color=style["color"], markersize=3, alpha=0.7)
    axes.axvline(0, color=BLACK, linewidth=1)
    axes.set_yticks(range(len(ended)), list(ended["label"]))
    for tick, (_, row) in zip(axes.get_yticklabels(), ended.iterrows(), strict=True):
        tick.set_color(line_and_marker(row)["color"])
        tick.set_fontweight("bold" if row["variant"] == PUBLISHED else "normal")
    axes.set_ylim(-0.6, len(ended) - 0.4)
    axes.grid(visible=False, axis="y")
    axes.set_title("At the end of the stage (line: the parent)")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_xlabel("test loss minus the parent's (nats per token)\nbelow zero is better")


def line_and_marker(row: "pd.Series[Any]") -> dict[str, Any]:
    """Return how a run is drawn: keys and tau have the colour, what else is changed the marker and the line."""
    variant = str(row["variant"])
    base, *changes = variant.split(", optimizer")
    base, *frozen = base.split(", old tokens")
    style: dict[str, Any] = {"color": look(base).colour, "marker": look(variant).marker}
    style["linestyle"] = ":" if frozen else "--" if changes else "-"
    if row["equal"] == "tokens":  # the control on fewer FLOPs; else it would look like the other one
        style |= {"linestyle": "--", "markerfacecolor": "white"}
    return style


tokenformer_growth = Plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("tokenformer-1", "long-matched-chosen", "grown-random-*-2", "grown-zero-*-2", "trained-on-*2"),
    needs=("grown-random-*-2", "grown-zero-*-2"),
    caption=(
        "The first stage after growth: loss minus that of the parent at the end of its own training, by how the new "
        "keys start, whether tau keeps its value, whether the optimizer's moments are carried over and whether old "
        "tokens are trained (Tokenformer, arXiv:2410.23168, section 3.3 and Appendix B); the published way is in bold. "
        "The line at zero is the parent as it was; a start far above it is given in words. The control is the parent "
        "trained on, without growth. Left are losses on the validation text, right on the test text. To see: of the "
        "grown models only zero keys with tau kept start on the line, because only they keep the function. Growing has "
        "helped where a model ends left of the parent trained on. Small models, so signs and sizes here need not hold "
        "at scale. The paper prints no values for its curves."
    ),
    data=growth_data,
    draw=draw_growth,
)
