"""Which keys are kept, and the scores that decide it (Decay article, Fig 3 and 5; A2SF, arXiv:2407.20485, Table 2)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_hex
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.figures.decay.alpha import mark_alpha
from formerlab.report.panel import Panel, Style, figure, setting
from formerlab.report.pruning import PANELS, measured, one_model, ordered
from formerlab.report.published import published_cosines
from formerlab.report.runs import missing_note, n_seeds
from formerlab.report.style import BLACK, GREY, PURPLE, canvas, look
from formerlab.results.read import Results

STUDY = "decay"
WANTED = ("Ideal", "Local", "H2O", "Decay, alpha 0.2", "Decay, alpha 0.8")


def masks_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the masks of the first seed, a row per policy and query."""
    rows = one_model(results.rows("prune_mask_dumps.csv", STUDY, runs))
    rows = rows[rows["seed"] == rows["seed"].min()]
    return ordered(rows).sort_values(["budget", "query"], kind="stable").assign(source="ours")


def draw_masks(data: DataFrame) -> Figure:
    """Draw a row of panels per budget."""
    kinds = data.drop_duplicates("configuration").set_index("configuration")["policy"].str.split().str[0]
    others = [
        str(configuration) for configuration, kind in kinds.items() if kind not in ("ideal", "local", "h2o", "decay")
    ]
    names = [*(name for name in WANTED if name in kinds), *others]
    budgets = sorted(data["budget"].unique())
    panels = [(budget, name) for budget in budgets for name in names]
    tokens = int(data["query"].max()) + 1
    place = f"layer {data['layer'].iloc[0] + 1}, head {data['head'].iloc[0] + 1}, seed {data['seed'].iloc[0]}"
    notes = [f"First {tokens} tokens of the held-out text, {place}. A query sees its own key on top of the budget."]
    notes += missing_note(names, list(WANTED))
    figure, axes = canvas(
        len(panels), min(5, len(names)), 1.1, notes, left=0.12, right=0.08, first=0.35, top=0.45, heading=setting(data)
    )
    for panel, (budget, name) in zip(axes, panels, strict=True):
        rows = data[(data["budget"] == budget) & (data["configuration"] == name)].sort_values("query")
        seen = np.array([[int(cell) for cell in kept] for kept in rows["kept"]])
        colour = look(str(rows["policy"].iloc[0]).split()[0]).colour
        panel.imshow(seen, cmap=ListedColormap(["white", colour]), vmin=0, vmax=1, interpolation="nearest")
        panel.grid(visible=False)
        panel.set_title(f"{name}\n{100 * budget:g} %".replace("Decay, ", "Decay "), fontsize=8)
        panel.set_xticks([0, tokens // 2, tokens - 1])
        panel.set_yticks([0, tokens // 2, tokens - 1] if name == names[0] else [])
        if name == names[0]:
            panel.set_ylabel("query")
        if budget == budgets[-1]:
            panel.set_xlabel("key")
    return figure


decay_masks = Plot(
    reads=("prune_mask_dumps.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Which keys (across) each query (down) sees in one head of one trained decoder, at equal budgets; after Fig. "
        "3 of the Decay article. All policies choose from the attention of the same unpruned pass. Ideal takes the "
        "best keys of each row and may take a dropped one back, which no cache can. To see: vertical lines are keys "
        "kept for long, the diagonal are recent ones; H2O keeps early keys once it has them, a small alpha lets them "
        "go."
    ),
    data=masks_data,
    draw=draw_masks,
)


LEVELS = {"h2o": "H2O", "local": "Local", "streaming_llm": "StreamingLLM", "tova": "TOVA", "decay": "Decay"}
"""Policies that are compared, by kind."""
KINDS = {"A2SF": "decay", "H2O": "h2o", "Local": "local"}
"""The policies of the published distances; A2SF is Decay with the accumulated score of its later form."""


def bias_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the mean of every measure for every configuration, with its interval over windows and seeds."""
    rows = measured(one_model(results.rows("prune_masks.csv", STUDY, runs)), list(PANELS))
    theirs = published_cosines()
    theirs = theirs.assign(source="published", metric="distance_to_ideal", value=1 - theirs["cosine"])
    return rows if rows.empty else pd.concat([rows, theirs], ignore_index=True)


def draw_bias(data: DataFrame) -> Figure:
    """Draw a panel per measure, at the budget nearest to the published 20 %, and one of the published distances."""
    ours, theirs = (data[data["source"] == source] for source in ("ours", "published"))
    budget = min(ours["budget"].unique(), key=lambda each: abs(each - 0.2))
    ours = ours[ours["budget"].eq(budget) & ours["policy"].isin(LEVELS)]
    ours = ours[ours["policy"].ne("decay") | ours["recent"].eq(0)]
    ours = ours.assign(series=ours["policy"].map(LEVELS)).sort_values("alpha")
    kinds = theirs["configuration"].str.split().str[0].map(KINDS)
    rows = pd.concat([ours, theirs.assign(series=theirs["configuration"], policy=kinds)])
    seeds, windows = int(ours["seeds"].max()), int(ours["windows"].max())
    bars = "bars: 95 % interval over windows" + (" and seeds" if seeds > 1 else " of this one model")
    notes = [
        f"Budget {100 * budget:g} % of the tokens, {windows} windows, unpruned attention; {bars}. "
        "Shares and positions: 0 is the first token, 1 the last so far; distance: 1 - cosine similarity, on a "
        "logarithmic axis. Dotted: upright, alpha 0.2, the published choice; level, what an even choice of keys would "
        "give. Dashed: policies that have no alpha."
    ]
    panels = [
        Panel("alpha", "value", by="series", where={"metric": metric, "source": "ours"}, style="policy", title=heading,
              log="y" * metric.startswith("distance"), xlabel="forgetting factor alpha", finish=_mark_even)
        for metric, (heading, _) in PANELS.items()
    ]  # fmt: skip
    panels.append(Panel("value", "series", by="series", kind="forest", where={"source": "published"}, style="policy",
                        title="Distance to Ideal", log="x", xlabel="1 - cosine similarity"))  # fmt: skip
    return figure(rows.drop(columns="seeds"), panels, notes, height=1.5)


def _mark_even(axes: Axes, rows: DataFrame) -> None:
    mark_alpha(axes, rows)
    even = PANELS[rows["metric"].iloc[0]][1]
    if even is not None:
        axes.axhline(even, color=GREY, linestyle=":", linewidth=1)


decay_bias = Plot(
    reads=("prune_masks.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Which keys a cache of 20 % (or the budget nearest to it) keeps, against the forgetting factor alpha of Decay "
        "without a recent part; what has no alpha is a level at the same budget. Share of the kept keys among the "
        "first 40 % and 10 % of the positions, their mean position (0 the first, 1 the last), and 1 - cosine between "
        "the attention rows and the ideal ones, with and without position 0, an attention sink that decides the "
        "cosine alone. Last, published: A2SF (arXiv:2407.20485), Table 2, LLaMA-2-7B at 20 %, mean of four suites: "
        "another model, so compare the order, not the heights. To see: whether the plain sum (alpha 1) keeps the "
        "beginning and small alphas do not, and which lie nearest to the ideal."
    ),
    data=bias_data,
    draw=draw_bias,
)


LOWEST = 1e-5
"""Scores below it leave the panels, whose axis is logarithmic."""


def scores_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the mean over seeds of every group, alpha and query."""
    rows = one_model(results.rows("prune_score_trajectories.csv", STUDY, runs))
    keys = ["run", "group", "alpha", "query"]
    means = rows.groupby(keys, as_index=False)[["mean", "low", "high", "missed"]].mean()
    record = results.stage_record(f"{STUDY}/{rows['run'].iloc[0]}/seed{rows['seed'].iloc[0]}", "prune")
    windows = record.get("settings", {}).get("score_windows")
    return means.assign(seeds=rows["seed"].nunique(), windows=windows, source="ours")


def draw_scores(data: DataFrame) -> Figure:
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
    data=scores_data,
    draw=draw_scores,
)
