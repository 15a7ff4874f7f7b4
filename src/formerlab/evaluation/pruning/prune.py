"""All cache policies of one model, on the same windows and the same questions: of a run, and of any model folder."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, Self

from pydantic import Field, field_validator

from formerlab.cache import H2O, Budget, CachePolicy, Decay, Full, Local
from formerlab.cache.policies.policy import Policy
from formerlab.data import load_stream
from formerlab.errors import UserError
from formerlab.evaluation.kept import Kept, Rows
from formerlab.evaluation.language.questions import Questions, harness_version
from formerlab.evaluation.language.suite_tasks import questions_of
from formerlab.evaluation.measurement import QUESTION_TOKENS, Measured, Measurement, Reading
from formerlab.evaluation.pruning.configuration import Configuration
from formerlab.evaluation.pruning.sweep_extras import SweepExtras
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.results.stages import STAGES
from formerlab.results.write import Cell, write_rows
from formerlab.spec import AnyCount, Count, Size
from formerlab.tasks.window_losses import Stream, spread_windows, window_losses
from formerlab.training.any_run import AnyRun

FILES = {file: table.names for file, table in STAGES["prune"].tables.items()}
"""Every file of a sweep, with its columns; what is not asked for has no rows."""
KEPT = ".prune"
"""Folder beside the files with what a sweep has done."""
WINDOW_COLUMNS, QUESTION_COLUMNS = FILES["prune.csv"], FILES["prune_questions.csv"]


class PruneSweep(Measurement):
    """Every policy at every budget, always beside the full cache."""

    policies: tuple[CachePolicy, ...] = (Local(), H2O(), Decay())
    """Policies to compare."""
    alphas: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = ()
    """Decay factors: each adds Decay with this alpha and no recent part."""
    budgets: tuple[Budget, ...] = (0.2, 0.4)
    """Budgets on the windows: shares of a sequence's length (float) or entries (int)."""
    windows: Count = 96
    """Windows, evenly spread over the held-out stream."""
    context: Size | None = None
    """Tokens predicted per window; none means the model's context."""
    mask_windows: AnyCount = 8
    """Windows, evenly spread as well, whose kept keys are measured; 0 means none."""
    questions: bool = True
    """Answer the embedded questions and the suites under every policy."""
    suites: tuple[str, ...] = ("*",)
    """Patterns of the names of the suites that are asked."""
    question_budgets: tuple[Budget, ...] = (0.4,)
    """Budgets on the questions."""
    question_limit: Count | None = None
    """First examples of each task; none means all."""
    calibration_windows: AnyCount = 0
    """Windows of the validation stream on which alpha is chosen, per layer and head and for all; 0 means none."""
    calibration_budgets: tuple[Budget, ...] = (0.2,)
    """Budgets at which it is chosen; the alphas to choose from are those of `alphas`."""
    score_windows: AnyCount = 0
    """Windows in which scores are followed from query to query (Fig. 5 of the Decay article); 0 means none."""
    mask_dump_tokens: AnyCount = 0
    """Tokens of the window whose masks are drawn (its Fig. 3); 0 means none."""
    mask_dump_budgets: tuple[Budget, ...] = (0.2,)
    """Budgets of these masks."""
    one_shot: tuple[CachePolicy, ...] = ()
    """Policies that compress a prompt once, the first half of each window: another mode, in a file of its own."""
    one_shot_budgets: tuple[Budget, ...] = (0.2, 0.4)
    """Their budgets, shares of the prompt."""
    batch: Count = 64
    """Sequences per forward pass."""
    batch_tokens: Count | None = None
    """Tokens per forward pass at most, padding counted, so that large models and vocabularies fit; none: no limit."""

    @field_validator("policies")
    @classmethod
    def _stepwise(cls, policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
        """Refuse what chooses once after a prompt: its numbers are those of another mode, for another table."""
        for policy in policies:
            try:
                policy.check_stepwise()
            except UserError as error:
                raise ValueError(str(error)) from None
        return policies

    def of(self, run: AnyRun, *, questions: bool) -> Self:
        """Ask no questions where there are none. Raises UserError for windows longer than the model's context."""
        context = int(getattr(run.model, "context", 0))
        if self.context is not None and self.context > context:
            raise UserError(f"context: {self.context} exceeds model.context={context} of run {run.name!r}; lower it")
        return self.model_copy(update={"questions": self.questions and questions})

    def reading(self, run: AnyRun, questions: int) -> Reading:
        """Return the tokens of all windows and questions, each read once under every configuration."""
        context = self.context or int(getattr(run.model, "context", 0))
        tokens = len(self.configurations(self.budgets)) * self.windows * context
        if self.questions:
            asked = self.question_limit or questions
            tokens += len(self.configurations(self.question_budgets)) * asked * QUESTION_TOKENS
        return Reading(tokens, cached=tokens)

    def asks(self, suite: str) -> bool:
        """Say whether the sweep asks the questions of a suite."""
        return self.questions and any(fnmatchcase(suite, pattern) for pattern in self.suites)

    def batch_of(self, context: int, most: int | None = None) -> int:
        """Return how many windows of so many tokens are read at once, `most` at most."""
        fit = self.batch if self.batch_tokens is None else min(self.batch, max(1, self.batch_tokens // context))
        return fit if most is None else min(fit, most)

    def alone(self, configuration: Configuration) -> Self:
        """Return the settings without what a configuration is compared with."""
        return self.model_copy(update={"policies": (configuration.policy,), "alphas": (), "one_shot": ()})

    def configurations(self, budgets: Iterable[int | float]) -> list[Configuration]:
        """Return the full cache and every policy at every budget, each once."""
        policies = dict.fromkeys((*self.policies, *(Decay(alpha=alpha) for alpha in self.alphas)))
        pruned = [policy for policy in policies if not isinstance(policy, Full)]
        return [Configuration(Full(), 1.0), *(Configuration(policy, budget) for budget in budgets for policy in pruned)]


def measure(run: Measured, settings: PruneSweep) -> None:
    """Write FILES into the folder of the run."""
    questions = questions_of(run, settings.question_limit) if settings.questions else None
    cut = questions.cut(run.model.spec.context) if questions is not None else {}
    run.notes.update(versions={"lm_eval": harness_version()}, cut=cut)
    streams = {split: load_stream(run.data, split) for split in ("valid", "test")}
    work = Work(Kept(run.folder / KEPT), run.belongs_to, run.code_of)
    prune(run.model, streams, questions, settings, run.folder, label=run.label, work=work)


class Comparison(Protocol):
    """Settings that compare configurations."""

    def alone(self, configuration: Configuration) -> Measurement:
        """Return the settings without what a configuration is compared with."""


class Work(NamedTuple):
    """Where a measurement of policies keeps what it has done, and what that belongs to."""

    kept: Kept = Kept()
    belongs_to: tuple[Any, ...] = ()
    code_of: Callable[[Measurement], str] = repr

    def of(self, settings: Comparison, configuration: Configuration, *asked: Any) -> tuple[Any, ...]:
        """Return what decides the rows of one configuration; what is compared with it does not."""
        code = self.code_of(settings.alone(configuration))
        return *self.belongs_to, code, configuration.policy.to_dict(), configuration.budget, *asked

    def of_all(self, sweep: PruneSweep, *asked: Any) -> tuple[Any, ...]:
        """Return what decides rows that follow from the whole sweep."""
        return *self.belongs_to, self.code_of(sweep), sweep.to_dict(), *asked


def prune(
    model: DecoderModel,
    streams: Mapping[str, Stream],
    questions: Questions | None,
    sweep: PruneSweep,
    out: Path,
    *,
    label: str = "prune",
    work: "Work | None" = None,
) -> None:
    """Write FILES into `out`.

    Pruning is simulated, on the stream `test`: it acts from the first token on, as if every sequence were fed token by
    token. The rows of one window, or of one question, differ in nothing but the policy. What a sweep chooses, it
    chooses on the stream `valid`. What `work` keeps is not done again. Raises UserError where the windows exceed the
    model's context.
    """
    work = work or Work()
    context = sweep.context or model.spec.context
    if context > model.spec.context:
        raise UserError(f"prune.context={context} exceeds the model's context of {model.spec.context}; lower it")
    write_rows(out / "prune.csv", WINDOW_COLUMNS, losses(model, streams["test"], context, sweep, work, label))
    answered = answers(model, questions, sweep, work, label) if questions is not None else ()
    write_rows(out / "prune_questions.csv", QUESTION_COLUMNS, answered)
    windows = spread_windows(streams["test"], context, sweep.windows)
    for name, rows_of in SweepExtras(model, streams, context, windows, sweep, label).files.items():
        write_rows(out / name, FILES[name], work.kept.rows(rows_of, *work.of_all(sweep, name)))
    work.kept.tidy()


# Windows, questions and the rest are shown apart: a mean speed over such different work predicts nothing.


def losses(model: DecoderModel, stream: Stream, context: int, sweep: PruneSweep, work: Work, label: str) -> Rows:
    """Return the loss of every window under every configuration, in the columns of prune.csv."""
    windows, configurations = spread_windows(stream, context, sweep.windows), sweep.configurations(sweep.budgets)
    rows: Rows = []
    with Progress(len(configurations) * len(windows), label, unit="window") as progress:

        def made(configuration: Configuration) -> Iterator[tuple[Cell, ...]]:
            for loss in window_losses(
                model,
                stream,
                context,
                batch=sweep.batch_of(context),
                attend_for=partial(configuration.attend, position=model.position),
                windows=windows,
                progress=progress,
            ):
                yield *configuration.cells(), loss.realised_budget, *loss[:3]

        for configuration in configurations:
            about = work.of(sweep, configuration, "windows", windows, context, sweep.batch_of(context))
            if work.kept.has(*about):
                progress.skip(len(windows))
            rows += work.kept.rows(partial(made, configuration), *about)
    return rows


def answers(
    model: DecoderModel, questions: Questions, sweep: PruneSweep, work: Work, label: str
) -> list[tuple[Cell, ...]]:
    """Return every metric of every question under every configuration, in the columns of prune_questions.csv."""
    configurations = sweep.configurations(sweep.question_budgets)
    rows: list[tuple[Cell, ...]] = []
    with Progress(len(configurations) * len(questions), label, unit="question") as progress:
        for configuration in configurations:
            asked = "questions", sweep.question_limit, sweep.batch, sweep.batch_tokens
            found = questions.answers(
                model,
                batch=sweep.batch,
                batch_tokens=sweep.batch_tokens,
                attend_for=partial(configuration.attend, position=model.position),
                progress=progress,
                journal=work.kept.journal(*work.of(sweep, configuration, *asked)),
            )
            rows += [(*configuration.cells(), answer.realised_budget, *answer[:6]) for answer in found]
    return rows
