"""Functions shared by the commands: load the plan, and run a block as a job of the plan."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import yaml

from formerlab.commands.gpus import explain_out_of_memory, locked_gpus
from formerlab.errors import UserError, near_misses, some
from formerlab.files import variable
from formerlab.plan import code, source_hashes
from formerlab.plan.locate import PLAN_VARIABLE, ensure_plan, read_plan
from formerlab.plan.staleness import Staleness
from formerlab.results.notes import stage_note

Plan = dict[str, Any]
Command = Callable[[argparse.Namespace], None]
CPU_STAGES = ("data", "exact")
PLAN_AGAIN = "start snakemake again, which makes a new plan"


def add_command(
    commands: Any, function: Command, name: str = "", text: str = "", *, configured: bool = True
) -> argparse.ArgumentParser:
    """Add a command and return its parser; `configured` adds the options of `add_configuration`.

    The default of `name` is the name of the function, and the default of `text` is its first docstring line.
    """
    first = text or (function.__doc__ or "").partition("\n")[0].rstrip(".")
    text = first[:1].lower() + first[1:]
    name = name or getattr(function, "__name__", "").replace("_", "-")
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    if configured:
        add_configuration(parser)
    parser.set_defaults(function=function)
    return parser


def add_configuration(parser: argparse.ArgumentParser, scale: str | None = None) -> None:
    """Add the options that `find_plan` reads; `scale` is the default scale."""
    text = f"a scale of workflow/scales, such as laptop; default: {scale or 'the scale of config.yaml'}"
    parser.add_argument("--scale", default=scale, help=text)
    text = "value of one key, such as denseformer.steps=100"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    parser.add_argument("--overlay", help="YAML file merged over config.yaml, with the same keys except overlay")
    text = "plan file; default: " + ("" if scale else f"${PLAN_VARIABLE}, otherwise ") + "created from config.yaml"
    parser.add_argument("--plan", type=Path, help=text)


def command_line_config(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of --scale, --overlay and --set with the keys of config.yaml.

    Raises UserError if --set has no `=` or an invalid YAML value.
    """
    overrides = {key: value for key in ("scale", "overlay") if (value := getattr(arguments, key))}
    for item in arguments.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--set {item}: expected KEY=VALUE")
        try:
            overrides.setdefault("set", {})[key] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):  # PyYAML raises ValueError for an impossible date
            raise UserError(f"--set {item}: {value!r} is not a YAML value; put it in quotes") from None
    return overrides


def plan_one_study(arguments: argparse.Namespace, study: str) -> None:
    """Restrict the plan that `find_plan` builds to one study, so that no data of other studies is needed."""
    if arguments.plan is None and variable(PLAN_VARIABLE) is None and Path(f"workflow/studies/{study}.yaml").is_file():
        arguments.set = [f"studies=[{study}]", *arguments.set]


def find_plan(arguments: argparse.Namespace) -> Path:
    """Return the path of the plan: --plan, the environment variable, or a plan that is built from the configuration."""
    overrides = command_line_config(arguments)
    if arguments.plan is not None:
        if arguments.set or arguments.overlay:
            raise UserError("--plan: --set and --overlay cannot change an existing plan; give --plan or these options")
        return Path(arguments.plan)
    if (plan := variable(PLAN_VARIABLE)) is not None and not overrides:
        return Path(plan)
    return ensure_plan(Path.cwd(), overrides)


def load_plan(arguments: argparse.Namespace) -> Plan:
    """Read the plan at the path that `find_plan` returns."""
    return read_plan(find_plan(arguments))


def find_job(plan: Plan, stage: str, name: str) -> dict[str, Any]:
    """Return a job of the plan; raise UserError with similar names if it is missing."""
    jobs: dict[str, dict[str, Any]] = plan[stage]
    if name not in jobs:
        raise UserError(f"no job {name!r} of stage {stage} at scale {plan['scale']}{near_misses(name, list(jobs))}")
    return jobs[name]


@contextmanager
def planned_job(plan: dict[str, Any], stage: str, name: str) -> Iterator[bool]:
    """Run the block as a job of the plan; yield whether the output of the job is already up to date.

    The state of the job is noted in its folder, and its GPUs are locked. Raises UserError if code or inputs of the job
    differ from the plan before it starts or at its end, or if another process runs the same job. If a module that
    the block imports is edited while the job runs, the results are discarded.
    """
    is_main_process = (variable("RANK") or "0") == "0"
    job, modules, staleness = f"{stage} {name}", plan["code"][plan[stage][name]["code"]], Staleness(plan)
    with stage_note(stage, staleness.folder(stage, name)) if is_main_process else nullcontext():
        _check_code(job, plan["sources"], plan[stage][name]["code"], modules)
        for dependency in staleness.dependencies(stage, name):
            if not (state := staleness.check(*dependency)).current:
                remedy = f"run python -m formerlab {' '.join(dependency)} first"
                raise UserError(f"{job}: {' '.join(dependency)} is {state}; {PLAN_AGAIN}, or {remedy}")
        output = staleness.check(stage, name)
        # train and data remove their old record themselves, after they have checked their inputs.
        if not output.current and stage not in ("train", "data"):
            staleness.record(stage, name).unlink(missing_ok=True)  # an old record must not describe new files
        if not output.current and output.state != "missing":
            print(f"{job}: running again, because its result is {output}", file=sys.stderr)
        modules_before = set(sys.modules)
        with locked_gpus("cpu" if stage in CPU_STAGES else plan["device"]), explain_out_of_memory(stage, name):
            yield output.current
        if not is_main_process:
            return
        staleness = Staleness(plan)
        edited = source_hashes.differing_files(source_hashes.AT_START, source_hashes.current_hashes())
        imported = sys.modules.keys() & set(modules) - modules_before
        if edited_imports := sorted(file for file in edited if code.module_of(file) in imported):
            staleness.record(stage, name).unlink(missing_ok=True)
            problem = f"{some(edited_imports)} was edited while it ran, so its results were discarded"
            raise UserError(f"{job}: {problem}; {PLAN_AGAIN}")
        if not (state := staleness.check(stage, name)).current:
            raise UserError(f"{job}: its inputs changed after it was planned, so its result is {state}; {PLAN_AGAIN}")
        print(f"{job}: results in {staleness.record(stage, name).parent}", file=sys.stderr)


def _check_code(job: str, sources: dict[str, str], planned: str, modules: list[str]) -> None:
    """Raise UserError if the code of a job changed after the plan was made, or while this process started.

    `sources` are the hashes of all source files in the plan, and `planned` is the hash of the code of the job.
    """
    current = source_hashes.current_hashes()
    if sources == source_hashes.AT_START == current:
        return
    try:
        unchanged, files = code.hash_of(modules) == planned, code.files_of(modules)
    except (OSError, SyntaxError):  # a module was removed, or is being written
        unchanged, files = False, {*sources, *current}
    if not unchanged:
        changed = some(sorted(source_hashes.differing_files(sources, current) & files))
        problem = f"its code has changed since it was planned ({changed})"
        raise UserError(f"{job}: {problem}; {PLAN_AGAIN}, or undo the change")
    if edited := source_hashes.differing_files(source_hashes.AT_START, current) & files:
        raise UserError(f"{job}: {some(sorted(edited))} was edited while the job started; start the job again")
