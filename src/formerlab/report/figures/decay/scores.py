"""Scores of important and unimportant tokens from query to query (Decay article, Fig 5)."""

from collections.abc import Sequence

import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly
from formerlab.report.pruning import model_notes, one_model
from formerlab.report.runs import n_seeds
from formerlab.report.style import BLACK, PURPLE, canvas, widen
from formerlab.results.read import Results

STUDY = "decay"
LOWEST = 1e-5
"""Scores below it leave the panels, whose axis is logarithmic."""
_WIDTH, _RIGHT, _COLUMNS = 2.8, 0.8, 3
"""Of the panels: inches of one, of the room beside it, and how many stand in a row."""


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the mean over seeds of every group, alpha and query."""
    rows = results.rows("prune_score_trajectories.csv", STUDY, runs)
    if rows.empty:
        return DataFrame()
    rows = one_model(rows)
    keys = ["run", "group", "alpha", "query"]
    means = rows.groupby(keys, as_index=False)[["mean", "low", "high", "missed"]].mean()
    record = results.stage_record(f"{STUDY}/{rows['run'].iloc[0]}/seed{rows['seed'].iloc[0]}", "prune")
    windows = record.get("settings", {}).get("score_windows")
    return means.assign(seeds=rows["seed"].nunique(), windows=windows, source="ours")


def draw(data: DataFrame) -> Figure:
    """Draw a panel of scores per alpha, and one of misses."""
    alphas = sorted(data["alpha"].unique())
    seeds, windows = int(data["seeds"].iloc[0]), data["windows"].iloc[0]
    several = f"{windows:.0f} window{'s' if windows > 1 else ''}" if pd.notna(windows) else "windows"
    cut = f", cut at {LOWEST:.5f}" if (data["low"] < LOWEST).any() else ""
    notes = [
        f"Unpruned attention, over layers, heads, {several}, {n_seeds([seeds])}. Important: the tenth of the tokens of "
        "the first half of a window to which its second half attends most, in each head; unimportant: the others, but "
        f"for position 0. Lines: means; bands: the middle 80 % of tokens{cut}. Missed: mean over 5 queries.",
        *model_notes(data),
    ]
    columns = min(_COLUMNS, len(alphas) + 1)
    widths, rights = [_WIDTH] * len(alphas), [_RIGHT] * len(alphas)
    left = -(len(alphas) + 1) % columns  # the last panel takes the rest of its row
    widths.append(_WIDTH + left * (_WIDTH + _RIGHT) - 0.2)
    figure, axes = canvas(widths, notes, height=2.4, right=[*rights, _RIGHT + 0.2], columns=columns)
    for place, (panel, alpha) in enumerate(zip(axes, alphas, strict=False)):
        _draw_scores(panel, data[data["alpha"] == alpha])
        what = {0.0: "alpha 0: attention itself", 1.0: "alpha 1: the plain sum"}.get(alpha, f"alpha {alpha:g}")
        panel.set_title(what)
        if place % columns == 0:
            panel.set_ylabel("score, as a mean attention")
    highest = max(panel.get_ylim()[1] for panel in axes[: len(alphas)])
    lowest = min(panel.get_ylim()[0] for panel in axes[: len(alphas)])
    for panel in axes[: len(alphas)]:
        panel.set_ylim(lowest, highest)
    # the plain sum forgets nothing, so that its panel has room below
    axes[len(alphas) - 1].legend(loc="lower left", fontsize=7.5, labelcolor="linecolor", handlelength=1.2)
    _draw_misses(axes[-1], data[data["group"] == "important"])
    return figure


def _draw_scores(axes: Axes, rows: DataFrame) -> None:
    for group, colour in (("important", PURPLE), ("unimportant", BLACK)):
        points = rows[rows["group"] == group].sort_values("query")
        axes.plot(points["query"], points["mean"], color=colour, label=group)
        ends = points["low"].clip(lower=LOWEST / 10), points["high"]
        axes.fill_between(points["query"], *ends, color=colour, alpha=0.18, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(LOWEST, rows["low"].clip(lower=LOWEST).min()))
    axes.set_xlabel("query")


def _draw_misses(axes: Axes, rows: DataFrame) -> None:
    labels = []
    for alpha, points in rows.groupby("alpha"):
        points = points.sort_values("query")
        # from dark to light, as alphas rise: the colours of policies would be taken for them
        colour = to_hex(colormaps["viridis"](0.85 * float(str(alpha))))
        smooth = points["missed"].rolling(5, min_periods=1).mean()
        axes.plot(points["query"], 100 * smooth, color=colour)
        labels.append(Label(points["query"].iloc[-1], 100 * smooth.iloc[-1], f"alpha {alpha:g}", colour))
    axes.set_title("Important tokens missed, at each alpha")
    axes.set_ylabel("not among the best 40 % (%)")
    axes.set_xlabel("query")
    widen(axes, 0.03)
    label_directly(axes, labels)


decay_scores = Plot(
    reads=("prune_score_trajectories.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Attention to important and unimportant tokens, query by query, after Fig. 5 of the Decay article (an image "
        "without values). First, scores as each alpha remembers them, on a logarithmic axis (mean, and the middle 80 % "
        "of tokens as a band). Important are the tenth of the tokens in the first half that the second half attends "
        "to most. Last: how often such a token is, at the moment, not among the best 40 % of all tokens so far, and "
        "would be dropped. To see: whether attention alone (alpha 0) misses important tokens in passing dips, "
        "and whether remembering a little bridges these."
    ),
    data=data,
    draw=draw,
)
