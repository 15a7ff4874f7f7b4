"""The verb `reproduce`: a committed run made again in a folder of its own, and compared with its rows."""

import argparse
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from formerlab.commands.context import Plan, add_verb, load_plan
from formerlab.errors import UserError, near_misses
from formerlab.files import read_json
from formerlab.results.notes import noted

Record = dict[str, Any]
DATA, CODE = "data", "code"


def add_parsers(verbs: Any) -> None:
    """Add the verb."""
    text = "make a run of results/cached again and say whether its rows are equal to the bit, or how far they are"
    parser = add_verb(verbs, "reproduce", reproduce, text)
    parser.add_argument("id", help="run, such as tokenformer/transformer-2/seed0")
    parser.add_argument("--other", action="append", default=[], choices=(CODE, DATA), help=_OTHER)
    parser.add_argument("--out", type=Path, help="default: results/reproduced/<scale>; started again, it goes on")


_OTHER = "go on although the code, or the data, are not those that the run was made with; may be given twice"


def reproduce(arguments: argparse.Namespace) -> None:
    """Train the run again, after the runs it started from, and print the comparison.

    Raises
    ------
    UserError
        Where the run is not committed, or code or data are others; last of all, where rows differ.
    StoppedEarly
        When a signal came; the work is saved and the same command continues.
    """
    from formerlab.results.read import Results, has_runs
    from formerlab.results.records import read_run
    from formerlab.results.reproduce import differences, report

    plan = load_plan(arguments)
    live = Path(plan["results"])
    out = arguments.out or live.parent.parent / "reproduced" / live.name
    cached = live.parent.parent / "cached" / live.name
    if not has_runs(cached):
        raise UserError(f"{cached}: no committed runs of scale {live.name}; --scale names another")
    records = {record["id"]: record for record in Results(cached).all_records()}
    if arguments.id not in records:
        raise UserError(f"{cached}: no run {arguments.id!r}{near_misses(arguments.id, list(records))}")
    chain = [records[arguments.id]]
    while (link := chain[0]["init"]) is not None:
        if link["id"] not in records:
            raise UserError(f"{chain[0]['id']} starts from {link['id']}, which is not committed; name another run")
        chain.insert(0, records[link["id"]])
    parent: Path | None = None
    for record, child in zip(chain, [*chain[1:], None], strict=True):
        parent = _made(record, child, parent, out, plan, set(arguments.other))
    committed = Results(cached)  # read anew: rows of other runs may have been exported meanwhile
    text, equal = report(
        chain[-1], read_run(out / arguments.id / "run.json"), differences(committed, Results(out), chain[-1])
    )
    print(text)
    if not equal:
        raise UserError(f"{arguments.id}: its rows are not those that are committed; what differs is said above")


def _made(record: Record, child: Record | None, parent: Path | None, out: Path, plan: Plan, other: set[str]) -> Path:
    """Return the folder of a run: of an ancestor the live one where its weights are those, else it is made again."""
    from formerlab.training.runtime_config import RuntimeConfig
    from formerlab.training.stage import train_stage

    live = Path(plan["results"], record["id"])
    if child is not None and _has_weights(live, record):
        return live
    if record.get("processes", 1) > 1:
        raise UserError(f"{record['id']}: was trained by {record['processes']} processes; reproduce starts one only")
    run = _run_of(record)
    code = _check_code(record, run, other)
    data = _check_data(record, plan, other)
    if child is not None:
        print(f"{record['id']}, from which {child['id']} starts, is made again first", file=sys.stderr)
    growth = (child or {"spec": {}})["spec"].get("growth") or {}
    runtime = RuntimeConfig(
        threads=record["threads"],
        device=plan["device"],
        on_mismatch="restart",
        code_hash=code,
        keep_optimizer=growth.get("optimizer") == "carry",
    )
    folder: Path = out / record["id"]
    with noted("train", folder):
        train_stage(run, data, folder, parent=parent, runtime=runtime)
    return folder


def _has_weights(folder: Path, record: Record) -> bool:
    from formerlab.files import sha256
    from formerlab.training.finish import WEIGHTS

    path = folder / WEIGHTS
    return (folder / "run.json").exists() and path.is_file() and sha256(path) == record["weights_sha256"]


def _run_of(record: Record) -> Any:
    from formerlab.training.run import Run

    try:
        return Run.model_validate(record["spec"])
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{record['id']}: this version does not know its spec ({key}); {_checkout(record)}") from None


def _check_code(record: Record, run: Any, other: set[str]) -> str:
    from formerlab.plan.code import code_hash

    found = code_hash("formerlab.training.stage", specs=[run])
    if found != record["code_hash"] and CODE not in other:
        was = f"the code that trains it is another by now ({record['code_hash']} then, {found} now)"
        raise UserError(f"{record['id']}: {was}; {_checkout(record)}, or compare all the same with --other code")
    return found


def _checkout(record: Record) -> str:
    commit, dirty = record["git"]["commit"], record["git"]["dirty_hash"]
    if commit is None:
        return "its commit is not known"
    return f"git checkout {commit[:12]}{' is the nearest, its tree had changes' if dirty else ' has it'}"


def _check_data(record: Record, plan: Plan, other: set[str]) -> Path:
    """Return the folder of the data set that the run read."""
    name, wanted = record["data"]["name"], record["data"]["fingerprint"]
    if name not in plan["data"]:
        raise UserError(f"{record['id']}: read data {name!r}, which scale {plan['scale']} does not have any more")
    folder = Path(plan["data"][name]["out"])
    if not (folder / "manifest.json").exists():
        raise UserError(f"{folder}: not prepared; first python -m formerlab data {name} --scale {plan['scale']}")
    found = read_json(folder / "manifest.json")["fingerprint"]
    if found != wanted and DATA not in other:
        what = f"{record['id']}: read other data ({name} {wanted}, now {found})"
        raise UserError(f"{what}; name its texts in config.yaml, or compare all the same with --other data")
    return folder
