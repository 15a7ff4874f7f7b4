"""Accuracy against the forgetting factor alpha, by data set (Decay article, Fig 4b and 4c)."""

from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._alphas import draw_alphas, missing_levels
from formerlab.report.figures._questions import BARS, accuracies, answers, chance, title
from formerlab.report.figures._style import GREY, canvas, n_seeds
from formerlab.results.read import Results

STUDY = "decay"
READS = ("prune_questions.csv", "run.json")
RUNS = ("decoder",)
CAPTION = (
    "Accuracy against the forgetting factor alpha of Decay without a recent part, one panel per data set, with Full "
    "and H2O (half recent) as lines at the same budget; after Fig. 4b and 4c of the Decay article, whose points exist "
    "only as an image. Bars: 95 % interval over questions and seeds. To see: whether small alphas do better than "
    "large ones, and whether the best alpha differs between data sets by more than the bars; the best point of a "
    "curve is no fair estimate, decay_tasks_table chooses on one half of the questions and judges on the other."
)

ENDS = {"": "accuracy", "_low": "low", "_high": "high"}
"""Columns of the mean and of the ends of its interval."""


def data(results: Results) -> DataFrame:
    """Return Decay at every alpha, H2O and Full, by task, at the budget with most alphas."""
    rows = answers(results, STUDY, RUNS)
    sweep = rows[(rows["policy"] == "decay") & (rows["recent"] == 0)]
    counts = sweep.groupby("budget")["alpha"].nunique()
    if counts.empty or counts.max() < 2:
        return DataFrame(columns=["source"])
    budget = float(str(counts.idxmax()))
    plain = rows["policy"].eq("decay") & rows["recent"].eq(0) | rows["policy"].eq("h2o") & rows["recent"].eq(0.5)
    table = accuracies(rows[(plain & rows["budget"].eq(budget)) | rows["policy"].eq("full")])
    return table.assign(chance=table["task"].map(chance(rows)))


def draw(data: DataFrame) -> Figure:
    """Draw a panel per task."""
    tasks = list(data["task"].unique())
    budget, seeds = data.loc[data["budget"] != 1, "budget"].iloc[0], int(data["seeds"].max())
    notes = [
        f"Budget {100 * budget:g} % of the tokens; {n_seeds([seeds])}. Dotted: the published alpha. Grey: chance. "
        f"{BARS}",
        *missing_levels(data),
    ]
    figure, axes = canvas([2.4] * len(tasks), notes, height=2.2, right=0.95, columns=4)
    for panel, task in zip(axes, tasks, strict=True):
        rows = data[data["task"] == task]
        percent = {f"percent{end}": 100 * rows[name] for end, name in ENDS.items()}
        for guess in rows["chance"].dropna()[:1]:
            panel.axhline(100 * guess, color=GREY, linewidth=0.8)
        panel.set_ylabel("accuracy (%)")
        if not rows["accuracy"].any():  # no answer is right: an axis around zero would show accuracies that cannot be
            panel.set_ylim(-0.5, 10)
        draw_alphas(panel, rows.assign(**percent), "percent")
        panel.set_title(f"{title(task)} (n = {int(rows['questions'].iloc[0])})", fontsize=8.5)
    return figure
