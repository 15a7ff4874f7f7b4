"""Base classes for stages that measure finished runs.

The module of a stage has a class of settings and a function `measure(run, settings)`; docs/extending.md has an example.
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
"""Estimated tokens of three questions, one per embedded task: 4 choices of 64 tokens each, including the context."""


class Measurement(Spec):
    """Settings of a measurement of finished runs."""

    cached: ClassVar[bool] = False
    """Whether the cost estimate includes a cache update for every token."""

    def settings_for_run(self, run: AnyRun, *, questions: bool) -> Self | None:
        """Return the settings for one run, or None if the run is not measured.

        `questions` is True if the run's data set has questions or the scale has suites. Raises UserError for settings
        that are invalid for the run.
        """
        return self

    def suite_names(self, suites: Sequence[str]) -> list[str]:
        """Return the names of the suites that the model answers. Raises UserError for a pattern without a match."""
        return []

    def tokens_read(self, run: AnyRun, questions: int) -> int | None:
        """Estimate the number of tokens that are read, or return None. `questions` is the number per embedded task."""
        return None


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run that a stage measures."""

    spec: AnyRun
    model: Any
    """The final model on its device, in evaluation mode, or None if the stage does not use models."""
    device: str
    """cpu or cuda."""
    folder: Path
    data: Path
    """Folder of the data set."""
    label: str
    """Stage and run, for the progress bar."""
    suites: dict[str, tuple[Suite, str | None]] = field(default_factory=dict)
    """Question suites that the model answers, each with its fingerprint at planning time (None: files were missing)."""
    input_hashes: tuple[Any, ...] = ()
    """Hashes of the weights, data and suites."""
    code_hash: Callable[[Measurement], str] = repr
    """Returns a string that identifies the code that computes rows with the given settings."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Additional entries of the record."""

    def write(self, file: str, rows: Iterable[Sequence[Cell]]) -> None:
        """Write a file of rows with the columns that `TABLES` lists for it."""
        write_rows(self.folder / file, TABLES[file].names, rows)


Row = Sequence[Cell]
Rows = list[Row]


class StoredRows:
    """Rows on disk, in files that are named by the fingerprint of all inputs of their rows."""

    def __init__(
        self, folder: Path | None = None, *input_hashes: Any, code_hash: Callable[[Measurement], str] = repr
    ) -> None:
        """Rows are stored only if `folder` is given. `MeasuredRun` describes `code_hash`."""
        self.folder, self.input_hashes, self.code_hash = folder, input_hashes, code_hash
        self._used: set[str] = set()

    def rows(self, make: Callable[[], Iterable[Row]], settings: Measurement, *inputs: Any) -> Rows:
        """Return the stored rows of these inputs, or call `make` and store its rows.

        `settings` only determines the code hash: pass every value that affects the rows as one of the `inputs`.
        """
        if self.folder is None:
            return list(make())
        path = self.folder / f"{fingerprint([*self.input_hashes, self.code_hash(settings), *inputs])}.json"
        self._used.add(path.name)
        if not path.exists():
            write_json(path, list(make()))
        rows: Rows = read_json(path, finite=False)  # a score may be infinite
        return rows

    def remove_unused(self) -> None:
        """Remove the files that `rows` did not use."""
        for path in self.folder.iterdir() if self.folder is not None and self.folder.is_dir() else ():
            if path.name not in self._used:
                path.unlink()
