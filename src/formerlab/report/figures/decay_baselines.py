"""Decay and H2O beside later baselines and the named variants of H2O, at every budget."""

from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures.decay_budget import chosen, draw_runs
from formerlab.results.read import Results

STUDY = "decay"
READS = ("prune.csv", "run.json")
RUNS = ("decoder",)
CAPTION = (
    "Held-out loss above that with the whole cache, against the realised budget, for what is used today and for the "
    "other algorithms called H2O, all evicting step by step. Random is the floor; Ideal, which takes the best keys of "
    "each row anew and so is no cache, the bound. To see: which rules that need no accumulated score come near Decay. "
    "The official mask with global statistics chooses with later queries and is marked as such: its loss is that of no "
    "cache. StreamingLLM is run with the positions of the text and with those within the cache. Bars: 95 % "
    "interval of the paired difference; the axis is linear below 0.01 nats."
)
POLICIES = (
    *("h2o", "h2o variant=local_statistics", "h2o variant=global_statistics", "decay", "tova", "keydiff", "knorm"),
    *("streaming_llm", "streaming_llm positions=renumbered", "random", "ideal"),
)


def data(results: Results) -> DataFrame:
    """Return one arm per policy at every budget."""
    return chosen(results, RUNS, POLICIES)


def draw(data: DataFrame) -> Figure:
    """Draw a line per policy."""
    return draw_runs(data, [])
