"""A Tokenformer's layers and how they grow (arXiv:2410.23168, Fig 2), drawn from the specs of the runs."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.runs import quantity
from formerlab.report.style import BLACK, BLUE, GREEN, GREY, PURPLE, VERMILION, canvas
from formerlab.results.read import Results

STUDY = "tokenformer"
STAGES = ("grown-random-sqrt-2", "grown-random-sqrt-3", "grown-random-sqrt-4")
PROJECTIONS = ("query", "key", "value", "output")
SCORES = {"l2_gelu": "gelu(\ntau s / |s|)"}
"""Formulas of score functions; others are called by their names."""
_COLOURS = (BLUE, VERMILION, GREEN, PURPLE)
_PATTENTION = "#d9d9d9"
"""Ground of what is a projection."""
_ARROW: dict[str, Any] = {"arrowstyle": "-|>", "color": BLACK, "linewidth": 1, "mutation_scale": 9}
_ROWS = 4
"""Rows that stand for the tokens of a stage where the formula is drawn."""


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per stage and projection of a block: its tokens, and how many of them the stage added."""
    records = results.runs(STUDY, runs)
    if "spec.model.projection.tokens" not in records:
        return DataFrame()
    records = records.drop_duplicates("run").set_index("run", drop=False)
    grown = [run for run in STAGES if run in records.index]
    parents = [str(records.loc[run, "init.id"]).split("/")[1] for run in grown[:1]]
    first = [run for run in (*parents, *records.index) if run in records.index and run not in STAGES]
    rows, before = [], dict.fromkeys((*PROJECTIONS, "feed-forward"), 0)
    for stage, run in enumerate([*first[:1], *grown], start=1):
        record = records.loc[run]
        counts = dict.fromkeys(PROJECTIONS, int(record["spec.model.projection.tokens"]))
        if pd.notna(wide := record.get("spec.model.feedforward.tokens")):
            counts["feed-forward"] = int(wide)
        shared = {"source": "ours", "stage": stage, "run": run, "width": record["spec.model.width"]}
        shared |= {"score": record.get("spec.model.projection.score", "l2_gelu")}
        shared |= {"parameters_non_embedding": record["parameters_non_embedding"]}
        rows += [shared | {"part": part, "tokens": n, "added": n - before[part]} for part, n in counts.items()]
        before = counts
    return DataFrame(rows)


def draw(data: DataFrame) -> Figure:
    """Draw a block, a projection with the tokens of every stage, and the tokens of each projection."""
    width, stages = int(data["width"].iloc[0]), int(data["stage"].max())
    sizes = data.drop_duplicates("stage")
    grown = ", then ".join(quantity(float(f"{size:.3g}")) for size in sizes["parameters_non_embedding"])
    whose = "The first model and what grew from it the published way. " if stages > 1 else ""
    notes = [f"{whose}Parameters without embedding: {grown}. Width {width} at every stage."]
    figure, (block, formula, counts) = canvas(3, 3, 2.9, notes, left=0.6, right=0.1, below=0.75, top=0.5)
    _draw_block(block, set(data["part"]))
    _draw_formula(formula, stages, width, SCORES.get(data["score"].iloc[0], data["score"].iloc[0]))
    _draw_counts(counts, data)
    return figure


def _draw_block(axes: Axes, parts: set[str]) -> None:
    """Draw a block from its input at the bottom to its output: pre-norm, with two residual additions."""
    boxes = [(1.0, 1.0, 6.0, "norm", False), (1.0, 3.8, 6.0, "token attention", False)]
    boxes += [(1.0 + 2.1 * place, 2.4, 1.8, name, True) for place, name in enumerate(PROJECTIONS[:3])]
    boxes += [(1.0, 5.2, 6.0, PROJECTIONS[3], True), (1.0, 7.6, 6.0, "norm", False)]
    boxes.append((1.0, 9.0, 6.0, "feed-forward", "feed-forward" in parts))
    for x, y, wide, name, tokens in boxes:
        face = _PATTENTION if tokens else "white"
        axes.add_patch(Rectangle((x, y), wide, 0.9, facecolor=face, edgecolor=BLACK, linewidth=0.8))
        axes.text(x + wide / 2, y + 0.42, name, ha="center", va="center", fontsize=7)
    straight = [(0.0, 1.0), (4.7, 5.2), (6.1, 6.55), (7.05, 7.6), (8.5, 9.0), (9.9, 10.35), (10.85, 11.5)]
    lines = [((4.0, low), (4.0, high)) for low, high in straight]
    lines += [((x, y), (x, y + 0.5)) for x in (1.9, 4.0, 6.1) for y in (1.9, 3.3)]
    for begin, end in lines:
        axes.add_patch(FancyArrowPatch(begin, end, shrinkA=0, shrinkB=0, **_ARROW))
    for low, high in ((0.4, 6.8), (7.25, 10.6)):  # the residual connections
        axes.plot([4.0, 7.8, 7.8], [low, low, high], color=BLACK, linewidth=0.9)
        axes.add_patch(FancyArrowPatch((7.8, high), (4.3, high), shrinkA=0, shrinkB=0, **_ARROW))
        axes.text(4.0, high, "+", ha="center", va="center", fontsize=11)
    axes.set_xlim(0, 8.5)
    axes.set_ylim(-0.1, 11.7)
    axes.set_axis_off()
    axes.set_title("A block\n(shaded: projections)")


def _draw_formula(axes: Axes, stages: int, width: int, score: str) -> None:
    middle = _ROWS * stages / 2
    for x, name in ((1.3, "keys K"), (7.1, "values V")):
        _draw_tokens(axes, x, stages)
        axes.text(x + 0.7, 2 * middle + 0.3, f"{name}\nn x {width}", ha="center", va="bottom", fontsize=8)
    for x, words in ((0.0, f"x\n{width}"), (9.8, f"y\n{width}")):
        axes.text(x, middle, words, ha="center", va="center", fontsize=9)
    axes.text(4.9, middle + 0.02 * middle, "n scores\ns = K x", ha="center", va="bottom", fontsize=7.5)
    axes.text(4.9, middle - 0.05 * middle, score, ha="center", va="top", fontsize=7.5)
    for begin, end in ((0.4, 1.2), (2.8, 7.0), (8.6, 9.4)):
        axes.add_patch(FancyArrowPatch((begin, middle), (end, middle), shrinkA=0, shrinkB=0, **_ARROW))
    axes.set_xlim(-0.5, 10.3)
    axes.set_ylim(-0.03 * middle, 2.4 * middle)
    axes.set_axis_off()
    axes.set_title("A projection: attention to tokens\nthat are parameters")


def _draw_tokens(axes: Axes, x: float, stages: int) -> None:
    """Draw the tokens of every stage as rows, the oldest at the bottom."""
    for row in range(_ROWS * stages):
        colour = _COLOURS[row // _ROWS]
        axes.add_patch(Rectangle((x, row + 0.12), 1.4, 0.76, facecolor=colour, alpha=0.75, edgecolor="none"))


def _draw_counts(axes: Axes, data: DataFrame) -> None:
    parts = list(dict.fromkeys(data["part"]))
    bottom = pd.Series(0.0, parts)
    for (stage, rows), colour in zip(data.groupby("stage", sort=True), _COLOURS, strict=False):
        added = rows.set_index("part")["added"].reindex(parts).astype(float)
        name = "first model" if stage == 1 else f"added by stage {stage}"
        axes.bar(parts, added, bottom=bottom, color=colour, alpha=0.75, width=0.6, label=name)
        bottom += added
    for place, whole in enumerate(bottom):
        axes.annotate(f"{whole:.0f}", (place, whole), (0, 3), textcoords="offset points", ha="center", fontsize=8)
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(parts)), parts, rotation=40, ha="right")
    axes.set_ylabel("tokens n")
    axes.margins(y=0.25)
    axes.spines["left"].set_color(GREY)
    axes.set_title("Tokens of each projection\nof a block")
    if data["stage"].nunique() > 1:
        axes.legend(loc="upper left", fontsize=8, frameon=True, facecolor="white", edgecolor="none", framealpha=1)


tokenformer_layer = Plot(
    reads=("run.json",),
    runs=("tokenformer-1", "long-matched-chosen", "matched-chosen", "grown-random-sqrt-[2-4]"),
    caption=(
        "What a Tokenformer has in place of its matrices, and how it grows, after Fig. 2 of Tokenformer "
        "(arXiv:2410.23168), drawn from the settings of the runs. Left: a block, whose attention among the tokens of "
        "the text is that of a Transformer. Middle: a projection scores its input against n key tokens and sums n "
        "value tokens by these scores. Right: the tokens of each projection of a block; those that a stage of growth "
        "adds lie on top of the old ones. To see: growth adds rows to keys and values and leaves the width of every "
        "input and output as it was."
    ),
    data=data,
    draw=draw,
)
