"""The demo: the whole DAG, the report, and where everything is."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from formerlab.commands.context import given_values
from formerlab.files import write_text
from formerlab.plan.locate import ensure_plan, read_plan

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}


def run(arguments: argparse.Namespace) -> int:
    """Run all jobs, write report.html, print the headline tables; return the exit status of the DAG."""
    given = given_values(arguments)
    plan = read_plan(ensure_plan(Path.cwd(), given))
    before = _products(plan)
    status = _snakemake(given, "--cores", str(arguments.cores), "--keep-going", "--rerun-incomplete")
    results, changed = Path(plan["results"]), _products(plan) != before
    report, text = results / "report.html", results / "headline.txt"
    if status == 0 and (changed or not report.exists()):
        _write_report(given, report)
    if results.is_dir():
        if changed or not text.exists():
            from formerlab.tables import headline

            write_text(text, headline(results))
        print(f"\n{text.read_text(encoding='utf-8')}")
        print(_places(plan, report))
    return status


def _snakemake(given: dict[str, Any], *words: str) -> int:
    """Call Snakemake on the same configuration; Ctrl-C reaches it and its jobs, and is reported by them."""
    config = ["--config", *(f"{key}={_as_yaml(value)}" for key, value in given.items())] if given else []
    command = [sys.executable, "-m", "snakemake", *words, "--quiet", "rules", "host", *config]
    process = subprocess.Popen(command, env=os.environ | ENVIRONMENT)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            print("stopping: running jobs save their work; the same command goes on from there", file=sys.stderr)


def _as_yaml(value: Any) -> str:
    """Return a value in one line; other than JSON, YAML reads small numbers back as numbers."""
    return value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True, width=1 << 20).strip()


def _write_report(given: dict[str, Any], path: Path) -> None:
    """Write the report beside its final name and then move it there, so that one which exists is whole."""
    temporary = path.with_name(".report.html")
    if _snakemake(given, "--report", str(temporary)) == 0:
        os.replace(temporary, path)
    else:
        print("warning: report.html could not be written; tables and figures are not affected", file=sys.stderr)


def _products(plan: dict[str, Any]) -> dict[str, float]:
    """Return when each figure and table was drawn; a report shows nothing else."""
    paths = [Path(path) for job in plan["draw"].values() for path in job["outputs"]]
    return {str(path): path.stat().st_mtime for path in paths if path.exists()}


def _places(plan: dict[str, Any], report: Path) -> str:
    rows = [
        ("figures and tables", plan["figures"] + "/"),
        ("rows of every run", plan["results"] + "/"),
        ("report", str(report) if report.exists() else "(after a run without failures)"),
        ("MLflow UI", "make ui"),
        ("what ran, what is stale", f"make status SCALE={plan['scale']}"),
    ]
    return "\n".join(f"{name:<24} {place}" for name, place in rows)
