"""What of a plan is done, under way, failed, outdated or missing."""

from collections import Counter
from pathlib import Path
from typing import Any

from formerlab.commands.context import read_note
from formerlab.errors import UserError
from formerlab.files import read_json

PROBLEMS = ("failed", "killed", "stopped")
FINISHED = {"data": "manifest.json", "train": "run.json", "zeroshot": "zeroshot.json", "prune": "prune.json"}


def states(plan: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return (stage, job, state, detail) of every job."""
    rows = []
    for stage, product in FINISHED.items():
        for name, job in plan[stage].items():
            folder = Path(job["out"]) if stage == "data" else Path(plan["results"], name)
            rows.append((stage, name, *_state(stage, folder, product, _expected(stage, name, plan))))
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


def _expected(stage: str, name: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Return what the finished product must say to be up to date."""
    job = plan[stage][name]
    if stage == "train":
        return {"spec_hash": job["spec_hash"], "code_hash": job["code"]}
    if stage == "data":
        return {"spec": job["spec"], "code_hash": job["code"]}
    return {"code_hash": job["code"]} | ({"sweep": job["sweep"]} if stage == "prune" else {})


def _state(stage: str, folder: Path, product: str, expected: dict[str, Any]) -> tuple[str, str]:
    note = read_note(stage, folder)
    if note is not None:
        log = f"; log {note['log']}" if note["log"] else ""
        return note["state"], f"{note.get('reason', 'since ' + note['since'])}{log}"
    if not (folder / product).exists():
        return "missing", ""
    try:
        record = read_json(folder / product)
    except UserError as error:
        return "failed", str(error)
    changed = [key for key, value in expected.items() if record.get(key) != value]
    if changed:
        return "stale", "changed since: " + ", ".join(_READABLE.get(key, key) for key in changed)
    if stage in ("zeroshot", "prune") and (folder / "run.json").exists():
        weights = read_json(folder / "run.json")["weights_sha256"]
        if record["weights_sha256"] != weights:
            return "stale", "trained anew since"
    return record.get("status", "finished"), ""


_READABLE = {"spec_hash": "configuration", "code_hash": "code", "spec": "configuration", "sweep": "configuration"}
