"""The gain of DenseFormer, as README shows it."""

import numpy as np
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.figures.denseformer.loss import denseformer_gain
from formerlab.report.overview import overview
from formerlab.report.runs import seed_count
from formerlab.report.style import BETTER
from formerlab.results.read import Results

_SHORTER = {"^[^:]*, ": "", "OpenWebText2": "OWT2"}


@plot(reads="test.csv", needs="depth.kind=dwa depth.dilation=1 depth.period=1", within_regime=True, draw=overview(
    "DenseFormer against a Transformer,\nby training tokens (M: million)",
    f"change of perplexity, % ({BETTER})", 1.75
))  # fmt: skip
def denseformer_overview(results: Results, runs: list[str]) -> DataFrame:
    """Change of perplexity from the plain Transformer to DenseFormer 1x1 in brief: each number of training tokens (M:
    million) and depth, with the 95 % interval that verdicts use. Test text: six books, and for 24 blocks 45 novels.
    Hollow: the paper's values (arXiv:2402.02622) on its two texts, PG-19 and OpenWebText2 (OWT2). Dashed: the largest
    mean that meets the claim. To see: which intervals are below zero. denseformer_gain has seeds.
    """
    rows = denseformer_gain.rows(results, runs)
    if rows.empty:
        return rows
    rows = rows[rows["part"].ne("seed") & rows["_brief"]].sort_values(["source", "tokens", "layers"], kind="stable")
    rows = rows.sort_values(["source", "_group"], kind="stable", key=lambda names: names.map(list(names).index))
    ours, seeds = rows["source"].eq("ours"), seed_count(rows["seeds"])
    values = {end: 100 * np.expm1(-rows[f"difference_nats{column}"])
              for end, column in (("value", ""), ("low", "_pooled_high"), ("high", "_pooled_low"))}  # fmt: skip
    return DataFrame({
        **rows[["source", "run", "verdict"]],
        "label": rows["_label"].str.partition("\n")[0].replace(_SHORTER, regex=True),
        "series": ours.map({True: f"ours ({seeds}), 95 % interval", False: "the paper (no intervals)"}),
        **values,
        "limit": 100 * np.expm1(-rows["difference_nats_limit"]),
        "_style": rows["_style"],
    })  # fmt: skip
