"""The jobs of a plan that measure a finished run in a way that a study asks for by patterns of run names."""

from fnmatch import fnmatchcase
from typing import Any

from formerlab.errors import UserError
from formerlab.evaluation.timing.complexity import Complexity
from formerlab.evaluation.translation.translate import Decoding
from formerlab.plan.code import code_hash
from formerlab.plan.layers import Tree, merge_layers, part
from formerlab.plan.read import check_values, parse
from formerlab.plan.sources import Sources, study_place
from formerlab.spec import Spec
from formerlab.training.run import Run

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
    for study in sources.studies:
        _check_settings(stage, study, sources)
    for run in runs:
        asked: dict[str, Tree] = getattr(sources.studies[run.study], stage)
        pattern = next((p for p in asked if fnmatchcase(run.name, p)), None)
        if pattern is None:
            continue
        at_scale = merge_layers(sources.at_scale(run.study, stage))
        names = [p for p in at_scale if p == pattern or fnmatchcase(run.name, p)]
        layers = part(sources.study_layers[run.study], stage, pattern)
        layers += [layer for name in names for layer in sources.at_scale(run.study, stage, name)]
        settings = parse(MEASURES[stage], layers, f"{run.study}.{stage}.{pattern}")
        if run.model.kind != "translator":
            place = study_place(run.study)
            raise UserError(f"{place}: {stage}.{pattern}: run {run.name!r} trains no translator; name runs that do")
        code = code_hash(MEASURES[stage].__module__, specs=[settings, run.model])
        jobs[run.id] = {"settings": settings.plain(), "code": code}
    return jobs


def _check_settings(stage: str, study: str, sources: Sources) -> None:
    """Refuse values that no settings have, also those for runs that the scale leaves out."""
    for layer in [*part(sources.study_layers[study], stage), *sources.at_scale(study, stage)]:
        for pattern in layer.tree:
            check_values(MEASURES[stage], part([layer], pattern), f"{study}.{stage}.{pattern}")
