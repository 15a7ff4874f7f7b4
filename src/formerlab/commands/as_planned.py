"""What every stage sees to around its work: code, data and parents are those of the plan, so its record is true."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from formerlab.errors import UserError
from formerlab.plan import code, loaded
from formerlab.plan.judge import Judge

SPAWNS = frozenset(("data",))
"""Stages whose work other processes do, which import the code anew while it runs."""
AGAIN = "start snakemake again, which plans anew"


@contextmanager
def as_planned(plan: dict[str, Any], stage: str, name: str) -> Iterator[None]:
    """Refuse to begin where code or what the job reads is not the plan's, and to keep what is not what it asked for.

    At the end it says where the results are.

    Raises
    ------
    UserError
        With the files or the product that differ, and what to do.
    """
    job = f"{stage} {name}"
    planned = plan[stage][name]["code"]
    modules = plan["code"][planned]
    _check_code(job, plan["sources"], planned, modules)
    judge = Judge(plan)
    for base in judge.bases(stage, name):
        if not judge.verdict(*base).current:
            first = f"run python -m formerlab {' '.join(base)} first"
            raise UserError(f"{job}: {' '.join(base)} is {judge.verdict(*base)}; {AGAIN}, or {first}")
    if stage != "train" and not judge.verdict(stage, name).current:  # training goes on with what it finds
        judge.record(stage, name).unlink(missing_ok=True)  # no old record speaks for new files
    before = set[str]() if stage in SPAWNS else set(sys.modules)
    yield
    if os.environ.get("RANK", "0") != "0":
        return
    judge = Judge(plan)
    if late := _edited_before_import(modules, before):
        judge.record(stage, name).unlink(missing_ok=True)
        raise UserError(f"{job}: {_some(late)} was edited while it ran, so its results do not count; {AGAIN}")
    if not judge.verdict(stage, name).current:
        raise UserError(f"{job}: what it made is {judge.verdict(stage, name)} already; {AGAIN}")
    print(f"{job}: results in {judge.record(stage, name).parent}", file=sys.stderr)


def _check_code(job: str, sources: dict[str, str], planned: str, modules: list[str]) -> None:
    """Compare the code that this process has imported, by what its files were and are, with that of the plan."""
    now = loaded.digests()
    if sources == loaded.AT_START == now:
        return
    try:
        same, files = code.hash_of(modules) == planned, code.files_of(modules)
    except (OSError, SyntaxError):  # a module is gone or half written
        same, files = False, {*sources, *now}
    if not same:
        changed = _some(loaded.differing(sources, now) & files)
        raise UserError(f"{job}: its code has changed since it was planned ({changed}); {AGAIN}, or undo the change")
    if edited := loaded.differing(loaded.AT_START, now) & files:
        raise UserError(f"{job}: {_some(edited)} was edited while this started; start it again")


def _edited_before_import(modules: list[str], before: set[str]) -> set[str]:
    """Return the files of the job that were edited since this process started, and imported later than `before`."""
    edited = loaded.differing(loaded.AT_START, loaded.digests())
    imported = sys.modules.keys() & set(modules) - before
    return {file for file in edited if code.module_of(file) in imported}


def _some(files: set[str]) -> str:
    """Return the first of the files, for a message."""
    return ", ".join(sorted(files)[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
