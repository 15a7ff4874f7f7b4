"""Write rows of results as CSV files."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from formerlab.files import replacing, sha256

Cell = str | int | float | None


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Write a CSV file atomically, with a header and Unix newlines.

    Floats are written by `repr`, which is exact; None becomes an empty cell. Raises ValueError if a row and the header
    differ in length.
    """
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"{path.name}: a row has {len(row)} cells, but the header {len(columns)}: {row!r}")
            # Convert to float, because repr of a NumPy float contains the name of its type.
            writer.writerow([repr(float(cell)) if isinstance(cell, float) else cell for cell in row])


def hashes_of_rows(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each existing file, for the record of its stage."""
    return {name: sha256(folder / name) for name in files if (folder / name).exists()}
