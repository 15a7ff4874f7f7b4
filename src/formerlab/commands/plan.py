"""The verbs that look ahead: plan, predicted, schema; and status, which looks at what is there."""

import argparse
import json
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_verb, find_plan, given_values, load_plan
from formerlab.files import write_json
from formerlab.plan.locate import ensure_plan, read_plan

MOST_GPUS = 100_000
MOST_PREEMPTIONS = 1_000


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = add_verb(verbs, "plan", plan, "show every job with its size, FLOPs, memory, disk and time, and the totals")
    parser.add_argument("--shell", action="store_true", help="print the stage commands in order, for use without a DAG")
    parser.add_argument("--gpus", type=_count, help="say how long the whole programme takes on so many, and why")
    parser.add_argument(
        "--preemptions", type=_rate, default=1.0, help="with --gpus: how often a day each job is preempted; default: 1"
    )
    parser.add_argument("--given", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)

    parser = add_verb(verbs, "predicted", predicted, "set the cost model beside what finished runs of a scale took")
    parser.add_argument("--tree", choices=("cached", "live"), default="cached", help="which runs; default: cached")
    parser.add_argument("--out", type=Path, help="folder for predicted.csv and predicted.md; default: show the table")

    text = "write the schema of the YAML files, for editors"
    parser = add_verb(verbs, "schema", schema, text, configured=False)
    parser.add_argument("--out", type=Path, default=Path("workflow/config.schema.json"))

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
    if arguments.gpus is not None:
        from formerlab.plan.programme import programme

        print(programme(found, arguments.gpus, arguments.preemptions))
    else:
        print(shell(found, path) if arguments.shell else table(found))


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_GPUS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs; give a whole number from 1 to {MOST_GPUS}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= MOST_PREEMPTIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; give preemptions a day, from 0 to {MOST_PREEMPTIONS}")
    return rate


def predicted(arguments: argparse.Namespace) -> None:
    """Show predicted and measured time and memory, and write them where asked to."""
    from formerlab.plan.predicted import compare, import_mebibytes, text, write
    from formerlab.plan.sources import read_sources

    sources = read_sources(Path.cwd(), given_values(arguments))
    results = Path(sources.config.results, arguments.tree, sources.config.scale)
    baseline = import_mebibytes() if sources.scale.device == "cpu" else 0.0
    rows = compare(results, sources, baseline)
    print(text(results, rows, baseline))
    if arguments.out is not None:
        write(arguments.out, rows, text(results, rows, baseline))


def schema(arguments: argparse.Namespace) -> None:
    """Write the JSON schema of all YAML files."""
    from formerlab.plan.json_schema import json_schema

    write_json(arguments.out, json_schema())


def status(arguments: argparse.Namespace) -> None:
    """Show the state of every job."""
    from formerlab.plan.status import report

    print(report(load_plan(arguments), problems_only=arguments.problems))
