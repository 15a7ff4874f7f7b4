"""Scores of important and unimportant tokens from query to query (Decay article, Fig 5)."""

from collections.abc import Sequence

import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.panel import Panel, Style, figure
from formerlab.report.pruning import one_model
from formerlab.report.runs import n_seeds
from formerlab.report.style import BLACK, PURPLE
from formerlab.results.read import Results

STUDY = "decay"
LOWEST = 1e-5
"""Scores below it leave the panels, whose axis is logarithmic."""


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the mean over seeds of every group, alpha and query."""
    rows = one_model(results.rows("prune_score_trajectories.csv", STUDY, runs))
    keys = ["run", "group", "alpha", "query"]
    means = rows.groupby(keys, as_index=False)[["mean", "low", "high", "missed"]].mean()
    record = results.stage_record(f"{STUDY}/{rows['run'].iloc[0]}/seed{rows['seed'].iloc[0]}", "prune")
    windows = record.get("settings", {}).get("score_windows")
    return means.assign(seeds=rows["seed"].nunique(), windows=windows, source="ours")


def draw(data: DataFrame) -> Figure:
    """Draw a panel of scores per alpha, and one of misses."""
    count, windows = int(data["seeds"].iloc[0]), data["windows"].iloc[0]
    seeds = f", {n_seeds([count])}" if count > 1 else ""
    several = f"{windows:.0f} window{'s' if windows > 1 else ''}" if pd.notna(windows) else "windows"
    notes = [
        f"Unpruned attention, over layers, heads, {several}{seeds}. Important: the tenth of the tokens of "
        "the first half of a window to which its second half attends most, in each head; unimportant: the others, but "
        f"for position 0. Lines: means; bands: the middle 80 % of tokens, cut at {LOWEST:.5f}. Missed: mean over 5 "
        "queries."
    ]
    titles = {0.0: "alpha 0: attention itself", 1.0: "alpha 1: the plain sum"}
    names = [titles.get(alpha, f"alpha {alpha:g}") for alpha in data["alpha"]]
    rows = data.assign(value=data["mean"], value_low=data["low"].clip(lower=LOWEST), value_high=data["high"])
    rows = rows.assign(title=names, number=[f"alpha {alpha:g}" for alpha in data["alpha"]], part="mean")
    rows = rows.sort_values(["alpha", "group", "query"])
    important = rows[rows["group"] == "important"].assign(part="missed")
    smooth = important.groupby("alpha")["missed"].transform(lambda values: values.rolling(5, min_periods=1).mean())
    drawn = pd.concat([rows, important.assign(share=100 * smooth)]).drop(columns="seeds")
    panels = [
        Panel("query", "value", by="group", kind="band", each="title", where={"part": "mean"}, log="y",
              xlabel="query", ylabel="score", style={"important": (PURPLE, ""), "unimportant": (BLACK, "")}),
        Panel("query", "share", by="number", kind="band", where={"part": "missed"}, title="Important tokens missed",
              xlabel="query", ylabel="not among the best 40 % (%)", style=_of_alpha),
    ]  # fmt: skip
    return figure(drawn, panels, notes, height=1.6)


def _of_alpha(name: str, rows: DataFrame) -> Style:
    """From dark to light, as alphas rise: the colours of policies would be taken for them."""
    return {"color": to_hex(colormaps["viridis"](0.85 * float(rows["alpha"].iloc[0]))), "marker": ""}


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
