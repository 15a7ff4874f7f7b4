"""Scores of important and unimportant tokens from query to query (Decay article, Fig 5)."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly
from formerlab.report.pruning import model_notes, one_model
from formerlab.report.runs import n_seeds
from formerlab.report.style import BLUE, GREY, ORANGE, canvas, widen
from formerlab.results.read import Results

STUDY = "decay"


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the mean over seeds of every group, alpha and query."""
    rows = results.rows("prune_score_trajectories.csv", STUDY, runs)
    if rows.empty:
        return DataFrame()
    rows = one_model(rows)
    keys = ["run", "group", "alpha", "query"]
    means = rows.groupby(keys, as_index=False)[["mean", "low", "high", "missed"]].mean()
    return means.assign(seeds=rows["seed"].nunique(), source="ours")


def draw(data: DataFrame) -> Figure:
    """Draw a panel of scores per alpha, and one of misses."""
    alphas = sorted(data["alpha"].unique())
    seeds = int(data["seeds"].iloc[0])
    note = f"Unpruned attention, mean over layers, heads, windows and {n_seeds([seeds])}; "
    note += "bands: the middle 80 % of tokens. Right: mean over 5 queries."
    figure, axes = canvas([2.3] * len(alphas) + [3.0], [note, *model_notes(data)], height=2.5, right=0.75, columns=5)
    for panel, alpha in zip(axes, alphas, strict=False):
        _draw_scores(panel, data[data["alpha"] == alpha])
        what = {0.0: "alpha 0: attention itself", 1.0: "alpha 1: the plain sum"}.get(alpha, f"alpha {alpha:g}")
        panel.set_title(what)
    axes[0].set_ylabel("score, as a mean attention")
    lowest = min(axes[0].get_ylim()[0], *(panel.get_ylim()[0] for panel in axes[: len(alphas)]))
    highest = max(panel.get_ylim()[1] for panel in axes[: len(alphas)])
    for panel in axes[: len(alphas)]:
        panel.set_ylim(lowest, highest)
    # the plain sum forgets nothing, so that its panel has room below
    axes[len(alphas) - 1].legend(loc="lower left", fontsize=7.5, labelcolor="linecolor", handlelength=1.2)
    _draw_misses(axes[-1], data[data["group"] == "important"])
    return figure


def _draw_scores(axes: Axes, rows: DataFrame) -> None:
    for group, colour in (("important", BLUE), ("unimportant", GREY)):
        points = rows[rows["group"] == group].sort_values("query")
        axes.plot(points["query"], points["mean"], color=colour, label=group)
        axes.fill_between(points["query"], points["low"].clip(lower=1e-6), points["high"], color=colour, alpha=0.18)
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(1e-5, rows["low"].clip(lower=1e-5).min()))
    axes.set_xlabel("query")


def _draw_misses(axes: Axes, rows: DataFrame) -> None:
    labels = []
    for index, (alpha, points) in enumerate(rows.groupby("alpha")):
        points = points.sort_values("query")
        colour = (ORANGE, BLUE, "#56B4E9", GREY)[index % 4]
        smooth = points["missed"].rolling(5, min_periods=1).mean()
        axes.plot(points["query"], 100 * smooth, color=colour)
        labels.append(Label(points["query"].iloc[-1], 100 * smooth.iloc[-1], f"alpha {alpha:g}", colour))
    axes.set_title("Important tokens missed")
    axes.set_ylabel("not among the best 40 % (%)")
    axes.set_xlabel("query")
    widen(axes, 0.05)
    label_directly(axes, labels)


decay_scores = Plot(
    reads=("prune_score_trajectories.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Attention to important and unimportant tokens, query by query, after Fig. 5 of the Decay article (an image "
        "without values). Left: scores as each alpha remembers them, on a logarithmic axis (mean, and the middle 80 % "
        "of tokens as a band). Important are the tenth of the tokens in the first half that the second half attends "
        "to most. Right: how often such a token is, at the moment, not among the best 40 % of all tokens so far, and "
        "would be dropped. To see: whether attention alone (alpha 0) misses important tokens in passing dips, "
        "and whether remembering a little bridges these."
    ),
    data=data,
    draw=draw,
)
