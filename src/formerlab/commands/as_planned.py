"""What surrounds the work of every stage: its note, its GPUs, and the check of code, data and parents by the plan."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from formerlab.commands.gpus import own_gpus
from formerlab.errors import UserError, some
from formerlab.plan import code, loaded
from formerlab.plan.judge import Judge
from formerlab.results.notes import noted

WITHOUT_GPU = ("data", "exact")
AGAIN = "start snakemake again, which plans anew"


@contextmanager
def as_planned(plan: dict[str, Any], stage: str, name: str) -> Iterator[None]:
    """Run a job: its note says that it runs, and it has GPUs of its own.

    It does not begin where its code or inputs differ from the plan, and its product is kept only if it is the planned
    one. At the end it says where the results are. Raises UserError with the files or the product that differ, and what
    to do; also where another process is at the same job.
    """
    first = os.environ.get("RANK", "0") == "0"
    job, modules, judge = f"{stage} {name}", plan["code"][plan[stage][name]["code"]], Judge(plan)
    with noted(stage, judge.folder(stage, name)) if first else nullcontext():
        _check_code(job, plan["sources"], plan[stage][name]["code"], modules)
        for base in judge.bases(stage, name):
            if not judge.verdict(*base).current:
                before_it = f"run python -m formerlab {' '.join(base)} first"
                raise UserError(f"{job}: {' '.join(base)} is {judge.verdict(*base)}; {AGAIN}, or {before_it}")
        if stage != "train" and not judge.verdict(stage, name).current:  # training goes on with what it finds
            judge.record(stage, name).unlink(missing_ok=True)  # no old record speaks for new files
        before = set[str]() if stage == "data" else set(sys.modules)  # its processes import the code again
        with own_gpus("cpu" if stage in WITHOUT_GPU else plan["device"]):
            yield
        if not first:
            return
        judge = Judge(plan)
        edited = loaded.differing(loaded.AT_START, loaded.digests())
        imported = sys.modules.keys() & set(modules) - before
        if late := sorted(file for file in edited if code.module_of(file) in imported):
            judge.record(stage, name).unlink(missing_ok=True)
            raise UserError(f"{job}: {some(late)} was edited while it ran, so its results do not count; {AGAIN}")
        if not judge.verdict(stage, name).current:
            raise UserError(f"{job}: what it made is {judge.verdict(stage, name)} already; {AGAIN}")
        print(f"{job}: results in {judge.record(stage, name).parent}", file=sys.stderr)


def _check_code(job: str, sources: dict[str, str], planned: str, modules: list[str]) -> None:
    """Compare the code that this process imported with the plan, and its files then with its files now."""
    now = loaded.digests()
    if sources == loaded.AT_START == now:
        return
    try:
        same, files = code.hash_of(modules) == planned, code.files_of(modules)
    except (OSError, SyntaxError):  # a module is gone or half written
        same, files = False, {*sources, *now}
    if not same:
        changed = some(sorted(loaded.differing(sources, now) & files))
        raise UserError(f"{job}: its code has changed since it was planned ({changed}); {AGAIN}, or undo the change")
    if edited := loaded.differing(loaded.AT_START, now) & files:
        raise UserError(f"{job}: {some(sorted(edited))} was edited while this started; start it again")
