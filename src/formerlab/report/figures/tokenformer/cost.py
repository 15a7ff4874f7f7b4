"""Held-out loss against training cost, and FLOPs by length of the text (Tokenformer, arXiv:2410.23168, Fig 1, 3, 4, 5).

The published costs are TPU hours read from the figures, the published perplexities those of Tables 6 and 7.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.runs import short
from formerlab.report.style import BLACK, VERMILION
from formerlab.report.tokenformer import ENVELOPE, SERIES, Shape, series_points, shape_of
from formerlab.results.read import Results

STUDY = "tokenformer"
Curve = tuple[str, str, str, str]
"""Model family, tokens per model, figure with the costs, and the name of a published curve."""


def cost_points(results: Results, runs: Sequence[str], *, curves: Sequence[Curve], chains: bool) -> DataFrame:
    """Return a row per point, ours and those of the published `curves`: of whole `chains` of growth, or of stages.

    Grown curves of whole chains begin at the first model of the chain.
    """
    costs = published(PAPER, "Fig 3", "Fig 4").query("metric == 'training_cost'")
    reached = _values(published(PAPER, "Tables 6-7", "Table 6").query("metric == 'perplexity'"))
    first = costs[costs["setting"].str.startswith("start")].iloc[0]
    rows = []
    for family, tokens, figure, name in curves:
        places = costs[(costs["table_or_figure"] == figure) & costs["model"].str.startswith(family)]
        found = {model: hours for (model, seen), hours in _values(places).items() if seen == tokens}
        points = [(model, hours, reached[model, tokens]) for model, hours in found.items()]
        if chains and family == "TokenFormer":
            points.insert(0, (first["model"], float(first["value"]), reached[first["model"], "60B"]))
        rows += [
            {"source": "published", "series": name, "run": model, "tpu_v4_hours": hours, "perplexity": value}
            | {"loss_nats": math.log(value)}
            for model, hours, value in points
        ]
    return pd.concat([series_points(results, runs, chains=chains), DataFrame(rows)], ignore_index=True)


def _values(rows: DataFrame) -> dict[tuple[str, str], float]:
    """Return values by model and by the tokens that the setting speaks of, such as `30B`."""
    cells = rows[["model", "setting", "value"]].itertuples(index=False, name=None)
    found = ((model, re.search(r"(\d+B) tokens", setting), value) for model, setting, value in cells)
    return {(model, seen[1] if seen else ""): float(value) for model, seen, value in found}


def draw_costs(column: str, label: str, title: str) -> Callable[[DataFrame], Figure]:
    """Return what draws our points against a column, and the published ones against theirs."""
    joined = [name for name in SERIES if not name.startswith("parent")]

    def draw(data: DataFrame) -> Figure:
        alone = data["source"].eq("ours") & data["parent"].notna() & ~data["series"].isin(joined)
        rows = data.assign(linestyle=alone.map({True: "", False: None}))
        shared: dict[str, Any] = {"by": "series", "log": "x", "ylabel": "held-out loss (nats per token)"}
        return sheet(
            Panel(column, "loss_nats", where={"source": "ours"}, title=title, xlabel=label, **shared),
            Panel("tpu_v4_hours", "loss_nats", where={"source": "published"}, title="124M to 1.4B parameters",
                  xlabel="training cost (TPU v4 hours)", **shared),
            columns=1, height=2.8,
        )(rows[rows["series"] != ENVELOPE])  # fmt: skip

    return draw


@plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    draw=draw_costs("flops_cumulative", "cumulative FLOPs", "{setting}: whole chains"),
)
def tokenformer_cost(results: Results, runs: Sequence[str]) -> DataFrame:
    """Held-out loss against training cost, after Fig. 1 and 3 of Tokenformer (arXiv:2410.23168), in FLOPs of matrix
    products and attention. A grown model pays for all its ancestors; Tokenformers from scratch have the FLOPs of the
    chain. Points are finished models; lines join the sizes of a chain. To see: growing is worth it where its point lies
    below and to the left of models trained from scratch, and below the parent trained on at equal FLOPs; the envelope
    of Transformers from scratch stands in tokenformer_scaling. Below: the published points, for models a thousand times
    larger and single Transformers, so only the shape compares.
    """
    curves = (
        ("Transformer", "300B", "Fig 3", "Transformer, 300B tokens"),
        ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens"),
        ("TokenFormer", "60B", "Fig 3", "grown, 60B a stage"),
        ("TokenFormer", "30B", "Fig 3", "grown, 30B a stage"),
        ("TokenFormer", "15B", "Fig 3", "grown, 15B a stage"),
    )
    return cost_points(results, runs, curves=curves, chains=True)


@plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    needs=("transformer-short-*", "grown-random-sqrt-3"),
    draw=draw_costs("flops", "FLOPs of the stage", "{setting}: one stage"),
)
def tokenformer_stages(results: Results, runs: Sequence[str]) -> DataFrame:
    """Held-out loss against the cost of the last stage alone, after Fig. 4 of Tokenformer (arXiv:2410.23168): what a
    size costs once the smaller one is there. To see: a grown model against the Transformer on the tokens of a stage,
    which has seen nothing before. This is a claim about the stage; what the ancestors cost is in the figure of
    cumulative cost. Below: the published points, in TPU hours read from the figure.
    """
    curves = (
        ("Transformer", "300B", "Fig 4", "Transformer, 300B tokens"),
        ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens"),
        ("TokenFormer", "30B", "Fig 4", "grown, 30B a stage"),
    )
    return cost_points(results, runs, curves=curves, chains=False)


LENGTHS = tuple(2**power for power in range(7, 18))
_WIDTHS = (("124M", 768, 576), ("354M", 1416, 2140), ("757M", 2104, 4850))
"""Size, width of the Transformer, tokens of the Tokenformer of width 768 (Tables 8 and 9 of the paper)."""
_VOCABULARY = 50304


def draw_length(data: DataFrame) -> Figure:
    """Draw our sizes left and the paper's right."""
    rows = data.assign(
        series=data["family"] + " " + data["size"] + ", d " + data["width"].astype(str),
        per_token=data["flops"] / data["length"],
        data_set="",
        marker="",
        color=data["family"].map({"Transformer": BLACK, "Tokenformer": VERMILION}),
        linestyle=data["family"].map({"Transformer": "--"}),
    )
    shared: dict[str, Any] = {"by": "series", "log": "xy", "xlabel": "length of the text (tokens)"}
    shared["ticks"] = lambda value: f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"
    return sheet(
        Panel("length", "per_token", where={"source": "ours"}, title="Formula: {setting}",
              ylabel="forward FLOPs per token", **shared),
        Panel("length", "per_token", where={"source": "published"}, title="formula, sizes of Table 8", **shared),
    )(rows)  # fmt: skip


@plot(
    reads=("run.json",),
    runs=("transformer-[1-4]", "classic-chosen", "tokenformer-1", "long-matched-chosen", "grown-random-sqrt-[2-4]"),
    draw=draw_length,
)
def tokenformer_length(results: Results, runs: Sequence[str]) -> DataFrame:
    """FLOPs of a forward pass against the length of the text, 2 N T + 4 L d T^2, after Fig. 5 of Tokenformer
    (arXiv:2410.23168), drawn per token so that the lines part: computed, not measured, without the logits, and with the
    whole square of attention, half of it masked. To see: at equal parameters a Transformer that grows in width pays for
    its width in the token-token term, which a Tokenformer of fixed width does not; the two part where that term takes
    over. A Transformer that grew its feed-forward layer alone would keep the term too. Right: the same for the sizes of
    Table 8, of 12 layers, whose widths follow from its printed FLOPs.
    """
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
