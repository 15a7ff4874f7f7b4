"""Equal time: as many steps of one model as take as long as those of another."""

import csv
from pathlib import Path
from statistics import median

from formerlab.errors import UserError
from formerlab.results.schema import TRAINING
from formerlab.spec import Spec


class EqualTime(Spec):
    """Train for the time that another run takes (arXiv:2402.02622, Table 3), by the measured times of a step."""

    arm: str
    """Run of the same study whose training time is matched."""
    reference: str
    """Run of the same study, timed beside `arm`, that takes as long for a step as this one: the same but for steps."""


def time_ratio(path: Path, equal: EqualTime) -> float:
    """Return how many steps of `reference` one step of `arm` takes: the median over repetitions of the ratio."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["measure"] == TRAINING]
    except (OSError, KeyError) as error:
        raise UserError(f"{path}: no step times ({error}); run the stage speed first") from None
    times = {(row["run"], row["repetition"]): float(row["time_s"]) for row in rows}
    repetitions = sorted({repetition for _, repetition in times}, key=int)
    try:
        return median(times[equal.arm, i] / times[equal.reference, i] for i in repetitions)
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: no step times of {equal.arm} and {equal.reference} ({error}); time them") from None


def steps_of_equal_time(arm_steps: int, ratio: float) -> int:
    """Return the steps that take as long as `arm_steps` of the arm."""
    return max(1, round(arm_steps * ratio))
