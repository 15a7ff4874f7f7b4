"""Which keys are kept (Decay article, Fig 3; A2SF, arXiv:2407.20485, Table 2)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.figures.decay.alpha import draw_curve
from formerlab.report.pruning import PANELS, RELEASED_RUNS, measured, model_notes, one_model, ordered
from formerlab.report.published import published_cosines
from formerlab.report.runs import missing_note, n_seeds
from formerlab.report.style import GREY, canvas, look, mark_published
from formerlab.results.read import Results

STUDY = "decay"
WANTED = ("Ideal", "Local", "H2O", "Decay, alpha 0.2", "Decay, alpha 0.8")


def masks_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the masks of the first seed, a row per policy and query."""
    rows = results.rows("prune_mask_dumps.csv", STUDY, runs)
    if rows.empty:
        return DataFrame()
    rows = one_model(rows)
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
    notes += model_notes(data)
    notes += missing_note(names, list(WANTED))
    figure, axes = canvas([1.75] * len(panels), notes, height=1.75, right=0.3, columns=len(names))
    for panel, (budget, name) in zip(axes, panels, strict=True):
        rows = data[(data["budget"] == budget) & (data["configuration"] == name)].sort_values("query")
        seen = np.array([[int(cell) for cell in kept] for kept in rows["kept"]])
        colour = look(str(rows["policy"].iloc[0]).split()[0]).colour
        panel.imshow(seen, cmap=ListedColormap(["white", colour]), vmin=0, vmax=1, interpolation="nearest")
        panel.grid(visible=False)
        panel.set_title(f"{name}: {100 * budget:g} %", fontsize=8.5)
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


_DISTANCE = "1 - cosine similarity"
_AXES = {
    "early_share": "share of the kept keys",
    "early_share_10": "share of the kept keys",
    "mean_position": "0: first token, 1: last so far",
    "distance_to_ideal": _DISTANCE,
    "distance_to_ideal_without_first": _DISTANCE,
}
_VALUE: dict[str, Any] = {"ha": "center", "fontsize": 7, "linespacing": 1.1}
LEVELS = {"h2o": "H2O", "local": "Local", "streaming_llm": "StreamingLLM", "tova": "TOVA"}
"""Policies that have no alpha, in the order in which they stand beside the curve."""


def bias_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the mean of every measure for every configuration, with its interval over windows and seeds."""
    rows = measured(one_model(results.rows("prune_masks.csv", STUDY, runs)), list(PANELS))
    theirs = published_cosines()
    theirs = theirs.assign(source="published", metric="distance_to_ideal", value=1 - theirs["cosine"])
    return rows if rows.empty else pd.concat([rows, theirs], ignore_index=True)


def draw_bias(data: DataFrame) -> Figure:
    """Draw a panel per measure, at the budget nearest to 40 %, and one of the published distances."""
    published = data[data["source"] == "published"]
    data = data[data["source"] == "ours"]
    budget = min(data["budget"].unique(), key=lambda each: abs(each - 0.4))
    data = data[data["budget"] == budget]
    shown_arms = data[(data["policy"] != "decay") | (data["recent"] == 0)]
    shown = [metric for metric in PANELS if metric in set(data["metric"])]
    seeds, windows = int(data["seeds"].max()), int(data["windows"].max())
    bars = "bars: 95 % interval over windows" + (" and seeds" if seeds > 1 else " of this one model")
    notes = [
        f"Budget {100 * budget:g} % of the tokens, {n_seeds([seeds])}, {windows} windows, unpruned attention; {bars}. "
        "Shares and positions: 0 is the first token, 1 the last so far; distance: 1 - cosine similarity. "
        "Dotted: upright, alpha 0.2, the published choice; level, what an even choice of keys would give. Right of "
        "alpha 1 stand policies that have none; dashed lines carry their values to the curve."
    ]
    model = str(data["run"].iloc[0]).removeprefix(RELEASED_RUNS)
    panels = [3.1] * (len(shown) + 1)
    figure, axes = canvas(panels, [*notes, *model_notes(data)], height=2.4, right=0.8, columns=3, below=1.0)
    for panel, metric in zip(axes, shown, strict=False):
        heading, even = PANELS[metric]
        if even is not None:
            panel.axhline(even, color=GREY, linestyle=":", linewidth=1)
        _draw_measure(panel, shown_arms[shown_arms["metric"] == metric])
        panel.set_title(f"{heading}\n{model}, budget {100 * budget:g} %")
        panel.set_ylabel(_AXES[metric])
    theirs = axes[-1]
    for place, (name, value) in enumerate(zip(published["configuration"], published["value"], strict=True)):
        kind = look(KINDS[name.split()[0]])
        theirs.plot(place, value, color=kind.colour, marker=kind.marker)
        words = f"{value:.3f}\ncos {1 - value:.3f}"
        theirs.annotate(words, (place, value), (0, 5 if value < 0.5 else -18), textcoords="offset points", **_VALUE)
    theirs.set_xticks(
        range(len(published)), published["configuration"].str.replace(" (", "\n(", regex=False), fontsize=7
    )
    theirs.set_xlim(-0.5, len(published) - 0.5)
    theirs.set_ylabel(_AXES["distance_to_ideal"])
    theirs.set_ylim(bottom=-0.03)
    model, budget = published[["run", "budget"]].iloc[0]
    mark_published(theirs, f"Distance to Ideal\n{model}, budget {100 * budget:g} %")
    return figure


def _draw_measure(axes: Axes, rows: DataFrame) -> None:
    """Draw Decay by alpha, and right of it every other policy at a place of its own, so that none hides another."""
    policies = [policy for policy in LEVELS if policy in set(rows["policy"])]
    for place, policy in enumerate(policies):
        kind, row = look(policy), rows[rows["policy"] == policy].iloc[0]
        x = _FIRST_ASIDE + place * _STEP_ASIDE
        axes.plot([0, x], [row["value"]] * 2, color=kind.colour, linestyle="--", linewidth=0.7)
        bars = np.nan_to_num([[row["value"] - row["value_low"]], [row["value_high"] - row["value"]]])
        bars = np.maximum(bars, 0)  # an interval of equal values may be off in its last digit
        axes.errorbar([x], [row["value"]], bars, color=kind.colour, marker=kind.marker, capsize=2, elinewidth=1)
        words: dict[str, Any] = {
            "color": kind.colour,
            "rotation": 90,
            "fontsize": 7.5,
            "transform": axes.get_xaxis_transform(),
        }
        axes.text(x, -0.03, LEVELS[policy], ha="center", va="top", **words)
    decay = rows[rows["policy"] == "decay"].sort_values("alpha")
    draw_curve(axes, decay, "value")
    middle = decay[["alpha", "value"]].iloc[len(decay) // 2 : len(decay) // 2 + 1]
    for x, y in middle.itertuples(index=False, name=None):
        beside: dict[str, Any] = {
            "color": look("decay").colour,
            "textcoords": "offset points",
            "ha": "center",
            "fontsize": 8,
        }
        axes.annotate("Decay", (x, y), (0, 9), **beside)
    right = _FIRST_ASIDE + len(policies) * _STEP_ASIDE
    axes.set_xlim(-0.04, right)
    axes.xaxis.label.set_x((0.5 + 0.04) / (right + 0.04))


_FIRST_ASIDE, _STEP_ASIDE = 1.12, 0.12
"""Where policies without an alpha stand, on the axis of alpha."""


KINDS = {"A2SF": "decay", "H2O": "h2o", "Local": "local"}
"""The policies of the published distances; A2SF is Decay with the accumulated score of its later form."""


decay_bias = Plot(
    reads=("prune_masks.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Which keys a cache of 40 % (or the budget nearest to it) keeps, against the forgetting factor alpha of Decay "
        "without a recent part; right of the curve what has no alpha, at the same budget. Share of the kept keys among "
        "the first 40 % and the first 10 % of the positions seen so far, mean position of the kept keys (0 the first, "
        "1 the last), and 1 - cosine between the attention rows and the ideal ones, with and without position 0, an "
        "attention sink that decides the cosine alone. Last, published: A2SF (arXiv:2407.20485), Table 2, LLaMA-2-7B "
        "at 20 % of the tokens, mean of four suites, with position 0: another model at another budget, so compare the "
        "order, not the heights. Dotted: an even choice. To see: whether the plain sum "
        "(alpha 1) keeps the beginning and small alphas do not, and which lie nearest to the ideal. Bars: 95 % "
        "intervals."
    ),
    data=bias_data,
    draw=draw_bias,
)
