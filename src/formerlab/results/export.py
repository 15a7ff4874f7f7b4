"""Export live results to the cached results (results/read.py describes the format).

Equal rows give bit-identical files.
"""

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.errors import UserError
from formerlab.files import RECORD_HASH, locked, record_hash, replacing, write_text
from formerlab.results import read
from formerlab.results.read import KEYS, Record, Results, StalenessReason
from formerlab.results.schema import EXACT, UNPLANNED
from formerlab.results.stages import MAKING, STAGES, TABLES, WRITER

Rows = dict[str, DataFrame]
"""Rows by file name (`test.csv`): rows of runs, which begin with run and seed, or rows of a study."""
Stages = dict[str, dict[str, Any]]
"""Records of the measuring stages, by run or study and then by stage."""


def export(
    live_root: Path,
    cached_root: Path,
    staleness_reason: StalenessReason | None = None,
    seeds: Mapping[str, Set[int]] | None = None,
) -> dict[str, Any]:
    """Export the rows of finished runs, without weights, from results/live/<scale> to results/cached/<scale>.

    A run is exported if all its planned seeds are finished and `staleness_reason` returns no reason. `seeds` gives the
    planned seeds by study/run; the default is all seeds that any run of the study has. An exported run replaces all
    seeds of its previous export; other exported runs are kept. A study is replaced as a whole. If an export is killed
    while it replaces a study, the next export restores the old folder.

    Returns `exported` (ids of exported runs), `diverged` (ids of the exported runs that diverged), `unfinished` (reason
    by id of an incomplete run), and `left_out` (measurements that were not exported). Raises UserError for damaged
    files, if scales or versions of data differ, if no run is complete, and if another export is running.
    """
    if live_root.resolve().name != cached_root.resolve().name:
        difference = f"scale '{cached_root.name}' differs from {live_root}"
        raise UserError(f"{cached_root}: {difference}; export to {live_root.name} instead")
    results = Results(live_root, staleness_reason)
    for old in cached_root.glob(".*.old"):
        with _locked_folders(cached_root / old.name[1:].removesuffix(".old")):
            pass  # restores the study of a killed export
    report: dict[str, Any] = {"exported": [], "diverged": [], "unfinished": {}}
    for study in sorted({path.parts[-3] for path in live_root.glob("*/*/seed*/")}):
        records = [record for record in results.records() if record["study"] == study]
        unfinished = _unfinished(results, study, records, seeds or {})
        complete = [record for record in records if record["id"] not in unfinished]
        if complete:
            with _replacing(cached_root / study) as fresh:
                _export_study(results, cached_root / study, complete, fresh)
        report["exported"] += [record["id"] for record in complete]
        report["diverged"] += [record["id"] for record in complete if record["status"] == "diverged"]
        report["unfinished"] |= unfinished
    if len(results.rows_of(EXACT, "")):
        with replacing(cached_root / EXACT) as temporary:
            shutil.copyfile(live_root / EXACT, temporary)
    if not report["exported"]:
        first = "".join(f" ({name}: {reason})" for name, reason in list(report["unfinished"].items())[:1])
        raise UserError(f"{live_root}: no complete run to export{first}; finish all seeds of a run first")
    report["left_out"] = [line for line in results.left_out() if not line.startswith("train ")]
    return report


def _unfinished(
    results: Results, study: str, records: Sequence[Record], planned: Mapping[str, Set[int]]
) -> dict[str, str]:
    """Return a reason for each incomplete run of a study, by id: the run is unfinished or stale, or seeds are missing.

    `planned` are the required seeds by study/run. Other runs need all seeds that the study has, except seeds that are
    not in the plan.
    """
    folders = {"/".join(path.parts[-3:]) for path in (results.root / study).glob("*/seed*/")}
    reasons = {}
    for name in sorted(folders - {record["id"] for record in records}):
        reason = results.staleness_reason("train", name) if results.staleness_reason is not None else ""
        reasons[name] = "not finished" if reason in ("", "missing") else reason
    seeds = defaultdict(set)
    for record in records:
        seeds[record["run"]].add(record["seed"])
    existing_seeds = {int(name.rpartition("seed")[2]) for name in folders if reasons.get(name) != UNPLANNED}
    for record in records:
        if missing := sorted(planned.get(f"{study}/{record['run']}", existing_seeds) - seeds[record["run"]]):
            reasons[record["id"]] = f"its run is missing seed {', '.join(map(str, missing))}"
    return reasons


def _export_study(results: Results, target: Path, records: list[Record], fresh: Path) -> None:
    """Write `records` with their rows, and the runs of `target` that have no new rows, into the folder `fresh`.

    The caller must lock `target`.
    """
    rows, stages = _read(results, target.name, records)
    if (target / read.RECORDS).exists():
        cached, new = Results(target.parent), {record["run"] for record in records}
        older = [record for record in cached.records() if record["study"] == target.name and record["run"] not in new]
        records = sorted([*older, *records], key=lambda record: (record["run"], record["seed"]))
        older_rows, older_stages = _read(cached, target.name, older)
        for file, frame in older_rows.items():
            if "seed" in frame and file in rows:
                rows[file] = pd.concat([frame, rows[file]]).sort_values(KEYS[1:], kind="stable", ignore_index=True)
            rows.setdefault(file, frame)
        stages = {owner: older_stages.get(owner, {}) | stages.get(owner, {}) for owner in older_stages | stages}
    fingerprints: dict[str, str] = {}
    for data in (record["data"] for record in records):
        if fingerprints.setdefault(data["name"], data["fingerprint"]) != data["fingerprint"]:
            fault = f"runs used different versions of data '{data['name']}'"
            raise UserError(f"{results.root / target.name}: {fault}; train the older runs again, or delete {target}")
    write_study(fresh, records, rows, stages)


def _read(results: Results, study: str, records: Sequence[Record]) -> tuple[Rows, Stages]:
    """Return the rows and stage records of a study and of its runs, live or exported."""
    runs, rows, stages = sorted({record["run"] for record in records}), Rows(), Stages()
    for file in TABLES:
        per_run = STAGES[WRITER[file]].unit == "run"
        frame = results.rows(file, study, runs).drop(columns="study") if per_run else results.rows_of(file, study)
        if len(frame):
            rows[file] = frame
    for owner in [*(record["id"] for record in records), study]:
        for name in (name for name in STAGES if name not in MAKING):
            if record := results.stage_record(owner, name):
                stages.setdefault(owner, {})[name] = record
    return rows, stages


@contextmanager
def _locked_folders(target: Path) -> Iterator[tuple[Path, Path]]:
    """Lock an exported study during the block; yield unused paths for its new and its old folder.

    If an export was killed between its two renames, the old folder is renamed to `target`.
    """
    fresh, old, lock = (target.with_name(f".{target.name}.{ending}") for ending in ("new", "old", "lock"))

    def clear() -> None:
        if old.exists() and not target.exists():
            os.replace(old, target)
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)

    with locked(lock, lambda: f"{target}: another export of this study is running; wait for it and export again"):
        try:
            clear()
            yield fresh, old
        finally:
            clear()
            lock.unlink(missing_ok=True)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `target` if the block succeeds, under the lock of `target`."""
    with _locked_folders(target) as (fresh, old):
        fresh.mkdir()
        yield fresh
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)


def _without_host(record: Record | None) -> Record | None:
    """Return a record without the host name and with a new hash."""
    if record is None or "host" not in record:
        return record
    public = {key: value for key, value in record.items() if key not in ("host", RECORD_HASH)}
    return public | {RECORD_HASH: record_hash(public)} if RECORD_HASH in record else public


def write_study(folder: Path, records: Sequence[Record], rows: Rows, stages: Stages) -> None:
    """Write records.jsonl and the Parquet files of a study into an empty folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    runs = {record["id"]: record for record in records}
    owners = [*runs, *(owner for owner in stages if owner not in runs)]  # the line of the study is the last
    lines: list[dict[str, Any]] = []
    for owner in owners:
        stage_records = {stage: _without_host(record) for stage, record in stages.get(owner, {}).items()}
        lines.append({"id": owner, "record": _without_host(runs.get(owner)), "stages": stage_records})
    write_text(folder / read.RECORDS, "".join(f"{json.dumps(line)}\n" for line in lines))
    for name, frame in rows.items():
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        float_columns = [field.name for field in table.schema if pa.types.is_floating(field.type)]
        with replacing(folder / f"{Path(name).stem}.parquet") as temporary:
            pq.write_table(
                table,
                temporary,
                compression="zstd",
                compression_level=9,
                use_dictionary=[name for name in table.column_names if name not in float_columns],
                use_byte_stream_split=float_columns,
                store_schema=False,
            )
