"""Let an environment work wherever its folder lies: scripts/relocate.py .venv, called by its own Python.

Installers write the absolute place of an environment into it. Where a checkout is moved or copied with its environment,
those places lead to the old folder, or nowhere. Here the scripts come to call the Python beside them, the package is
found by a relative path, and `activate` is written anew, which can only name one place.
"""

import os
import re
import sys
import venv
from pathlib import Path

INTERPRETER = re.compile(
    rb"#!/[^\n]*/bin/python[\d.]*\n|#!/bin/sh\n'''exec' \"?/[^\n\"]*/bin/python[\d.]*\"? \"\$0\" \"\$@\"\n' '''\n"
)
"""How pip begins a script, in short, or where the place is long or has a space in it."""
BESIDE = b'#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"\n\' \'\'\'\n'
"""A shell runs its second line; to Python, which it starts, that is a text without effect."""


def relocate(environment: Path, checkout: Path) -> None:
    """Make all that is installed in an environment independent of its place, and `activate` name the present one.

    One of conda, which belongs to no checkout, stays as it is.
    """
    configuration = environment / "pyvenv.cfg"
    if not configuration.exists():
        return
    for script in (environment / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            content = script.read_bytes()
            if found := INTERPRETER.match(content):
                script.write_bytes(BESIDE + content[found.end() :])
    if environment.resolve().is_relative_to(checkout):
        for path in environment.glob("lib/python*/site-packages/__editable__.formerlab-*.pth"):
            path.write_text(os.path.relpath(checkout / "src", path.parent.resolve()) + "\n")
    system = "include-system-site-packages = true" in configuration.read_text()
    venv.EnvBuilder(system_site_packages=system, symlinks=True).create(environment)


if __name__ == "__main__":
    relocate(Path(sys.argv[1]), Path(__file__).resolve().parents[1])
