"""The verbs plan, which says what is to be done, and status, which says how far it is done."""

import argparse
import json
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_verb, find_plan, given_values, load_plan
from formerlab.files import write_json
from formerlab.plan.locate import ensure_plan, read_plan


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = add_verb(verbs, "plan", plan, "show every job with its size, FLOPs, memory, disk and time, and the totals")
    parser.add_argument("--shell", action="store_true", help="print the stage commands in order, for use without a DAG")
    parser.add_argument("--seeds", action="store_true", help="a row for every seed of a run")
    parser.add_argument("--given", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)

    parser = add_verb(verbs, "status", status, "list finished, running, stopped, failed, stale and missing jobs")
    parser.add_argument("--problems", action="store_true", help="only failed, killed and stopped jobs, with their logs")


def plan(arguments: argparse.Namespace) -> None:
    """Write a plan (for the DAG) or show it (for people)."""
    if arguments.write is not None:
        from formerlab.plan.build import build_plan

        write_json(arguments.write, build_plan(Path.cwd(), arguments.given or {}))
        return
    from formerlab.plan.show import shell, table

    path = ensure_plan(Path.cwd(), given_values(arguments)) if arguments.plan is None else find_plan(arguments)
    found = read_plan(path)
    print(shell(found, path) if arguments.shell else table(found, seeds=arguments.seeds))


def status(arguments: argparse.Namespace) -> None:
    """Show the state of every job."""
    from formerlab.plan.show import report

    print(report(load_plan(arguments), problems_only=arguments.problems))
