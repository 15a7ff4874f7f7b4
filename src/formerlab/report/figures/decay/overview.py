"""Decay against H2O, as README shows it."""

from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.figures.decay.answers import decay_accuracy
from formerlab.report.overview import overview
from formerlab.results.read import Results


@plot(reads="prune_questions.csv", runs="decoder* released-*", needs="released-*", draw=overview(
    "Decay minus H2O, 40 % of the cache", "accuracy, points (better \N{RIGHTWARDS ARROW})", 1.75
))  # fmt: skip
def decay_overview(results: Results, runs: list[str]) -> DataFrame:
    """Decay minus H2O in brief: the mean accuracy of five suites with a cache of 40 %, with the 95 % interval over the
    questions, of one model. Hollow: the article's values, from other models and questions, without intervals. To see:
    whether Decay answers more questions. decay_accuracy has each suite.
    """
    rows = decay_accuracy.rows(results, runs)
    rows = rows[rows["_name"].eq("mean of five") & rows["series"].eq("Decay")]
    published, count = rows["source"].eq("published"), rows["questions"].max()
    ours = f"ours ({count:.0f} questions), 95 % interval"
    return DataFrame({
        **rows[["source", "verdict"]],
        "label": rows["_model"].str.replace("-Instruct", ""),
        "series": published.map({True: "the paper (no intervals)", False: ours}),
        "value": rows["_minus_h2o"],
        "low": rows["_minus_h2o_low"],
        "high": rows["_minus_h2o_high"],
        "limit": rows["_minus_h2o_limit"],
        "_style": rows["_style"],
    })  # fmt: skip
