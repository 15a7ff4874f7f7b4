"""Perplexity against the forgetting factor alpha (Decay article, Fig 4b and 4c; A2SF, arXiv:2407.20485)."""

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._alphas import draw_alphas, missing_levels
from formerlab.report.figures._pruning import PUBLISHED_ALPHA, arms, interval_notes, main_arms
from formerlab.report.figures._style import canvas
from formerlab.results.read import Results

STUDY = "decay"
READS = ("prune.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "Held-out perplexity against the forgetting factor alpha of Decay, for each budget, with the whole cache and "
    "H2O at the same budget as lines; after Fig. 4b and 4c of the Decay article, which show accuracies (its points "
    "exist only as an image). alpha 0 keeps what the last query attended to, alpha 1 is the plain sum. To see: "
    "where the curve is lowest, whether it lies below H2O, and how flat it is: within the bars, alphas are not "
    "separable."
)


def data(results: Results) -> DataFrame:
    """Return Decay at every alpha, without a recent window, and H2O and Full at the same budgets."""
    table = arms(results, STUDY, RUNS)
    decay = table[table["policy"] == "decay"]
    if decay.empty:
        return decay
    least = decay.groupby(["run", "budget"])["recent"].transform("min")
    decay = decay[(decay["recent"] == least) | decay["recent"].isna()]
    several = decay.groupby(["run", "budget"])["alpha"].transform("nunique") > 1
    decay = decay[several]
    others = main_arms(table[table["policy"].isin(["full", "h2o"])])
    others = others[(others["policy"] == "full") | others["budget"].isin(decay["budget"])]
    return pd.concat([others, decay], ignore_index=True) if len(decay) else decay


def draw(data: DataFrame) -> Figure:
    """Draw a panel per run and budget."""
    decay = data[data["policy"] == "decay"]
    panels = list(decay[["run", "budget"]].drop_duplicates().itertuples(index=False, name=None))
    dotted = f"Dotted: alpha {PUBLISHED_ALPHA:g}, the published choice."
    notes = [*interval_notes(data), dotted, *missing_levels(data)]
    figure, axes = canvas([2.6] * len(panels), notes, height=2.7, right=1.05, columns=3)
    several = decay["run"].nunique() > 1
    for panel, (run, budget) in zip(axes, panels, strict=True):
        mine = data[data["run"] == run]
        panel.set_ylabel("perplexity")
        draw_alphas(panel, mine[mine["budget"].eq(budget) | mine["policy"].eq("full")], "perplexity")
        size = f"budget {100 * budget:g} % of the tokens" if budget <= 1 else f"budget {budget:g} entries"
        panel.set_title(f"{run}: {size}" if several else size[0].upper() + size[1:])
    return figure
