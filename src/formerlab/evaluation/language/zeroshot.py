"""The stage `zeroshot`: answer the questions of the data set and of the scale's suites with a finished run."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Self

from formerlab.evaluation.language.questions import load_questions
from formerlab.evaluation.measurement import QUESTION_TOKENS, MeasuredRun, Measurement
from formerlab.progress import Progress
from formerlab.results.stages import TABLES
from formerlab.spec import Count
from formerlab.training.any_run import AnyRun


class Zeroshot(Measurement):
    """Settings of `zeroshot`."""

    question_limit: Count | None = None
    """Maximum number of examples per task, from the start; null means all."""
    batch: Count = 16
    """Number of sequences per forward pass."""
    batch_tokens: Count | None = None
    """Maximum number of tokens per forward pass, including padding; null means no limit."""

    def settings_for_run(self, run: AnyRun, *, questions: bool) -> Self | None:
        return self if questions else None

    def suite_names(self, suites: Sequence[str]) -> list[str]:
        return list(suites)

    def tokens_read(self, run: AnyRun, questions: int) -> int:
        return min(self.question_limit or questions, questions) * QUESTION_TOKENS


def measure(run: MeasuredRun, settings: Zeroshot) -> None:
    """Write zeroshot.csv."""
    questions = load_questions(run, settings.question_limit)
    run.notes.update(versions={"lm_eval": version("lm_eval")}, cut=questions.truncated(run.model.spec.context))
    batches = {"batch": settings.batch, "batch_tokens": settings.batch_tokens}
    with Progress(len(questions.encoded), run.label, unit="answer") as progress:
        columns = len(TABLES["zeroshot.csv"].names)
        run.write("zeroshot.csv", (row[:columns] for row in questions.scores(run.model, **batches, progress=progress)))
