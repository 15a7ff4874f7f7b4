"""The only bridge from live results to the cached ones that figures are redrawn from."""

import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from formerlab import __version__
from formerlab.errors import UserError
from formerlab.files import beside, read_json, remove_abandoned, replacing, sha256, write_json
from formerlab.results.measures import CLAIMS, UNPLANNED
from formerlab.results.read import TRAINED, Objection, Results, read_rows

PROVENANCE = "provenance.json"
EXACT = "exact.csv"
"""Numbers of the exact claims (report/claims/table.py)."""
_KEPT = ("run.json", "git", "versions", "host", "device", "code_hash", "spec_hash", "data", "started", "finished")


def export(live_root: Path, cached_root: Path, objection: Objection | None = None) -> dict[str, Any]:
    """Copy the rows (never the weights) of finished runs from results/live/<scale> to results/cached/<scale>.

    A run is copied when all seeds of its study are there and every file can be read. A study is replaced as a whole, in
    one rename, and only when it has something to copy; studies that are not in `live_root` stay as they are. What
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
        unfinished = _unfinished(results, study, records)
        complete = [record for record in records if record["id"] not in unfinished]
        _check(results, study, complete)
        if complete:
            _replace(results, cached_root / study, complete, unfinished)
        report["exported"] += [record["id"] for record in complete]
        report["diverged"] += [record["id"] for record in complete if record["status"] == "diverged"]
        report["unfinished"] |= unfinished
    if (live_root / EXACT).exists() and not results.leaves_out(EXACT, CLAIMS):
        with replacing(cached_root / EXACT) as temporary:
            shutil.copyfile(live_root / EXACT, temporary)
    if not report["exported"]:
        first = "".join(f" ({name}: {reason})" for name, reason in list(report["unfinished"].items())[:1])
        raise UserError(f"{live_root}: no complete run to export{first}; finish the seeds of a study first")
    report["left_out"] = [line for line in results.left_out() if not line.startswith("train ")]
    return report


def _unfinished(results: Results, study: str, records: Sequence[dict[str, Any]]) -> dict[str, str]:
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
        if lacking := sorted(wanted - seeds[record["run"]]):
            reasons[record["id"]] = f"its run lacks seed {', '.join(map(str, lacking))}"
    return reasons


def _check(results: Results, study: str, records: Sequence[dict[str, Any]]) -> None:
    """Read every file, and see that one study rests on one state of its data."""
    for record in records:
        folder = results.folder(study, record["run"], record["seed"])
        if absent := [name for name in TRAINED if not (folder / name).exists()]:
            raise UserError(f"{folder / absent[0]}: missing, although the run is finished; train it again")
        for path in sorted(folder.glob("*.csv")):
            read_rows(path)
    by_name: dict[str, set[str]] = defaultdict(set)
    for record in records:
        by_name[record["data"]["name"]].add(record["data"]["fingerprint"])
    if mixed := [name for name, prints in by_name.items() if len(prints) > 1]:
        raise UserError(
            f"{results.root / study}: runs read different states of data '{mixed[0]}'; train the older again"
        )


def _replace(results: Results, target: Path, records: Sequence[dict[str, Any]], unfinished: dict[str, str]) -> None:
    """Write the study's folder beside its place and swap the two."""
    fresh, old = beside(target, "new"), beside(target, "old")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        runs = {}
        for record in records:
            folder = results.folder(record["study"], record["run"], record["seed"])
            copy = fresh / record["run"] / folder.name
            copy.mkdir(parents=True)
            for path in sorted(path for path in folder.iterdir() if _is_row_file(path)):
                if not results.leaves_out(path.name, record["id"]):
                    shutil.copyfile(path, copy / path.name)
            files = {path.name: sha256(path) for path in sorted(copy.iterdir())}
            runs[record["id"]] = {key: record[key] for key in _KEPT if key in record} | {"files_sha256": files}
        of_study = results.root / target.name
        for path in sorted(path for path in of_study.iterdir() if path.is_file() and _is_row_file(path)):
            if not results.leaves_out(path.name, target.name):
                shutil.copyfile(path, fresh / path.name)
        files = {path.name: sha256(path) for path in sorted(fresh.iterdir()) if path.is_file()}
        stamp = {"schema": 1, "scale": results.scale, "exported": datetime.now(UTC).isoformat(timespec="seconds")}
        write_json(
            fresh / PROVENANCE,
            stamp | {"formerlab": __version__, "runs": runs, "files_sha256": files, "unfinished": unfinished},
        )
        if target.exists():
            os.replace(target, old)
        os.replace(fresh, target)
        remove_abandoned(target.parent, target.name)
    finally:
        if old.exists() and not target.exists():
            os.replace(old, target)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(fresh, ignore_errors=True)


def _is_row_file(path: Path) -> bool:
    return path.suffix in (".csv", ".json", ".yaml") and not path.name.startswith(".")


def verify(cached_root: Path) -> None:
    """Raise UserError where a cached file is not the one that was exported."""
    for provenance in sorted(cached_root.glob(f"*/{PROVENANCE}")):
        record = read_json(provenance)
        of_study = {provenance.parent.name: {"files_sha256": record.get("files_sha256", {})}}
        for name, run in (of_study | record["runs"]).items():
            for file, digest in run["files_sha256"].items():
                path = cached_root / name / file
                if not path.exists() or sha256(path) != digest:
                    raise UserError(f"{path}: not the exported file; restore it from version control or export again")
