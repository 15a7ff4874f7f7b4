"""Held-out loss against training cost, and FLOPs by length of the text (Tokenformer, arXiv:2410.23168, Fig 1, 3, 4, 5).

The published costs are TPU hours read from the figures, the published perplexities those of Tables 6 and 7.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.formulas import Shape, shape_of
from formerlab.report.panel import Panel, Style, hollow, sheet
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.runs import short
from formerlab.report.style import BLACK, GREY, ORANGE, PURPLE, VERMILION, look
from formerlab.report.tokenformer import ENVELOPE, SCRATCH, SERIES, series_points
from formerlab.results.read import Results

STUDY = "tokenformer"
Curve = tuple[str, str, str, str]
"""Model family, tokens per model, figure with the costs, and the name of a published curve."""


def cost_points(results: Results, runs: Sequence[str], *, curves: Sequence[Curve], chains: bool) -> DataFrame:
    """Return a row per point, ours and those of the published `curves`: of whole `chains` of growth, or of stages."""
    ours = series_points(results, runs, chains=chains)
    return pd.concat([ours, _published_points(curves, start=chains)], ignore_index=True)


def _published_points(curves: Sequence[Curve], *, start: bool) -> DataFrame:
    """Return a row per published point; with `start`, grown curves begin at the first model of the chain."""
    costs = published(PAPER, "Fig 3", "Fig 4").query("metric == 'training_cost'")
    reached = _values(published(PAPER, "Tables 6-7", "Table 6").query("metric == 'perplexity'"))
    first = costs[costs["setting"].str.startswith("start")].iloc[0]
    rows = []
    for family, tokens, figure, name in curves:
        places = costs[(costs["table_or_figure"] == figure) & costs["model"].str.startswith(family)]
        curve = [(model, hours) for (model, seen), hours in _values(places).items() if seen == tokens]
        points = [(model, hours, reached[model, tokens]) for model, hours in curve]
        if start and family == "TokenFormer":
            points.insert(0, (first["model"], float(first["value"]), reached[first["model"], "60B"]))
        rows += [
            {"source": "published", "series": name, "run": model, "tpu_v4_hours": hours, "perplexity": value}
            | {"loss_nats": math.log(value)}
            for model, hours, value in points
        ]
    return DataFrame(rows)


def _values(rows: DataFrame) -> dict[tuple[str, str], float]:
    """Return values by model and by the tokens that the setting speaks of, such as `30B`."""
    cells = rows[["model", "setting", "value"]].itertuples(index=False, name=None)
    found = ((model, re.search(r"(\d+B) tokens", setting), value) for model, setting, value in cells)
    return {(model, seen[1] if seen else ""): float(value) for model, seen, value in found}


def _style(name: str, rows: DataFrame) -> Style:
    """Return how a series is drawn; one whose runs start from others is joined with these, not with itself."""
    if rows["source"].eq("published").all():
        plain, tokens = name.startswith("Transformer"), name.split(", ")[1].split("B")[0]
        colour = (GREY if tokens == "30" else BLACK) if plain else {"15": ORANGE, "30": VERMILION, "60": PURPLE}[tokens]
        return {"color": colour, "marker": "o" if plain else "^", "linestyle": "--" if plain else "-"}
    if name == ENVELOPE:
        return {"color": GREY, "marker": "", "linewidth": 4, "alpha": 0.4, "zorder": 0}
    series = next((one for one in SERIES if one.name == name), None)
    colour, marker = look(name) if series is None else series.look
    joined = rows["parent"].isna().all() or (series is not None and series.grows)
    line = ("-" if series is None else series.line) if joined else ""
    return {"color": colour, "marker": marker, "linestyle": line} | hollow(series is not None and series.hollow)


def _join_parents(axes: Axes, rows: DataFrame, *, column: str) -> None:
    """Join what started from a run drawn here to that run, which is marked."""
    means = rows[rows["part"] == "mean"]
    places = means.drop_duplicates("run").set_index("run")[[column, "loss_nats"]]
    for name, points in means[means["parent"].isin(places.index)].groupby("series", sort=False):
        series = next((one for one in SERIES if one.name == name), None)
        for run, parent in zip(points["run"], points["parent"], strict=True) if not (series and series.grows) else ():
            ends, line = places.loc[[parent, run]], series.line if series else "-"
            axes.plot(ends[column], ends["loss_nats"], line, color=_style(str(name), points)["color"], linewidth=1)
    for run in means.loc[means["run"].isin(means["parent"]) & means["parent"].isna(), "run"].unique():
        axes.plot(*places.loc[run], "s", color=BLACK, zorder=3)
        axes.annotate("before growth", places.loc[run], (-4, 8), textcoords="offset points", ha="center")


def _zoom(axes: Axes, rows: DataFrame, *, column: str) -> None:
    """Zoom in on the chains; where the envelope reaches beyond them, an inset has it whole."""
    _join_parents(axes, rows, column=column)
    means = rows[rows["part"] == "mean"]
    envelope, near = (means[means["series"].eq(ENVELOPE) == wanted].sort_values(column) for wanted in (True, False))
    if envelope.empty or envelope[column].min() > near[column].min() / 1.2:
        return
    low, high = (near[f"loss_nats{end}"].fillna(near["loss_nats"]) for end in ("_low", "_high"))
    low, high = low.min(), high.max()
    axes.set(xlim=(near[column].min() / 1.2, near[column].max() * 1.15), ylim=(low - 0.02, high + 1.6 * (high - low)))
    inset = axes.inset_axes((0.55, 0.66, 0.45, 0.34), xscale="log")
    inset.plot(envelope[column], envelope["loss_nats"], color=GREY, linewidth=3, alpha=0.5)
    inset.plot(near[column], near["loss_nats"], ".", color=VERMILION, markersize=3)
    inset.text(0.03, 0.05, "the same and the\nenvelope (grey)", transform=inset.transAxes)
    inset.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}".replace("e+", "e"))


def _draw_costs(column: str, label: str, title: str, *notes: str | Callable[[DataFrame], str]) -> Any:
    """Return what draws our points against a column, and the published ones against theirs."""
    shared = partial(Panel, y="loss_nats", by="series", log="x", ylabel="held-out loss (nats per token)", style=_style)
    return sheet(
        shared(column, where={"source": "ours"}, title=title, xlabel=label, finish=partial(_zoom, column=column)),
        shared("tpu_v4_hours", where={"source": "published"}, title="124M to 1.4B parameters",
               xlabel="training cost (TPU v4 hours)"),
        notes=["Points that would hide each other stand side by side.", *notes], columns=1, height=2.8,
    )  # fmt: skip


tokenformer_cost = Plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    caption=(
        "Held-out loss against training cost, after Fig. 1 and 3 of Tokenformer (arXiv:2410.23168), in FLOPs of "
        "matrix products and attention. A grown model pays for all its ancestors. Grey, whole in the inset: lower "
        "envelope of Transformers from scratch, where a scale has them. Points are finished models; lines join sizes, "
        "and a model to the one that it started from. To see: growing is worth it where its point lies below and to "
        "the left of models trained from scratch, and below the parent trained on at equal FLOPs. Below: the "
        "published points, for models a thousand times larger and single Transformers, so only the shape compares."
    ),
    data=partial(
        cost_points,
        curves=(
            ("Transformer", "300B", "Fig 3", "Transformer, 300B tokens"),
            ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens"),
            ("TokenFormer", "60B", "Fig 3", "grown, 60B a stage"),
            ("TokenFormer", "30B", "Fig 3", "grown, 30B a stage"),
            ("TokenFormer", "15B", "Fig 3", "grown, 15B a stage"),
        ),
        chains=True,
    ),
    draw=_draw_costs(
        "flops_cumulative", "cumulative FLOPs", "{setting}: whole chains",
        lambda data: "Tokenformers from scratch have the FLOPs of the chain: reuse alone separates the two."
        * bool((data["series"] == SCRATCH).any()),
    ),
)  # fmt: skip


tokenformer_stages = Plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    needs=("transformer-short-*", "grown-random-sqrt-3"),
    caption=(
        "Held-out loss against the cost of the last stage alone, after Fig. 4 of Tokenformer (arXiv:2410.23168): what "
        "a size costs once the smaller one is there. To see: a grown model against the Transformer on the tokens of a "
        "stage, which has seen nothing before. This is a claim about the stage; what the ancestors cost is in the "
        "figure of cumulative cost. Below: the published points, in TPU hours read from the figure."
    ),
    data=partial(
        cost_points,
        curves=(
            ("Transformer", "300B", "Fig 4", "Transformer, 300B tokens"),
            ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens"),
            ("TokenFormer", "30B", "Fig 4", "grown, 30B a stage"),
        ),
        chains=False,
    ),
    draw=_draw_costs("flops", "FLOPs of the stage", "{setting}: one stage"),
)


LENGTHS = tuple(2**power for power in range(7, 18))
_WIDTHS = (("124M", 768, 576), ("354M", 1416, 2140), ("757M", 2104, 4850))
"""Size, width of the Transformer, tokens of the Tokenformer of width 768 (Tables 8 and 9 of the paper)."""
_VOCABULARY = 50304


def length_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per model and length."""
    found = []
    for record in results.runs(STUDY, runs).drop_duplicates("run").to_dict("records"):
        family = "Tokenformer" if record["spec.model.projection.kind"] == "pattention" else "Transformer"
        found.append(("ours", family, short(record["parameters_non_embedding"]), record["run"], shape_of(record)))
    for name, width, tokens in _WIDTHS:
        wide, grown = Shape(12, width, _VOCABULARY, hidden=4 * width), Shape(12, 768, _VOCABULARY, tokens, 4 * tokens)
        found.append(("published", "Transformer", name, f"Transformer {name}, d = {width}", wide))
        found.append(("published", "Tokenformer", name, f"TokenFormer {name}, d = 768", grown))
    return DataFrame(
        {"source": source, "family": family, "size": size, "run": run, "width": shape.width, "length": length}
        | {"flops": shape.flops(length), "token_token_flops": shape.token_token_flops(length)}
        for source, family, size, run, shape in found
        for length in LENGTHS
    )


def _of_family(name: str, rows: DataFrame) -> Style:
    wide = rows["family"].eq("Transformer").all()
    return {"color": BLACK if wide else VERMILION, "linestyle": "--" if wide else "-", "marker": ""}


def draw_length(data: DataFrame) -> Figure:
    """Draw our sizes left and the paper's right."""
    names = data["family"] + " " + data["size"] + ", d " + data["width"].astype(str)
    rows = data.assign(series=names, per_token=data["flops"] / data["length"], data_set="")
    shared = partial(
        Panel, "length", "per_token", by="series", log="xy", xlabel="length of the text (tokens)", style=_of_family,
        ticks=lambda value: f"{value / 1024:g}k" if value >= 1024 else f"{value:g}",
    )  # fmt: skip
    return sheet(
        shared(where={"source": "ours"}, title="Formula: {setting}", ylabel="forward FLOPs per token"),
        shared(where={"source": "published"}, title="formula, sizes of Table 8"),
        notes=["Without the logits; rows are of whole texts. Attention counts the whole square, half of it masked."],
        wanted=("Tokenformer", "Transformer"),
    )(rows)


tokenformer_length = Plot(
    reads=("run.json",),
    runs=("transformer-[1-4]", "classic-chosen", "tokenformer-1", "long-matched-chosen", "grown-random-sqrt-[2-4]"),
    caption=(
        "FLOPs of a forward pass against the length of the text, 2 N T + 4 L d T^2, after Fig. 5 of Tokenformer "
        "(arXiv:2410.23168), drawn per token so that the lines part: computed, not measured. To see: at equal "
        "parameters a Transformer that grows in width pays for its width in the token-token term, which a Tokenformer "
        "of fixed width does not; the two part where that term takes over. A Transformer that grew its feed-forward "
        "layer alone would keep the term too. Right: the same for the sizes of Table 8, of 12 layers, whose widths "
        "follow from its printed FLOPs."
    ),
    data=length_data,
    draw=draw_length,
)
