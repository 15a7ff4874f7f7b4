"""Rows of finished runs as pandas frames. Nothing here knows models, and nothing here imports torch."""

import csv
import hashlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.errors import UserError
from formerlab.files import read_json
from formerlab.results.exported import RUNS, ExportedStudy
from formerlab.results.records import always_written, checked, flatten, read_run
from formerlab.results.schema import CLAIMS, COLUMNS, Column
from formerlab.results.stages import MAKING, STAGES, TABLES, WRITER

# From pandas 3.1 on floats are always read exactly, and asking for it is deprecated.
_EXACT_FLOATS: dict[str, Any] = (
    {} if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}
)
_KEYS = ["study", "run", "seed"]


DATA, SIZES = "data.json", ("documents", "bytes", "tokens")
"""In a cached scale, the size of every split of its data sets."""

Objection = Callable[[str, str], str]


class Results:
    """The finished runs below `results/<tree>/<scale>`; a run is finished when its run.json exists.

    A study lies there as stages write it, a folder per run, or as export writes it (results/exported.py); who asks for
    rows need not know. A run that diverged is finished too: `status` says so. Rows to which `objection` objects, as
    those made by another configuration or other code than the plan's (plan/judge.py), are left out; cached rows need
    no judge.
    """

    def __init__(self, root: Path, objection: Objection | None = None) -> None:
        """Read below `root`; `objection` is asked with a stage and a run, or a study, and says why not, or nothing."""
        if not root.is_dir():
            raise UserError(f"{root}: no such folder; run the DAG for this scale first")
        self.root, self.objection = root, objection
        self._left_out: dict[tuple[str, str], str] = {}
        self._records: list[dict[str, Any]] | None = None
        self._by_id: dict[str, dict[str, Any]] = {}
        self._flat: dict[str, dict[str, Any]] = {}
        self._stages: dict[tuple[str, str], dict[str, Any]] = {}
        self._frames: dict[Path, DataFrame] = {}
        self._sizes: dict[str, Any] = {}
        self.exported = {path.parent.name: ExportedStudy(path.parent) for path in sorted(root.glob(f"*/{RUNS}"))}

    @property
    def scale(self) -> str:
        """Name of the scale: the folder's name."""
        return self.root.resolve().name

    @property
    def tree(self) -> str:
        """`live` or `cached`: the name of the folder above."""
        return self.root.resolve().parent.name

    def runs(self, study: str | None = None, runs: Sequence[str] = ("*",)) -> DataFrame:
        """Return one row per finished run and seed, in the order of study, run and seed.

        Columns are the keys of run.json, nested ones joined by dots (`spec.model.layers`, `data.fingerprint`, ...).
        `runs` are glob patterns of run names.
        """
        records = [
            self._flat[record["id"]]
            for record in self.records()
            if study in (None, record["study"]) and any(fnmatchcase(record["run"], pattern) for pattern in runs)
        ]
        return DataFrame(records) if records else DataFrame(columns=[*_KEYS, "status"])

    def rows(self, name: str, study: str | None = None, runs: Sequence[str] = ("*",)) -> DataFrame:
        """Return the rows of file `name` of all finished runs, with the columns study, run and seed in front.

        A file that not every run has (`depth.csv`, `zeroshot.csv`, ...) is skipped where it is absent. Raises UserError
        for a file that is missing although a record says that it was written, and for one that is damaged or changed.
        """
        frames = []
        for study_name, run, seed in self.runs(study, runs)[_KEYS].itertuples(index=False):
            frame = self.rows_of(name, f"{study_name}/{run}/seed{seed}")
            if frame is not None and len(frame):
                frames.append(frame.assign(study=study_name, run=run, seed=seed))
        if not frames:
            return DataFrame(columns=[*_KEYS, *required_columns(name)])
        return pd.concat(frames, ignore_index=True)[[*_KEYS, *frames[0].columns.drop(_KEYS)]]

    def rows_of_study(self, name: str, study: str) -> DataFrame:
        """Return the rows of a file that belongs to a study (`speed.csv`), or to the scale, whose name is "".

        There are none where it lacks.
        """
        frame = self.rows_of(name, study)
        return DataFrame(columns=required_columns(name)) if frame is None else frame

    def folder(self, study: str, run: str, seed: int) -> Path:
        """Return the folder of a run."""
        return self.root / study / run / f"seed{seed}"

    def records(self) -> list[dict[str, Any]]:
        """Return the contents of every run.json that is not left out, in the order of study, run and seed."""
        return [record for record in self.all_records() if not self.leaves_out("run.json", record["id"])]

    def all_records(self) -> list[dict[str, Any]]:
        """Return the contents of every run.json, in the same order.

        One that cannot be read is left out, where somebody objects to it, and else raises UserError.
        """
        if self._records is None:
            records = list(self._read_runs())
            for study in self.exported.values():
                records += [checked(study.folder / RUNS, record, study.name) for record in study.records()]
            self._records = sorted(records, key=lambda record: (record["study"], record["run"], record["seed"]))
            self._by_id = {record["id"]: record for record in records}
            self._flat = {record["id"]: flatten(record) for record in records}
        return self._records

    def _read_runs(self) -> Iterator[dict[str, Any]]:
        for path in self.root.glob("*/*/seed*/run.json"):
            try:
                yield read_run(path)
            except UserError:
                if not self.leaves_out(path.name, "/".join(path.parts[-4:-1])):
                    raise

    def stage_record(self, owner: str, stage: str) -> dict[str, Any]:
        """Return what a stage noted beside the rows of a run, a study or the scale (""); nothing where it did not."""
        if stage in MAKING:
            self.all_records()
            return self._by_id.get(owner, {})
        if exported := self.exported.get(owner.partition("/")[0]):
            return dict(exported.stages.get(owner, {}).get(stage, {}))
        if (owner, stage) not in self._stages:
            path = self.root / owner / STAGES[stage].record
            record = read_json(path) if path.is_file() else {}
            if not isinstance(record, dict):
                raise UserError(f"{path}: is not a JSON object; delete it and run {stage} again")
            self._stages[owner, stage] = record
        return self._stages[owner, stage]

    def bytes_per_token(self, data: str, fingerprint: str, split: str = "test") -> float:
        """Return the bytes of text that a token of a split stands for; NaN where this state is not known."""
        if data not in self._sizes:
            live, cached = self.root / "data" / data / "manifest.json", self.root / DATA
            known = read_json(live) if live.exists() else read_json(cached).get(data) if cached.exists() else None
            self._sizes[data] = known or {"fingerprint": None}
        known = self._sizes[data]
        size = known["splits"].get(split, {}) if known["fingerprint"] == fingerprint else {}
        return size["bytes"] / size["tokens"] if size.get("bytes") and size.get("tokens") else math.nan

    def left_out(self, study: str = "*", runs: Sequence[str] = ("*",)) -> list[str]:
        """Return what was asked for so far and left out, each with the reason."""
        return [
            f"{stage} {name}: {reason}"
            for (stage, name), reason in self._left_out.items()
            if fnmatchcase(name, study) or any(fnmatchcase(name, f"{study}/{pattern}/seed*") for pattern in runs)
        ]

    def warning(self) -> str:
        """Return a line that says what was left out and what to do about it; nothing where nothing was."""
        left_out = self.left_out()
        more = f"; and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        what = f"left out, as the plan asks for something else ({left_out[0]}{more})" if left_out else ""
        return what and f"{what}: status lists them, snakemake makes them anew"

    def place(self, study: str = "*", runs: Sequence[str] = ("*",)) -> str:
        """Return for readers where rows come from, and how much was left out."""
        left_out = self.left_out(study, runs)
        without = f", without {len(left_out)} that are not as planned" if left_out else ""
        return f"scale {self.scale}, {self.tree} results{without}"

    def leaves_out(self, file: str, name: str) -> bool:
        """Say whether a file of a run or of a study is left out, for what its stage made it of."""
        stage = WRITER.get(file, "")
        reason = self.objection(stage, name) if self.objection is not None and stage else ""
        if reason:
            self._left_out[stage, name] = reason
        return bool(reason)

    def rows_of(self, name: str, owner: str) -> DataFrame | None:
        """Return the rows of a file of a run, a study, or the scale (""); nothing where it has none.

        Where they are left out there are none of them.
        """
        if exported := self.exported.get(owner.partition("/")[0]):
            frame = exported.rows(name, owner, required_columns(name))
        else:
            frame = self._read(name, owner)
        return frame[:0] if frame is not None and self.leaves_out(name, owner or CLAIMS) else frame

    def _read(self, name: str, owner: str) -> DataFrame | None:
        path, stage = self.root / owner / name, WRITER.get(name, "")
        record = self.root / owner / STAGES[stage].record if stage else path
        if not path.exists() and not record.exists():
            return None
        if self.leaves_out(name, owner or CLAIMS):
            return DataFrame(columns=required_columns(name))
        said = self.stage_record(owner, stage) if stage else {}
        stated = said.get("rows_sha256")
        if isinstance(stated, dict):
            stated = stated.get(name)
        if not path.exists() and not stated and (stage not in MAKING or name not in always_written(said)):
            return None
        if path not in self._frames:
            self._frames[path] = read_rows(path, stated)
        return self._frames[path]


def has_runs(root: Path) -> bool:
    """Say whether a scale (results/<tree>/<scale>) has finished runs, in either form."""
    return any(True for form in ("*/*/seed*/run.json", f"*/{RUNS}") for _ in root.glob(form))


def read_rows(path: Path, stated: str | None = None) -> DataFrame:
    """Read a file of rows; floats come back bit for bit.

    A header alone is a file without rows, as a run that diverged early leaves it. Raises UserError for a file that
    is missing, damaged, cut short or lacks a column, and for one whose SHA-256 is not the one `stated`.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: missing, although its stage is finished; run its stage again") from None
    try:
        text = content.decode("utf-8")
        _check_shape(path, text)
        header = next(csv.reader(io.StringIO(text)))
        types = {column.name: column.type for column in _columns(path.name)}
        kinds = {column: "str" for column in header if types.get(column) == "text"}
        frame: DataFrame = pd.read_csv(io.StringIO(text), dtype=kinds, **_EXACT_FLOATS)
    except (ValueError, csv.Error) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: cannot be read ({reason}); delete it and run its stage again") from None
    for column in frame.columns.difference(list(kinds)) if len(frame) else []:
        if column in types and not pd.api.types.is_numeric_dtype(frame[column]):
            raise UserError(f"{path}: column '{column}' holds text; delete it and run its stage again")
    if stated not in (None, hashlib.sha256(content).hexdigest()):
        raise UserError(f"{path}: changed since its stage wrote it; delete it and run its stage again")
    return frame


def _columns(file: str) -> Iterable[Column]:
    """Return the columns that a file may have; of a file that no stage writes, those that others share."""
    return TABLES[file].columns if file in TABLES else COLUMNS.values()


def required_columns(file: str) -> tuple[str, ...]:
    """Return the columns that a file of rows must have."""
    return TABLES[file].required if file in TABLES else ()


def _check_shape(path: Path, text: str) -> None:
    """Raise for what pandas would read in silence: a file cut short, or columns that are not there."""
    remedy = "delete it and run its stage again"
    if not text.endswith("\n"):
        raise UserError(f"{path}: cut short; {remedy}")
    lines = text.splitlines()
    header, last = next(csv.reader(lines[:1])), next(csv.reader(lines[-1:]))
    if missing := [column for column in required_columns(path.name) if column not in header]:
        raise UserError(f"{path}: lacks the column '{missing[0]}'; {remedy}")
    if len(last) != len(header):
        raise UserError(f"{path}: its last row is cut short; {remedy}")
