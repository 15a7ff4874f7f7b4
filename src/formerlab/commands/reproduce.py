"""The verb `reproduce`: a committed run made again in a folder of its own, and compared with its rows."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from formerlab.commands.context import Plan, add_command, load_plan
from formerlab.errors import UserError, near_misses
from formerlab.files import read_json, sha256
from formerlab.results.notes import noted
from formerlab.results.stages import TABLES, WEIGHTS

if TYPE_CHECKING:
    from pandas import DataFrame

    from formerlab.results.read import Results

Record = dict[str, Any]
FILES = ("train.csv", "eval.csv", "test.csv", "depth.csv")
"""Rows of a run that do not depend on when it ran; timing.csv does."""
CIRCUMSTANCES = ("device", "threads", "processes", "code_hash", "data.fingerprint", "init.weights_sha256", "versions.")
"""Keys of a record, or their beginnings, that say why rows differ."""


def add_parsers(commands: Any) -> None:
    """Add the command."""
    parser = add_command(commands, reproduce)
    parser.add_argument("id", help="run, such as tokenformer/transformer-2/seed0")
    text = "go on although code or data differ from those of the run; may be given twice"
    parser.add_argument("--other", action="append", default=[], choices=("code", "data"), help=text)
    parser.add_argument("--out", type=Path, help="default: results/reproduced/<scale>; started again, it goes on")


def reproduce(arguments: argparse.Namespace) -> None:
    """Make a run of results/cached again and say whether its rows are equal to the bit, or how far they are.

    The runs that it started from are made before it.
    Raises UserError where the run is not committed, or code or data are others; last of all, where rows differ.
    Raises StoppedEarly when a signal came; the work is saved and the same command continues.
    """
    from formerlab.results.read import Results, has_runs

    plan = load_plan(arguments)
    live = Path(plan["results"])
    out = arguments.out or live.parent.parent / "reproduced" / live.name
    cached = live.parent.parent / "cached" / live.name
    if not has_runs(cached):
        raise UserError(f"{cached}: no committed runs of scale {live.name}; --scale names another")
    records = Results(cached).all_records
    if arguments.id not in records:
        raise UserError(f"{cached}: no run {arguments.id!r}{near_misses(arguments.id, list(records))}")
    chain = [records[arguments.id]]
    while (link := chain[0]["init"]) is not None:
        if link["id"] not in records:
            raise UserError(f"{chain[0]['id']} starts from {link['id']}, which is not committed; name another run")
        chain.insert(0, records[link["id"]])
    parent: Path | None = None
    for record, child in zip(chain, [*chain[1:], None], strict=True):
        parent = _made(record, child, parent, out, plan, arguments.other)
    text, equal = compared(Results(cached), Results(out), chain[-1])  # others may have been exported meanwhile
    print(text)
    if not equal:
        raise UserError(f"{arguments.id}: its rows are not those that are committed; what differs is said above")


def _made(record: Record, child: Record | None, parent: Path | None, out: Path, plan: Plan, other: list[str]) -> Path:
    """Return the folder of a run: of an ancestor the live one where its weights are those, else it is made again."""
    from formerlab.plan.code import code_hash, entries_of_training
    from formerlab.training.run import Run
    from formerlab.training.runtime import RuntimeConfig
    from formerlab.training.stage import train_stage

    name, weights = record["id"], Path(plan["results"], record["id"], WEIGHTS)
    if child is not None and weights.is_file() and sha256(weights) == record["weights_sha256"]:
        return weights.parent
    if record.get("processes", 1) > 1:
        raise UserError(f"{name}: was trained by {record['processes']} processes; reproduce starts one only")
    commit = record["git"]["commit"]
    checkout = f"git checkout {commit[:12]} has it or is the nearest" if commit else "its commit is not known"
    try:
        run = Run.model_validate(record["spec"])
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{name}: this version does not know its spec ({key}); {checkout}") from None
    code = code_hash(*entries_of_training(run), specs=[run])
    if code != record["code_hash"] and "code" not in other:
        was = f"the code that trains it is another by now ({record['code_hash']} then, {code} now)"
        raise UserError(f"{name}: {was}; compare all the same with --other code, or go back to it: {checkout}")
    data = _data_of(record, plan, other)
    if child is not None:
        print(f"{name}, from which {child['id']} starts, is made again first", file=sys.stderr)
    growth = (child or {"spec": {}})["spec"].get("growth") or {}
    runtime = RuntimeConfig(
        threads=record["threads"],
        device=plan["device"],
        code_hash=code,
        keep_optimizer=growth.get("optimizer") == "carry",
    )
    with noted("train", out / name):
        train_stage(run, data, out / name, parent=parent, runtime=runtime)
    return Path(out, name)


def _data_of(record: Record, plan: Plan, other: list[str]) -> Path:
    """Return the folder of the data set that the run read."""
    name, wanted = record["data"]["name"], record["data"]["fingerprint"]
    if name not in plan["data"]:
        raise UserError(f"{record['id']}: read data {name!r}, which scale {plan['scale']} does not have any more")
    folder = Path(plan["data"][name]["out"])
    if not (folder / "manifest.json").exists():
        raise UserError(f"{folder}: not prepared; first python -m formerlab data {name} --scale {plan['scale']}")
    found = read_json(folder / "manifest.json")["fingerprint"]
    if found != wanted and "data" not in other:
        what = f"{record['id']}: read other data ({name} {wanted}, now {found})"
        raise UserError(f"{what}; name its texts in config.yaml, or compare all the same with --other data")
    return folder


def compared(committed: "Results", again: "Results", record: Record) -> tuple[str, bool]:
    """Return the lines that compare a committed run with the one made again, and whether they are equal to the bit."""
    from formerlab.results.read import flatten

    made = again.all_records[record["id"]]
    lines, same = list[str](), list[str]()
    for file in FILES:
        old, new = (results.rows_of(file, record["id"]) for results in (committed, again))
        if len(old) and len(new):
            difference = _difference(file, old, new)
            (lines if difference else same).append(difference or f"{file} ({len(old)} rows)")
        elif len(old) or len(new):
            lines.append(f"{file}: on one side only")
    if record["weights_sha256"] == made["weights_sha256"]:
        same.append("the weights")
    elif not lines:
        lines.append("the weights differ")
    equal = f"equal to the bit: {', '.join(same) or 'nothing'}"
    if not lines:
        return f"{record['id']}: {equal}", True
    then, now = flatten(record), flatten(made)
    keys = [key for key in {**then, **now} if key.startswith(CIRCUMSTANCES) and then.get(key) != now.get(key)]
    why = [f"  {key}: {then.get(key)}, {now.get(key)}" for key in keys]
    head = "committed, then here:" if why else "made by the same code, versions and processor"
    return "\n".join([f"{record['id']}: not equal to the bit", *lines, equal, head, *why]), False


def _difference(file: str, a: "DataFrame", b: "DataFrame") -> str:
    """Return one line on how rows differ; empty where they are equal to the bit."""
    if len(a) != len(b):
        return f"{file}: {len(a)} rows committed, {len(b)} here"
    found = []
    for column in dict.fromkeys([*a.columns, *b.columns]):
        if column in a and column in b:
            differ = ~((a[column] == b[column]) | (a[column].isna() & b[column].isna()))
            far = f", by {(a[column] - b[column]).abs().max():.3g} at most" if a[column].dtype.kind in "if" else ""
            found += [f"{column} in {differ.sum()} of {len(a)} rows{far}"] if differ.any() else []
        # An export leaves out what is empty in every run, and older versions wrote no optional columns.
        elif (a if column in a else b)[column].notna().any() and column not in TABLES[file].optional:
            found.append(f"{column} on one side only")
    return f"{file}: {'; '.join(found)}" if found else ""
