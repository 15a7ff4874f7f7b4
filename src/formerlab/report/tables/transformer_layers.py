"""Layer types against length and width (arXiv:1706.03762, Table 1), counted and measured."""

import numpy as np
from pandas import DataFrame

from formerlab.report.figures.transformer_complexity import rows_of
from formerlab.results.read import Results

STUDY = "transformer"
READS = ("complexity.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "The four layer types of Table 1 of arXiv:1706.03762: slopes of the logarithm of counted multiply-adds, measured "
    "time and held memory on the logarithm of length n and of width d, beside the exponents of the table. The table "
    "leaves out the projections of self-attention, O(n d^2), and so do the counts; time follows the exponents only "
    "where the operation is large. The longest path is found by search and shown at the largest length."
)

THEORY = {
    "self_attention": (2, 1, "O(n^2 d)", "O(1)", "O(1)"),
    "recurrent": (1, 2, "O(n d^2)", "O(n)", "O(n)"),
    "convolution": (1, 2, "O(k n d^2)", "O(1)", "O(log_k n)"),
    "restricted": (1, 1, "O(r n d)", "O(1)", "O(n/r)"),
}
"""Exponents of n and d, complexity, sequential operations and maximum path length as published."""


def table(results: Results) -> DataFrame:
    """Return one row of ours and one published row per layer type."""
    rows = rows_of(results)
    ours = []
    for name, group in rows.groupby("operation", sort=False):
        row: dict[str, object] = {"source": "ours", "layer": name}
        for axis in ("n", "d"):
            points = group[group["axis"] == axis]
            for column, label in (("multiply_adds", "counted"), ("time_s", "time"), ("memory_bytes", "memory")):
                row[f"{label}_exponent_{axis}"] = slope(points, axis, column)
        ours.append(row | {"longest_path": int(group["path"].max())})
    theirs = [
        {
            "source": "published",
            "layer": name,
            "counted_exponent_n": n,
            "counted_exponent_d": d,
            "complexity": complexity,
            "sequential": sequential,
            "longest_path": path,
        }
        for name, (n, d, complexity, sequential, path) in THEORY.items()
    ]
    return DataFrame([*ours, *theirs]) if ours else DataFrame(theirs)


def slope(points: DataFrame, axis: str, column: str) -> float:
    """Return the least-squares slope of ln(column) on ln(axis)."""
    if points[axis].nunique() < 2:
        return float("nan")
    return float(np.polyfit(np.log(points[axis].astype(float)), np.log(points[column].astype(float)), 1)[0])
