"""Base classes for stages that measure finished runs.

The module of a stage has a class of settings and a function `measure(run, settings)`; docs/extending.md has an example.
`commands/stages.py` chooses the device and writes the note and the record.
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
"""Estimated number of tokens for one question of each of the three embedded tasks, with a context for every choice."""


class Measurement(Spec):
    """Settings of a measurement of finished runs."""

    cached: ClassVar[bool] = False
    """Whether the model reads tokens one by one, under a cache policy."""

    def settings_for_run(self, run: AnyRun, *, questions: bool) -> Self | None:
        """Return the settings for one run, or None if the run is not measured.

        `questions` is True if the run's data or the scale have questions. Raises UserError if the settings are invalid
        for the run.
        """
        return self

    def suite_names(self, suites: Sequence[str]) -> list[str]:
        """Return the names of the suites that the model answers. Raises UserError for a pattern without a match."""
        return []

    def tokens_read(self, run: AnyRun, questions: int) -> int | None:
        """Estimate the number of tokens that are read for a run with `questions` questions; None if it is unknown."""
        return None


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run that a stage measures."""

    spec: AnyRun
    """The run's spec."""
    model: Any
    """The final model on its device, in evaluation mode, or None if the stage does not use models."""
    device: str
    """Device of the model: cpu or cuda."""
    folder: Path
    """Folder of the run."""
    data: Path
    """Folder of the data set."""
    label: str
    """Stage and run, for the progress bar."""
    suites: dict[str, tuple[Suite, str | None]] = field(default_factory=dict)
    """Question suites that the model answers, each with its fingerprint at planning time."""
    input_hashes: tuple[Any, ...] = ()
    """Hashes of the weights, the data and the suites, on which the rows depend."""
    code_of: Callable[[Measurement], str] = repr
    """Returns the hash of the code that the stage runs for given settings."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Additional entries of the record."""

    def write(self, file: str, rows: Iterable[Sequence[Cell]]) -> None:
        """Write a file of rows with the columns that `TABLES` lists for it."""
        write_rows(self.folder / file, TABLES[file].names, rows)


Row = Sequence[Cell]
Rows = list[Row]


class StoredRows:
    """A folder of rows on disk. The name of each file is the fingerprint of all inputs of its rows."""

    def __init__(
        self, folder: Path | None = None, *input_hashes: Any, code_of: Callable[[Measurement], str] = repr
    ) -> None:
        """Rows are not stored if `folder` is None. `code_of` returns the hash of the code that the settings run."""
        self.folder, self.input_hashes, self.code_of = folder, input_hashes, code_of
        self._used: set[str] = set()

    def rows(self, make: Callable[[], Iterable[Row]], settings: Measurement, *inputs: Any) -> Rows:
        """Return the stored rows of these settings and inputs; if they are missing, call `make` and store its rows."""
        if self.folder is None:
            return list(make())
        path = self.folder / f"{fingerprint([*self.input_hashes, self.code_of(settings), *inputs])}.json"
        self._used.add(path.name)
        if not path.exists():
            write_json(path, list(make()))
        rows: Rows = read_json(path, finite=False)  # a score may be infinite
        return rows

    def remove_unused(self) -> None:
        """Remove all files that the method `rows` did not use."""
        for path in self.folder.iterdir() if self.folder is not None and self.folder.is_dir() else ():
            if path.name not in self._used:
                path.unlink()
