"""How far the rows of a run that was made again are from those that are committed."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from formerlab.results.read import Results
from formerlab.results.records import flatten
from formerlab.results.stages import TABLES

FILES = ("train.csv", "eval.csv", "test.csv", "depth.csv")
"""Rows of a run that do not depend on when it ran; timing.csv does."""
_CIRCUMSTANCES = ("device", "threads", "processes", "code_hash", "data.fingerprint", "init.weights_sha256")
_KEYS = ["study", "run", "seed"]

Record = Mapping[str, Any]


class Difference(NamedTuple):
    """How far a column of a file is from the committed one."""

    file: str
    column: str
    rows: str
    """Their number, or both where they differ."""
    equal: int
    """Rows that are equal to the bit."""
    largest: float
    """Largest difference of a number."""
    relative: float
    """The same, by the larger of both."""

    @property
    def is_none(self) -> bool:
        """Whether the column is equal to the bit."""
        return self.rows.isdigit() and self.equal == int(self.rows)


def differences(committed: Results, again: Results, record: Record) -> list[Difference]:
    """Return one entry per column of each file of rows that the run has in either."""
    found = []
    for file in FILES:
        both = [_rows(results, file, record) for results in (committed, again)]
        if any(len(rows) for rows in both):
            found += list(_compared(file, *both))
    return found


def _rows(results: Results, file: str, record: Record) -> DataFrame:
    rows = results.rows(file, record["study"], (record["run"],))
    own: DataFrame = rows[rows["seed"] == record["seed"]].drop(columns=_KEYS)
    return own.reset_index(drop=True)


def _compared(file: str, a: DataFrame, b: DataFrame) -> Iterator[Difference]:
    count = str(len(a)) if len(a) == len(b) else f"{len(a)} and {len(b)}"
    shared = min(len(a), len(b))
    for column in dict.fromkeys([*a.columns, *b.columns]):
        if column not in a or column not in b:
            present = a if column in a else b
            # An export leaves out what is empty in every run, and older versions wrote no optional columns.
            if present[column].notna().any() and column not in TABLES[file].optional:
                yield Difference(file, column, f"{len(a)} and {len(b)}", 0, math.nan, math.nan)
            continue
        yield Difference(file, column, count, *_apart(a[column][:shared], b[column][:shared]))


def _apart(a: "Series[Any]", b: "Series[Any]") -> tuple[int, float, float]:
    """Return the number of equal rows, and the largest difference, absolute and relative."""
    if not (pd.api.types.is_numeric_dtype(a) and pd.api.types.is_numeric_dtype(b)):
        return int(((a == b) | (a.isna() & b.isna())).sum()), math.nan, math.nan
    x, y = (column.to_numpy(float, na_value=np.nan) for column in (a, b))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    distance = np.abs(x - y)[~same]
    if not len(distance):
        return int(same.sum()), 0.0, 0.0
    largest = np.maximum(np.abs(x), np.abs(y))[~same]
    return int(same.sum()), float(distance.max()), float((distance / largest).max())


def report(record: Record, again: Record, found: list[Difference]) -> tuple[str, bool]:
    """Return what is to be said of a run and the one made again, and whether they are equal to the bit."""
    weights = record["weights_sha256"] == again["weights_sha256"]
    equal = weights and all(difference.is_none for difference in found)
    counts = {difference.file: difference.rows for difference in found}
    files = ", ".join(f"{file} ({rows} rows)" for file, rows in counts.items())
    if equal:
        return f"{record['id']}: equal to the bit: {files}, and the weights", True
    shown = DataFrame([one for one in found if not one.is_none], columns=list(Difference._fields))
    same = [file for file in counts if file not in set(shown["file"])]
    lines = [f"{record['id']}: not equal to the bit"]
    lines += [shown.to_string(index=False, na_rep="", float_format="{:.3g}".format)] if len(shown) else []
    lines.append(f"equal to the bit: {', '.join([*same, *(['the weights'] if weights else [])]) or 'nothing'}")
    elsewhere = _circumstances(record, again)
    lines += ["committed, then here:", *elsewhere] if elsewhere else ["made by the same code, versions and processor"]
    return "\n".join(lines), False


def _circumstances(record: Record, again: Record) -> list[str]:
    """Return what of code, data, versions and machine is another than it was."""
    old, new = flatten(record), flatten(again)
    keys = [*_CIRCUMSTANCES, *sorted(key for key in {*old, *new} if key.startswith("versions."))]
    return [f"  {key}: {old.get(key)}, {new.get(key)}" for key in keys if old.get(key) != new.get(key)]
