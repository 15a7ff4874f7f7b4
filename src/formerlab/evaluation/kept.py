"""What a measurement has done, kept beside its run: one that was stopped, or has a policy more, goes on from there."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from formerlab.files import read_json, write_json, write_text
from formerlab.results.write import Cell
from formerlab.spec import fingerprint

Rows = list[list[Cell]]


class Journal:
    """Answers to requests, a line each, written as they come; a line that a killed process left half is no answer."""

    def __init__(self, path: Path | None = None) -> None:
        """Read what `path` holds; without one nothing is kept."""
        self.path, self.known = path, dict[int, tuple[Any, ...]]()
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    request, *answer = json.loads(line)
                except ValueError:
                    write_text(path, "".join(map(_line, self.known.items())))  # half a line would spoil the next one
                    break
                self.known[request] = tuple(answer)

    def add(self, answers: Mapping[int, tuple[Any, ...]]) -> None:
        """Keep answers by the number of their request."""
        self.known |= answers
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.writelines(map(_line, answers.items()))


class Kept:
    """A folder of finished parts, each under the fingerprint of all that it depends on."""

    def __init__(self, folder: Path | None = None) -> None:
        """Keep parts in `folder`; without one nothing is kept."""
        self.folder = folder
        self._used: set[str] = set()

    def has(self, *asked: Any) -> bool:
        """Say whether a part is there, whole."""
        path = self._path(asked, "json")
        return path is not None and path.is_file()

    def rows(self, make: Callable[[], Iterable[Sequence[Cell]]], *asked: Any) -> Rows:
        """Return the rows of a part, from disk if they are there, else as made now."""
        path = self._path(asked, "json")
        if path is not None and path.is_file():
            known: Rows = read_json(path)
            return known
        rows = [list(row) for row in make()]
        if path is not None:
            write_json(path, rows)
        return rows

    def journal(self, *asked: Any) -> Journal:
        """Return the journal of a part."""
        return Journal(self._path(asked, "jsonl"))

    def tidy(self) -> None:
        """Remove the parts that nobody asked for this time."""
        for path in self.folder.iterdir() if self.folder is not None and self.folder.is_dir() else ():
            if path.name not in self._used:
                path.unlink()

    def _path(self, asked: tuple[Any, ...], ending: str) -> Path | None:
        if self.folder is None:
            return None
        name = f"{fingerprint(asked)}.{ending}"
        self._used.add(name)
        return self.folder / name


def _line(item: tuple[int, Sequence[Any]]) -> str:
    return json.dumps([item[0], *item[1]]) + "\n"
