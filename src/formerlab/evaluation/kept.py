"""Finished parts of a measurement, kept beside its run: a stopped one, or one with a new policy, goes on from them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from formerlab.evaluation.measurement import Measurement
from formerlab.files import read_json, write_json, write_text
from formerlab.results.write import Cell
from formerlab.spec import fingerprint

Row = Sequence[Cell]
Rows = list[Row]


class Journal:
    """Answers to requests, a line each, written as they come; the half line of a killed process does not count."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the answers in `path`; without one nothing is stored."""
        self.path, self.known = path, dict[int, tuple[Any, ...]]()
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    request, *answer = json.loads(line)
                except ValueError:
                    write_text(path, _lines(self.known))  # half a line would spoil the next one
                    break
                self.known[request] = tuple(answer)

    def add(self, answers: Mapping[int, tuple[Any, ...]]) -> None:
        """Keep answers by the number of their request."""
        self.known |= answers
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(_lines(answers))


class Kept:
    """A folder of finished parts, each named by the fingerprint of everything that it depends on."""

    def __init__(
        self, folder: Path | None = None, *belongs_to: Any, code_of: Callable[[Measurement], str] = repr
    ) -> None:
        """Keep parts in `folder`; without one nothing is stored. All parts depend on their subject, and on the code
        that `code_of` finds for the settings.
        """
        self.folder, self.belongs_to, self.code_of = folder, belongs_to, code_of
        self._used: set[str] = set()

    def rows(
        self,
        make: Callable[[], Iterable[Row]],
        settings: Measurement,
        *asked: Any,
        known: Callable[[], None] = lambda: None,
    ) -> Rows:
        """Return the rows of a part, from disk if they are there (and `known` hears of it), else as made now."""
        path = self._path(settings, asked, "json")
        if path is not None and path.is_file():
            known()
            rows: Rows = read_json(path)
            return rows
        rows = list(make())
        if path is not None:
            write_json(path, rows)
        return rows

    def journal(self, settings: Measurement, *asked: Any) -> Journal:
        """Return the journal of a part."""
        return Journal(self._path(settings, asked, "jsonl"))

    def tidy(self) -> None:
        """Remove the parts that were not asked for this time."""
        for path in self.folder.iterdir() if self.folder is not None and self.folder.is_dir() else ():
            if path.name not in self._used:
                path.unlink()

    def _path(self, settings: Measurement, asked: tuple[Any, ...], ending: str) -> Path | None:
        if self.folder is None:
            return None
        name = f"{fingerprint([*self.belongs_to, self.code_of(settings), *asked])}.{ending}"
        self._used.add(name)
        return self.folder / name


def _lines(answers: Mapping[int, Sequence[Any]]) -> str:
    return "".join(json.dumps([request, *answer]) + "\n" for request, answer in answers.items())
