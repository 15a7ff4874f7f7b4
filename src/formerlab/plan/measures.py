"""The jobs of a plan that measure a finished run in a way that a study asks for by patterns of run names."""

from fnmatch import fnmatchcase
from typing import Any

from formerlab.errors import UserError
from formerlab.evaluation.complexity import Complexity
from formerlab.evaluation.translate import Decoding
from formerlab.plan.code import code_hash
from formerlab.plan.layers import Layer, Tree
from formerlab.plan.read import parse
from formerlab.plan.schema import StudyScale
from formerlab.plan.sources import Sources, study_place
from formerlab.run import Run
from formerlab.spec import Spec

MEASURES: dict[str, type[Spec]] = {"translate": Decoding, "complexity": Complexity}
"""Stage, which is also the key of study and scale, and its settings."""

WRITES: dict[str, tuple[str, ...]] = {
    "translate": ("translate.csv", "bleu.csv", "attention.csv"),
    "complexity": ("complexity.csv",),
}
"""Files of rows that each stage writes."""


def measure_jobs(stage: str, runs: list[Run], sources: Sources) -> dict[str, Any]:
    """Return the runs that a stage measures, each with its settings and code hash."""
    jobs = {}
    for run in runs:
        study, at_scale = sources.studies[run.study], sources.scale.studies.get(run.study, StudyScale())
        asked: dict[str, Tree] = getattr(study, stage)
        pattern = next((p for p in asked if fnmatchcase(run.name, p)), None)
        if pattern is None:
            continue
        place = study_place(run.study)
        own = [tree for p, tree in getattr(at_scale, stage).items() if p == pattern or fnmatchcase(run.name, p)]
        layers = [Layer(place, asked[pattern]), *(Layer(sources.scale_place, tree) for tree in own)]
        settings = parse(MEASURES[stage], layers, f"{run.study}.{stage}.{pattern}")
        if run.model.kind != "translator":
            raise UserError(f"{place}: {stage}.{pattern}: run {run.name!r} trains no translator; name runs that do")
        code = code_hash(f"formerlab.evaluation.{stage}", specs=[settings, run.model])
        jobs[run.id] = {"settings": settings.plain(), "code": code}
    return jobs
