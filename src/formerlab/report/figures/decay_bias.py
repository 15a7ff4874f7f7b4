"""Where the kept keys stand: the bias towards early tokens, and how near each choice is to the ideal."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._alphas import draw_alphas
from formerlab.report.figures._pruning import ARM, ordered
from formerlab.report.figures._style import GREY, canvas, n_seeds
from formerlab.results.read import Results
from formerlab.statistics import over_examples

STUDY = "decay"
READS = ("prune_masks.csv", "run.json")
RUNS = ("decoder",)
CAPTION = (
    "Which keys a cache of 40 % (or the budget nearest to it) keeps, against the forgetting factor alpha of Decay "
    "without a recent part; H2O and Local at the same budget as lines. Share of the kept keys among the first 40 % "
    "and the first 10 % of the positions seen so far, mean position of the kept keys (0 the first, 1 the last), and 1 "
    "- cosine between the attention rows and the ideal ones, with and without position 0, an attention sink that "
    "decides the cosine alone (A2SF, arXiv:2407.20485, Table 2). Dotted: an even choice. To see: the plain sum (alpha "
    "1) keeps the beginning; small alphas do not, and lie nearest to the ideal. Bars: 95 % intervals."
)
PANELS = {
    "early_share": ("Share of the first 40 %", 0.4),
    "early_share_10": ("Share of the first 10 %", 0.1),
    "mean_position": ("Mean position", 0.5),
    "distance_to_ideal": ("Distance to Ideal", None),
    "distance_to_ideal_without_first": ("the same without position 0", None),
}
LEVELS = {"h2o": "H2O", "local": "Local", "streaming_llm": "StreamingLLM", "tova": "TOVA"}


def data(results: Results) -> DataFrame:
    """Return the mean of every measure for every arm, with its interval over windows and seeds."""
    rows = results.rows("prune_masks.csv", STUDY, RUNS)
    return measured(rows, list(PANELS))


def measured(rows: DataFrame, metrics: Sequence[str]) -> DataFrame:
    """Return a row per arm and metric, with the mean and its 95 % interval."""
    rows = rows[rows["metric"].isin(metrics)]
    if rows.empty:
        return DataFrame(columns=["source", *ARM, "metric", "value"])
    table = []
    for key, block in rows.groupby([*ARM, "metric"], sort=False, dropna=False):
        grid = block.pivot_table("value", "seed", "window").dropna(axis=1).to_numpy()
        interval = over_examples(grid, resamples=2000)
        cells = dict(zip([*ARM, "metric"], key, strict=True))
        ends = {"value": interval.mean, "value_low": interval.low, "value_high": interval.high}
        table.append(cells | ends | {"seeds": interval.seeds, "windows": interval.examples})
    return ordered(DataFrame(table)).assign(source="ours")


def draw(data: DataFrame) -> Figure:
    """Draw a panel per measure, at the budget nearest to 40 %."""
    budget = min(data["budget"].unique(), key=lambda each: abs(each - 0.4))
    data = data[data["budget"] == budget]
    shown_arms = data[(data["policy"] != "decay") | (data["recent"] == 0)]
    shown = [metric for metric in PANELS if metric in set(data["metric"])]
    seeds, windows = int(data["seeds"].max()), int(data["windows"].max())
    bars = "bars: 95 % interval over windows" + (" and seeds" if seeds > 1 else " of this one model")
    notes = [
        f"Budget {100 * budget:g} % of the tokens, {n_seeds([seeds])}, {windows} windows, unpruned attention; {bars}. "
        "Shares and positions: 0 is the first token, 1 the last so far; distance: 1 - cosine similarity. "
        "Dotted: alpha 0.2, the published choice; what an even choice would give."
    ]
    figure, axes = canvas([2.5] * len(shown), notes, height=2.4, right=1.35, columns=3)
    for panel, metric in zip(axes, shown, strict=True):
        heading, even = PANELS[metric]
        if even is not None:
            panel.axhline(even, color=GREY, linestyle=":", linewidth=1)
        draw_alphas(panel, shown_arms[shown_arms["metric"] == metric], "value", LEVELS)
        panel.set_title(heading)
    return figure
