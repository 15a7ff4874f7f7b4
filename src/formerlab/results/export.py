"""The only way from live results to the cached ones that figures are redrawn from (results/read.py has their form).

The same rows give the same bytes, so version control says whether they changed.
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
from formerlab.results.read import KEYS, Objection, Record, Results
from formerlab.results.schema import EXACT, UNPLANNED
from formerlab.results.stages import MAKING, STAGES, TABLES, WRITER

Rows = dict[str, DataFrame]
"""By file (`test.csv`): rows of runs with run and seed in front, or those of a study."""
Stages = dict[str, dict[str, Any]]
"""Records of other stages than training, by run or study, then by stage."""


def export(
    live_root: Path, cached_root: Path, objection: Objection | None = None, seeds: Mapping[str, Set[int]] | None = None
) -> dict[str, Any]:
    """Bring the rows (never the weights) of finished runs from results/live/<scale> to results/cached/<scale>.

    A run goes along when all its `seeds` are there, by study/run (where they are not given: all that any run of its
    study has), and every file can be read. It replaces the exported one with all its seeds; other exported runs, made
    on another machine, say, stay. A study is written as a whole, in one rename. Runs to which `objection` objects, as
    not made by the plan's configuration and code, stay behind like unfinished ones.
    Returns the ids of runs by what became of them: exported, diverged (exported too: divergence is a result) and
    unfinished (with the reason). Raises UserError for damaged files and for a mix of scales or of data.
    """
    if live_root.resolve().name != cached_root.resolve().name:
        raise UserError(
            f"{cached_root}: scale '{cached_root.name}' is not that of {live_root}; export to {live_root.name} instead"
        )
    results = Results(live_root, objection)
    for old in cached_root.glob(".*.old"):
        with _claimed(cached_root / old.name[1:].removesuffix(".old")):
            pass  # it brings back what a killed export took away
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
        raise UserError(f"{live_root}: no complete run to export{first}; finish the seeds of a study first")
    report["left_out"] = [line for line in results.left_out() if not line.startswith("train ")]
    return report


def _unfinished(
    results: Results, study: str, records: Sequence[Record], planned: Mapping[str, Set[int]]
) -> dict[str, str]:
    """Return, by id, why runs of a study are not complete: unfinished, not as planned, or with fewer seeds than others.

    A seed that is not planned at all is not waited for.
    """
    folders = {"/".join(path.parts[-3:]) for path in (results.root / study).glob("*/seed*/")}
    reasons = {}
    for name in sorted(folders - {record["id"] for record in records}):
        reason = results.objection("train", name) if results.objection is not None else ""
        reasons[name] = "not finished" if reason in ("", "missing") else reason
    seeds = defaultdict(set)
    for record in records:
        seeds[record["run"]].add(record["seed"])
    wanted = {int(name.rpartition("seed")[2]) for name in folders if reasons.get(name) != UNPLANNED}
    for record in records:
        if lacking := sorted(planned.get(f"{study}/{record['run']}", wanted) - seeds[record["run"]]):
            reasons[record["id"]] = f"its run lacks seed {', '.join(map(str, lacking))}"
    return reasons


def _export_study(results: Results, target: Path, records: list[Record], fresh: Path) -> None:
    """Write the runs of a study into the folder `fresh`, beside those of `target` that are not among them with any
    seed.

    A file of the study replaces the one before it. The caller holds the lock of `target`.
    """
    rows, stages = _read(results, target.name, records)
    if (target / read.RECORDS).exists():
        before, new = Results(target.parent), {record["run"] for record in records}
        older = [one for one in before.records() if one["study"] == target.name and one["run"] not in new]
        records = sorted([*older, *records], key=lambda record: (record["run"], record["seed"]))
        rows_before, stages_before = _read(before, target.name, older)
        for file, frame in rows_before.items():
            if "seed" in frame and file in rows:
                rows[file] = pd.concat([frame, rows[file]]).sort_values(KEYS[1:], kind="stable", ignore_index=True)
            rows.setdefault(file, frame)
        stages = {owner: stages_before.get(owner, {}) | stages.get(owner, {}) for owner in stages_before | stages}
    prints: dict[str, str] = {}
    for data in (record["data"] for record in records):
        if prints.setdefault(data["name"], data["fingerprint"]) != data["fingerprint"]:
            what = f"runs read different states of data '{data['name']}'"
            raise UserError(f"{results.root / target.name}: {what}; train the older again, or delete {target}")
    write_study(fresh, records, rows, stages)


def _read(results: Results, study: str, records: Sequence[Record]) -> tuple[Rows, Stages]:
    """Return rows and records of runs of a study and of the study itself, in either form."""
    runs, rows, stages = sorted({record["run"] for record in records}), Rows(), Stages()
    for file in TABLES:
        of_runs = STAGES[WRITER[file]].unit == "run"
        found = results.rows(file, study, runs).drop(columns="study") if of_runs else results.rows_of(file, study)
        if len(found):
            rows[file] = found
    for owner in [*(record["id"] for record in records), study]:
        for name in (name for name in STAGES if name not in MAKING):
            if record := results.stage_record(owner, name):
                stages.setdefault(owner, {})[name] = record
    return rows, stages


@contextmanager
def _claimed(target: Path) -> Iterator[tuple[Path, Path]]:
    """Hold the lock of an exported study; yield the paths of its next and its last folder, neither of which exists.

    If an export was killed between its two renames, its last folder is the study: it gets its name back first.
    """
    fresh, old, lock = (target.with_name(f".{target.name}.{ending}") for ending in ("new", "old", "lock"))

    def clear() -> None:
        if old.exists() and not target.exists():
            os.replace(old, target)
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)

    with locked(lock, lambda: f"{target}: another export of it is under way; wait for it and export again"):
        try:
            clear()
            yield fresh, old
        finally:
            clear()
            lock.unlink(missing_ok=True)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `target` if the block succeeds; no other export touches `target` meanwhile."""
    with _claimed(target) as (fresh, old):
        fresh.mkdir()
        yield fresh
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)


def _without_host(record: Record | None) -> Record | None:
    """Return a record without the name of the machine, which is nobody else's business."""
    if record is None or "host" not in record:
        return record
    told = {key: value for key, value in record.items() if key not in ("host", RECORD_HASH)}
    return told | {RECORD_HASH: record_hash(told)} if RECORD_HASH in record else told


def write_study(folder: Path, records: Sequence[Record], rows: Rows, stages: Stages) -> None:
    """Write a study into an empty folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    runs = {record["id"]: record for record in records}
    owners = [*runs, *(owner for owner in stages if owner not in runs)]  # the study's own stages come last
    lines: list[dict[str, Any]] = []
    for owner in owners:
        of_stages = {stage: _without_host(record) for stage, record in stages.get(owner, {}).items()}
        lines.append({"id": owner, "record": _without_host(runs.get(owner)), "stages": of_stages})
    write_text(folder / read.RECORDS, "".join(f"{json.dumps(line)}\n" for line in lines))
    for name, frame in rows.items():
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        fractions = [field.name for field in table.schema if pa.types.is_floating(field.type)]
        with replacing(folder / f"{Path(name).stem}.parquet") as temporary:
            pq.write_table(
                table,
                temporary,
                compression="zstd",
                compression_level=9,
                use_dictionary=[name for name in table.column_names if name not in fractions],
                use_byte_stream_split=fractions,
                store_schema=False,
            )
