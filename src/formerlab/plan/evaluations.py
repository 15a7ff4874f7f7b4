"""The jobs of a plan that evaluate finished decoders: zero-shot questions, and sweeps of cache policies."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from formerlab.errors import UserError
from formerlab.evaluation.language.suites import Suite
from formerlab.evaluation.pruning.prune import PruneSweep
from formerlab.files import read_json
from formerlab.models import Decoder
from formerlab.plan.code import code_hash
from formerlab.plan.layers import place_of
from formerlab.plan.read import parse
from formerlab.plan.schema import StudyScale
from formerlab.plan.sources import Sources, study_place
from formerlab.training.run import Run


def zeroshot_jobs(runs: list[Run], sources: Sources, plan: dict[str, Any], root: Path) -> dict[str, Any]:
    """Return the runs that answer questions, where there are any."""
    jobs = {}
    for run in runs:
        at_scale = sources.scale.studies.get(run.study, StudyScale())
        patterns = sources.studies[run.study].zeroshot if at_scale.zeroshot is None else at_scale.zeroshot
        if any(fnmatchcase(run.name, p) for p in patterns) and _has_questions(run, sources):
            _decoder_of(run, f"{study_place(run.study)}: zeroshot")
            suites = tuple(sources.scale.suites.values())
            code = code_hash("formerlab.evaluation.language.zeroshot", *_suite_code(suites), specs=[run.model, *suites])
            jobs[run.id] = {
                "code": code,
                "suites": _states(root / plan["results"] / run.id / "zeroshot.json", sources.scale.suites, plan),
            }
    return jobs


def _has_questions(run: Run, sources: Sources) -> bool:
    return bool(sources.scale.data[run.data].has_questions or sources.scale.suites)


def _suite_code(suites: tuple[Suite, ...]) -> list[str]:
    """Return the module that loads suites, where a job has any."""
    return ["formerlab.evaluation.language.suite_tasks"] if suites else []


def _states(record: Path, names: Iterable[str], plan: dict[str, Any]) -> dict[str, str | None]:
    """Return the fingerprint of each suite; one that cannot be seen now counts as unchanged since its last `record`."""
    states = {name: plan["suites"][name]["state"] for name in names}
    if None in states.values() and record.exists():
        before = read_json(record).get("suites", {})
        states = {name: before.get(name) if state is None else state for name, state in states.items()}
    return states


def prune_jobs(runs: list[Run], sources: Sources, plan: dict[str, Any], root: Path) -> dict[str, Any]:
    """Return the runs whose cache is pruned, each with its sweep; a sweep of no run is read too."""
    jobs = {}
    sweeps = {
        (study, pattern): parse(PruneSweep, sources.settings(study, "prune", pattern), f"{study}.prune.{pattern}")
        for study, of_study in sources.studies.items()
        for pattern in of_study.prune
    }
    for run in runs:
        pattern = next((p for p in sources.studies[run.study].prune if fnmatchcase(run.name, p)), None)
        if pattern is None:
            continue
        sweep = sweeps[run.study, pattern]
        context = _decoder_of(run, f"{study_place(run.study)}: prune.{pattern}").context
        if sweep.context is not None and sweep.context > context:
            place = place_of(sources.settings(run.study, "prune", pattern), ("context",))
            raise UserError(
                f"{place}: {run.study}.prune.{pattern}.context: {sweep.context} exceeds "
                f"model.context={context} of run {run.name!r}; lower it"
            )
        sweep = sweep.model_copy(update={"questions": sweep.questions and _has_questions(run, sources)})
        asked = {name: suite for name, suite in sources.scale.suites.items() if sweep.asks(name)}
        suites = tuple(asked.values())
        code = code_hash("formerlab.evaluation.pruning.prune", *_suite_code(suites), specs=[sweep, run.model, *suites])
        jobs[run.id] = {
            "sweep": sweep.plain(),
            "code": code,
            "suites": _states(root / plan["results"] / run.id / "prune.json", asked, plan),
        }
    return jobs


def _decoder_of(run: Run, place: str) -> Decoder:
    """Return the run's model where it is a decoder, else say that `place` asks too much of it."""
    if not isinstance(run.model, Decoder):
        raise UserError(f"{place}: run {run.name!r} trains model.kind={run.model.kind}; name runs of a decoder")
    return run.model
