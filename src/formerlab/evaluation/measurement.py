"""The parts of a stage that measures finished runs: settings, and a function `measure(run, settings)`.

docs/extending.md shows one. Note, device and record of such a stage are made in `commands/stages.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from formerlab.evaluation.language.suites import Suite
from formerlab.files import read_json, write_json
from formerlab.results.stages import TABLES
from formerlab.results.write import Cell, write_rows
from formerlab.spec import Spec, fingerprint
from formerlab.training.any_run import AnyRun

QUESTION_TOKENS = 4 * 3 * 64
"""Tokens that one question of each of the three embedded tasks costs: its choices, each with its context."""


class Measurement(Spec):
    """Settings of a measurement of finished runs."""

    cached: ClassVar[bool] = False
    """Whether the model reads tokens one by one, under a cache policy."""

    def of(self, run: AnyRun, *, questions: bool) -> Self | None:
        """Return the settings for one run, None where there is nothing to measure; `questions` says whether its data or
        the scale have any. Raises UserError where settings and run do not go together.
        """
        return self

    def asked(self, suites: Sequence[str]) -> list[str]:
        """Return those of a scale's suites whose questions are asked. Raises UserError for a pattern that fits none."""
        return []

    def reading(self, run: AnyRun, questions: int) -> int | None:
        """Return about how many tokens a run with so many questions reads, for its cost; None where that is unknown."""
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
    suites: dict[str, tuple[Suite, str | None]] = field(default_factory=dict)
    """Question suites that are asked, each with the state that it had when it was planned."""
    belongs_to: tuple[Any, ...] = ()
    """Hashes of all that decides the rows beside the code: weights, data, suites."""
    code_of: Callable[[Measurement], str] = repr
    """Returns the hash of the code that the stage runs for given settings."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Entries of the record beside those of all records."""

    def write(self, file: str, rows: Iterable[Sequence[Cell]]) -> None:
        """Write a file of rows, under the columns that the table of stages gives it."""
        write_rows(self.folder / file, TABLES[file].names, rows)


Row = Sequence[Cell]
Rows = list[Row]


class Kept:
    """A folder of rows, each file named by the fingerprint of everything that its rows depend on."""

    def __init__(
        self, folder: Path | None = None, *belongs_to: Any, code_of: Callable[[Measurement], str] = repr
    ) -> None:
        """Without a `folder` nothing is stored. `code_of` returns the hash of the code that settings run."""
        self.folder, self.belongs_to, self.code_of = folder, belongs_to, code_of
        self._used: set[str] = set()

    def rows(self, make: Callable[[], Iterable[Row]], settings: Measurement, *asked: Any) -> Rows:
        """Return the rows on disk if they are there, else as made now."""
        if self.folder is None:
            return list(make())
        path = self.folder / f"{fingerprint([*self.belongs_to, self.code_of(settings), *asked])}.json"
        self._used.add(path.name)
        if not path.exists():
            write_json(path, list(make()))
        rows: Rows = read_json(path, finite=False)  # a score may be infinite
        return rows

    def tidy(self) -> None:
        """Remove the rows that were not asked for this time."""
        for path in self.folder.iterdir() if self.folder is not None and self.folder.is_dir() else ():
            if path.name not in self._used:
                path.unlink()
