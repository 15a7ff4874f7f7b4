"""Speed and memory of decoding against the length of the text, with whole and pruned caches."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_at_edge, points_with_bars
from formerlab.report.pruning import decoding, size_of
from formerlab.report.runs import missing_note
from formerlab.report.style import GREY, Look, canvas, look, widen
from formerlab.results.read import Results

STUDY = "decay"
_LINES = ("-", "--", ":", "-.")


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, number of sequences, cache and length."""
    return decoding(results, STUDY, runs)


def draw(data: DataFrame) -> Figure:
    """Draw speed and bytes, a row of panels per run and number of sequences."""
    panels = list(data.groupby(["run", "sequences"], sort=False))
    notes = [
        f"Median and quartiles of {data['repetitions'].min():.0f} repetitions; bytes without metadata of a pruned "
        "cache (scores and positions), which stand in decay_decode_table.",
        *missing_note(list(data["policy"]), ["full", "dynamic_cache"]),
    ]
    columns = 3 if data["prompt_ratio"].notna().any() else 2
    widths, rights = [3.4, 3.0, 3.0][:columns], [2.2, 1.3, 2.2][:columns]
    figure, axes = canvas(widths * len(panels), notes, right=rights * len(panels), columns=columns)
    budgets = sorted((budget for budget in data["budget"].unique() if budget != 1.0), reverse=True)
    lines = {1.0: "-"} | {budget: _LINES[place % len(_LINES)] for place, budget in enumerate(budgets)}
    for place, ((run, sequences), rows) in enumerate(panels):
        several = "one sequence" if sequences == 1 else f"{sequences} sequences"
        speeds, sizes, *prompts = axes[columns * place : columns * (place + 1)]
        speeds.set_title(f"Run {run}, {several}")
        _draw_lines(speeds, rows, lines, "tokens_per_s", "decoded tokens per second")
        speeds.set_yscale("log")
        speeds.yaxis.set_major_locator(MaxNLocator(6))  # a part of a decade has one power of ten or none
        speeds.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        speeds.yaxis.set_minor_formatter(NullFormatter())
        _draw_bytes(sizes, rows, lines)
        for panel in prompts:
            _draw_lines(panel, rows, lines, "prompt_ratio", "seconds to read the prompt, over Full's")
    return figure


def _draw_lines(axes: Axes, rows: DataFrame, lines: dict[float, str], value: str, title: str) -> None:
    labels = []
    for configuration, points in rows.groupby("configuration", sort=False):
        kind, y = look(points["policy"].iloc[0]), points[value]
        ends = points[f"{value}_low"], points[f"{value}_high"]
        points_with_bars(axes, points["length"], y, ends, kind, linestyle=lines[points["budget"].iloc[0]])
        labels.append(Label(points["length"].iloc[-1], y.iloc[-1], str(configuration), kind.colour))
    axes.set_ylabel(title)
    _finish(axes, rows, labels)


def _draw_bytes(axes: Axes, rows: DataFrame, lines: dict[float, str]) -> None:
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
