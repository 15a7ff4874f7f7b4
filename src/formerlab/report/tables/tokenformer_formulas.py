"""Parameters and FLOPs by formula and by count (Tokenformer, arXiv:2410.23168, Tables 3 and 9)."""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._formulas import Shape, published_shapes, shape_of
from formerlab.report.figures._runs import TOKENFORMER, TRANSFORMER
from formerlab.results.read import Results

STUDY = "tokenformer"
READS = ("run.json",)
RUNS = ("transformer-[1-4]", "tokenformer-1", "grown-random-sqrt-[2-4]")
CAPTION = (
    "Parameters and FLOPs of every size, after Table 3 of Tokenformer (arXiv:2410.23168). Formula: parameters without "
    "embedding and norms, 12 L d^2 or 2 L d (n_q + n_k + n_v + n_o + n_ff), and the forward FLOPs of one sequence, 2 "
    "N T + 4 L d T^2 (the paper heads that column training FLOPs; version 1 had half of the first term for "
    "attention). Difference: what the run recorded (training FLOPs with logits are three times the formula), minus "
    "the formula; 0 but for the final norm's gain and bias. That the record is what modules and PyTorch's counter "
    "count is a test of the project. Published block: the configurations of Table 9, whose printed sizes fit the "
    "formula with or without the embedding of 50,304 rows, whichever is nearer; '1.4B' is 1.31B."
)
VOCABULARY = 50304


def table(results: Results) -> DataFrame:
    """Return a row per size of ours, then the published configurations."""
    runs = results.runs(STUDY, RUNS).drop_duplicates("run")
    ours = [_row(record) for record in runs.to_dict("records")]
    return pd.concat([DataFrame(ours), _published()], ignore_index=True)


def _row(record: Mapping[Hashable, Any]) -> dict[str, Any]:
    shape = shape_of(record)
    time, batch, steps = (int(record[f"spec.{key}"]) for key in ("task.context", "task.batch", "steps"))
    return {
        "source": "ours",
        "run": record["run"],
        "variant": TOKENFORMER if shape.attention_tokens else TRANSFORMER,
        **_columns(shape, time),
        "parameters_difference": record["parameters_non_embedding"] - shape.parameters(),
        "flops_difference": record["flops"] - 3 * steps * batch * shape.flops(time, head=True),
    }


def _columns(shape: Shape, time: int | None) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "layers": shape.layers,
        "width": shape.width,
        "attention_tokens": shape.attention_tokens or None,
        "feedforward_tokens": shape.feedforward_tokens or None,
        "parameters_attention": shape.attention(),
        "parameters_feedforward": shape.feedforward(),
        "parameters_formula": shape.parameters(),
        "flops_token_token_coefficient": 4 * shape.layers * shape.width,
    }
    if time is None:
        return columns
    flops = {"flops_projections": shape.projection_flops(time), "flops_token_token": shape.token_token_flops(time)}
    return columns | {"context": time} | flops | {"flops_formula": shape.flops(time)}


def _published() -> DataFrame:
    rows = []
    for row in published_shapes().to_dict("records"):
        sizes = (int(row[key]) for key in ("attention_tokens_per_projection", "ffn_tokens"))
        shape = Shape(int(row["layers"]), int(row["hidden_size"]), VOCABULARY, *sizes)
        printed, formula = row["parameters"] * 1e6, shape.parameters()
        nearest = min((formula, formula + VOCABULARY * shape.width), key=lambda count: abs(count / printed - 1))
        share = {"parameters_printed": printed, "nearer_count_minus_printed_percent": 100 * (nearest / printed - 1)}
        rows.append(
            {"source": "published", "run": row["model"], "variant": TOKENFORMER} | _columns(shape, None) | share
        )
    return DataFrame(rows)
