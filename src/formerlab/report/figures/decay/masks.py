"""Which keys are kept, and the scores that decide it (Decay article, Fig 3 and 5; A2SF, arXiv:2407.20485, Table 2)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_hex
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.figures.decay.alpha import mark_alpha
from formerlab.report.panel import Panel, setting, sheet
from formerlab.report.pruning import PANELS, measured, one_model, ordered
from formerlab.report.published import published_cosines
from formerlab.report.runs import n_seeds
from formerlab.report.style import GREY, canvas, heat, look
from formerlab.results.read import Results

STUDY = "decay"
WANTED = ("Ideal", "Local", "H2O", "Decay, alpha 0.2", "Decay, alpha 0.8")


def draw_masks(data: DataFrame) -> Figure:
    """Draw a row of panels per budget."""
    kinds = data.drop_duplicates("configuration").set_index("configuration")["policy"].str.split().str[0]
    others = kinds.index[~kinds.isin(["ideal", "local", "h2o", "decay"])]
    names = [*(name for name in WANTED if name in kinds), *others]
    panels = [(budget, name) for budget in sorted(data["budget"].unique()) for name in names]
    tokens, first = int(data["query"].max()) + 1, data.iloc[0]
    note = (
        f"First {tokens} tokens of the held-out text, layer {first['layer'] + 1}, head {first['head'] + 1}, seed "
        f"{first['seed']}. A query sees its own key on top of the budget."
    )
    figure, axes = canvas(
        len(panels), min(5, len(names)), 1.1, note, left=0.2, right=0.08, top=0.45, heading=setting(data)
    )
    for panel, (budget, name) in zip(axes, panels, strict=True):
        rows = data[(data["budget"] == budget) & (data["configuration"] == name)].sort_values("query")
        seen = np.array([[int(cell) for cell in kept] for kept in rows["kept"]])
        ticks, colour = [0, tokens // 2, tokens - 1], look(kinds[name]).colour
        heat(panel, seen, {"cmap": ListedColormap(["white", colour]), "vmin": 0, "vmax": 1, "aspect": "equal"},
             xticks=ticks, yticks=ticks if name == names[0] else [])  # fmt: skip
        panel.set_title(f"{name}\n{100 * budget:g} %".replace("Decay, ", "Decay "), fontsize=8)
    axes[0].set(ylabel="query")
    axes[-1].set(xlabel="key")
    return figure


@plot(
    reads=("prune_mask_dumps.csv", "run.json"),
    runs=("decoder", "released-*"),
    draw=draw_masks,
)
def decay_masks(results: Results, runs: Sequence[str]) -> DataFrame:
    """Which keys (across) each query (down) sees in one head of one trained decoder, at equal budgets; after Fig. 3 of
    the Decay article. All policies choose from the attention of the same unpruned pass. Ideal takes the best keys of
    each row and may take a dropped one back, which no cache can. To see: vertical lines are keys kept for long, the
    diagonal are recent ones; H2O keeps early keys once it has them, a small alpha lets them go.
    """
    rows = one_model(results.rows("prune_mask_dumps.csv", STUDY, runs))
    rows = rows[rows["seed"] == rows["seed"].min()]
    return ordered(rows).sort_values(["budget", "query"], kind="stable").assign(source="ours")


LEVELS = {"h2o": "H2O", "local": "Local", "streaming_llm": "StreamingLLM", "tova": "TOVA", "decay": "Decay"}
"""Policies that are compared, by kind; a published one is found by the first word of its name."""


def draw_bias(data: DataFrame) -> Figure:
    """Draw a panel per measure, at the budget nearest to the published 20 %, and one of the published distances."""
    ours, theirs = (data[data["source"] == source] for source in ("ours", "published"))
    budget = min(ours["budget"].unique(), key=lambda each: abs(each - 0.2))
    ours = ours[ours["budget"].eq(budget) & ours["policy"].isin(LEVELS)]
    ours = ours[ours["policy"].ne("decay") | ours["recent"].eq(0)]
    ours = ours.assign(series=ours["policy"].map(LEVELS)).sort_values("alpha")
    kinds = theirs["configuration"].str.split().str[0].str.lower().replace("a2sf", "decay")  # a later form of it
    rows = pd.concat([ours, theirs.assign(series=theirs["configuration"], policy=kinds)])
    panels = [
        Panel("alpha", "value", by="series", where={"metric": metric, "source": "ours"}, style="policy", title=heading,
              log="y" * metric.startswith("distance"), xlabel="forgetting factor alpha", finish=_mark_even)
        for metric, (heading, _) in PANELS.items()
    ]  # fmt: skip
    panels.append(Panel("value", "series", by="series", kind="forest", where={"source": "published"}, style="policy",
                        title="Distance to Ideal", log="x", xlabel="1 - cosine similarity"))  # fmt: skip
    notes = [f"Budget {100 * budget:g} % of the tokens, {ours['windows'].max():.0f} windows, unpruned attention."]
    return sheet(*panels, notes=notes, height=1.5)(rows.drop(columns="seeds"))


def _mark_even(axes: Axes, rows: DataFrame) -> None:
    mark_alpha(axes, rows)
    if (even := PANELS[rows["metric"].iloc[0]][1]) is not None:
        axes.axhline(even, color=GREY, linestyle=":", linewidth=1)


@plot(
    reads=("prune_masks.csv", "run.json"),
    runs=("decoder", "released-*"),
    draw=draw_bias,
)
def decay_bias(results: Results, runs: Sequence[str]) -> DataFrame:
    """Which keys a cache of 20 % (or the budget nearest to it) keeps, against the forgetting factor alpha of Decay
    without a recent part; what has no alpha is a level at the same budget. Share of the kept keys among the first 40 %
    and 10 % of the positions, their mean position (0 the first, 1 the last), and 1 - cosine between the attention rows
    and the ideal ones, with and without position 0, an attention sink that decides the cosine alone. Dotted: upright,
    alpha 0.2, the published choice; level, what an even choice of keys would give. Bars: 95 % interval over windows,
    and seeds where there are several. Last, published: A2SF (arXiv:2407.20485), Table 2, LLaMA-2-7B at 20 %, mean of
    four suites: another model, so compare the order, not the heights. To see: whether the plain sum (alpha 1) keeps the
    beginning and small alphas do not, and which lie nearest to the ideal.
    """
    rows = measured(one_model(results.rows("prune_masks.csv", STUDY, runs)), list(PANELS))
    theirs = published_cosines()
    theirs = theirs.assign(source="published", metric="distance_to_ideal", value=1 - theirs["cosine"])
    return rows if rows.empty else pd.concat([rows, theirs], ignore_index=True)


LOWEST = 1e-5
"""Scores below it leave the panels, whose axis is logarithmic."""


def draw_scores(data: DataFrame) -> Figure:
    """Draw a panel of scores per alpha, and one of misses."""
    titles = {0.0: "alpha 0: attention itself", 1.0: "alpha 1: the plain sum"}
    names = [f"alpha {alpha:g}" for alpha in data["alpha"]]
    rows = data.assign(
        number=names,
        title=[titles.get(alpha, name) for alpha, name in zip(data["alpha"], names, strict=True)],
        value=data["mean"],
        value_low=data["low"].clip(lower=LOWEST),
        value_high=data["high"],
        part="mean",
    ).sort_values(["alpha", "group", "query"])
    important = rows[rows["group"] == "important"]
    smooth = important.groupby("alpha")["missed"].transform(lambda values: values.rolling(5, min_periods=1).mean())
    dark = [to_hex(colormaps["viridis"](0.85 * alpha)) for alpha in important["alpha"]]  # the lighter the larger
    missed = important.assign(part="missed", share=100 * smooth, color=dark, marker="")
    panels = [
        Panel("query", "value", by="group", kind="band", each="title", where={"part": "mean"}, log="y",
              xlabel="query", ylabel="score"),
        Panel("query", "share", by="number", kind="band", where={"part": "missed"}, title="Important tokens missed",
              xlabel="query", ylabel="not among the best 40 % (%)"),
    ]  # fmt: skip
    notes = [f"{n_seeds(data['seeds'].unique())}."]
    return sheet(*panels, notes=notes, height=1.6)(pd.concat([rows, missed]).drop(columns="seeds"))


@plot(
    reads=("prune_score_trajectories.csv", "run.json"),
    runs=("decoder", "released-*"),
    draw=draw_scores,
)
def decay_scores(results: Results, runs: Sequence[str]) -> DataFrame:
    """Attention to important and unimportant tokens, query by query, after Fig. 5 of the Decay article (an image
    without values), of unpruned attention over layers and heads. First, scores as each alpha remembers them, on a
    logarithmic axis (mean, and the middle 80 % of tokens as a band, cut at 0.00001). Important are the tenth of the
    tokens in the first half that the second half attends to most. Last: how often such a token is, at the moment, not
    among the best 40 % of all tokens so far, and would be dropped, as the mean over 5 queries. To see: whether
    attention alone (alpha 0) misses important tokens in passing dips, and whether remembering a little bridges these.
    """
    rows = one_model(results.rows("prune_score_trajectories.csv", STUDY, runs))
    keys = ["run", "group", "alpha", "query"]
    means = rows.groupby(keys, as_index=False)[["mean", "low", "high", "missed"]].mean()
    record = results.stage_record(f"{STUDY}/{rows['run'].iloc[0]}/seed{rows['seed'].iloc[0]}", "prune")
    windows = record.get("settings", {}).get("score_windows")
    return means.assign(seeds=rows["seed"].nunique(), windows=windows, source="ours")
