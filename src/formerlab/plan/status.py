"""What of a plan is done, under way, failed, outdated or missing."""

from collections import Counter
from pathlib import Path
from typing import Any

from formerlab.commands.context import read_note
from formerlab.errors import UserError
from formerlab.evaluation.measures import TIMED
from formerlab.files import read_json
from formerlab.plan.layers import at

PROBLEMS = ("failed", "killed", "stopped")
DONE = ("finished", "diverged")
READABLE = {
    "spec_hash": "configuration",
    "recipe": "configuration",
    "sweep": "configuration",
    "suites": "suites",
    "settings": "configuration",
    "code_hash": "code",
    "source_fingerprint": "text",
    "data.fingerprint": "data",
    "init.weights_sha256": "parent",
    "configuration": "configuration",
    "equal_time.spec_hash": "configuration",
    "equal_time.rows_sha256": "measured speed",
    "weights_sha256": "weights",
}
FINISHED = {
    "data": "manifest.json",
    "speed": "speed.json",
    "decode": "decode.json",
    "train": "run.json",
    "zeroshot": "zeroshot.json",
    "prune": "prune.json",
    "flow": "flow.json",
    "translate": "translate.json",
    "complexity": "complexity.json",
}


def states(plan: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return (stage, job, state, detail) of every job."""
    rows = []
    known: dict[tuple[str, str], str] = {}
    for stage in FINISHED:
        for name in plan[stage]:
            state, detail = _state(stage, name, plan)
            unfinished = [base for base in _bases(stage, name, plan) if known[base] not in DONE]
            if state in DONE and unfinished:
                state, detail = "stale", "; ".join(f"{base[1]} is {known[base]}" for base in unfinished)
            known[stage, name] = state
            rows.append((stage, name, state, detail))
    return rows


def report(plan: dict[str, Any], *, problems_only: bool = False) -> str:
    """Return the states as aligned text, with counts."""
    rows = states(plan)
    shown = [row for row in rows if not problems_only or row[2] in PROBLEMS]
    if problems_only and not shown:
        return "no stage failed"
    widths = [max(len(row[column]) for row in [*shown, ("", "", "", "")]) for column in range(3)]
    lines = ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]).rstrip() for row in shown]
    counts = Counter(row[2] for row in rows)
    return "\n".join(
        [*lines, "", f"scale {plan['scale']}: " + ", ".join(f"{n} {state}" for state, n in counts.items())]
    )


def _bases(stage: str, name: str, plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the jobs whose products a job reads; they stand before it in the plan."""
    if stage in TIMED:
        return []
    if stage == "data":
        above = plan["data"][name]["tokenizer"]
        return [("data", above)] if above else []
    if stage != "train":
        return [("train", name)]
    job = plan["train"][name]
    bases = [("data", job["data"]), *([("train", job["init"])] if job["init"] else [])]
    return [*bases, *([("speed", job["study"])] if job.get("equal_time") else [])]


def _expected(stage: str, name: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Return what the finished product must say to be up to date."""
    job = plan[stage][name]
    if stage == "data":
        return {"recipe": job["recipe"], "source_fingerprint": job["source"], "code_hash": job["code"]}
    if stage in TIMED:
        return {"code_hash": job["code"], "configuration": job["configuration"]}
    if stage != "train":
        weights = _said_by(Path(plan["results"], name, "run.json"), "weights_sha256")
        asked = {key: job[key] for key in ("sweep", "settings", "suites") if job.get(key)}
        return {"code_hash": job["code"], "weights_sha256": weights} | asked
    expected = {"spec_hash": job["spec_hash"], "code_hash": job["code"]}
    if job.get("equal_time"):  # the record's own spec has the steps that equal time bought
        expected["equal_time.spec_hash"] = expected.pop("spec_hash")
        rows = _said_by(Path(plan["results"], job["study"], "speed.json"), "rows_sha256")
        expected["equal_time.rows_sha256"] = rows
    expected["data.fingerprint"] = _said_by(Path(plan["data"][job["data"]]["out"], "manifest.json"), "fingerprint")
    if job["init"]:
        expected["init.weights_sha256"] = _said_by(Path(plan["results"], job["init"], "run.json"), "weights_sha256")
    return expected


def _said_by(path: Path, key: str) -> Any:
    """Return what a product says now; what does not exist or cannot be read says nothing."""
    try:
        return read_json(path)[key]
    except (UserError, KeyError):
        return None


def _state(stage: str, name: str, plan: dict[str, Any]) -> tuple[str, str]:
    """Return state and detail of a job by itself."""
    folder = Path(plan["data"][name]["out"]) if stage == "data" else Path(plan["results"], name)
    product = folder / FINISHED[stage]
    note = read_note(stage, folder)
    if note is not None:
        log = f"; log {note['log']}" if note["log"] else ""
        return note["state"], f"{note.get('reason', 'since ' + note['since'])}{log}"
    if not product.exists():
        return "missing", ""
    try:
        record = read_json(product)
    except UserError as error:
        return "failed", str(error)
    expected = _expected(stage, name, plan)
    changed = {
        READABLE[key] for key, value in expected.items() if value is not None and at(record, key.split(".")) != value
    }
    if changed:
        return "stale", "changed since: " + ", ".join(sorted(changed))
    return record.get("status", "finished"), ""
