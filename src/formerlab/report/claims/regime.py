"""The conditions under which a claim speaks of runs at all.

`<x>_apart` compares the largest with the smallest x of several arms, `<x>_ratio` the first with the second.
"""

import math
from collections.abc import Iterator, Sequence

from formerlab.report.claims.judgement import Judgement
from formerlab.report.claims.quantities import QUANTITIES, ArmRuns
from formerlab.report.claims.quantity import Linear, MissingRowsError
from formerlab.report.claims.registry import Condition

CURVES = ("final_rate_share", "still_falling", "rise_from_best", "overfit", "rate_inside", "gain_of_depth")
"""What a run that diverged is not asked: its settings and counts alone are."""
SHOWN = {"final_rate_share": "final rate / peak", "still_falling": "nats in the last tenth"}


def unmet(judgement: Judgement) -> list[str]:
    """Return the conditions of a claim's regime that an item does not meet, each with our value and the needed one."""
    arms = arms_of(judgement)
    return [line for condition in judgement.claim.regime for line in _violations(judgement, condition, arms)]


def sizes(judgement: Judgement) -> str:
    """Return the parameters (without embedding) of an item's models, and the tokens that they were trained on."""
    parts = []
    read = "images" if judgement.claim.study == "vision" else "tokens"
    for name, word in (("parameters_non_embedding", "parameters"), ("tokens", read)):
        values = [runs.mean(name) for runs in arms_of(judgement).values()]
        ends = dict.fromkeys(f"{v / 1e6:.3g} M" if v >= 1e6 else f"{v / 1e3:.3g} k" for v in (min(values), max(values)))
        parts += [f"{' to '.join(ends)} {word}"] if max(values) > 0 else []
    return ", ".join(parts)


def arms_of(judgement: Judgement) -> dict[str, ArmRuns]:
    """Return the runs of the arms of an item, over the seeds that all of them have."""
    rows, mapped = judgement.rows, judgement.rows.arms.of(judgement.item)
    names = {name: rows.run(arm) for name, arm in mapped.items() if arm.constant is None}
    records = {name: rows.records(run) for name, run in names.items()}
    seeds = set.intersection(*(set(table["seed"]) for table in records.values()))
    return {
        name: ArmRuns(judgement, mapped[name], run, records[name][records[name]["seed"].isin(seeds)])
        for name, run in names.items()
    }


def _violations(judgement: Judgement, condition: Condition, arms: dict[str, ArmRuns]) -> Iterator[str]:
    low = -math.inf if condition.at_least is None else condition.at_least
    high = math.inf if condition.at_most is None else condition.at_most
    for names in [(name,) for name in condition.arms] if condition.quantity in QUANTITIES else [condition.arms]:
        if missing := [name for name in names if name not in arms]:
            yield f"{condition.quantity}: no run for arm {missing[0]}"
            continue
        own = [arms[name] for name in names]
        if condition.quantity in CURVES and any((runs.records["status"] == "diverged").any() for runs in own):
            continue
        try:
            found = _value(judgement, condition.quantity, names, own)
        except MissingRowsError as error:
            yield f"{condition.quantity} ({', '.join(names)}): {error}"
            continue
        if not low <= found <= high:
            needed = f"at least {low:g}" if found < low else f"at most {high:g}"
            quantity = SHOWN.get(condition.quantity, condition.quantity.replace("_", " "))
            yield f"{quantity} ({', '.join(names)}) {found:.3g}, needed {needed}"


def _value(judgement: Judgement, quantity: str, names: tuple[str, ...], arms: list[ArmRuns]) -> float:
    if quantity in QUANTITIES:
        return QUANTITIES[quantity](arms[0])
    if quantity == "same_grid":
        return float(len({frozenset(f"{rate:.6g}" for rate in runs.searched["lr"]) for runs in arms}) == 1)
    if quantity == "gain_of_depth":
        first, second = (Linear({lv.name: (1.0, lv)}) for lv in (judgement.level(n, "loss_nats") for n in names))
        return (first - second).ends(judgement.protocol.confidence)[0]
    base, _, comparison = quantity.rpartition("_")
    if quantity == "parameters_apart":
        return min(_apart([QUANTITIES[x](runs) for runs in arms]) for x in ("parameters", "parameters_non_embedding"))
    values = [QUANTITIES[base](runs) for runs in arms]
    return _apart(values) if comparison == "apart" else values[0] / values[1]


def _apart(values: Sequence[float]) -> float:
    """Return the largest by the smallest, minus 1."""
    if max(values) == min(values):
        return 0.0
    return max(values) / min(values) - 1 if min(values) > 0 else math.inf
