"""What is timed, which runs train for the time of another, and whose flow over depth is looked at."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from formerlab.errors import UserError, near_misses
from formerlab.evaluation.language.flow import Flow
from formerlab.evaluation.timing.decode import DecodeSettings
from formerlab.evaluation.timing.equal_time import EqualTime
from formerlab.evaluation.timing.speed import Speed
from formerlab.evaluation.timing.timing import Timing
from formerlab.plan.code import code_hash
from formerlab.plan.layers import Tree
from formerlab.plan.read import parse
from formerlab.plan.resolve import equal_times
from formerlab.plan.sources import Sources, study_place
from formerlab.spec import fingerprint
from formerlab.training.run import Run

SETTINGS: dict[str, type[Timing]] = {"speed": Speed, "decode": DecodeSettings}
"""Settings of the stages that time runs alone on the machine; a stage is also the key of study and scale."""

DECIDES = {"speed": ("model", "task", "optimizer", "precision", "compile"), "decode": ("model", "precision")}
"""What of a run decides what each of them measures."""


def timing_jobs(stage: str, runs: list[Run], sources: Sources) -> dict[str, Any]:
    """Return, by study, the runs that such a stage measures beside each other, one seed of each."""
    jobs = {}
    for study in sources.config.studies:
        settings = parse(SETTINGS[stage], sources.settings(study, stage), f"{study}.{stage}")
        named = {run.name: run for run in reversed(runs) if run.study == study}
        timed = [run for run in reversed(named.values()) if any(fnmatchcase(run.name, p) for p in settings.runs)]
        if timed:
            parts = {run.name: _part(run, DECIDES[stage]) for run in timed}
            specs = timed if stage == "speed" else [run.model for run in timed]
            jobs[study] = {
                stage: settings.plain(),
                "runs": [run.id for run in timed],
                "configuration": fingerprint([settings.plain(), parts]),
                "code": code_hash(SETTINGS[stage].__module__, specs=[settings, *specs]),
                "memory_bytes": settings.memory_bytes(timed),
            }
    return jobs


def _part(run: Run, keys: Iterable[str]) -> Tree:
    return {key: value for key, value in run.plain().items() if key in keys}


def flow_jobs(runs: list[Run], sources: Sources) -> dict[str, Any]:
    """Return the runs whose flow over depth is looked at."""
    jobs = {}
    for study in sources.config.studies:
        settings = parse(Flow, sources.settings(study, "flow"), f"{study}.flow")
        for run in runs:
            if run.study == study and any(fnmatchcase(run.name, pattern) for pattern in settings.runs):
                code = code_hash("formerlab.evaluation.language.flow", specs=[settings, run.model])
                jobs[run.id] = {"settings": settings.plain(), "code": code}
    return jobs


def match_times(runs: list[Run], jobs: dict[str, Any], sources: Sources) -> tuple[list[Run], dict[str, EqualTime]]:
    """Return the runs, those of equal time with the arm's steps as an estimate, and by id whose time they match.

    Raises UserError where an arm or reference is not timed, or where the reference is another model.
    """
    wanted = {study: equal_times(study, sources) for study in sources.config.studies}
    by_id = {run.id: run for run in runs}
    matched, equal_by_id = [], {}
    for run in runs:
        equal = wanted[run.study].get(run.name)
        if equal is not None:
            place = f"{study_place(run.study)}: runs.{run.name}.equal_time"
            timed = jobs.get(run.study, {"runs": []})["runs"]
            names = [name.split("/")[1] for name in timed]
            for key, name in (("arm", equal.arm), ("reference", equal.reference)):
                if name not in names:
                    raise UserError(f"{place}.{key}: {name!r} is no run that `speed` times{near_misses(name, names)}")
            arm, reference = (by_id[f"{run.study}/{name}/seed{run.seed}"] for name in (equal.arm, equal.reference))
            if _part(reference, DECIDES["speed"]) != _part(run, DECIDES["speed"]):
                raise UserError(f"{place}.reference: {reference.name!r} is another model or batch; name an equal one")
            run = run.model_copy(update={"steps": arm.steps})
            equal_by_id[run.id] = equal
        matched.append(run)
    return matched, equal_by_id
