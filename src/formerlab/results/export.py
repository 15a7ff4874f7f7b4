"""The only bridge from live results to the cached ones that figures are redrawn from."""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from pandas import DataFrame

from formerlab import __version__
from formerlab.errors import UserError
from formerlab.files import beside, read_json, remove_abandoned, replacing, write_json
from formerlab.results.exported import RUNS, ExportedStudy, write_study
from formerlab.results.read import DATA, SIZES, Objection, Results, required_columns
from formerlab.results.schema import UNPLANNED
from formerlab.results.stages import STAGES

Rows = dict[str, dict[str, DataFrame]]
Stages = dict[str, dict[str, Any]]
RUN = "run.json"
EXACT = "exact.csv"
"""Numbers of the exact claims (report/claims/table.py)."""


def export(
    live_root: Path,
    cached_root: Path,
    objection: Objection | None = None,
    seeds: Mapping[str, Set[int]] | None = None,
    *,
    keep: bool = False,
) -> dict[str, Any]:
    """Bring the rows (never the weights) of finished runs from results/live/<scale> to results/cached/<scale>.

    There they lie in few files (results/exported.py). A run goes along when all its `seeds` are there, by study/run
    (where they are not given: all that any run of its study has), and every file can be read. A study is replaced as a
    whole, in one rename, and only when it has such a run; studies that are not in `live_root` stay as they are. With
    `keep`, exported runs that are not among the new ones stay too: those made on another machine, say. What
    `objection` objects to, as not made by the plan's configuration and code, stays behind like what is not finished.
    Returns the ids of runs by what became of them: exported, diverged (exported too: divergence is a result) and
    unfinished (with the reason). Raises UserError for damaged files and for a mix of scales or of data.
    """
    if live_root.resolve().name != cached_root.resolve().name:
        raise UserError(
            f"{cached_root}: scale '{cached_root.name}' is not that of {live_root}; export to {live_root.name} instead"
        )
    results = Results(live_root, objection)
    report: dict[str, Any] = {"exported": [], "diverged": [], "unfinished": {}}
    for study in sorted({path.parts[-3] for path in live_root.glob("*/*/seed*/")}):
        records = [record for record in results.records() if record["study"] == study]
        unfinished = _unfinished(results, study, records, seeds or {})
        complete = [record for record in records if record["id"] not in unfinished]
        if complete:
            rows, stages = _read(results, study, complete)
            kept = ExportedStudy(cached_root / study) if keep and (cached_root / study / RUNS).exists() else None
            written = complete if kept is None else _with_kept(kept, complete, rows, stages)
            _check_data(results.root / study, written)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            stamp = {"scale": results.scale, "exported": now, "formerlab": __version__, "unfinished": unfinished}
            with _replacing(cached_root / study) as fresh:
                write_study(fresh, stamp, written, rows, stages)
        report["exported"] += [record["id"] for record in complete]
        report["diverged"] += [record["id"] for record in complete if record["status"] == "diverged"]
        report["unfinished"] |= unfinished
    if len(results.rows_of_study(EXACT, "")):
        with replacing(cached_root / EXACT) as temporary:
            shutil.copyfile(live_root / EXACT, temporary)
    if report["exported"]:
        _write_data(live_root, cached_root / DATA)
    if not report["exported"]:
        first = "".join(f" ({name}: {reason})" for name, reason in list(report["unfinished"].items())[:1])
        raise UserError(f"{live_root}: no complete run to export{first}; finish the seeds of a study first")
    report["left_out"] = [line for line in results.left_out() if not line.startswith("train ")]
    return report


def _write_data(live_root: Path, path: Path) -> None:
    """Write what rows of texts are read with, by data set: fingerprint, and bytes and tokens of every split."""
    found = read_json(path) if path.exists() else {}
    for manifest in sorted(live_root.glob("data/*/manifest.json")):
        content = read_json(manifest)
        sizes = {split: {key: entry.get(key) for key in SIZES} for split, entry in content["splits"].items()}
        found[manifest.parent.name] = {"fingerprint": content["fingerprint"], "splits": sizes}
    if found:
        write_json(path, found)


def _unfinished(
    results: Results, study: str, records: Sequence[dict[str, Any]], planned: Mapping[str, Set[int]]
) -> dict[str, str]:
    """Return, by id, why runs of a study are not complete: unfinished, not as planned, or with fewer seeds than others.

    A seed that is not planned at all is not waited for.
    """
    folders = {"/".join(path.parts[-3:]) for path in (results.root / study).glob("*/seed*/")}
    absent = sorted(folders - {record["id"] for record in records})
    reasons = {name: "not finished" for name in absent}
    if results.objection is not None:
        reasons |= {name: reason for name in absent if (reason := results.objection("train", name)) != "missing"}
    seeds = defaultdict(set)
    for record in records:
        seeds[record["run"]].add(record["seed"])
    wanted = {int(name.rpartition("seed")[2]) for name in folders if reasons.get(name) != UNPLANNED}
    for record in records:
        of_run = planned.get(f"{study}/{record['run']}", wanted)
        if lacking := sorted(of_run - seeds[record["run"]]):
            reasons[record["id"]] = f"its run lacks seed {', '.join(map(str, lacking))}"
    return reasons


def _check_data(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """See that one study rests on one state of its data."""
    by_name: dict[str, set[str]] = defaultdict(set)
    for record in records:
        by_name[record["data"]["name"]].add(record["data"]["fingerprint"])
    if mixed := [name for name, prints in by_name.items() if len(prints) > 1]:
        raise UserError(f"{folder}: runs read different states of data '{mixed[0]}'; train the older again")


def _read(results: Results, study: str, records: Sequence[dict[str, Any]]) -> tuple[Rows, Stages]:
    """Read every file of rows by file and owner, and the records of stages by owner and stage."""
    rows: Rows = defaultdict(dict)
    stages: Stages = defaultdict(dict)
    for owner, stage in product([*(record["id"] for record in records), study], STAGES.values()):
        for name in stage.tables:
            found = results.rows_of(name, owner)
            if found is not None and not results.leaves_out(name, owner):
                rows[name][owner] = found
        record = results.root / owner / stage.record
        if stage.record != RUN and record.exists() and not results.leaves_out(stage.record, owner):
            stages[owner][stage.name] = results.stage_record(owner, stage.name)
    return rows, stages


def _with_kept(
    kept: ExportedStudy, complete: Sequence[dict[str, Any]], rows: Rows, stages: Stages
) -> list[dict[str, Any]]:
    """Add to new rows and stages those that were exported before, and return the records of all runs in their order.

    A run whose rows are new is replaced with all its seeds, and so is a file of the study.
    """
    new = {record["run"] for record in complete}
    older = [record for record in kept.records() if record["run"] not in new]
    for owner in [*(record["id"] for record in older), kept.name]:
        for name in kept.files():
            if (found := kept.rows(name, owner, required_columns(name))) is not None:
                rows[name].setdefault(owner, found)
        if owner in kept.stages:
            stages[owner] = kept.stages[owner] | stages[owner]
    records = sorted([*older, *complete], key=lambda record: (record["run"], record["seed"]))
    for name, frames in rows.items():
        rows[name] = {owner: frames[owner] for owner in [*(one["id"] for one in records), kept.name] if owner in frames}
    return records


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which takes its place where nothing goes wrong."""
    fresh, old = beside(target, "new"), beside(target, "old")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        yield fresh
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)
        remove_abandoned(target.parent, target.name)
    finally:
        if old.exists() and not target.exists():
            os.replace(old, target)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(fresh, ignore_errors=True)
