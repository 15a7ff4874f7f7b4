"""Resolve paths and glob patterns of data, questions and suites to files."""

import glob
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from formerlab.errors import UserError


def expanded(path: str) -> Path:
    """Expand `~`, `$NAME` and `${NAME}` in a path; unset variables are not replaced."""
    return Path(os.path.expandvars(os.path.expanduser(path)))


def matches(pattern: str, root: Path | str = "") -> list[str]:
    """Return the absolute paths of a file, a folder or a glob pattern, sorted.

    `~` and `$NAME` are expanded. Existing names are taken literally and may contain brackets. Paths are relative to
    `root`, by default the working directory.
    """
    base, names = os.path.abspath(root), list(expanded(pattern).parts)
    while names and os.path.lexists(os.path.join(base, names[0])):
        base = os.path.join(base, names.pop(0))
    base = os.path.abspath(base)
    if not names:
        return [base]
    return sorted(os.path.join(base, match) for match in glob.glob(os.path.join(*names), root_dir=base, recursive=True))


def files_below(path: str, visited: set[tuple[int, int]] | None = None) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and status of a file, or of all files of a folder at any depth except hidden files, in a fixed order.

    Links are followed after all other entries of their folder. Each folder is read only once: `visited` contains
    (device, inode) of each folder that was read. Raises UserError for an unreadable file or folder.
    """
    visited = set() if visited is None else visited
    try:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            yield path, status
        if not stat.S_ISDIR(status.st_mode) or (folder := (status.st_dev, status.st_ino)) in visited:
            return
        visited.add(folder)
        with os.scandir(path) as iterator:
            entries = [entry for entry in iterator if not entry.name.startswith(".")]
        entries.sort(key=lambda entry: (entry.is_symlink(), entry.name))
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield entry.path, entry.stat(follow_symlinks=False)
            else:
                yield from files_below(entry.path, visited)
    except OSError as error:
        problem = "a link to a missing file" if os.path.islink(path) else error.strerror
        raise UserError(f"{path}: {problem} (named by a data set or suite); remove or restore it") from None


def files_named(patterns: tuple[str, ...], key: str, ending: str = "") -> list[Path]:
    """Return the files that the patterns match, sorted; for a folder, these are its files with this ending.

    Raises UserError for a pattern without files; `key` names the setting in the message.
    """
    all_files: set[Path] = set()
    for pattern in patterns:
        files = {
            Path(path)
            for match in matches(pattern)
            for path, _ in files_below(match)
            if path == match or path.endswith(ending)
        }
        if not files:
            raise UserError(f"{key}: no file at '{pattern}' (working directory {Path.cwd()})")
        all_files |= files
    return sorted(all_files)
