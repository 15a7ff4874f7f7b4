"""Layers of a Tokenformer, their growth and their FLOPs, from the specs of runs (arXiv:2410.23168, Fig 2 and 5)."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import format_count, lineage
from formerlab.report.studies.tokenformer import Shape, model_shape
from formerlab.report.style import BETTER, BLACK, BLUE, GREY, NARROW, WIDEST, arrow, box
from formerlab.results.read import Results

STUDY = "tokenformer"
GROWN_RUNS = ("grown-random-sqrt-2", "grown-random-sqrt-3", "grown-random-sqrt-4")
PROJECTIONS = ("query", "key", "value", "output")
_EACH = "query, key, value,\noutput (each)"
SCORES = {"l2_gelu": r"gelu$(\tau s / \|s\|)$"}
"""Formulas of score functions. Other score functions are shown by name."""
_PATTENTION = {"facecolor": "#cfe3f1"}
_PLAIN = {"facecolor": "white"}
_ROWS = 4
"""Number of rows drawn for the tokens of a stage in the formula."""
_HATCHES = ("", "////", "....", "xxxx")


def _style(stage: int) -> dict[str, Any]:
    """Return the plot style of the tokens of a stage; tokens added by growth are hatched."""
    return {"facecolor": "white" if stage else BLUE, "edgecolor": BLUE, "hatch": _HATCHES[stage % len(_HATCHES)]}


def draw(data: DataFrame) -> Figure:
    """Draw a block, a projection with the parameter tokens of every stage, and the token counts of each projection."""
    width, stages, score = int(data["width"].iloc[0]), int(data["stage"].max()), data["score"].iloc[0]
    grown = ", then ".join(format_count(size, 3) for size in data["parameters_non_embedding"].unique())
    note = f"Parameters without embedding: {grown}; width {width} at every stage; tau is sqrt(n) or kept."
    figure = Figure((WIDEST, 4.2), layout=ConstrainedLayoutEngine(rect=(0, 0.05, 1, 0.95)), label=note)
    figure.text(0.012, 0.012, note.rstrip("."), color=GREY, fontsize=7)
    block, formula, counts = figure.subplots(1, 3)
    _draw_block(block, "feed-forward" in set(data["part"]))
    _draw_formula(formula, stages, width, SCORES.get(score, score))
    _draw_counts(counts, data)
    return figure


def _draw_block(axes: Axes, pattention_feedforward: bool) -> None:
    """Draw a pre-norm block with two residual additions, from its input at the bottom to its output at the top.

    `pattention_feedforward` is whether the feed-forward layer also uses Pattention.
    """
    feedforward = _PATTENTION if pattention_feedforward else _PLAIN
    for y, name, face in ((1.0, "norm", _PLAIN), (3.8, "token attention", _PLAIN), (5.2, PROJECTIONS[3], _PATTENTION),
                          (7.6, "norm", _PLAIN), (9.0, "feed-forward", feedforward)):  # fmt: skip
        box(axes, 1.0, y, 6.0, 0.9, name, **face)
    for x, name in zip((1.0, 3.1, 5.2), PROJECTIONS, strict=False):
        box(axes, x, 2.4, 1.8, 0.9, name, **_PATTENTION)
        for y in (1.9, 3.3):
            arrow(axes, (x + 0.9, y), (x + 0.9, y + 0.5))
    for low, high in ((0, 1), (4.7, 5.2), (6.1, 6.55), (7.05, 7.6), (8.5, 9), (9.9, 10.35), (10.85, 11.5)):
        arrow(axes, (4.0, low), (4.0, high))
    for low, high in ((0.4, 6.8), (7.25, 10.6)):  # the residual connections
        axes.plot([4.0, 7.8, 7.8], [low, low, high], color=BLACK, linewidth=0.9)
        arrow(axes, (7.8, high), (4.3, high))
        axes.text(4.0, high, "+", ha="center", va="center", fontsize=11)
    axes.set(xlim=(0, 8.5), ylim=(-0.1, 11.7), title="A block\n(shaded: projections)")
    axes.set_axis_off()


def _draw_formula(axes: Axes, stages: int, width: int, score: str) -> None:
    """Draw a projection. Keys and values have rows for every stage, the oldest at the bottom. Dots are further rows."""
    rows = _ROWS * stages
    for x, name in ((1.3, "keys K"), (7.1, "values V")):
        for row in range(rows):
            if row % _ROWS == 1:
                axes.text(x + 0.7, row + 0.5, "\N{VERTICAL ELLIPSIS}", ha="center", va="center")
            else:
                box(axes, x, row + 0.12, 1.4, 0.76, **_style(row // _ROWS))
        box(axes, x - 0.2, -0.1, 1.8, rows + 0.2, facecolor="none")
        axes.text(x + 0.7, rows + 0.3, f"{name}\nn x {width}", ha="center", va="bottom")
    for x, words, side in (
        (0.3, f"x,\n{width}\nnumbers", "right"),
        (9.6, f"$y =$\n$\\sum w_i v_i$,\n{width}\nnumbers", "left"),
    ):
        axes.text(x, rows / 2, words, ha=side, va="center")
    axes.text(4.9, 0.51 * rows, "n scores\ns = K x", ha="center", va="bottom", fontsize=7)
    axes.text(4.9, 0.485 * rows, f"w =\n{score}", ha="center", va="top", fontsize=7)
    for begin, end in ((0.4, 1.1), (2.9, 6.9), (8.7, 9.5)):
        arrow(axes, (begin, rows / 2), (end, rows / 2))
    axes.set(xlim=(-0.6, 12), ylim=(-0.03 * rows, 1.2 * rows))
    axes.set_title("A projection: attention to tokens\nthat are parameters")
    axes.set_axis_off()


def _draw_counts(axes: Axes, data: DataFrame) -> None:
    """Draw the number of tokens of each projection, stacked by stage."""
    data = data[data["part"].isin(["query", "feed-forward"])].replace({"part": {"query": _EACH}})
    added = data.pivot(index="part", columns="stage", values="added").loc[data["part"].unique()]
    tops = added.cumsum(axis=1)
    for nth, stage in enumerate(added):
        name = f"added by growth (stage {stage})" if nth else "first model"
        axes.bar(added.index, added[stage], bottom=tops[stage] - added[stage], width=0.6, label=name, **_style(nth))
    for at, (first, total) in enumerate(tops.iloc[:, [0, -1]].to_numpy()):
        words = f"{first:.0f} to {total:.0f}" if total > first else f"{total:.0f}"
        axes.annotate(words, (at, total), (0, 3), textcoords="offset points", ha="center")
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(added)), added.index)
    axes.set(ylabel="tokens n", title="Parameter tokens of each\nprojection of a block")
    axes.margins(y=0.25)
    if len(added.columns) > 1:
        axes.legend(loc="upper left", frameon=True, facecolor="white", edgecolor="none", framealpha=1)


@plot(runs="tokenformer-1 long-matched-chosen matched-chosen grown-random-sqrt-[2-4]", draw=draw)
def tokenformer_layer(results: Results, runs: list[str]) -> DataFrame:
    """Layers of a Tokenformer and how they grow, after Fig. 2 of Tokenformer (arXiv:2410.23168), from the settings of
    the runs. Left: a block, in which attention among the tokens of the text is the same as in a Transformer. Middle: a
    projection scores its input against n key tokens and sums n value tokens, weighted by these scores. Right: the
    parameter tokens of each projection of a block, by stage. To see: growth adds rows to keys and values and leaves the
    width of every input and output unchanged.
    """
    records = results.runs(STUDY, runs).drop_duplicates("run").set_index("run", drop=False)
    if "spec.model.projection.tokens" not in records:
        return DataFrame()
    last = next((run for run in reversed(GROWN_RUNS) if run in records.index), records.index[0])
    rows, previous = [], dict.fromkeys((*PROJECTIONS, "feed-forward"), 0)
    for stage, run in enumerate(lineage(records, last), start=1):
        record: Any = records.loc[run]
        counts = dict.fromkeys(PROJECTIONS, int(record["spec.model.projection.tokens"]))
        if pd.notna(wide := record.get("spec.model.feedforward.tokens")):
            counts["feed-forward"] = int(wide)
        shared = {"source": "ours", "stage": stage, "run": run, "width": record["spec.model.width"]}
        shared |= {"score": record.get("spec.model.projection.score", "l2_gelu")}
        shared |= {"parameters_non_embedding": record["parameters_non_embedding"]}
        rows += [shared | {"part": part, "tokens": n, "added": n - previous[part]} for part, n in counts.items()]
        previous = counts
    return DataFrame(rows)


TEXT_LENGTHS = tuple(2**power for power in range(7, 18))
_WIDTHS = (("124M", 768, 576), ("354M", 1416, 2140), ("757M", 2104, 4850))
"""Size, width of the Transformer, and parameter tokens of the Tokenformer of width 768 (Tables 8 and 9 of the paper).
"""


def mark_context(axes: Axes, rows: DataFrame) -> None:
    """Mark the context length of our models, and label the line at 1 as the Transformer."""
    axes.text(TEXT_LENGTHS[-1], 1.01, "Transformer", ha="right", va="bottom")
    for context in rows["_context"].dropna().unique():
        axes.axvline(context, color=GREY, linestyle=":", linewidth=1)
        axes.annotate("our texts", (context, 0), (4, 4), xycoords=("data", "axes fraction"),
                      textcoords="offset points", color=GREY, fontsize=7)  # fmt: skip


@plot(reads="run.json",
      runs="transformer-[1-4] classic-chosen tokenformer-1 long-matched-chosen grown-random-sqrt-[2-4]", draw=layout(
    Panel("length", "flops_relative", by="_series", style="family", log="x", kind="band", finish=mark_context, zero=1.0,
          title="Below 1, a Tokenformer of fixed width needs fewer FLOPs",
          xlabel="length of the text (tokens)",
          ylabel=f"FLOPs, relative to a Transformer\nof equal size ({BETTER})",
          ticks=lambda value: f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"),
    notes=lambda _: ["computed from the formula, not measured; light blue: sizes of the paper (Table 8)."],
    width=NARROW, height=2.2
))  # fmt: skip
def tokenformer_length(results: Results, runs: list[str]) -> DataFrame:
    """FLOPs of a forward pass of a Tokenformer of fixed width, relative to a Transformer of equal size, after Fig. 5 of
    Tokenformer (arXiv:2410.23168), computed as 2 N T + 4 L d T^2 for a text of length T, without logits and with the
    full square of attention. To see: in long texts the token-token term dominates. Growth in width increases it, while
    it is constant in a Tokenformer of fixed width, as it would be in a Transformer that grew only its feed-forward
    layer. The Transformer of the size of our largest Tokenformer was not trained; its width follows from 12 L d^2
    parameters. Light blue: the published sizes of Table 8 with 12 layers; the widths of its Transformers (1416 and
    2104) follow from its printed FLOPs. The sizes are equal only if embeddings are counted. N excludes embeddings and
    is 9 to 12 % larger for a Tokenformer than for its Transformer, so these curves start above 1. A size whose two
    widths are equal has a ratio of 1 and is not drawn. The CSV has the FLOPs.
    """
    models, records = [], results.runs(STUDY, runs).drop_duplicates("run")
    contexts = (
        dict(zip(records["run"], records["spec.task.context"], strict=True)) if "spec.task.context" in records else {}
    )
    for record in records.to_dict("records"):
        family = "Tokenformer" if record["spec.model.projection.kind"] == "pattention" else "Transformer"
        models.append(
            ("ours", family, format_count(record["parameters_non_embedding"]), record["run"], model_shape(record))
        )
    sizes = {size for _, family, size, *_ in models if family == "Transformer"}
    for _, family, size, _, shape in list(models):
        if family == "Tokenformer" and size not in sizes:
            sizes.add(size)
            width = 2 * round((shape.parameters / (12 * shape.layers)) ** 0.5 / 2)
            wide = Shape(shape.layers, width, width // 2, 4 * width)
            models.append(("ours", "Transformer", size, f"Transformer {size}, not trained", wide))
    for name, width, tokens in _WIDTHS:
        wide, grown = Shape(12, width, width // 2, 4 * width), Shape(12, 768, tokens, 4 * tokens)
        models.append(("published", "Transformer", name, f"Transformer {name}, d = {width}", wide))
        models.append(("published", "Tokenformer", name, f"TokenFormer {name}, d = 768", grown))
    rows = DataFrame(
        {"source": source, "family": family, "size": size, "run": run, "width": shape.width, "length": length}
        | {"parameters_non_embedding": shape.parameters}
        | {"flops": shape.flops(length), "token_token_flops": shape.token_token_flops(length)}
        for source, family, size, run, shape in sorted(models, key=lambda model: (*model[:2], model[-1].parameters))
        for length in TEXT_LENGTHS
    )
    of_transformers, keys = rows[rows["family"] == "Transformer"], ["source", "size", "length"]
    references = of_transformers.drop_duplicates(keys).set_index(keys)["flops"]
    relative = rows["flops"] / references.reindex(rows.set_index(keys).index).to_numpy()
    differs = relative.sub(1).abs().groupby(rows["run"]).transform("max") > 0
    names = rows["size"] + rows["source"].map({"ours": ", ours", "published": ", paper"})
    names += ",\nwidth " + rows["width"].astype(str)
    rows = rows.assign(
        flops_relative=relative,
        _series=names.where(differs & rows["family"].eq("Tokenformer")),
        _context=rows["run"].map(contexts),
        _data_set="",
    )
    number = rows.groupby("source")["_series"].transform(lambda series: pd.factorize(series)[0])
    light = {name: rows["source"].map({"published": "#7fb8da"}) for name in ("_color", "_markerfacecolor")}
    return rows.assign(_marker=number.map(dict(enumerate("sD^vPX"))), **light)
