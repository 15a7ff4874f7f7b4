"""Two runs side by side: what they were told, how they learned, and whether they differ on the held-out stream."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from formerlab.errors import UserError
from formerlab.results.read import Results, flatten
from formerlab.statistics import over_examples

_SHOWN_POINTS = 5
_IDENTITY = ("study", "name", "seed")
"""Keys of a spec that say which run it is, not what it does."""
_NUMBERS = ("status", "parameters", "tokens", "flops", "flops_cumulative", "training_time_s", "tokens_per_s", "device")


def compare(run_dir_a: Path, run_dir_b: Path) -> str:
    """Return a comparison of two finished runs, a and b, as text.

    The verdict is a paired bootstrap over the windows of test.csv: it speaks of these two models, not of their
    configurations, and is given only where both runs read the same data in the same windows.
    """
    (a, rows_a), (b, rows_b) = (_read(folder) for folder in (run_dir_a, run_dir_b))
    parts = [
        f"a: {a['id']}\nb: {b['id']}",
        "What differs in the spec\n" + _table(_differences(a["spec"], b["spec"])),
        "Numbers\n" + _table({name: (a.get(name), b.get(name)) for name in _NUMBERS}),
        "Validation loss (nats per token) by step\n" + _table(_curves(rows_a["eval.csv"], rows_b["eval.csv"])),
        "Held-out loss\n" + _verdict(a, b, rows_a["test.csv"], rows_b["test.csv"]),
    ]
    return "\n\n".join(parts) + "\n"


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, DataFrame]]:
    """Return the record of a run and its rows by file, from wherever its study keeps them."""
    parts = folder.resolve().parts
    results = Results(Path(*parts[:-3]))
    record = next((one for one in results.records() if one["id"] == "/".join(parts[-3:])), None)
    if record is None:
        raise UserError(f"{folder}: no finished run there; give results/<tree>/<scale>/<study>/<run>/seed<k>")
    frames = {name: results.rows(name, record["study"], (record["run"],)) for name in ("eval.csv", "test.csv")}
    return record, {name: frame[frame["seed"] == record["seed"]] for name, frame in frames.items()}


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    left, right = flatten(a), flatten(b)
    names = [name for name in dict.fromkeys([*left, *right]) if name not in _IDENTITY]
    pairs = {name: (left.get(name, ""), right.get(name, "")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]} or {"nothing": ("", "")}


def _curves(a: DataFrame, b: DataFrame) -> dict[str, tuple[Any, Any]]:
    """Return a few steps, the last of each run among them, with the loss of both where they were evaluated."""
    curves = [_curve(rows) for rows in (a, b)]
    steps = sorted(set(curves[0]) | set(curves[1]))
    chosen = (
        {steps[place] for place in np.linspace(0, len(steps) - 1, _SHOWN_POINTS).round().astype(int)}
        if steps
        else set()
    )
    chosen |= {max(curve) for curve in curves if curve}
    return {f"{step}": (curves[0].get(step), curves[1].get(step)) for step in sorted(chosen)} or {"none": ("", "")}


def _curve(rows: DataFrame) -> dict[int, float]:
    rows = rows[rows["split"] == "valid"] if len(rows) else rows
    return {int(step): _mean(rows[rows["step"] == step]) for step in rows["step"].unique()}


def _mean(rows: DataFrame) -> float:
    return float(np.average(rows["loss_nats"], weights=rows["tokens"]))


def _verdict(a: dict[str, Any], b: dict[str, Any], test_a: DataFrame, test_b: DataFrame) -> str:
    lines = [f"a {_mean(test_a):.4f} nats, b {_mean(test_b):.4f} nats"]
    if a["data"]["fingerprint"] != b["data"]["fingerprint"]:
        return "\n".join([*lines, f"not comparable: a read data {a['data']}, b read {b['data']}"])
    pairs = test_a.merge(test_b, on=["window", "tokens"], suffixes=("_a", "_b"))
    if len(pairs) != len(test_a) or len(pairs) != len(test_b):
        return "\n".join([*lines, "not comparable: the held-out windows differ (another task.context?)"])
    differences = (pairs["loss_nats_b"] - pairs["loss_nats_a"]).to_numpy()
    interval = over_examples(differences[None, :], pairs["tokens"].to_numpy(dtype=float))
    lines.append(f"b - a: {interval.mean:+.4f} nats, 95 % interval [{interval.low:+.4f}, {interval.high:+.4f}]")
    if not interval.known or interval.low <= 0 <= interval.high:
        verdict = "no difference can be told from zero"
    else:
        verdict = f"b is {'lower' if interval.high < 0 else 'higher'} than a"
    scope = f"paired bootstrap over {len(pairs)} windows; it speaks of these two models, not of other seeds"
    return "\n".join([*lines, f"{verdict} ({scope})"])


def _table(rows: Mapping[str, tuple[Any, Any]]) -> str:
    """Return names and two columns, aligned."""
    cells = [("", "a", "b"), *((name, _text(a), _text(b)) for name, (a, b) in rows.items())]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join(
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) >= 1000 or value == 0 else f"{value:.4f}".rstrip("0").rstrip(".")
    return str(value)
