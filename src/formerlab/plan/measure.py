"""The jobs of a plan that measure: finished runs, or the speed of runs of a study beside each other.

What is measured of which runs is the key `measure` of a study and, laid over it, of a scale: by the name of a stage its
settings, beside `runs`, the patterns of run names, and `by_run`, settings that differ for some of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from formerlab.errors import UserError
from formerlab.evaluation.language.suites import Suite
from formerlab.evaluation.measurement import Measurement
from formerlab.evaluation.timing.timing import Timing
from formerlab.files import read_json
from formerlab.plan.code import code_hash
from formerlab.plan.cost import forward_cost
from formerlab.plan.hardware import Hardware
from formerlab.plan.layers import Tree, laid
from formerlab.plan.read import parse
from formerlab.plan.schema import WHICH, Which
from formerlab.plan.sources import Sources
from formerlab.results.stages import Stage
from formerlab.spec import Spec, fingerprint
from formerlab.training.any_run import AnyRun
from formerlab.training.released import ReleasedRun

Jobs = dict[str, Any]


def settings_of(stage: Stage) -> type[Any]:
    """Return the class of a stage's settings."""
    kind: type[Spec] = getattr(import_module(stage.import_path), stage.settings)
    return kind


@dataclass(frozen=True)
class Asked:
    """What a study, at this scale, asks of a stage."""

    stage: Stage
    study: str
    tree: Tree

    @property
    def subject(self) -> str:
        """Return where it is asked, for messages."""
        return f"{self.study}.measure.{self.stage.name}"

    @cached_property
    def which(self) -> Which:
        """Return of which runs it is asked."""
        return parse(Which, self.tree.only(WHICH), self.subject)

    def of(self, run: str) -> bool:
        """Say whether it is asked of a run."""
        return any(fnmatchcase(run, pattern) for pattern in self.which.runs)

    def settings(self, patterns: Iterable[str] = ()) -> Any:
        """Return the settings of runs, those laid over for some `patterns` of names included."""
        own = [self.tree.part("by_run", pattern) for pattern in patterns]
        return parse(settings_of(self.stage), laid([self.tree.without(*WHICH), *own], self.subject), self.subject)

    def settings_of(self, run: str) -> Any:
        """Return the settings of a run."""
        return self.settings(pattern for pattern in self.which.by_run if fnmatchcase(run, pattern))

    def check(self) -> None:
        """Refuse unknown settings, also those of runs that the scale leaves out."""
        self.settings()
        for pattern in self.which.by_run:
            self.settings([pattern])

    def check_kind(self, run: AnyRun) -> None:
        """Refuse a run whose model the stage cannot measure."""
        kinds = self.stage.models
        if kinds and run.model.kind not in kinds:
            remedy = f"name runs of a {' or '.join(kinds)}"
            raise UserError(f"{self.place('runs')}: {run.name!r} has model.kind={run.model.kind}; {remedy}")

    def place(self, *path: str) -> str:
        """Return the file that says something of it, with the subject."""
        return f"{self.tree.file_of(*path)}: {self.subject}" + "".join(f".{key}" for key in path)


def _asked(stage: Stage, sources: Sources) -> dict[str, Asked]:
    """Return what every study asks of a stage, checked."""
    found = {
        study: Asked(stage, study, sources.settings(study, "measure", stage.name)) for study in sources.config.studies
    }
    for asked in found.values():
        asked.check()
    return found


def measure_jobs(
    stage: Stage, runs: Sequence[AnyRun], sources: Sources, hardware: Hardware, suites: dict[str, Any], results: Path
) -> Jobs:
    """Return the finished runs that a stage measures, each with settings, code hash and cost.

    `suites` are those of the plan, and `results` is the folder where records of before may lie. Raises UserError for a
    run whose model the stage cannot measure, or not with these settings.
    """
    asked = _asked(stage, sources)
    return {
        run.id: job
        for run in runs
        if asked[run.study].of(run.name)
        and (job := _job(asked[run.study], run, sources, hardware, suites, results / run.id)) is not None
    }


def _job(
    asked: Asked, run: AnyRun, sources: Sources, hardware: Hardware, planned: dict[str, Any], folder: Path
) -> Jobs | None:
    stage, scale = asked.stage, sources.scale
    asked.check_kind(run)
    data = scale.data[run.data]
    own: Measurement = asked.settings_of(run.name)
    try:
        settings = own.of(run, questions=bool(getattr(data, "questions", 0) or scale.suites))
    except UserError as error:
        raise UserError(f"{asked.tree.files_of()}: {asked.subject}.{error}") from None
    if settings is None:
        return None
    suites = {name: suite for name, suite in scale.suites.items() if settings.asks(name)}
    job: Jobs = {
        "settings": settings.to_dict(),
        "code": code_of_measuring(stage, run, settings, list(suites.values())),
        "suites": _states(folder / stage.record, suites, planned),
    }
    reading = settings.reading(run, int(getattr(data, "questions", 0) or 0))
    return job if reading is None else job | {"cost": forward_cost(run, reading, hardware)}


def code_of_measuring(stage: Stage, run: AnyRun, settings: Measurement, suites: Sequence[Suite]) -> str:
    """Return the hash of the code that a stage runs; for a released model what loads it, too."""
    return code_hash(stage.import_path, *_loaders([run]), specs=[settings, run.model, *suites])


def _loaders(runs: Iterable[AnyRun]) -> tuple[str, ...]:
    """Return the modules without which the models of runs are not there: stages are given released ones."""
    return ("formerlab.integrations.huggingface.released_run",) if any(isinstance(r, ReleasedRun) for r in runs) else ()


def _states(record: Path, names: Iterable[str], planned: dict[str, Any]) -> dict[str, str | None]:
    """Return the fingerprint of each suite; one that cannot be seen now counts as unchanged since its last `record`."""
    states = {name: planned[name]["state"] for name in names}
    if None in states.values() and record.exists():
        before = read_json(record).get("suites", {})
        states = {name: before.get(name) if state is None else state for name, state in states.items()}
    return states


def timing_jobs(stage: Stage, runs: Sequence[AnyRun], sources: Sources) -> Jobs:
    """Return, by study, the runs that a stage times beside each other, one seed of each."""
    return dict(_timing_jobs(stage, runs, sources))


def _timing_jobs(stage: Stage, runs: Sequence[AnyRun], sources: Sources) -> Iterator[tuple[str, Jobs]]:
    for study, asked in _asked(stage, sources).items():
        if asked.which.by_run:
            raise UserError(f"{asked.place('by_run')}: the runs are timed together, with the same settings; remove it")
        settings: Timing = asked.settings()
        named = {run.name: run for run in reversed(runs) if run.study == study}
        timed = [run for run in reversed(named.values()) if asked.of(run.name)]
        for run in timed:
            asked.check_kind(run)
        if timed:
            parts = {run.name: deciding(run, settings) for run in timed}
            specs = timed if "task" in settings.decides else [run.model for run in timed]
            yield (
                study,
                {
                    "settings": settings.to_dict(),
                    "runs": [run.id for run in timed],
                    "configuration": fingerprint([settings.to_dict(), parts]),
                    "code": code_hash(stage.import_path, *_loaders(timed), specs=[settings, *specs]),
                    "memory_bytes": settings.memory_bytes(timed),
                },
            )


def deciding(run: AnyRun, settings: Timing | type[Timing]) -> Jobs:
    """Return what of a run decides what a stage times."""
    return {key: value for key, value in run.to_dict().items() if key in settings.decides}
