"""The form of exported rows: a study in few files.

    runs.csv          a row per run: all of its run.json, a column per key, nested keys joined by dots
    <kind>.parquet    the rows of all runs (test.csv of every run: test.parquet), with run and seed in front
    provenance.json   when they were exported, what was not, and the records of what measured the runs

The same rows give the same bytes, so version control says whether they changed.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.errors import UserError
from formerlab.files import read_json, replacing, write_json

SCHEMA = 2
"""The version of provenance.json."""
RUNS, PROVENANCE = "runs.csv", "provenance.json"
REMEDY = "restore it from version control, or export again"
_KEYS = ["run", "seed"]


class ExportedStudy:
    """The rows of one study."""

    def __init__(self, folder: Path) -> None:
        """Read `folder`, which holds runs.csv."""
        self.folder, self.name = folder, folder.name
        self._frames: dict[str, dict[str, DataFrame]] = {}

    @cached_property
    def _provenance(self) -> dict[str, Any]:
        path = self.folder / PROVENANCE
        record = read_json(path)
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            raise UserError(f"{path}: not of schema {SCHEMA}, which this version reads; {REMEDY}")
        return record

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        """Records of other stages than training, by run or study, then by stage."""
        stages: dict[str, dict[str, Any]] = self._provenance.get("stages", {})
        return stages

    def records(self) -> list[dict[str, Any]]:
        """Return the contents of run.json of every run."""
        path = self.folder / RUNS
        try:
            text = path.read_text(encoding="utf-8")
            if not text.endswith("\n"):
                raise ValueError("cut short")
            return [_record_of(row) for row in csv.DictReader(io.StringIO(text, newline=""), restkey="", restval="")]
        except (ValueError, TypeError, AttributeError, csv.Error) as error:
            raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]}); {REMEDY}") from None

    def files(self) -> list[str]:
        """Return the files of which there are rows, by the names that stages gave them (`test.csv`)."""
        return [f"{path.stem}.csv" for path in sorted(self.folder.glob("*.parquet"))]

    def rows(self, name: str, owner: str, needed: Sequence[str]) -> DataFrame | None:
        """Return the rows of a file of a run, by its id, or of the study, by its name; nothing where there are none.

        Of other columns than those `needed`, one that only other runs have is left out.
        """
        if name not in self._frames:
            self._frames[name] = self._read(self.folder / f"{Path(name).stem}.parquet")
        frame = self._frames[name].get(owner)
        return None if frame is None else frame[[c for c in frame if c in needed or frame[c].notna().any()]]

    def _read(self, path: Path) -> dict[str, DataFrame]:
        if not path.exists():
            return {}
        table = _read_table(path)
        if table.columns[:2].tolist() != _KEYS:
            return {self.name: table}
        return {
            f"{self.name}/{run}/seed{seed}": rows.reset_index(drop=True)
            for (run, seed), rows in table.iloc[:, 2:].groupby([table[key] for key in _KEYS], sort=False)
        }


def write_study(
    folder: Path,
    stamp: Mapping[str, Any],
    records: Sequence[dict[str, Any]],
    rows: Mapping[str, Mapping[str, DataFrame]],
    stages: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write a study into an empty folder.

    provenance.json begins with the `stamp`. `rows` are by file (`test.csv`), then by the id of their run, or by the
    study's name where they are not of a run; `stages` are the records of other stages than training, by run or study,
    then by stage.
    """
    _write_runs(folder / RUNS, records)
    for name, frames in rows.items():
        _write_table(folder / f"{Path(name).stem}.parquet", frames)
    write_json(folder / PROVENANCE, {"schema": SCHEMA, **stamp, "stages": stages})


def _write_table(path: Path, frames: Mapping[str, DataFrame]) -> None:
    """Write rows of runs, or of a study; no file where there are none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = []
    for owner, frame in frames.items():
        if "/" in owner:
            _, run, seed = owner.split("/")
            keys = DataFrame({"run": run, "seed": int(seed.removeprefix("seed"))}, index=frame.index)
            frame = pd.concat([keys, frame], axis=1)
        parts += [frame] if len(frame) else []
    if not parts:
        return
    table = pa.Table.from_pandas(pd.concat(parts, ignore_index=True), preserve_index=False)
    fractions = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    with replacing(path) as temporary:
        pq.write_table(
            table.replace_schema_metadata(None),
            temporary,
            compression="zstd",
            compression_level=9,
            use_dictionary=[name for name in table.column_names if name not in fractions],
            use_byte_stream_split=fractions,
            store_schema=False,
        )


def _read_table(path: Path) -> DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        frame: DataFrame = pq.ParquetFile(path).read().to_pandas()
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]}); {REMEDY}") from None
    return frame


def _write_runs(path: Path, records: Sequence[dict[str, Any]]) -> None:
    rows = [dict(_cells(record)) for record in records]
    columns = dict.fromkeys(column for row in rows for column in row)
    ordered = sorted(columns, key=lambda column: column.startswith("spec."))  # what came out, then what was asked for
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ordered, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _cells(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield columns and cells of a record: JSON, but text that cannot be taken for JSON stands without quotes.

    A mapping without keys, or with one that is no plain name, stands in one cell.
    """
    for key, item in value.items():
        if isinstance(item, Mapping) and item and all(re.fullmatch(r"[\w-]+", inner) for inner in item):
            yield from _cells(item, f"{prefix}{key}.")
        else:
            plain = isinstance(item, str) and item != "" and "\r" not in item and _value_of(item) == item
            yield prefix + key, item if plain else json.dumps(item)


def _record_of(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the record that `_cells` took apart; an empty cell is a key that the record does not have."""
    record: dict[str, Any] = {}
    for column, cell in row.items():
        if cell:
            *outer, last = column.split(".")
            place = record
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = _value_of(cell)
    return record


def _value_of(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell
