"""The stage `zeroshot`: a finished run answers all questions, those of its data and those of the scale's suites."""

from typing import Self

from formerlab.evaluation.language.suite_tasks import questions_of
from formerlab.evaluation.language.zeroshot import harness_version, zeroshot
from formerlab.evaluation.measurement import QUESTION_TOKENS, Measured, Measurement, Reading
from formerlab.training.run import Run


class Zeroshot(Measurement):
    """Which questions are answered: all, so there is nothing to set."""

    def of(self, run: Run, *, questions: bool) -> Self | None:
        """Return the settings where there are questions."""
        del run
        return self if questions else None

    def asks(self, suite: str) -> bool:
        """Ask all."""
        del suite
        return True

    def reading(self, run: Run, questions: int) -> Reading:
        """Return the tokens of the embedded questions."""
        del run
        return Reading(questions * QUESTION_TOKENS)


def measure(run: Measured, settings: Zeroshot) -> None:
    """Write zeroshot.csv."""
    del settings
    questions = questions_of(run)
    run.notes.update(versions={"lm_eval": harness_version()}, cut=questions.cut(run.model.spec.context))
    zeroshot(run.model, questions, run.folder / "zeroshot.csv", label=run.label)
