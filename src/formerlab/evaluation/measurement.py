"""What a stage that measures finished runs consists of: settings, and a function `measure(run, settings)`.

docs/extending.md shows one. What surrounds its work (note, device, record) is in `commands/measures.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from formerlab.results.stages import TABLES
from formerlab.results.write import Cell, write_rows
from formerlab.spec import Spec
from formerlab.training.any_run import AnyRun

QUESTION_TOKENS = 4 * 3 * 64
"""Tokens that one question of each of the three embedded tasks costs: its choices, each with its context."""


class Reading(NamedTuple):
    """What a measurement reads, roughly; from it follows how long it takes."""

    tokens: int
    """Tokens that the model reads."""
    cached: int = 0
    """Those of them that it reads one by one, under a cache policy."""


class Measurement(Spec):
    """Settings of a measurement of finished runs."""

    def of(self, run: AnyRun, *, questions: bool) -> Self | None:
        """Return the settings for one run, nothing where there is nothing to measure.

        `questions` says whether its data, or the scale, have any. Raises UserError where settings and run do not go
        together.
        """
        return self

    def asks(self, suite: str) -> bool:
        """Say whether the questions of a suite are asked."""
        return False

    def reading(self, run: AnyRun, questions: int) -> Reading | None:
        """Return what is read of a run whose data have so many questions; None where that is unknown."""
        return None


@dataclass(frozen=True)
class Measured:
    """A finished run while a stage measures it."""

    run: AnyRun
    model: Any
    """The final model on its device, in evaluation mode; None where the stage names no kind of model."""
    device: str
    """Where the model is: cpu or cuda."""
    folder: Path
    """Of the run."""
    data: Path
    """Folder of its data set."""
    label: str
    """Stage and run, for progress."""
    suites: dict[str, Any] = field(default_factory=dict)
    """Question suites that are asked, as the plan has them."""
    belongs_to: tuple[Any, ...] = ()
    """What decides the rows beside the code: weights, data, suites."""
    code_of: Callable[[Measurement], str] = repr
    """Returns the hash of the code that the stage would run for other settings."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What the record says beside what every one says."""

    def write(self, file: str, rows: Iterable[Sequence[Cell]]) -> None:
        """Write a file of rows, under the columns that the table of stages gives it."""
        write_rows(self.folder / file, TABLES[file].names, rows)
