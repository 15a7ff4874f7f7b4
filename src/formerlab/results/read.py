"""Rows of finished runs as pandas frames, live or exported. Nothing here knows models or imports torch.

A live study lies as stages write it, a folder per run. An exported one (results/export.py) lies in few files:

    records.jsonl     a line per run: its id, its run.json, and the records of what measured it; the study's own, last
    <kind>.parquet    the rows of all runs (test.csv of every run: test.parquet), with run and seed in front
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
Objection = Callable[[str, str], str]

RUN, RECORDS = "run.json", "records.jsonl"
SCHEMA = 1
"""The version of run.json."""
AGAIN, RESTORE = "delete it and run its stage again", "restore it from version control, or export again"
_REQUIRED = ("schema", "id", "study", "run", "seed", "status", "spec", "data")
KEYS = ["study", "run", "seed"]
EXACT: dict[str, Any] = {} if pd.__version__ >= "3.1" else {"float_precision": "round_trip"}
"""Options of `read_csv` that read every float exactly, as pandas does unasked since 3.1."""


class Results:
    """The finished runs below `results/<tree>/<scale>`; a run is finished when its run.json exists.

    Callers need not know whether a study is live or exported. A run that diverged is finished too: `status`
    says so. Rows to which `objection` objects, as those made by another configuration or other code than the plan's
    (plan/staleness.py), are left out; cached rows need no staleness.
    """

    def __init__(self, root: Path, objection: Objection | None = None) -> None:
        """Read below `root`; `objection` takes a stage and a run or study, and returns why to leave it out, if so."""
        if not root.is_dir():
            raise UserError(f"{root}: no such folder; run the DAG for this scale first")
        self.root, self.objection = root, objection
        self.scale, self.tree = root.resolve().name, root.resolve().parent.name
        self._left_out: dict[tuple[str, str], str] = {}
        self._frames: dict[Path, DataFrame] = {}
        self._flat: dict[str, Record] = {}
        self.exported = {path.parent.name: ExportedStudy(path.parent) for path in sorted(root.glob(f"[!.]*/{RECORDS}"))}
        for old in root.glob(f".*.old/{RECORDS}"):
            if (study := old.parent.name[1:].removesuffix(".old")) not in self.exported:
                what = f"holds study {study}, which an export was about to replace"
                raise UserError(f"{old.parent}: {what}; export again, or rename the folder to {study}")

    def runs(self, study: str | None = None, runs: Sequence[str] = ("*",)) -> DataFrame:
        """Return one row per finished run and seed, in the order of study, run and seed.

        Columns are the keys of run.json, nested ones joined by dots (`spec.model.layers`, `data.fingerprint`, ...).
        `runs` are glob patterns of run names.
        """
        records = [self._flattened(record) for record in self._chosen(study, runs)]
        return DataFrame(records) if records else DataFrame(columns=[*KEYS, "status"])

    def _chosen(self, study: str | None, runs: Sequence[str]) -> list[Record]:
        """Return the records of a study, or of all, whose runs match a pattern."""
        return [
            record
            for record in self.records()
            if study in (None, record["study"]) and any(fnmatchcase(record["run"], pattern) for pattern in runs)
        ]

    def rows(self, name: str, study: str | None = None, runs: Sequence[str] = ("*",)) -> DataFrame:
        """Return the rows of file `name` of all finished runs, with the columns study, run and seed in front.

        A file that not every run has (`depth.csv`, `zeroshot.csv`, ...) is skipped where it is absent. Raises UserError
        for a file that is missing although a record says that it was written, and for one that is damaged or changed.
        """
        frames = []
        for record in self._chosen(study, runs):
            frame = self.rows_of(name, record["id"])
            if len(frame):
                frames.append(frame.assign(**{key: record[key] for key in KEYS}))
        if not frames:
            return DataFrame(columns=[*KEYS, *required_columns(name)])
        found = pd.concat(frames, ignore_index=True)
        return found[[*KEYS, *found.columns.drop(KEYS)]]

    def rows_of(self, name: str, owner: str) -> DataFrame:
        """Return the rows of a file of a run, a study (`speed.csv`), or the scale (""); none where the file is missing
        or left out.
        """
        if exported := self.exported.get(owner.partition("/")[0]):
            frame = exported.rows(name, owner)
            return _nothing(name) if frame is None or self._leaves_out(name, owner) else frame
        path, stage = self.root / owner / name, WRITER.get(name, "")
        stated = self.stage_record(owner, stage).get("rows_sha256") if stage else None
        stated = stated.get(name) if isinstance(stated, dict) else stated
        if not (path.exists() or stated) or self._leaves_out(name, owner or CLAIMS):
            return _nothing(name)
        if path not in self._frames:
            self._frames[path] = read_rows(path, stated)
        return self._frames[path]

    def records(self) -> list[Record]:
        """Return the contents of every run.json that is not left out, in the order of study, run and seed."""
        return [record for name, record in self.all_records.items() if not self._leaves_out(RUN, name)]

    @cached_property
    def all_records(self) -> dict[str, Record]:
        """The contents of every run.json by id, in the same order.

        One that cannot be read is left out where `objection` objects to it; else it raises UserError.
        """
        found = []
        for path in self.root.glob(f"*/*/seed*/{RUN}"):
            try:
                found.append(read_run(path))
            except UserError:
                if not self._leaves_out(RUN, "/".join(path.parts[-4:-1])):
                    raise
        for study in self.exported.values():
            of_runs = (one.get("record") for owner, one in study.records.items() if owner != study.name)
            found += [_checked(study.folder / RECORDS, record, study.name) for record in of_runs]
        found.sort(key=lambda record: (record["study"], record["run"], record["seed"]))
        return {record["id"]: record for record in found}

    def _flattened(self, record: Record) -> Record:
        if record["id"] not in self._flat:
            self._flat[record["id"]] = flatten(record)
        return self._flat[record["id"]]

    def stage_record(self, owner: str, stage: str) -> Record:
        """Return the record of a stage beside the rows of a run, a study or the scale (""); empty where it is missing
        or left out.
        """
        if stage in MAKING:
            return self.all_records.get(owner, {})
        if exported := self.exported.get(owner.partition("/")[0]):
            return dict(exported.records.get(owner, {}).get("stages", {}).get(stage, {}))
        path = self.root / owner / STAGES[stage].record
        return read_record(path) if path.is_file() and not self._leaves_out(path.name, owner or CLAIMS) else {}

    def _leaves_out(self, file: str, name: str) -> bool:
        """Say whether a file of a run or of a study is left out, as the objection to its stage says."""
        stage = WRITER.get(file, "")
        reason = self.objection(stage, name) if self.objection is not None and stage else ""
        if reason:
            self._left_out[stage, name] = reason
        return bool(reason)

    def left_out(self, study: str = "*", runs: Sequence[str] = ("*",)) -> list[str]:
        """Return everything left out so far, with the reason; a pattern of specs (`key=value`) stands for any run."""
        names = ["*" if "=" in pattern else pattern for pattern in runs]
        return [
            f"{stage} {name}: {reason}"
            for (stage, name), reason in self._left_out.items()
            if fnmatchcase(name, study) or any(fnmatchcase(name, f"{study}/{pattern}/seed*") for pattern in names)
        ]

    def warning(self) -> str:
        """Return a line on what was left out and what to do about it; empty where nothing was."""
        left_out = self.left_out()
        more = f"; and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        what = f"left out, as the plan asks for something else ({left_out[0]}{more})" if left_out else ""
        return what and f"{what}: status lists them, snakemake makes them anew"

    def place(self, study: str = "*", runs: Sequence[str] = ("*",)) -> str:
        """Return the origin of the rows in words, and how many were left out."""
        left_out = self.left_out(study, runs)
        without = f", without {len(left_out)} that are not as planned" if left_out else ""
        return f"scale {self.scale}, {self.tree} results{without}"


class ExportedStudy:
    """The exported rows of one study."""

    def __init__(self, folder: Path) -> None:
        """Read `folder`, which holds records.jsonl."""
        self.folder, self.name = folder, folder.name
        self._frames: dict[str, dict[str, DataFrame]] = {}
        self._rows: dict[tuple[str, str], DataFrame | None] = {}

    @cached_property
    def records(self) -> dict[str, Record]:
        """The lines of records.jsonl by the id of their run, or the name of the study."""
        path = self.folder / RECORDS
        try:
            *lines, rest = path.read_text(encoding="utf-8").split("\n")
            if rest or not lines:
                raise ValueError("cut short")
            return {line["id"]: line for line in map(parse_json, lines)}
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: cannot be read ({reason(error)}); {RESTORE}") from None

    def rows(self, name: str, owner: str) -> DataFrame | None:
        """Return the rows of a file of a run, by its id, or of the study, by its name; nothing where there are none.

        Of columns that a file may lack, one that only other runs have is left out.
        """
        if name not in self._frames:
            self._frames[name] = self._by_owner(self.folder / f"{Path(name).stem}.parquet")
        if (name, owner) not in self._rows:
            frame, needed = self._frames[name].get(owner), required_columns(name)
            known = frame if frame is None else frame[[c for c in frame if c in needed or frame[c].notna().any()]]
            self._rows[name, owner] = known
        return self._rows[name, owner]

    def _by_owner(self, path: Path) -> dict[str, DataFrame]:
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


def has_runs(root: Path) -> bool:
    """Say whether a scale (results/<tree>/<scale>) has finished runs, in either form."""
    return any(True for form in (f"*/*/seed*/{RUN}", f"*/{RECORDS}", f".*.old/{RECORDS}") for _ in root.glob(form))


def read_rows(path: Path, stated: str | None = None) -> DataFrame:
    """Read a file of rows; floats come back bit for bit.

    A header alone is a file without rows, as a run that diverged early leaves it. Raises UserError for a file that
    is missing, damaged or lacks a column, and for one whose SHA-256 is not the one `stated`.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: missing, although its stage is finished; run its stage again") from None
    if stated not in (None, hashlib.sha256(content).hexdigest()):
        raise UserError(f"{path}: changed since its stage wrote it; {AGAIN}")
    columns = TABLES[path.name].columns if path.name in TABLES else COLUMNS
    texts = {name: "str" for name, kind in columns.items() if kind == "text"}
    unknown = {name: [""] if name in texts else ["", "nan"] for name in columns}  # a token may be None, NA or null
    try:
        frame: DataFrame = pd.read_csv(
            io.BytesIO(content), dtype=texts, na_values=unknown, keep_default_na=False, **EXACT
        )
    except ValueError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); {AGAIN}") from None
    if missing := [column for column in required_columns(path.name) if column not in frame]:
        raise UserError(f"{path}: lacks the column '{missing[0]}'; {AGAIN}")
    return frame


@cache
def _nothing(file: str) -> DataFrame:
    """Return a file without rows, made once: most runs lack most files."""
    return DataFrame(columns=required_columns(file))


def required_columns(file: str) -> tuple[str, ...]:
    """Return the columns that a file of rows must have."""
    return TABLES[file].required if file in TABLES else ()


def read_run(path: Path) -> Record:
    """Read and check a run.json."""
    return _checked(path, read_json(path), "/".join(path.resolve().parent.parts[-3:]))


def _checked(path: Path, record: Any, place: str) -> Record:
    """Return a record, checked: its version is known, and its folder is that of the run it names."""
    if not isinstance(record, dict) or (missing := [key for key in _REQUIRED if key not in record]):
        what = f"lacks {', '.join(missing)}" if isinstance(record, dict) else "is not a JSON object"
        raise UserError(f"{path}: {what}; delete the folder and train again")
    if record["schema"] != SCHEMA:
        raise UserError(f"{path}: schema {record['schema']}, but this version reads schema {SCHEMA}; train again")
    names = [str(record["study"]), str(record["run"]), f"seed{record['seed']}"]
    plain = all(re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) for name in names)  # others could lead elsewhere
    if not plain or "/".join(names) != record["id"] or not f"{record['id']}/".startswith(f"{place}/"):
        raise UserError(f"{path}: {record['id']!r} is not its study, run and seed; move the folder back or train again")
    return record


def flatten(value: Mapping[str, Any], prefix: str = "") -> Record:
    """Join the keys of nested mappings by dots: `{"a": {"b": 1}}` gives `{"a.b": 1}`; lists become JSON text."""
    found: Record = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            found |= flatten(item, f"{prefix}{key}.")
        else:
            found[prefix + key] = json.dumps(item) if isinstance(item, list) else item
    return found
