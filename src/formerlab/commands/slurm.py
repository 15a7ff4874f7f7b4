"""What Slurm says about the job that this process is in."""

import os
import re
import subprocess

LEFT = re.compile(r"(?:(?:(?P<days>\d+)-)?(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")
UNITS_S = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


def seconds_left() -> float | None:
    """Return the time until Slurm ends this job; nothing outside a job, or where it has no limit or cannot be asked.

    It counts from the start of the job: what came before this process, such as slow imports, is taken off.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    words = ["squeue", "--noheader", f"--jobs={job}", "--format=%L"]
    try:
        output = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_left(output)


def parse_left(output: str) -> float | None:
    """Return the seconds in squeue's days-hours:minutes:seconds; nothing for words such as UNLIMITED."""
    found = LEFT.fullmatch(output)
    return None if found is None else float(sum(UNITS_S[unit] * int(n) for unit, n in found.groupdict("0").items()))
