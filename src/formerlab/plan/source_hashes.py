"""Hashes of the source files at the start of this process, so that a job can detect edits during its run.

The package `commands` imports this module before all others.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
ENDINGS = (".py", ".cpp", ".h", ".csv", ".yaml")


def current_hashes() -> dict[str, str]:
    """Return the current hash of every source file and table of the package, by path relative to the package."""
    hashes = {}
    for folder, folders, names in os.walk(PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(name for name in names if name.endswith(ENDINGS) and not name.startswith(".")):
            path = os.path.join(folder, name)
            with suppress(FileNotFoundError), open(path, "rb") as file:  # an editor may be replacing it
                hashes[os.path.relpath(path, PACKAGE)] = hashlib.sha256(file.read()).hexdigest()[:16]
    return hashes


def differing_files(a: dict[str, str], b: dict[str, str]) -> set[str]:
    """Return the files whose hashes differ, including files that are in only one of the mappings."""
    return {file for file in a.keys() | b.keys() if a.get(file) != b.get(file)}


AT_START = current_hashes()
