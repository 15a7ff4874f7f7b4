"""Which runs train for the time of another."""

from typing import Any

from formerlab.errors import UserError, near_misses
from formerlab.evaluation.timing.equal_time import EqualTime
from formerlab.evaluation.timing.speed import Speed
from formerlab.plan.measure import deciding
from formerlab.plan.resolve import equal_times
from formerlab.plan.sources import Sources, study_file
from formerlab.training.run import Run


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
            key_of_run = f"{study_file(run.study)}: runs.{run.name}.equal_time"
            timed = jobs.get(run.study, {"runs": []})["runs"]
            names = [name.split("/")[1] for name in timed]
            for key, name in (("arm", equal.arm), ("reference", equal.reference)):
                if name not in names:
                    raise UserError(
                        f"{key_of_run}.{key}: {name!r} is no run that `speed` times{near_misses(name, names)}"
                    )
            arm, reference = (by_id[f"{run.study}/{name}/seed{run.seed}"] for name in (equal.arm, equal.reference))
            if deciding(reference, Speed) != deciding(run, Speed):
                raise UserError(
                    f"{key_of_run}.reference: {reference.name!r} is another model or batch; name an equal one"
                )
            run = run.model_copy(update={"steps": arm.steps})
            equal_by_id[run.id] = equal
        matched.append(run)
    return matched, equal_by_id
