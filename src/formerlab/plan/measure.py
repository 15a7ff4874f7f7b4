"""Build the measurement jobs of a plan: one job per measured run, or one job that times all runs of a study.

The key `measure` of a study, with the scale's key `measure` merged over it, maps each stage to its settings, `runs`
(patterns of the measured runs) and `by_run` (settings that differ for some runs).
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from formerlab.errors import UserError
from formerlab.evaluation.language.suites import Suite
from formerlab.evaluation.measurement import Measurement
from formerlab.evaluation.timing.timing import Timing
from formerlab.files import fingerprint, read_record
from formerlab.plan.code import code_hash
from formerlab.plan.cost import forward_cost
from formerlab.plan.hardware import Hardware
from formerlab.plan.merging import merge_all, parse
from formerlab.plan.schema import MeasuredRuns
from formerlab.plan.sources import Sources
from formerlab.results.stages import Stage
from formerlab.spec import Spec
from formerlab.training.any_run import AnyRun, ReleasedRun

Jobs = dict[str, Any]


class RequestedMeasurement:
    """A measurement that a study requests at this scale.

    The settings are checked even if the measurement includes no run of the scale.
    """

    def __init__(self, stage: Stage, study: str, sources: Sources) -> None:
        self.stage = stage
        self.tree = sources.study_settings(study, "measure", stage.name)
        self.subject = f"{study}.measure.{stage.name}"
        self.measured_runs = parse(MeasuredRuns, self.tree.select(MeasuredRuns.model_fields), self.subject)
        self.settings()

    def includes(self, run: AnyRun) -> bool:
        """Return whether a run is measured. Raises UserError if the stage cannot measure its model."""
        if not any(fnmatchcase(run.name, pattern) for pattern in self.measured_runs.runs):
            return False
        kinds = self.stage.models
        if kinds and run.model.kind not in kinds:
            key = f"{self.tree.file_of('runs')}: {self.subject}.runs"
            remedy = f"choose runs of a {' or '.join(kinds)}"
            raise UserError(f"{key}: {run.name!r} has model.kind={run.model.kind}; {remedy}")
        return True

    def settings(self, run: str = "") -> Any:
        """Return the settings of a run, including the `by_run` settings of all patterns that match its name."""
        spec_class: type[Spec] = self.stage.measuring[1]
        patterns = [pattern for pattern in self.measured_runs.by_run if fnmatchcase(run, pattern)]
        common = self.tree.drop(*MeasuredRuns.model_fields)
        trees = [common, *(self.tree.subtree("by_run", pattern) for pattern in patterns)]
        return parse(spec_class, merge_all(trees, self.subject), self.subject)


def measure_jobs(
    stage: Stage, runs: Sequence[AnyRun], sources: Sources, hardware: Hardware, suites: dict[str, Any], results: Path
) -> Jobs:
    """Return the jobs of a stage that measures finished runs, by run id.

    A job has settings, code hash, states of its suites and, if it can be predicted, cost. `suites` are the suites of
    the plan, and `results` is the folder of earlier records. Raises UserError if the stage does not support the model
    of a run or the settings.
    """
    by_study = {study: RequestedMeasurement(stage, study, sources) for study in sources.studies}
    jobs: Jobs = {}
    for run in runs:
        if not (requested := by_study[run.study]).includes(run):
            continue
        questions = int(getattr(sources.scale.data[run.data], "questions", 0) or 0)
        try:
            has_questions = bool(questions or sources.scale.suites)
            settings: Measurement = requested.settings(run.name).settings_for_run(run, questions=has_questions)
            if settings is None:
                continue
            names = settings.suite_names(list(sources.scale.suites))
        except UserError as error:
            raise UserError(f"{requested.tree.files_of()}: {requested.subject}.{error}") from None
        run_suites = {name: sources.scale.suites[name] for name in names}
        states = {name: suites[name]["state"] for name in run_suites}
        record = results / run.id / stage.record
        if None in states.values() and record.exists():  # a suite that is not available counts as unchanged
            with suppress(UserError):  # the staleness check reports an unreadable record
                recorded = read_record(record).get("suites", {})
            states = {name: recorded.get(name) if state is None else state for name, state in states.items()}
        code = code_of_measuring(stage, run, settings, list(run_suites.values()))
        jobs[run.id] = {"settings": settings.to_dict(), "code": code, "suites": states}
        if (tokens := settings.tokens_read(run, questions)) is not None:
            jobs[run.id]["cost"] = forward_cost(run, tokens, hardware, cached=settings.cached)
    return jobs


def code_of_measuring(stage: Stage, run: AnyRun, settings: Measurement, suites: Sequence[Suite]) -> str:
    """Return the hash of the code that a stage runs, including the loader of a released model."""
    return code_hash(stage.module, *_loaders([run]), specs=[settings, run.model, *suites])


def _loaders(runs: Iterable[AnyRun]) -> tuple[str, ...]:
    """Return the modules that load released models, if `runs` contains any."""
    return ("formerlab.integrations.huggingface.released_run",) if any(isinstance(r, ReleasedRun) for r in runs) else ()


def timing_jobs(stage: Stage, runs: Sequence[AnyRun], sources: Sources) -> Jobs:
    """Return the jobs of a stage that times the first seed of each run of a study, by study."""
    jobs = {}
    for study in sources.studies:
        requested = RequestedMeasurement(stage, study, sources)
        if requested.measured_runs.by_run:
            key = f"{requested.tree.file_of('by_run')}: {requested.subject}.by_run"
            raise UserError(f"{key}: the runs are timed together, with the same settings; remove it")
        settings: Timing = requested.settings()
        first_seeds = {run.name: run for run in reversed(runs) if run.study == study}
        timed = [run for run in reversed(first_seeds.values()) if requested.includes(run)]
        if timed:
            keys_by_run = {run.name: timing_keys(run, settings) for run in timed}
            specs = timed if "task" in settings.depends_on else [run.model for run in timed]
            jobs[study] = {
                "settings": settings.to_dict(),
                "runs": [run.id for run in timed],
                "configuration": fingerprint([settings.to_dict(), keys_by_run]),
                "code": code_hash(stage.module, *_loaders(timed), specs=[settings, *specs]),
                "memory_bytes": settings.memory_bytes(timed),
            }
    return jobs


def timing_keys(run: AnyRun, settings: Timing | type[Timing]) -> Jobs:
    """Return the keys of a run's spec, with their values, that affect its times."""
    return {key: value for key, value in run.to_dict().items() if key in settings.depends_on}
