"""Which rows stand for an arm of a claim: what a study says of it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from formerlab.spec import Spec

Moment = Literal["end", "first_step", "last_step", "area_under_curve"]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Arm(Spec):
    """The rows of one arm. A run is named, or is the best of several, or the arm is a plain number."""

    run: str | None = None
    """Name of the run."""
    best_of: str | None = None
    """Glob pattern of run names: the one with the lowest mean validation loss over the seeds stands for the arm."""
    searched: tuple[Annotated[str, Field(pattern=r"^[a-z0-9_-]+/[^/]+$")], ...] = ()
    """Runs among which its rate was searched, as `scale/pattern`; without them those of `best_of`."""
    constant: Annotated[float, Field(ge=-1e9, le=1e9)] | None = None
    """A number for every seed and example."""
    chance: bool = False
    """Guessing on the questions that the run answered: one over the number of choices."""
    at: Moment = "end"
    """end: the held-out stream with the final weights; the others: the validation stream at a step, or the mean over
    the steps by the trapezoidal rule."""
    policy: str | None = None
    """Kind of cache policy, as in the rows of the pruning stage."""
    alpha: Share | None = None
    """Decay factor of the policy."""
    alphas: tuple[Share, ...] = ()
    """Several decay factors, whose mean is taken example by example, or among which `chosen` chooses."""
    chosen: Literal["own", "common"] | None = None
    """Which of `alphas` counts: the best on the other half of the questions of the same task, or of all tasks."""
    recent: Share | None = None
    """Share of the budget for the newest tokens."""
    budget: Annotated[int, Field(ge=1, le=10**7)] | Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Cache budget as asked for."""
    measure: Literal["training_step", "forward", "decode"] | None = None
    """What is timed of the run, for seconds and bytes."""

    envelope: tuple[str, ...] = ()
    """Glob patterns of the Transformers from scratch whose lower envelope the FLOPs of the run are compared with."""

    @model_validator(mode="after")
    def _check(self) -> "Arm":
        given = [name for name in ("run", "best_of", "constant") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"an arm names one of run, best_of and constant, not {', '.join(given) or 'none'}")
        if self.alpha is not None and self.alphas:
            raise ValueError("alpha and alphas exclude each other")
        if self.chosen and len(self.alphas) < 2:
            raise ValueError(f"chosen: {self.chosen} needs two alphas to choose among")
        return self


class ClaimArms(Spec):
    """The arms of one claim at the scales named, or at all others."""

    arms: dict[str, Arm] = {}
    """Arms by the names that the claim uses."""
    items: dict[str, dict[str, Arm]] = {}
    """Arms that differ by item of for_each."""
    suites: tuple[str, ...] = ()
    """Tasks whose accuracies are averaged without weights; empty means all that the rows have."""
    metric: Annotated[str, Field(pattern=r"^acc")] = "acc"
    """Which accuracy of a task is read."""

    def of(self, item: str | None) -> dict[str, Arm]:
        """Return the arms of an item."""
        return self.arms if item is None else self.arms | self.items.get(item, {})
