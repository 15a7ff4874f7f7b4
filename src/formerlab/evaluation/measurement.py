"""The parts of a stage that measures finished runs: settings, and a function `measure(run, settings)`.

docs/extending.md shows one. Note, device and record of such a stage are made in `commands/measures.py`.
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
    """A rough count of the tokens that a measurement reads, from which its time follows."""

    tokens: int
    """Tokens that the model reads."""
    cached: int = 0
    """Those of them that it reads one by one, under a cache policy."""


class Measurement(Spec):
    """Settings of a measurement of finished runs."""

    def of(self, run: AnyRun, *, questions: bool) -> Self | None:
        """Return the settings for one run, None where there is nothing to measure.

        `questions` says whether its data, or the scale, have any. Raises UserError where settings and run do not go
        together.
        """
        return self

    def asks(self, suite: str) -> bool:
        """Say whether the questions of a suite are asked."""
        return False

    def reading(self, run: AnyRun, questions: int) -> Reading | None:
        """Return the tokens read for a run whose data have so many questions; None where that number is unknown."""
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
    """Hashes of all that decides the rows beside the code: weights, data, suites."""
    code_of: Callable[[Measurement], str] = repr
    """Returns the hash of the code that the stage runs for given settings."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Entries of the record beside those of all records."""

    def write(self, file: str, rows: Iterable[Sequence[Cell]]) -> None:
        """Write a file of rows, under the columns that the table of stages gives it."""
        write_rows(self.folder / file, TABLES[file].names, rows)
