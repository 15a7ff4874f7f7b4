"""The verb report: report.html of a scale from its plan, its rows and what was drawn of them."""

import argparse
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_verb, load_plan
from formerlab.files import write_text
from formerlab.plan.judge import Judge
from formerlab.results.stages import MAKING, MEASURED, TIMED

PREPARING = ("data", *TIMED, "exact")
SHOWING = ("figures and tables", "claims", "runs", "MLflow")


def add_parsers(verbs: Any) -> None:
    """Add the verb."""
    text = "write report.html: every figure and table of the scale with captions, verdicts and commands, on one page"
    parser = add_verb(verbs, "report", report, text)
    parser.add_argument("--out", type=Path, help="the page; default: results/live/<scale>/report.html")


def report(arguments: argparse.Namespace) -> None:
    """Write the page of the plan's scale."""
    print(write_report(load_plan(arguments), arguments.out))


def write_report(plan: dict[str, Any], out: Path | None = None) -> Path:
    """Write the page and return where it is."""
    from formerlab.report.gallery import Part, gallery
    from formerlab.results.read import Results

    drawings: dict[str, dict[str, list[str]]] = {name: {} for name in plan["studies"]}
    for job in plan["draw"].values():
        for name, drawing in job["drawings"].items():
            drawings[job["study"]][name] = drawing["runs"]
    parts = {name: Part(study["title"], study["question"], drawings[name]) for name, study in plan["studies"].items()}
    count = {stage: len(plan[stage]) for stage in (*PREPARING, *MAKING, *MEASURED) if plan[stage]}
    groups = [{stage: count[stage] for stage in group if stage in count} for group in (PREPARING, MAKING, MEASURED)]
    groups.append(dict.fromkeys(SHOWING, 1) | {SHOWING[0]: len(plan["draw"])})
    results = Results(Path(plan["results"]), Judge(plan).objection)
    path = out or Path(plan["results"], "report.html")
    write_text(path, gallery(results, Path(plan["figures"]), parts, groups))
    return path
