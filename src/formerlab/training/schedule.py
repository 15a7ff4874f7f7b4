"""Learning-rate schedules: functions from a step to a factor of the peak learning rate."""

import math
from typing import Annotated, Literal

from pydantic import Field

from formerlab.spec import Count, Spec

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class Constant(Spec):
    """1 after a linear warm-up (the EnWik8 runs of Tokenformer, arXiv:2410.23168, Appendix E)."""

    kind: Literal["constant"] = "constant"
    warmup: Fraction = 0.0
    """Fraction of the steps with a linear rise; the first of w such steps has the factor 1 / w."""

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the peak learning rate in step `step` (from 0) of `steps`."""
        return _linear_warmup(step, round(self.warmup * steps))


class Cosine(Spec):
    """Linear warm-up, then floor + (1 - floor) (1 + cos(pi t)) / 2, where t rises from 0 at the end of the warm-up to 1
    at the last step (arXiv:1608.03983, eq. 5, one period).
    """

    kind: Literal["cosine"] = "cosine"
    warmup: Fraction = 0.01
    """Fraction of the steps with a linear rise; the first of w such steps has the factor 1 / w."""
    floor: float = Field(default=0.1, ge=0.0, le=1.0)
    """Final factor: 0.1 in both official implementations of Tokenformer, 0 in its paper."""

    def factor(self, step: int, steps: int) -> float:
        warmup = round(self.warmup * steps)
        if step < warmup:
            return _linear_warmup(step, warmup)
        return _cosine_between(1.0, self.floor, (step - warmup) / max(1, steps - 1 - warmup))


class OneCycle(Spec):
    """Cosine rise from 1/start_division to 1, then cosine fall to 1/end_division (arXiv:2402.02622, official code).

    Equal to torch's OneCycleLR with anneal_strategy "cos".
    """

    kind: Literal["onecycle"] = "onecycle"
    warmup: Fraction = 0.05
    """Fraction of the steps with a rising rate."""
    start_division: float = Field(default=100.0, ge=1.0, le=1e9)
    """The first rate is the peak divided by `start_division`."""
    end_division: float = Field(default=10.0, ge=1.0, le=1e9)
    """The last rate is the peak divided by `end_division`."""

    def factor(self, step: int, steps: int) -> float:
        peak = self.warmup * steps - 1
        if step <= peak:
            return _cosine_between(1 / self.start_division, 1.0, step / peak if peak else 1.0)
        return _cosine_between(1.0, 1 / self.end_division, (step - peak) / max(1e-9, steps - 1 - peak))


class Noam(Spec):
    """min(s^-1/2, s warmup^-3/2) warmup^1/2 with s = step + 1: the original schedule (arXiv:1706.03762, eq. 3).

    The peak of the factor is 1; set the optimizer's `lr` to the published peak, width^-1/2 warmup^-1/2.
    """

    kind: Literal["noam"] = "noam"
    warmup_steps: Count = 4000
    """Number of steps of the linear rise."""

    def factor(self, step: int, steps: int) -> float:
        s = float(step + 1)
        return min(math.sqrt(self.warmup_steps / s), s / self.warmup_steps)


Schedule = Annotated[Constant | Cosine | OneCycle | Noam, Field(discriminator="kind")]


def _linear_warmup(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def _cosine_between(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(1.0, progress))) / 2
