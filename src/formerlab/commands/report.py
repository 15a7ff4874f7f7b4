"""The verb report: report.html of a scale from its plan, its rows and what was drawn of them."""

import argparse
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_verb, load_plan
from formerlab.files import write_text
from formerlab.plan.judge import Judge
from formerlab.results.stages import MAKING, MEASURED, TIMED

PREPARING = ("data", *TIMED, "exact")


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
    from formerlab.report.gallery import gallery
    from formerlab.results.read import Results

    drawings = {name: one["runs"] for job in plan["draw"].values() for name, one in job["drawings"].items()}
    groups = [{stage: len(plan[stage]) for stage in group if plan[stage]} for group in (PREPARING, MAKING, MEASURED)]
    groups.append({"figures and tables": len(plan["draw"]), "claims": 1, "runs": 1, "MLflow": 1})
    results, path = Results(Path(plan["results"]), Judge(plan).objection), out or Path(plan["results"], "report.html")
    write_text(path, gallery(results, Path(plan["figures"]), plan["studies"], drawings, groups))
    return path
