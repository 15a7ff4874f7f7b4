"""What of a plan is done, under way, failed, outdated or missing."""

from collections import Counter
from pathlib import Path
from typing import Any

from formerlab.errors import MOST_NAMED, UserError
from formerlab.files import read_json
from formerlab.plan.judge import RECORDS, Judge, made_runs
from formerlab.plan.show import aligned
from formerlab.report.drawings import failure_of
from formerlab.results.notes import read_note

PROBLEMS = ("failed", "killed", "stopped")


def states(plan: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return (stage, job, state, detail) of every job: what its note says, where it left one, else the verdict."""
    judge = Judge(plan)
    rows: list[tuple[str, ...]] = []
    for stage in RECORDS:
        for name in plan[stage]:
            note = read_note(stage, judge.folder(stage, name))
            if note is None:
                rows.append((stage, name, *judge.verdict(stage, name)))
            else:
                log = f"; log {note['log']}" if note["log"] else ""
                rows.append((stage, name, note["state"], f"{note.get('reason', 'since ' + note['since'])}{log}"))
    return rows + [("draw", name, "failed", reason) for name, reason in failed_drawings(plan)]


def failed_drawings(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures and tables that could not be drawn, each with the reason and where all of it stands."""
    figures, names = Path(plan["figures"]), (name for job in plan["draw"].values() for name in job["drawings"])
    return [
        (name, f"{note.read_text(encoding='utf-8').splitlines()[-1]}; all of it in {note}")
        for name in names
        if (note := failure_of(figures, name)).exists()
    ]


def report(plan: dict[str, Any], *, problems_only: bool = False) -> str:
    """Return the states as aligned text, with counts."""
    rows = states(plan)
    shown = [row for row in rows if not problems_only or row[2] in PROBLEMS]
    if problems_only and not shown:
        return "no stage failed once it had begun"
    lines = aligned(shown, left=(0, 1, 2, 3)) if shown else []
    counts = Counter(row[2] for row in rows)
    if others := unplanned(plan):
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        lines.append(f"not in the plan, so neither drawn nor counted: {', '.join(others[:MOST_NAMED])}{more}")
    return "\n".join(
        [*lines, "", f"scale {plan['scale']}: " + ", ".join(f"{n} {state}" for state, n in counts.items())]
    )


def unplanned(plan: dict[str, Any]) -> list[str]:
    """Return the runs below the results that the plan does not have."""
    results = Path(plan["results"])
    found = {path.parent.relative_to(results).as_posix() for path in results.glob("*/*/seed*/run.json")}
    return sorted(found - made_runs(plan).keys())


def failed_syncs(results: Path) -> int:
    """Return how many syncs with MLflow have failed so far. The DAG tracks anew whenever this is more than before."""
    try:
        failures = read_json(results / "mlflow.json")["failures"]
    except (UserError, OSError, KeyError, TypeError):
        return 0
    return failures if isinstance(failures, int) else 0
