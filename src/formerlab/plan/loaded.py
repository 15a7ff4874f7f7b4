"""The source of this package as it was before this process imported it, so that a record can name the code that ran.

The package of the verbs imports this module first: `python -m formerlab` runs the source AT_START, and a comparison
with the present files tells whether one was edited since.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
ENDINGS = (".py", ".cpp", ".h", ".csv", ".yaml")


def digests() -> dict[str, str]:
    """Return the hash of every file that decides what the package computes, by its path below it, as it is now."""
    found = {}
    for folder, folders, names in os.walk(PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(name for name in names if name.endswith(ENDINGS) and not name.startswith(".")):
            path = os.path.join(folder, name)
            with suppress(FileNotFoundError), open(path, "rb") as file:  # an editor may replace it at this moment
                found[os.path.relpath(path, PACKAGE)] = hashlib.sha256(file.read()).hexdigest()[:16]
    return found


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    """Return the files that are not the same in both."""
    return {file for file in one.keys() | other.keys() if one.get(file) != other.get(file)}


AT_START = digests()
