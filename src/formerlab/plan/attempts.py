"""How the attempts of jobs ended, for the process that submits them: what to try again, and with how much memory.

A stage leaves a note beside its results (`noted`) that says how it ended, or still "running" where it was killed; only
Slurm knows what for.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from formerlab.results.notes import note_of

Note = dict[str, Any]


class Attempts:
    """The attempts of this process; `folder` returns where a job of a stage leaves its note."""

    def __init__(self, folder: Callable[[str, str], Path]) -> None:
        self._folder = folder
        self._before: dict[tuple[str, str], Note | None] = {}
        self._kills: dict[tuple[str, str, int], int] = {}

    def memory_kills(self, stage: str, name: str, attempt: int) -> int:
        """Return how often a job was killed for memory before an attempt; called when that is about to be submitted."""
        key = (stage, name, attempt)
        if key not in self._kills:
            note = self._note_of_last(stage, name) if attempt > 1 else None
            killed = note is not None and note["state"] == "running" and killed_for_memory(note.get("slurm_job"))
            self._kills[key] = self._kills.get((stage, name, attempt - 1), 0) + killed
            self._before[stage, name] = note_of(stage, self._folder(stage, name))
        return self._kills[key]

    def was_a_mistake(self, stage: str, name: str) -> bool:
        """Say whether the last attempt ended for something that a person has to mend, which no other attempt does."""
        note = self._note_of_last(stage, name)
        return note is not None and bool(note.get("mistake"))

    def _note_of_last(self, stage: str, name: str) -> Note | None:
        """Return the note of the last attempt; one that lay there before it says nothing about it."""
        note = note_of(stage, self._folder(stage, name))
        return None if note == self._before.get((stage, name)) else note


def killed_for_memory(job: str | None) -> bool:
    """Ask Slurm whether it killed a job for its memory.

    It shows that as OUT_OF_MEMORY or, where it counts memory without cgroups, as FAILED, the job or a step of it by
    signal 9.
    """
    if job is None:
        return False
    words = ["scontrol", "--details", "--oneliner", "show", "job", job]
    try:
        output = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    state = re.search(r"\bJobState=(\w+)", output)
    killed = re.search(r"\b(Derived)?ExitCode=\d+:9\b", output)
    return state is not None and (state[1] == "OUT_OF_MEMORY" or (state[1] == "FAILED" and killed is not None))
