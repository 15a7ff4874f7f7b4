"""How many entries a cache may hold: one rounding rule for all policies.

A budget counts the entries held between steps; the query's own key comes on top, so a query sees budget + 1 keys.
Policies that round each part by itself get fewer entries on short inputs than those that round once (H2O's code floors
two halves and loses 3.5 points of 40 % on 10 to 40 tokens), which would be compared as if it were a
difference of the rules.
"""

from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field

from formerlab.errors import UserError

EVERYTHING = 10**7
"""The largest count of entries, which no text reaches."""
Budget = Annotated[int, Field(ge=1, le=EVERYTHING)] | Annotated[float, Field(gt=0, le=1)]
"""A count of entries (int) or a share of the sequence's own length (float): 1 is one entry, 1.0 is everything."""


@runtime_checkable
class Scalar(Protocol):
    """A number of numpy or torch."""

    ndim: int

    def item(self) -> Any:
        """Return it as a number of Python."""


AnyBudget = int | float | Scalar
"""A budget as callers give it."""


def plain_budget(budget: AnyBudget) -> Any:
    """Return a budget out of numpy or torch as Python's own number; anything else as it is.

    A float of less than 64 bits is the decimal number that it prints as, so that a float32 of 0.29 is 0.29.
    """
    if isinstance(budget, int | float) or getattr(budget, "ndim", None) != 0:
        return float(budget) if isinstance(budget, float) else budget
    number = budget.item()
    if isinstance(number, float) and budget.dtype.itemsize < 8:
        return float(f"{number:.{6 if budget.dtype.itemsize == 4 else 3}g}")
    return number


def resolve_budget(budget: AnyBudget, length: int) -> int:
    """Return round_half_up(ratio length), or the count given: the keys held between steps (official codes floor).

    A ratio of 1.0 is no pruning, also of what is generated later and where a policy's own parts of a budget overlap.

    The ratio is taken as the decimal number that it prints as, so that 0.29 of 50 is 14.5 and rounds up to 15, where
    binary floating point gives 14. A ratio may leave a very short sequence no entry: its queries see themselves alone.

    Raises UserError for a count below 1 or a ratio outside (0, 1].
    """
    budget = plain_budget(budget)
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 1:
        return budget
    if isinstance(budget, float) and budget == 1:
        return EVERYTHING
    if isinstance(budget, float) and 0 < budget < 1:
        return int((_decimal(budget) * int(length)).quantize(Decimal(1), rounding=ROUND_HALF_UP))
    raise UserError(f"budget {budget!r}: give a count of entries (an int, at least 1) or a ratio (a float in (0, 1])")


def part(share: float, total: int) -> int:
    """Return floor(share total): the recent part of a budget; what remains is chosen by score.

    A share of 0.5 is total // 2, so the odd entry goes to the scores.
    """
    return int(_decimal(share) * total)


def _decimal(number: float) -> Decimal:
    return Decimal(repr(float(number)))
