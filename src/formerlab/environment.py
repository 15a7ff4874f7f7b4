"""Environment variables: an empty one counts as not set."""

import os

from formerlab.errors import UserError


def variable(name: str) -> str | None:
    """Return the value of a variable, or None where it is empty or not set."""
    return os.environ.get(name, "").strip() or None


def world_size() -> int:
    """Return how many processes torchrun started, 1 without it.

    Raises UserError where WORLD_SIZE is no such number, or the variables that torchrun sets with it are missing.
    """
    size = variable("WORLD_SIZE") or "1"
    if not size.isdecimal() or int(size) == 0:
        raise UserError(f"WORLD_SIZE={size}: give a number of processes, 1 or more, or unset it")
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if variable(name) is None]
    if int(size) > 1 and missing:
        raise UserError(f"WORLD_SIZE={size} without {', '.join(missing)}: unset it, or start the processes by torchrun")
    return int(size)
