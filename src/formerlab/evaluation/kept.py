"""Finished parts of a measurement, kept beside its run: a stopped one, or one with a new policy, goes on from them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from formerlab.evaluation.measurement import Measurement
from formerlab.files import write_text
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
    """A folder of journals, each named by the fingerprint of everything that its answers depend on."""

    def __init__(
        self, folder: Path | None = None, *belongs_to: Any, code_of: Callable[[Measurement], str] = repr
    ) -> None:
        """Without a `folder` nothing is stored. All answers depend on their subject, and on the code that `code_of`
        finds for the settings.
        """
        self.folder, self.belongs_to, self.code_of = folder, belongs_to, code_of
        self._used: set[str] = set()

    def rows(self, make: Callable[[], Iterable[Row]], settings: Measurement, *asked: Any) -> Rows:
        """Return rows that are one answer: those on disk if they are there, else as made now."""
        journal = self.journal(settings, *asked)
        if not journal.known:
            journal.add({0: tuple(make())})
        return list(journal.known[0])

    def journal(self, settings: Measurement, *asked: Any) -> Journal:
        """Return the journal of what is asked."""
        if self.folder is None:
            return Journal()
        name = f"{fingerprint([*self.belongs_to, self.code_of(settings), *asked])}.jsonl"
        self._used.add(name)
        return Journal(self.folder / name)

    def tidy(self) -> None:
        """Remove the journals that were not asked for this time."""
        for path in self.folder.iterdir() if self.folder is not None and self.folder.is_dir() else ():
            if path.name not in self._used:
                path.unlink()


def _lines(answers: Mapping[int, Sequence[Any]]) -> str:
    return "".join(json.dumps([request, *answer]) + "\n" for request, answer in answers.items())
