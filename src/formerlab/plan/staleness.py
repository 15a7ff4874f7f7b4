"""Staleness check: compare the records of jobs with the plan. This module does not import torch or pydantic.

The output of a job is stale if its record differs from the plan in configuration or code, if its data or parent are
stale or were replaced, if its record was edited, or if files are missing or the weights are damaged.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from formerlab.errors import UserError
from formerlab.files import fingerprint, read_json, read_record, write_text
from formerlab.results.schema import UNPLANNED
from formerlab.results.stages import MAKING, MEASURED, OPTIMIZER, STAGES, TIMED, WEIGHTS

RECORDS = {stage.name: stage.record for stage in STAGES.values()}
"""Record file by stage; a stage writes its record last. Stages are in order of their dependencies."""
Expected = dict[str, tuple[str, Any]]
"""Expected values of a record: key, with dots for nested keys -> (label for messages, expected value)."""


def making_stage(plan: dict[str, Any], run: str) -> str:
    """Return the stage (`train` or `load`) that creates a run; `train` for a run outside the plan."""
    return next((stage for stage in MAKING if run in plan[stage]), "train")


def run_jobs(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the jobs of a plan that train or load runs, by run id."""
    return {run: job for stage in MAKING for run, job in plan[stage].items()}


class OutputState(NamedTuple):
    """State of a job's output: the result of comparing its record with the plan."""

    state: str
    """finished, diverged, stale, missing, or failed (the record cannot be read)."""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.state} ({self.detail})" if self.detail else self.state

    @property
    def current(self) -> bool:
        """Whether the output is up to date with the plan."""
        return self.state in ("finished", "diverged")


class Staleness:
    """The states of the outputs of one plan; a state is computed at its first use."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self._states: dict[tuple[str, str], OutputState] = {}
        self._records: dict[Path, Any] = {}

    def check(self, stage: str, name: str) -> OutputState:
        """Return the state of a job's output."""
        if (stage, name) not in self._states:
            self._states[stage, name] = self._compare(stage, name)
        return self._states[stage, name]

    def stale(self) -> dict[tuple[str, str], str]:
        """Return the outputs that differ from the plan or have an unreadable record, as {(stage, name): reason}."""
        states = {(stage, name): self.check(stage, name) for stage in RECORDS for name in self.plan[stage]}
        return {job: detail for job, (state, detail) in states.items() if state in ("stale", "failed")}

    def write_stale(self, folder: Path, failures: Sequence[Path] = ()) -> Path | None:
        """Write the stale outputs with reasons, and the notes of failed figures (`failures`), to a file in `folder`.

        The file is newer than the outputs and notes, so Snakemake reruns every rule that reads it. Its name is a hash
        of its content and of the modification times, so another process does not write it again and change its time.
        Returns the path of the file, or None if no output is stale or failed.
        """
        current_time, lines = time.time(), [f"{note}\n" for note in failures]
        stamps = [note.stat().st_mtime_ns for note in failures]
        for (stage, name), reason in self.stale().items():
            record = self.record(stage, name)
            if record.stat().st_mtime > current_time:  # written by a machine with another clock
                os.utime(record, (current_time, current_time))
            stamps.append(record.stat().st_mtime_ns)
            lines.append(f"{stage} {name}: {reason}\n")
        path = folder / f"{hashlib.sha256(f'{lines} {stamps}'.encode()).hexdigest()[:16]}.txt"
        if lines and not path.exists():
            write_text(path, "".join(lines))
        return path if lines else None

    def staleness_reason(self, stage: str, name: str) -> str:
        """Return the reason why the rows of a job are stale, or an empty text."""
        stage = making_stage(self.plan, name) if stage in MAKING else stage
        if name not in self.plan[stage]:
            return UNPLANNED
        output = self.check(stage, name)
        return "" if output.current else output.detail or output.state

    def dependencies(self, stage: str, name: str) -> list[tuple[str, str]]:
        """Return (stage, name) of the jobs whose outputs a job reads."""
        if stage in (*TIMED, "exact"):
            return []
        if stage == "data":
            owner = self.plan["data"][name]["tokenizer"]
            return [("data", owner)] if owner else []
        if stage in MEASURED:
            return [(making_stage(self.plan, name), name)]
        job = self.plan[stage][name]
        inputs = [("data", job["data"]), *([("train", job["init"])] if job.get("init") else [])]
        return [*inputs, *([("speed", job["study"])] if job.get("equal_time") else [])]

    def folder(self, stage: str, name: str) -> Path:
        """Return the folder of a job's output."""
        if stage == "data":
            return Path(self.plan["data"][name]["out"])
        return Path(self.plan["results"], "" if stage == "exact" else name)

    def record(self, stage: str, name: str) -> Path:
        """Return the path of a job's record."""
        return self.folder(stage, name) / RECORDS[stage]

    def _compare(self, stage: str, name: str) -> OutputState:
        path = self.record(stage, name)
        record = self._content(path)
        if record is None:
            return OutputState("missing")
        if isinstance(record, UserError):
            return OutputState("failed", str(record))
        differences = set()
        for path_in_record, (label, value) in self._expected(stage, name).items():
            recorded: Any = record
            for key in path_in_record.split("."):
                recorded = recorded.get(key) if isinstance(recorded, dict) else None
            differences |= set() if value in (None, recorded) else {label}  # None: the expected value is unknown
        if "spec_hash" in record and "spec" in record and fingerprint(record["spec"]) != record["spec_hash"]:
            differences.add("configuration")  # the record was edited
        reasons = [f"changed since: {', '.join(sorted(differences))}"] if differences else []
        if self.plan[stage][name].get("keep_optimizer") and not (path.parent / OPTIMIZER).exists():
            reasons.append(f"no {OPTIMIZER}, which another run needs")
        reasons += _damaged_files(stage, path.parent, record)
        inputs = {job: self.check(*job) for job in self.dependencies(stage, name)}
        reasons += [f"{job[1]} is {output.state}" for job, output in inputs.items() if not output.current]
        return OutputState("stale", "; ".join(reasons)) if reasons else OutputState(record.get("status", "finished"))

    def _expected(self, stage: str, name: str) -> Expected:
        """Return the values that an up-to-date record has."""
        job = self.plan[stage][name]
        expected: Expected = {} if job.get("given") else {"code_hash": ("code", job["code"])}
        if stage == "data":
            expected["recipe"] = "configuration", job["recipe"]
            expected["source_fingerprint"] = "source files", job["source"]
            for owner in self.dependencies(stage, name):
                expected["tokenizer"] = "tokenizer", self._recorded(*owner, "tokenizer")
        elif stage in TIMED:
            expected["configuration"] = "configuration", job["configuration"]
        elif stage in MEASURED:
            (run,) = self.dependencies(stage, name)
            expected["weights_sha256"] = "weights", self._recorded(*run, "weights_sha256")
            expected["settings"] = "configuration", job["settings"] or None
            expected["suites"] = "suites", job["suites"] or None
        elif stage in MAKING:
            expected["weights_sha256"] = "weights", job.get("weights")
            expected["data.fingerprint"] = "data", self._recorded("data", job["data"], "fingerprint")
            if job.get("equal_time"):
                # the recorded spec has steps computed from measured times, so its hash differs from the plan's
                expected["equal_time.spec_hash"] = "configuration", job["spec_hash"]
                rows_hash = self._recorded("speed", job["study"], "rows_sha256")
                expected["equal_time.rows_sha256"] = "measured speed", rows_hash
            else:
                expected["spec_hash"] = "configuration", job["spec_hash"]
            if job.get("init"):
                expected["init.weights_sha256"] = "parent", self._recorded("train", job["init"], "weights_sha256")
        return expected

    def _recorded(self, stage: str, name: str, key: str) -> Any:
        """Return a value of a job's current record, or None if the record is missing or cannot be read."""
        record = self._content(self.record(stage, name))
        return record.get(key) if isinstance(record, dict) else None

    def _content(self, path: Path) -> Any:
        """Return a record, the error if it cannot be read, or None if it is missing."""
        if path not in self._records:
            try:
                self._records[path] = read_record(path) if path.exists() else None
            except UserError as error:
                self._records[path] = error
        return self._records[path]


def _damaged_files(stage: str, folder: Path, record: dict[str, Any]) -> list[str]:
    """Return a message for each file of an output that is missing or damaged."""
    row_hashes, weights = record.get("rows_sha256"), folder / WEIGHTS
    files = row_hashes if isinstance(row_hashes, dict) else ()
    missing = [f"{file} is missing" for file in files if not (folder / file).exists()]
    damaged = stage == "train" and weights.exists() and not _is_complete(weights)
    return [*missing, f"{WEIGHTS} is damaged"] if damaged else missing


def _is_complete(weights: Path) -> bool:
    """Return whether a safetensors file has the length in its header. Readers of the weights check the SHA-256."""
    with open(weights, "rb") as file, suppress(ValueError, LookupError, TypeError, AttributeError):
        size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, size)))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        return size == 8 + length + max(ends, default=0)
    return False


def failed_syncs(results: Path) -> int:
    """Return the number of failed syncs with MLflow. The DAG reruns the rule `track` when the number increases."""
    try:
        failures = read_json(results / "mlflow.json")["failures"]
    except (UserError, OSError, KeyError, TypeError):
        return 0
    return failures if isinstance(failures, int) else 0
