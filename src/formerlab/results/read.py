"""Read the rows of finished runs, live or exported, as pandas frames. This module does not import torch.

A live study has one folder per run, into which the stages write. An exported study (results/export.py) has these files:

    records.jsonl     one line per run: its id, its run.json and the records of its measurements; if runs of the study
                      were timed, the last line has the records of the timings
    <kind>.parquet    the rows of all runs (test.parquet has test.csv of every run), with the first columns run and
                      seed; for a timing of a whole study (speed, decode), the rows of the study, without seeds
"""

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.errors import UserError, reason
from formerlab.files import parse_json, read_json, read_record
from formerlab.results.schema import CLAIMS, COLUMNS
from formerlab.results.stages import MAKING, STAGES, TABLES, WRITER

Record = dict[str, Any]
StalenessReason = Callable[[str, str], str]
"""(stage, run or study) -> the reason to leave out its rows, or an empty string."""

RUN, RECORDS = "run.json", "records.jsonl"
SCHEMA = 1
"""Version of the format of run.json."""
RUN_AGAIN, RESTORE = "delete it and run its stage again", "restore it from version control, or export again"
_REQUIRED = ("schema", "id", "study", "run", "seed", "status", "spec", "data")
KEYS = ["study", "run", "seed"]
EXACT_FLOATS: dict[str, Any] = {} if pd.__version__ >= "3.1" else {"float_precision": "round_trip"}
"""Options of `read_csv` for exact floats, which are the default since pandas 3.1."""


class Results:
    """The finished runs in `results/<tree>/<scale>`; a run is finished if its run.json exists.

    Live and exported studies have the same interface. The status of a run is "finished" or "diverged". Rows are left
    out if `staleness_reason` returns a reason for them (plan/staleness.py); None includes all rows.
    """

    def __init__(self, root: Path, staleness_reason: StalenessReason | None = None) -> None:
        """Open the results in `root`; raise UserError if the folder is missing or an export was interrupted."""
        if not root.is_dir():
            raise UserError(f"{root}: no such folder; run the DAG for this scale first")
        self.root, self.staleness_reason = root, staleness_reason
        self.scale, self.tree = root.resolve().name, root.resolve().parent.name
        self._left_out: dict[tuple[str, str], str] = {}
        self._frames: dict[Path, DataFrame] = {}
        self.exported = {path.parent.name: ExportedStudy(path.parent) for path in sorted(root.glob(f"[!.]*/{RECORDS}"))}
        for old in root.glob(f".*.old/{RECORDS}"):
            if (study := old.parent.name[1:].removesuffix(".old")) not in self.exported:
                fault = f"an interrupted export left study {study} here"
                raise UserError(f"{old.parent}: {fault}; export again, or rename the folder to {study}")

    def runs(self, study: str | None = None, runs: Sequence[str] = ("*",)) -> DataFrame:
        """Return one row per finished run and seed, sorted by study, run and seed.

        Columns are the keys of run.json; nested keys are joined by dots, for example `spec.model.layers`. `runs` are
        glob patterns of run names.
        """
        records = [self._flattened_records[record["id"]] for record in self._matching(study, runs)]
        return DataFrame(records) if records else DataFrame(columns=[*KEYS, "status"])

    def _matching(self, study: str | None, runs: Sequence[str]) -> list[Record]:
        """Return the records of a study (None: all studies) whose run names match one of the patterns."""
        return [
            record
            for record in self.records()
            if study in (None, record["study"]) and any(fnmatchcase(record["run"], pattern) for pattern in runs)
        ]

    def rows(self, name: str, study: str | None = None, runs: Sequence[str] = ("*",)) -> DataFrame:
        """Return the rows of file `name` of all finished runs; the first columns are study, run and seed.

        Runs without the file are skipped. Raises UserError for a damaged or changed file, and if a record has the hash
        of a file that is missing.
        """
        frames = []
        for record in self._matching(study, runs):
            frame = self.rows_of(name, record["id"])
            if len(frame):
                frames.append(frame.assign(**{key: record[key] for key in KEYS}))
        if not frames:
            return DataFrame(columns=[*KEYS, *required_columns(name)])
        rows = pd.concat(frames, ignore_index=True)
        return rows[[*KEYS, *rows.columns.drop(KEYS)]]

    def rows_of(self, name: str, owner: str) -> DataFrame:
        """Return the rows of a file of `owner`: the id of a run, the name of a study, or "" for the scale.

        The frame is empty if the file is missing or left out. Raises the errors of `rows`.
        """
        if exported := self.exported.get(owner.partition("/")[0]):
            frame = exported.rows(name, owner)
            return _empty_rows(name) if frame is None or self._is_left_out(name, owner) else frame
        path, stage = self.root / owner / name, WRITER.get(name, "")
        expected_hash = self.stage_record(owner, stage).get("rows_sha256") if stage else None
        expected_hash = expected_hash.get(name) if isinstance(expected_hash, dict) else expected_hash
        if not (path.exists() or expected_hash) or self._is_left_out(name, owner or CLAIMS):
            return _empty_rows(name)
        if path not in self._frames:
            self._frames[path] = read_rows(path, expected_hash)
        return self._frames[path]

    def records(self) -> list[Record]:
        """Return the contents of each run.json that is not left out, sorted by study, run and seed."""
        return [record for name, record in self.all_records.items() if not self._is_left_out(RUN, name)]

    @cached_property
    def all_records(self) -> dict[str, Record]:
        """The contents of each run.json by id, sorted by study, run and seed, including runs that are left out.

        Raises UserError for a run.json that cannot be read and is not left out.
        """
        records = []
        for path in self.root.glob(f"*/*/seed*/{RUN}"):
            try:
                records.append(read_run(path))
            except UserError:
                if not self._is_left_out(RUN, "/".join(path.parts[-4:-1])):
                    raise
        for study in self.exported.values():
            run_records = (line.get("record") for owner, line in study.records.items() if owner != study.name)
            records += [_checked(study.folder / RECORDS, record, study.name) for record in run_records]
        records.sort(key=lambda record: (record["study"], record["run"], record["seed"]))
        return {record["id"]: record for record in records}

    @cached_property
    def _flattened_records(self) -> dict[str, Record]:
        return {name: flatten(record) for name, record in self.all_records.items()}

    def stage_record(self, owner: str, stage: str) -> Record:
        """Return the record of a stage of `owner` (a run id, a study, or "" for the scale).

        The record is empty if it is missing or left out.
        """
        if stage in MAKING:
            return self.all_records.get(owner, {})
        if exported := self.exported.get(owner.partition("/")[0]):
            return dict(exported.records.get(owner, {}).get("stages", {}).get(stage, {}))
        path = self.root / owner / STAGES[stage].record
        return read_record(path) if path.is_file() and not self._is_left_out(path.name, owner or CLAIMS) else {}

    def _is_left_out(self, file: str, name: str) -> bool:
        """Return whether a file of a run or study is left out because the rows of its stage are stale."""
        stage = WRITER.get(file, "")
        reason = self.staleness_reason(stage, name) if self.staleness_reason is not None and stage else ""
        if reason:
            self._left_out[stage, name] = reason
        return bool(reason)

    def left_out(self, study: str = "*", runs: Sequence[str] = ("*",)) -> list[str]:
        """Return "stage name: reason" for all rows that are left out; a pattern `key=value` matches all runs."""
        names = ["*" if "=" in pattern else pattern for pattern in runs]
        return [
            f"{stage} {name}: {reason}"
            for (stage, name), reason in self._left_out.items()
            if fnmatchcase(name, study) or any(fnmatchcase(name, f"{study}/{pattern}/seed*") for pattern in names)
        ]

    def warning(self) -> str:
        """Return a warning about rows that are left out, or an empty text."""
        left_out = self.left_out()
        further = f"; and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        warning = f"results that differ from the plan were left out ({left_out[0]}{further})" if left_out else ""
        return warning and f"{warning}; `status` lists them, and `snakemake` runs them again"

    def origin(self, study: str = "*", runs: Sequence[str] = ("*",)) -> str:
        """Describe the scale and origin (live or cached) of the rows, and the number of results that are left out."""
        left_out = self.left_out(study, runs)
        omission = f", {len(left_out)} left out because the plan differs" if left_out else ""
        return f"scale {self.scale}, {self.tree} results{omission}"


class ExportedStudy:
    """The exported rows of one study."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self._frames: dict[str, dict[str, DataFrame]] = {}
        self._rows: dict[tuple[str, str], DataFrame | None] = {}

    @cached_property
    def records(self) -> dict[str, Record]:
        """The lines of records.jsonl, by id of the run or name of the study."""
        path = self.folder / RECORDS
        try:
            *lines, unfinished = path.read_text(encoding="utf-8").split("\n")
            if unfinished or not lines:
                raise ValueError("truncated")
            return {line["id"]: line for line in map(parse_json, lines)}
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: cannot be read ({reason(error)}); {RESTORE}") from None

    def rows(self, name: str, owner: str) -> DataFrame | None:
        """Return the rows of a file for a run id or the study name, or None if the file has no such rows.

        Optional columns that are empty in these rows are dropped.
        """
        if name not in self._frames:
            self._frames[name] = self._by_owner(self.folder / f"{Path(name).stem}.parquet")
        if (name, owner) not in self._rows:
            frame, needed = self._frames[name].get(owner), required_columns(name)
            rows = frame if frame is None else frame[[c for c in frame if c in needed or frame[c].notna().any()]]
            self._rows[name, owner] = rows
        return self._rows[name, owner]

    def _by_owner(self, path: Path) -> dict[str, DataFrame]:
        """Return the rows of a Parquet file by run id, or by the name of the study."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not path.exists():
            return {}
        try:
            table: DataFrame = pq.ParquetFile(path).read().to_pandas()
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{path}: cannot be read ({reason(error)}); {RESTORE}") from None
        if table.columns[:2].tolist() != KEYS[1:]:
            return {self.name: table}
        return {
            f"{self.name}/{run}/seed{seed}": rows.reset_index(drop=True)
            for (run, seed), rows in table.iloc[:, 2:].groupby([table[key] for key in KEYS[1:]], sort=False)
        }


@cache
def read_once(root: Path) -> Results:
    """Return the results in `root`, whose rows are read once per process."""
    return Results(root)


def has_runs(root: Path) -> bool:
    """Return whether the results of a scale in `root` contain finished runs, live or exported."""
    return any(True for form in (f"*/*/seed*/{RUN}", f"*/{RECORDS}", f".*.old/{RECORDS}") for _ in root.glob(form))


def read_rows(path: Path, expected_hash: str | None = None) -> DataFrame:
    """Read a CSV file of rows; floats are exact.

    Raises UserError for a missing or damaged file, a missing column, and a SHA-256 that differs from `expected_hash`.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: missing, but its stage is finished; run its stage again") from None
    if expected_hash not in (None, hashlib.sha256(content).hexdigest()):
        raise UserError(f"{path}: changed since its stage wrote it; {RUN_AGAIN}")
    columns = TABLES[path.name].columns if path.name in TABLES else COLUMNS
    texts = {name: "str" for name, kind in columns.items() if kind == "text"}
    empty = {name: [""] if name in texts else ["", "nan"] for name in columns}
    # With `keep_default_na`, the tokens None, NA and null would be read as empty cells.
    options: dict[str, Any] = {"dtype": texts, "na_values": empty, "keep_default_na": False, **EXACT_FLOATS}
    try:
        frame: DataFrame = pd.read_csv(io.BytesIO(content), **options)
    except ValueError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); {RUN_AGAIN}") from None
    if missing := [column for column in required_columns(path.name) if column not in frame]:
        raise UserError(f"{path}: column '{missing[0]}' is missing; {RUN_AGAIN}")
    return frame


@cache
def _empty_rows(file: str) -> DataFrame:
    return DataFrame(columns=required_columns(file))


def required_columns(file: str) -> tuple[str, ...]:
    """Return the columns that a file of rows must have; an unknown file has no required columns."""
    return TABLES[file].required if file in TABLES else ()


def read_run(path: Path) -> Record:
    """Read a run.json; raise UserError if it is damaged, of another version or in the wrong folder."""
    return _checked(path, read_json(path), "/".join(path.resolve().parent.parts[-3:]))


def _checked(path: Path, record: Any, folder: str) -> Record:
    """Check and return a record; its id must begin with `folder` (`study` or `study/run/seed`)."""
    if not isinstance(record, dict) or (missing := [key for key in _REQUIRED if key not in record]):
        fault = f"keys are missing ({', '.join(missing)})" if isinstance(record, dict) else "is not a JSON object"
        raise UserError(f"{path}: {fault}; delete the folder and train again")
    if record["schema"] != SCHEMA:
        raise UserError(f"{path}: schema {record['schema']}, but this version reads schema {SCHEMA}; train again")
    names = [str(record["study"]), str(record["run"]), f"seed{record['seed']}"]
    plain = all(re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) for name in names)  # excludes paths to other folders
    if not plain or "/".join(names) != record["id"] or not f"{record['id']}/".startswith(f"{folder}/"):
        fault = f"id {record['id']!r} does not match its study, run, seed and folder"
        raise UserError(f"{path}: {fault}; move the folder back or train again")
    return record


def flatten(value: Mapping[str, Any], prefix: str = "") -> Record:
    """Join the keys of nested mappings by dots: `{"a": {"b": 1}}` gives `{"a.b": 1}`; lists become JSON text."""
    flat: Record = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= flatten(item, f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.dumps(item) if isinstance(item, list) else item
    return flat
