"""Schema of claims.yaml: the registered claims with their arms, criteria and traps, and the changes of later versions.

The key `claims` of a study maps the arms to runs.
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


FUNCTIONS_BY_CHANGE = {"pooled intervals": ("diff", "logratio")}
"""Functions affected by a change of the statistics, by the title of the change in `changes`. Other changes name their
functions in the title."""


class ClaimsSection(Spec):
    """A section of claims.yaml. Entries that only document the file have no field and are ignored."""

    model_config = ConfigDict(extra="ignore")


class Criterion(ClaimsSection):
    """The conditions under which a claim holds or fails, as expressions over the names of `let`.

    An expression of `let` may use earlier names. The claim is not tested unless `requires` is true. The criterion is
    evaluated once per item of `for_each`. `combine` is "tested" if items that are not tested do not count for the
    verdict; otherwise all items count.
    """

    let: dict[str, str]
    holds: str
    fails: str
    requires: str | None = None
    for_each: tuple[str, ...] = ()
    combine: Literal["all", "tested"] | None = None

    @property
    def metric(self) -> str:
        """The first metric, in alphabetical order, that the criterion names."""
        texts = (*self.let.values(), self.requires or "", self.holds, self.fails)
        return min(str(metric) for text in texts for metric in re.findall(r"'(\w+)'\)", text))


class Scales(ClaimsSection):
    """The scales at which a claim is tested, and the reason why other scales do not test it."""

    judged: tuple[str, ...]
    why: str


FORMER_OUTCOMES = {"holds": "agrees", "fails": "contradicts", "undecided": "cannot_tell", "indicative": "cannot_tell"}
"""Names of outcomes before version 3, and their names today for measured claims."""


class Condition(ClaimsSection):
    """A condition on the runs of a claim: limits of a quantity's mean over seeds."""

    quantity: str
    """Name of the quantity in protocol.quantities."""
    of: str | tuple[str, ...]
    """Arms. Each must meet the condition, unless the quantity compares arms."""
    at_least: float = -math.inf
    at_most: float = math.inf


class Claim(ClaimsSection):
    """A claim of a paper, of a third party, or of this project."""

    id: str
    """Name of the claim; its prefix is the study."""
    kind: Literal["exact", "measured"]
    """exact: evaluated by arithmetic; measured: evaluated on trained models."""
    origin: Literal["paper", "third-party", "derived", "own"]
    """Who makes the claim: one of the four papers, another paper or report, or this project. derived: it follows from a
    paper's formulas."""
    statement: str
    source: str
    published: str
    """The published numbers."""
    arms: dict[str, str]
    """Descriptions of the arms, by the names that the criterion uses."""
    criterion: Criterion
    regime: tuple[Condition, ...] = ()
    """Conditions that the runs must meet for the claim to be tested."""
    scales: Scales
    traps: tuple[str, ...]
    """Confounders that a report must show or exclude."""
    headline: bool = False
    """Whether the claim is shown first, with a p value corrected for the number of headline claims with a verdict."""

    @property
    def labels(self) -> dict[str, str]:
        """The meaning of each name of the criterion, with its unit."""
        labels: dict[str, str] = _read("labels.yaml").get(self.id, {})
        return {"m": "smallest difference that counts"} | labels

    @property
    def study(self) -> str:
        """The study whose runs test the claim."""
        return self.id.split("-")[0]


class Change(ClaimsSection):
    """A later version of the file, and the results that were known when it was written."""

    version: int
    date: datetime.date
    known: str
    what: tuple[str, ...]
    """One entry per change: `<claim ids>: text`, `<name of a rule>: text`, or `<n> claims added: <ids>`."""
    verdicts: dict[str, dict[str, str]] = {}
    """Verdicts that changed only because of the new definitions, by scale and claim: `old -> new: reason`."""


class ClaimRegistry(ClaimsSection):
    """The content of claims.yaml. `protocol` has the rules that all claims share."""

    version: int
    changes: tuple[Change, ...]
    protocol: dict[str, Any]
    claims: tuple[Claim, ...]

    def revisions(self, claim: Claim) -> str:
        """Return the later versions that added or changed the claim or its statistics as text, or an empty string."""
        criterion = claim.criterion
        expressions = (*criterion.let.values(), criterion.holds, criterion.requires or "")
        called = {*re.findall(r"(\w+)\(", " ".join(expressions))}
        added, changed, statistics = 0, list[int](), list[int]()
        for change in self.changes:
            for line in change.what:
                subject, _, text = line.partition(": ")
                if subject.endswith("added") and claim.id in text.split(", "):
                    added, changed, statistics = change.version, [], []
                elif {claim.id, f"regime (every {claim.kind} claim)"} & {*subject.split(", ")}:
                    changed.append(change.version)
                elif called & {*FUNCTIONS_BY_CHANGE.get(subject, re.findall(r"(\w+)\(\)", subject))}:
                    statistics.append(change.version)
        notes = [f"added in version {added}"] if added else []
        for name, versions in (("criterion", changed), ("statistics", statistics)):
            if later := sorted({*versions} - {added}):
                notes.append(f"{name} changed in version{'s' * (len(later) > 1)} {', '.join(map(str, later))}")
        return "; ".join(notes)

    def former_outcome(self, claim: Claim, outcome: str) -> str:
        """Return the last registered outcome that differs from the present `outcome`, or an empty string.

        Versions register the outcomes that they changed on existing results. A renamed outcome does not count.
        """
        texts = [by_claim.get(claim.id, "") for change in self.changes for by_claim in change.verdicts.values()]
        words = [re.findall(r"\w+", text)[:2] for text in texts if text]
        outcomes = [[FORMER_OUTCOMES.get(word, word) for word in pair] for pair in words]
        changed = [word for old, new in outcomes if old != new for word in (old, new)]
        return next((word for word in reversed(changed) if word != outcome), "")


@cache
def _read(name: str) -> dict[str, Any]:
    """Return the content of a YAML file of this package."""
    return dict(yaml.load(files(__package__).joinpath(name).read_text(encoding="utf-8"), Loader=FAST))


@cache
def read_claims() -> ClaimRegistry:
    """Return the registered claims."""
    return ClaimRegistry.model_validate(_read("claims.yaml"))


class Arm(Spec):
    """The rows of one arm: a named run, the best of several runs, or a constant number."""

    run: str | None = None
    """Name of the run."""
    best_of: str | None = None
    """Glob pattern of run names. The arm is the run with the lowest mean validation loss over the seeds."""
    searched: tuple[Annotated[str, Field(pattern=r"^[a-z0-9_-]+/[^/]+$")], ...] = ()
    """Runs of the learning rate search, as `scale/pattern`; by default the runs of `best_of`."""
    constant: Annotated[float, Field(ge=-1e9, le=1e9)] | None = None
    """A number for every seed and example."""
    chance: bool = False
    """If true, the arm is the chance accuracy, 1 / number of choices, on the run's questions."""
    at: Moment = "end"
    """end: the test split with the final weights. first_step, last_step: the validation split at that step.
    area_under_curve: the mean validation loss over the steps by the trapezoidal rule."""
    policy: str | None = None
    """Kind of cache policy, as in the rows of the pruning stage."""
    alpha: Fraction | None = None
    """Decay factor of the policy."""
    alphas: tuple[Fraction, ...] = ()
    """Several decay factors. Each example is averaged over them, unless `chosen` selects one."""
    chosen: Literal["own", "common"] | None = None
    """Two-fold selection of alpha: for each half of a task, take the alpha that is best on the other half of this task
    (own) or of all tasks (common)."""
    recent: Fraction | None = None
    """Fraction of the budget for the newest tokens."""
    budget: Annotated[int, Field(ge=1, le=10**7)] | Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Requested cache budget: keys, or a fraction of the tokens."""
    measure: Literal["training_step", "forward", "decode"] | None = None
    """The operation whose time and memory are measured."""
    envelope: tuple[str, ...] = ()
    """Glob patterns of the Transformers trained from scratch that form the envelope for the FLOPs of the run."""

    @model_validator(mode="after")
    def _check(self) -> "Arm":
        given = [name for name in ("run", "best_of", "constant") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"an arm needs exactly one of run, best_of and constant, not {', '.join(given) or 'none'}")
        if self.alpha is not None and self.alphas:
            raise ValueError("alpha and alphas exclude each other")
        if self.chosen and len(self.alphas) < 2:
            raise ValueError(f"chosen: {self.chosen} needs at least two alphas")
        return self


class ClaimArms(Spec):
    """The arms of one claim."""

    arms: dict[str, Arm] = {}
    """Arms by the names that the claim uses."""
    items: dict[str, dict[str, Arm]] = {}
    """Arms that differ between the items of for_each, by item."""
    suites: tuple[str, ...] = ()
    """Tasks whose accuracies are averaged without weights; empty means all tasks of the rows."""
    metric: Annotated[str, Field(pattern=r"^acc")] = "acc"
    """Name of the accuracy metric."""

    def for_item(self, item: str | None) -> dict[str, Arm]:
        """Return the arms of an item."""
        return self.arms if item is None else self.arms | self.items.get(item, {})

    def named(self) -> list[tuple[str, Arm]]:
        """Return (name, arm) pairs: the arms shared by all items, then the arms of each item."""
        return [pair for arms in (self.arms, *self.items.values()) for pair in arms.items()]
