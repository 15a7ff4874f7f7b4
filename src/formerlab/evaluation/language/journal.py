"""Answers to requests, written as they come, so that asking goes on where it was stopped."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


class Journal:
    """Answers to requests, a line each, written as they come; a line that a killed process left half is no answer."""

    def __init__(self, path: Path | None = None) -> None:
        """Read what `path` holds; without one nothing is kept."""
        self.path = path
        self.known: dict[int, tuple[Any, ...]] = dict(_whole_lines(path)) if path is not None else {}
        if path is not None and path.exists():  # half a line would spoil the next one
            path.write_text("".join(_line(*item) for item in self.known.items()), encoding="utf-8")

    def add(self, answers: Mapping[int, tuple[Any, ...]]) -> None:
        """Keep answers by the number of their request."""
        self.known |= answers
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.writelines(_line(*item) for item in answers.items())


def _line(request: int, answer: Sequence[Any]) -> str:
    return json.dumps([request, *answer]) + "\n"


def _whole_lines(path: Path) -> Iterator[tuple[int, tuple[Any, ...]]]:
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            request, *answer = json.loads(line)
        except ValueError:
            return
        yield request, tuple(answer)
