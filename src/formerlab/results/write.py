"""Rows of results as CSV files: the only form in which numbers pass from one stage to the next."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from formerlab.files import replacing, sha256

Cell = str | int | float | None


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Write a CSV file whole: a header, Unix newlines, floats by `repr` so that nothing is lost, None as empty.

    Raises ValueError where a row and the header differ in length.
    """
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"{path.name}: a row of {len(row)} cells under {len(columns)} columns: {row!r}")
            # float() first: repr of a NumPy float would carry its type's name
            writer.writerow([repr(float(cell)) if isinstance(cell, float) else cell for cell in row])


def hashes_of_rows(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each of these files, for the record of their stage: readers refuse a file that differs."""
    return {name: sha256(folder / name) for name in files if (folder / name).exists()}
