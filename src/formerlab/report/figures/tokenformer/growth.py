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
from formerlab.report.runs import GROWN, TRAINED_ON, ends, held_out, held_out_losses, minus, parent
from formerlab.report.style import BLACK, Look, canvas, look
from formerlab.report.tokenformer import at_step, by_step, means, seeds_note
from formerlab.results.read import Results
from formerlab.statistics import student

STUDY = "tokenformer"
PUBLISHED = f"{GROWN}: random keys, tau sqrt(n)"
KEEPING = f"{GROWN}: zero keys, tau kept"
_SAID = {PUBLISHED: "the published way", KEEPING: "keeps the function"}
_TERA = 1e12


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
    share = rows["step"] / rows["run"].map(first["spec.steps"])
    rows["flops_of_stage"] = share * rows["run"].map(first["flops"])
    rows["variant"] = rows["run"].map(first["variant"])
    rows["parent"] = rows["run"].map(started)
    rows["label"] = rows["run"].map({run: _label(first, run, list(started)) for run in started})
    return rows


def _label(first: DataFrame, run: str, runs: list[str]) -> str:
    """Return what a reader calls a run; a parent trained on is told by what it shares with a model that grew."""
    name = str(first.loc[run, "variant"])
    if not name.endswith(TRAINED_ON):
        keys, tau, *changes = name.removeprefix(f"{GROWN}: ").split(", ")
        said = [f"({_SAID[name]})"] if name in _SAID else [", ".join(changes)] if changes else []
        return "\n".join([f"{keys}, {tau}", *said])
    grown = next(one for one in runs if str(first.loc[one, "variant"]).startswith(GROWN))
    shared = [word for word, key in (("tokens", "tokens"), ("FLOPs", "flops")) if _near(first[key], run, grown)]
    return "the parent, trained on" + (f"\n(not grown, equal {shared[0]})" if shared else "\n(not grown)")


def _near(counts: "pd.Series[float]", a: str, b: str) -> bool:
    return abs(float(counts[a]) / float(counts[b]) - 1) < 0.05


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
        f"{seeds_note(ended, 'bands and bars')[:-1]}; differences are paired by seed; small dots: seeds. "
        "Left: validation loss. Right: held-out text."
    ]
    height = max(2.6, 0.44 * len(ended) + 0.4)
    figure, (stage, end) = canvas([3.7, 3.3], notes, height=height, right=[2.9, 0.3], below=0.75)
    _draw_stage(stage, data[data["part"] == "curve"])
    _draw_ends(end, ended, data[data["part"] == "seed"])
    return figure


def _draw_stage(axes: Axes, curves: DataFrame) -> None:
    for _, curve in curves.groupby("run", sort=False):
        (kind, line), flops = _drawn(curve), curve["flops_of_stage"] / _TERA
        low, high = curve[f"{_LOSS}_low"], curve[f"{_LOSS}_high"]
        axes.fill_between(flops, low, high, color=kind.colour, alpha=0.1, linewidth=0)
        axes.plot(flops, curve[_LOSS], line, color=kind.colour, marker=kind.marker, markersize=4)
    axes.axhline(0, color=BLACK, linewidth=1)
    axes.set_title("From the moment of growth on")
    axes.set_xlabel("training cost since then (TFLOP)")
    axes.set_ylabel("loss minus the parent's (nats per token)")
    trained = curves.loc[curves["step"] > 0, _LOSS]
    low, high = np.min([0.0, *trained]), np.max([0.0, *trained])
    axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    _say_starts(axes, curves[(curves["step"] == 0) & (curves[_LOSS] > high)])
    beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
    axes.annotate("the parent", (1, 0), va="center", fontsize=8, color=BLACK, **beside)


def _say_starts(axes: Axes, starts: DataFrame) -> None:
    """Write the starts that lie above all that follows, which they would flatten, in the corner that curves leave."""
    for place, (_, start) in enumerate(starts.iterrows()):
        words, colour = str(start["label"]).partition("\n")[0], _look(str(start["variant"]))[0].colour
        axes.annotate(
            f"{words}: starts at +{start[_LOSS]:.2f}",
            (1, 1),
            xycoords="axes fraction",
            xytext=(-4, -4 - 11 * place),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8,
            color=colour,
        )


def _draw_ends(axes: Axes, ended: DataFrame, seeds: DataFrame) -> None:
    for place, run in enumerate(ended["run"]):
        row = ended[ended["run"] == run]
        (kind, _), own = _drawn(row), seeds.loc[seeds["run"] == run, _LOSS]
        bars = np.nan_to_num([row[_LOSS] - row[f"{_LOSS}_low"], row[f"{_LOSS}_high"] - row[_LOSS]])
        axes.errorbar(row[_LOSS], [place], xerr=bars, color=kind.colour, marker=kind.marker, capsize=3, markersize=7)
        axes.plot(own, np.full(len(own), place - 0.25), "o", color=kind.colour, markersize=3, alpha=0.7)
    axes.axvline(0, color=BLACK, linewidth=1)
    axes.set_yticks(range(len(ended)), list(ended["label"]))
    for tick, variant in zip(axes.get_yticklabels(), ended["variant"], strict=True):
        tick.set_color(_look(str(variant))[0].colour)
        tick.set_fontweight("bold" if variant == PUBLISHED else "normal")
    axes.set_ylim(-0.6, len(ended) - 0.4)
    axes.grid(visible=False, axis="y")
    axes.set_title("At the end of the stage (line: the parent)")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_xlabel("loss minus the parent's (nats per token)\nbelow zero is better")


def _drawn(rows: DataFrame) -> tuple[Look, str]:
    return _look(str(rows["variant"].iloc[0]))


def _look(variant: str) -> tuple[Look, str]:
    """Return colour and marker, and the line: keys and tau have the colour, what else is changed the line."""
    base, *changes = variant.split(", optimizer")
    base, *frozen = base.split(", old tokens")
    return Look(look(base).colour, look(variant).marker), ":" if frozen else "--" if changes else "-"


tokenformer_growth = Plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("tokenformer-1", "long-matched-chosen", "grown-random-*-2", "grown-zero-*-2", "trained-on-*2"),
    needs=("grown-random-*-2", "grown-zero-*-2"),
    caption=(
        "The first stage after growth: loss minus that of the parent at the end of its own training, by how the new "
        "keys start, whether tau keeps its value, whether the optimizer's moments are carried over and whether old "
        "tokens are trained (Tokenformer, arXiv:2410.23168, section 3.3 and Appendix B); the published way is in bold. "
        "The line at zero is the parent as it was; a start far above it is given in words. The control is the parent "
        "trained on, without growth. To see: only zero keys with tau kept start on the line, because only they keep "
        "the function. Growing has helped where a model ends left of the parent trained on. Small models, so signs and "
        "sizes here need not hold at scale. The paper prints no values for its curves."
    ),
    data=growth_data,
    draw=draw_growth,
)
