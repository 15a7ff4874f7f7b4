"""Whether the Snakemake that left its lock in a folder is gone: one that is killed cannot take it away."""

import fcntl
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO


def take_away_stale(folder: Path) -> TextIO | None:
    """Remove Snakemake's locks below its folder if no Snakemake lives here; say from now on that this one does.

    Each holds a file there shared until it ends, however it ends; who gets it alone is the only one. What another
    machine left stays, since some network file systems tell one machine nothing of the locks of another.
    """
    locks = list((folder / "locks").glob("*.lock"))
    with suppress(OSError):  # a folder that may not be written, a file system without locks: all stays as it is
        folder.mkdir(exist_ok=True)
        file = open(folder / "lives", "a+", encoding="utf-8")  # noqa: SIM115  (held until the process ends)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
            return file
        file.seek(0)
        host = socket.gethostname()
        if file.read() == host or not locks:
            for lock in locks:
                lock.unlink(missing_ok=True)
            if locks:
                print("an earlier run was killed; its lock is taken away, and the work goes on", file=sys.stderr)
            file.truncate(0)
            file.write(host)
            file.flush()
        fcntl.flock(file, fcntl.LOCK_SH)
        return file
    return None
