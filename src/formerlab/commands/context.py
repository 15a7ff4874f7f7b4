"""What verbs share: the plan they work from."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from formerlab.errors import UserError, near_misses
from formerlab.plan.locate import VARIABLE, ensure_plan, read_plan

Plan = dict[str, Any]
Verb = Callable[[argparse.Namespace], None]


def add_verb(verbs: Any, name: str, function: Verb, text: str, *, configured: bool = True) -> argparse.ArgumentParser:
    """Add a verb with one line of help, by default one that works on a configuration; return its parser."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    if configured:
        text = "one of those in workflow/scales, such as laptop; default: that of config.yaml"
        parser.add_argument("--scale", help=text)
        text = "value of one key, such as denseformer.steps=100"
        parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
        parser.add_argument("--overlay", help="YAML file laid over the configuration")
        text = f"a plan file; default: ${VARIABLE}, or made from config.yaml"
        parser.add_argument("--plan", type=Path, help=text)
    parser.set_defaults(function=function)
    return parser


def given_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the command line in the form of config.yaml."""
    given = {key: value for key in ("scale", "overlay") if (value := getattr(arguments, key))}
    for item in arguments.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--set {item}: expected KEY=VALUE")
        try:
            given.setdefault("set", {})[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"--set {item}: {value!r} is no YAML value; put it in quotes") from None
    return given


def find_plan(arguments: argparse.Namespace) -> Path:
    """Return the plan that the arguments name, else the environment's, else that of the configuration."""
    given = given_values(arguments)
    if arguments.plan is not None:
        return Path(arguments.plan)
    if VARIABLE in os.environ and not given:
        return Path(os.environ[VARIABLE])
    return ensure_plan(Path.cwd(), given)


def load_plan(arguments: argparse.Namespace) -> Plan:
    """Read the plan that the arguments name."""
    return read_plan(find_plan(arguments))


def job_of(plan: Plan, stage: str, name: str) -> dict[str, Any]:
    """Return a job of the plan; an unknown name is answered with near misses."""
    jobs: dict[str, dict[str, Any]] = plan[stage]
    if name not in jobs:
        raise UserError(f"no job {name!r} of stage {stage} at scale {plan['scale']}{near_misses(name, list(jobs))}")
    return jobs[name]
