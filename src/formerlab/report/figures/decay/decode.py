"""Speed and memory of decoding against the length of the text, with whole and pruned caches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_at_edge
from formerlab.report.pruning import decoding, size_of
from formerlab.report.runs import missing_note
from formerlab.report.style import GREY, Look, aside, canvas, look, widen
from formerlab.results.read import Results

STUDY = "decay"
_LINES = ("-", "--", ":", "-.")
_STEP = 0.02
"""Distance of two caches of one length, as a factor minus 1."""
_ROOM, _BESIDE = {3: 1.9, 2: 3.1}, {3: 1.02, 2: 1.4}
"""By number of panels: the room for the legend, and where it begins; bytes have labels of their own before it."""


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, number of sequences, cache and length, with the machine where the stage noted it."""
    rows, record = decoding(results, STUDY, runs), results.stage_record(STUDY, "decode")
    return rows if rows.empty else rows.assign(device=record.get("device"), threads=record.get("threads"))


def draw(data: DataFrame) -> Figure:
    """Draw speed and bytes, a row of panels per run and number of sequences."""
    panels = list(data.groupby(["run", "sequences"], sort=False))
    notes = [
        f"Median and quartiles of {data['repetitions'].min():.0f} repetitions, caches in turns, taken alone on "
        f"{_machine(data)}. Points of one length are moved sideways so that none hides another.",
        "Bytes are without metadata of a pruned cache (scores and positions), which stand in decay_decode_table.",
        *missing_note(list(data["policy"]), ["full", "dynamic_cache"]),
    ]
    columns = 3 if data["prompt_ratio"].notna().any() else 2
    widths, rights = [3.3, 2.7, 3.3][:columns], [0.75, 1.5, 0.0][:columns]
    rights[-1] = _ROOM[columns]
    figure, axes = canvas(widths * len(panels), notes, right=rights * len(panels), columns=columns)
    budgets = sorted((budget for budget in data["budget"].unique() if budget != 1.0), reverse=True)
    lines = {1.0: "-"} | {budget: _LINES[place % len(_LINES)] for place, budget in enumerate(budgets)}
    for place, ((run, sequences), rows) in enumerate(panels):
        several = "one sequence" if sequences == 1 else f"{sequences} sequences"
        speeds, sizes, *prompts = axes[columns * place : columns * (place + 1)]
        speeds.set_title(f"Speed of decoding\n{run}, {several}")
        sizes.set_title("Memory of the cache\nthe same for every policy")
        _draw_lines(speeds, rows, lines, "tokens_per_s", "decoded tokens per second")
        speeds.set_yscale("log")
        speeds.yaxis.set_major_locator(MaxNLocator(6))  # a part of a decade has one power of ten or none
        speeds.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        speeds.yaxis.set_minor_formatter(NullFormatter())
        _draw_bytes(sizes, rows, lines)
        for panel in prompts:
            panel.set_title("Time to read the prompt\nmore than 1: slower than Full")
            _draw_lines(panel, rows, lines, "prompt_ratio", "seconds, over Full's")
        last = prompts[0] if prompts else sizes
        last.legend(
            *_keys(rows, lines), loc="upper left", bbox_to_anchor=(_BESIDE[columns], 1.0), fontsize=7.5, handlelength=3
        )
    return figure


def _machine(data: DataFrame) -> str:
    """Return on what was measured."""
    device, threads = data[["device", "threads"]].iloc[0]
    if not isinstance(device, str):
        return "a machine that no record names"
    return f"{device}, {threads:.0f} thread{'s' if threads > 1 else ''}"


def _look(rows: DataFrame, lines: Mapping[float, str]) -> dict[str, Any]:
    """Return how the line of one cache is drawn: the colour says the policy, line and filling say the budget."""
    kind, line = look(rows["policy"].iloc[0]), lines[float(rows["budget"].iloc[0])]
    filling = {} if line == "-" else {"markerfacecolor": "white"}
    return {"color": kind.colour, "marker": kind.marker, "linestyle": line, "linewidth": 1.3, "markersize": 5} | filling


def _keys(rows: DataFrame, lines: Mapping[float, str]) -> tuple[list[Line2D], list[str]]:
    """Return the handles and the words of the legend."""
    caches = rows.groupby("configuration", sort=False)
    return [Line2D([], [], **_look(points, lines)) for _, points in caches], [str(name) for name, _ in caches]


def _draw_lines(axes: Axes, rows: DataFrame, lines: Mapping[float, str], value: str, title: str) -> None:
    caches = list(rows.groupby("configuration", sort=False))
    for place, (_, points) in enumerate(caches):
        x = aside(points["length"], place, len(caches), _STEP, logarithm=True)
        bars = np.nan_to_num([points[value] - points[f"{value}_low"], points[f"{value}_high"] - points[value]])
        axes.errorbar(x, points[value], bars, capsize=2, elinewidth=1, **_look(points, lines))
    axes.set_ylabel(title)
    _finish(axes, rows, [])


def _draw_bytes(axes: Axes, rows: DataFrame, lines: Mapping[float, str]) -> None:
    labels = []
    for budget, points in rows.drop_duplicates(["budget", "length"]).groupby("budget", sort=False):
        whole = budget == 1.0
        kind = look("full") if whole else Look(GREY, "s")
        axes.plot(points["length"], points["cache_bytes"], lines[float(str(budget))], color=kind.colour, marker="o")
        name = "whole cache" if whole else f"pruned to {size_of(float(str(budget)))}"
        labels.append(Label(points["length"].iloc[-1], points["cache_bytes"].iloc[-1], name, kind.colour))
    axes.set_yscale("log")
    axes.set_ylabel("keys and values held (bytes)")
    _finish(axes, rows, labels)


def _finish(axes: Axes, rows: DataFrame, labels: list[Label]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(rows["length"].unique()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("tokens read before")
    widen(axes, 0.0)
    label_at_edge(axes, labels, size=7)


decay_decode = Plot(
    reads=("decode.csv", "run.json"),
    runs=("*",),
    caption=(
        "Decoding with whole and pruned caches: tokens per second, bytes of the keys and values held, and the time in "
        "which the prompt was read, against the tokens that were read before. Full is our whole cache, DynamicCache "
        "that of transformers in the same model. A pruned cache holds a share of the length. To see: where pruning "
        "pays for its own work; its bytes are its budget, whichever policy chooses. Measured alone on the machine, in "
        "turns, on an untrained model of the run's shape, or a released one: nothing learned matters to speed. Points "
        "are medians, bars quartiles of the repetitions. No speeds were published."
    ),
    data=data,
    draw=draw,
)
