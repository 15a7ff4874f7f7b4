"""The command `reproduce`: train a committed run again in a separate folder and compare the rows."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from formerlab.commands.context import Plan, add_command, load_plan, plan_one_study
from formerlab.errors import UserError, near_misses
from formerlab.files import read_json, sha256
from formerlab.results.notes import stage_note
from formerlab.results.stages import TABLES, WEIGHTS

if TYPE_CHECKING:
    from pandas import DataFrame

    from formerlab.results.read import Results

Record = dict[str, Any]
REPEATED_FILES = ("train.csv", "eval.csv", "test.csv", "depth.csv")
"""Files whose rows are compared. They are bit-identical if machine type, code and data are equal."""
CAUSES = ("device", "threads", "processes", "code_hash", "data.fingerprint", "init.weights_sha256", "versions.")
"""Prefixes of the record keys that may explain differing rows."""


def add_parsers(commands: Any) -> None:
    """Add the command."""
    parser = add_command(commands, reproduce)
    parser.add_argument("id", help="run, such as tokenformer/transformer-2/seed0")
    text = "continue even if the code or data differ from the committed run; may be repeated"
    parser.add_argument("--other", action="append", default=[], choices=("code", "data"), help=text)
    text = "default: results/reproduced/<scale>; an interrupted command resumes there"
    parser.add_argument("--out", type=Path, help=text)


def reproduce(arguments: argparse.Namespace) -> None:
    """Train a run of results/cached again, after its ancestors, and compare the rows.

    Raises UserError if the run is not committed, if its code or data have changed, or if the rows differ. Raises
    StoppedEarly at a signal; the same command continues the work.
    """
    from formerlab.results.read import Results, has_runs

    plan_one_study(arguments, arguments.id.partition("/")[0])
    plan = load_plan(arguments)
    live = Path(plan["results"])
    out = arguments.out or live.parent.parent / "reproduced" / live.name
    cached = live.parent.parent / "cached" / live.name
    if not has_runs(cached):
        raise UserError(f"{cached}: no committed runs of scale {live.name}; choose another with --scale")
    records = Results(cached).all_records
    if arguments.id not in records:
        raise UserError(f"{cached}: no run {arguments.id!r}{near_misses(arguments.id, list(records))}")
    lineage = [records[arguments.id]]
    while (init := lineage[0]["init"]) is not None:
        if init["id"] not in records:
            raise UserError(f"{lineage[0]['id']} starts from {init['id']}, which is not committed; choose another run")
        lineage.insert(0, records[init["id"]])
    parent: Path | None = None
    for record, child in zip(lineage, [*lineage[1:], None], strict=True):
        parent = _reproduce_run(record, child, parent, out, plan, arguments.other)
    # Read the committed rows again, because an export may have changed them during the training.
    text, equal = compare_runs(Results(cached), Results(out), lineage[-1])
    print(text)
    if not equal:
        raise UserError(f"{arguments.id}: the rows differ from the committed rows, as listed above")


def _reproduce_run(
    record: Record, child: Record | None, parent: Path | None, out: Path, plan: Plan, allowed: list[str]
) -> Path:
    """Train a run again and return its folder.

    An ancestor whose live weights equal its committed weights is not trained; its live folder is returned.
    """
    from formerlab.plan.code import code_hash, entries_of_training
    from formerlab.training.run import Run
    from formerlab.training.runtime import RuntimeConfig
    from formerlab.training.stage import train_stage

    name, weights = record["id"], Path(plan["results"], record["id"], WEIGHTS)
    if child is not None and weights.is_file() and sha256(weights) == record["weights_sha256"]:
        return weights.parent
    if record.get("processes", 1) > 1:
        raise UserError(f"{name}: was trained by {record['processes']} processes, but reproduce supports only one")
    restore, commit = "the commit of the original code is unknown", record["git"]["commit"]
    if commit:
        restore = f"restore the code with `git checkout {commit[:12]}` (nearest commit)"
    try:
        run = Run.model_validate(record["spec"])
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{name}: its spec is invalid in this version ({key}); {restore}") from None
    code = code_hash(*entries_of_training(run), specs=[run])
    if code != record["code_hash"] and "code" not in allowed:
        changed = f"the training code has changed ({record['code_hash']} then, {code} now)"
        raise UserError(f"{name}: {changed}; compare anyway with --other code{', or' if commit else ';'} {restore}")
    data = _data_folder(record, plan, allowed)
    if child is not None:
        print(f"training {name} first, because {child['id']} starts from it", file=sys.stderr)
    growth = (child or {"spec": {}})["spec"].get("growth") or {}
    runtime = RuntimeConfig(
        threads=record["threads"],
        device=plan["device"],
        code_hash=code,
        keep_optimizer=growth.get("optimizer") == "carry",
    )
    with stage_note("train", out / name):
        train_stage(run, data, out / name, parent=parent, runtime=runtime)
    return Path(out, name)


def _data_folder(record: Record, plan: Plan, allowed: list[str]) -> Path:
    """Return the folder of the data set that the run read."""
    name, expected = record["data"]["name"], record["data"]["fingerprint"]
    if name not in plan["data"]:
        raise UserError(f"{record['id']}: was trained on data {name!r}, which scale {plan['scale']} no longer has")
    folder = Path(plan["data"][name]["out"])
    if not (folder / "manifest.json").exists():
        raise UserError(f"{folder}: not prepared; run python -m formerlab data {name} --scale {plan['scale']} first")
    fingerprint = read_json(folder / "manifest.json")["fingerprint"]
    if fingerprint != expected and "data" not in allowed:
        difference = f"{record['id']}: was trained on other data ({name} {expected}, now {fingerprint})"
        raise UserError(f"{difference}; restore these data in config.yaml, or compare anyway with --other data")
    return folder


def compare_runs(committed: "Results", reproduced: "Results", record: Record) -> tuple[str, bool]:
    """Return a text that compares a committed run with its reproduction, and whether both are bit-identical."""
    from formerlab.results.read import flatten

    new_record = reproduced.all_records[record["id"]]
    lines, identical_files = list[str](), list[str]()
    for file in REPEATED_FILES:
        old, new = (results.rows_of(file, record["id"]) for results in (committed, reproduced))
        if len(old) and len(new):
            difference = _difference(file, old, new)
            (lines if difference else identical_files).append(difference or f"{file} ({len(old)} rows)")
        elif len(old) or len(new):
            lines.append(f"{file}: only in the {'committed' if len(old) else 'reproduced'} run")
    if record["weights_sha256"] == new_record["weights_sha256"]:
        identical_files.append("the weights")
    elif not lines:
        lines.append("the weights differ")
    equal = f"bit-identical: {', '.join(identical_files) or 'nothing'}"
    if not lines:
        return f"{record['id']}: {equal}", True
    old_values, new_values = flatten(record), flatten(new_record)
    keys = [key for key in {**old_values, **new_values} if key.startswith(CAUSES)]
    pairs = [(key, old_values.get(key), new_values.get(key)) for key in keys]
    causes = [f"  {key}: {old}, {new}" for key, old, new in pairs if old != new]
    equal_records = "no recorded cause: device, threads, processes, code, data, parent weights and versions are equal"
    head = "differences (committed, here):" if causes else equal_records
    return "\n".join([f"{record['id']}: not bit-identical", *lines, equal, head, *causes]), False


def _difference(file: str, old: "DataFrame", new: "DataFrame") -> str:
    """Describe in one line how committed and new rows differ; empty if they are bit-identical."""
    if len(old) != len(new):
        return f"{file}: {len(old)} rows committed, {len(new)} here"
    differences = []
    for column in dict.fromkeys([*old.columns, *new.columns]):
        if column in old and column in new:
            differ = ~((old[column] == new[column]) | (old[column].isna() & new[column].isna()))
            numeric = old[column].dtype.kind in "if"
            size = f", by {(old[column] - new[column]).abs().max():.3g} at most" if numeric else ""
            differences += [f"{column} in {differ.sum()} of {len(old)} rows{size}"] if differ.any() else []
        # An export omits columns that are empty in every run, and older versions wrote no optional columns.
        elif (old if column in old else new)[column].notna().any() and column not in TABLES[file].optional:
            differences.append(f"{column} {'committed only' if column in old else 'here only'}")
    return f"{file}: {'; '.join(differences)}" if differences else ""
