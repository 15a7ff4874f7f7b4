"""claims.yaml as it was registered: the claims with their arms, criteria and traps, and what later versions changed.

The key `claims` of a study names the runs that stand for an arm.
"""

import datetime
import math
import re
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field, model_validator

from formerlab.spec import Spec
from formerlab.yaml_files import FAST

Moment = Literal["end", "first_step", "last_step", "area_under_curve"]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


POOLED = {"pooled intervals": ("diff", "logratio")}
"""Functions of criteria that a change of statistics touches without naming them."""


class Registered(Spec):
    """A part of claims.yaml; entries for readers alone have no field here."""

    model_config = ConfigDict(extra="ignore")


class Criterion(Registered):
    """When a claim holds and when it fails: expressions over the names of `let`, each of which may use earlier ones.

    `requires` must be true, or the claim is not tested. All is repeated for the items of `for_each`, whose verdicts
    `combine` makes one.
    """

    let: dict[str, str]
    holds: str
    fails: str
    requires: str | None = None
    for_each: tuple[str, ...] = ()
    combine: Literal["all", "tested"] | None = None

    @property
    def measured(self) -> str:
        """The metric by which policies are compared."""
        texts = (*self.let.values(), self.requires or "", self.holds, self.fails)
        return min(str(metric) for text in texts for metric in re.findall(r"'(\w+)'\)", text))


class Scales(Registered):
    """The scales that give a verdict, and a note on the others."""

    judged: tuple[str, ...]
    why: str


class Condition(Registered):
    """A condition on the runs that a claim speaks of: limits of a quantity's mean over seeds."""

    quantity: str
    """Its name in protocol.quantities."""
    of: str | tuple[str, ...]
    """Arms, each of which must meet it, but for quantities that compare arms."""
    at_least: float = -math.inf
    at_most: float = math.inf


class Claim(Registered):
    """One claim of a paper, or of its critics."""

    id: str
    """Name; its prefix is the study."""
    kind: Literal["exact", "measured"]
    """exact: decided by arithmetic; measured: by trained models."""
    statement: str
    source: str
    published: str
    """The published numbers."""
    arms: dict[str, str]
    """The names used in the criterion."""
    criterion: Criterion
    regime: tuple[Condition, ...] = ()
    """The runs that the claim speaks of."""
    scales: Scales
    traps: tuple[str, ...]
    """Confounds that a report must show or exclude."""
    headline: bool = False
    """Shown first, and corrected for the number of headline claims."""

    @property
    def study(self) -> str:
        """The study that has its runs."""
        return self.id.split("-")[0]


class Change(Registered):
    """A later version of the file, and which results were known by then."""

    version: int
    date: datetime.date
    known: str
    what: tuple[str, ...]
    """What was changed: `<claim id>: ...`, a rule, or the ids of claims that were added."""
    verdicts: dict[str, dict[str, str]] = {}
    """The verdicts that the new definitions alone changed, by scale and claim: `then -> now: why`."""


class ClaimRegistry(Registered):
    """The whole file; `protocol` has the rules common to all claims, whose constants stand beside their formulas."""

    version: int
    changes: tuple[Change, ...]
    protocol: dict[str, Any]
    claims: tuple[Claim, ...]

    def changed(self, claim: Claim) -> str:
        """Return a note for a verdict whose claim, criterion or statistics are younger than the first rows."""
        criterion = claim.criterion
        expressions = (*criterion.let.values(), criterion.holds, criterion.requires or "")
        called = {*re.findall(r"(\w+)\(", " ".join(expressions))}
        added, changed, statistics = 0, list[int](), list[int]()
        for change in self.changes:
            for what in change.what:
                subject, _, text = what.partition(": ")
                if subject.endswith("added") and claim.id in text.split(", "):
                    added, changed, statistics = change.version, [], []
                elif {claim.id, f"regime (every {claim.kind} claim)"} & {*subject.split(", ")}:
                    changed.append(change.version)
                elif called & {*POOLED.get(subject, re.findall(r"(\w+)\(\)", subject))}:
                    statistics.append(change.version)
        notes = ("changed", changed), ("statistics changed", statistics)
        parts = [f"{word} in {_versions(which)}" for word, listed in notes if (which := {*listed} - {added})]
        return "; ".join([f"added in version {added}", *parts] if added else parts)


def _versions(numbers: set[int]) -> str:
    return f"version{'s' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))}"


@cache
def read_claims() -> ClaimRegistry:
    """Return the registered claims."""
    text = files(__package__).joinpath("claims.yaml").read_text(encoding="utf-8")
    return ClaimRegistry.model_validate(yaml.load(text, Loader=FAST))


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
    alpha: Fraction | None = None
    """Decay factor of the policy."""
    alphas: tuple[Fraction, ...] = ()
    """Several decay factors, whose mean is taken example by example, or among which `chosen` chooses."""
    chosen: Literal["own", "common"] | None = None
    """Which of `alphas` counts: the best on the other half of the questions of the same task, or of all tasks."""
    recent: Fraction | None = None
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
