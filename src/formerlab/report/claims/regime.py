"""The conditions under which a claim speaks of runs at all: quantities as protocol.quantities defines them.

Each quantity is a small function of one arm. `<x>_apart` compares the largest with the smallest x of several arms,
`<x>_ratio` the first with the second.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from formerlab.report.claims import searched
from formerlab.report.claims.arms import Arm
from formerlab.report.claims.evidence import Evidence
from formerlab.report.claims.quantity import Linear, MissingRowsError
from formerlab.report.claims.registry import Condition
from formerlab.report.claims.rows import shots
from formerlab.results.read import Results

CURVES = ("final_rate_share", "still_falling", "rise_from_best", "overfit", "rate_inside", "gain_of_depth")
"""What a run that diverged is not asked: its settings and counts alone are."""
SHOWN = {"final_rate_share": "final rate / peak", "still_falling": "nats in the last tenth"}


@dataclass(frozen=True)
class ArmRuns:
    """The run of an arm over the seeds that are compared."""

    evidence: Evidence
    arm: Arm
    name: str
    records: DataFrame

    @property
    def results(self) -> Results:
        """The rows of the scale."""
        return self.evidence.rows.results

    @cached_property
    def parents(self) -> list[dict[str, Any]]:
        """The records of the runs that they start from."""
        ids = self.records.get("init.id", Series(dtype=object)).dropna()
        known = {record["id"]: record for record in self.results.all_records()}
        if not len(ids) or not set(ids) <= set(known):
            raise MissingRowsError(f"{self.name} starts from no run of this scale")
        return [known[name] for name in ids]

    def mean(self, column: str, otherwise: float | None = None) -> float:
        """Return the mean of a number of run.json."""
        values = self.records[column].dropna() if column in self.records else Series(dtype=float)
        if values.empty and otherwise is None:
            raise MissingRowsError(f"{self.name} records no {column}")
        return float(values.astype(float).mean()) if len(values) else float(otherwise or 0.0)

    def over_seeds(self, file: str, find: Callable[[DataFrame], float]) -> float:
        """Return the mean over seeds of a number that is found in the rows of a file; `curve` is validation loss."""
        rows = self.evidence.rows
        table = rows.curve(self.name) if file == "curve" else rows.rows(file, self.name)
        return float(
            np.mean([find(group) for _, group in table[table["seed"].isin(self.records["seed"])].groupby("seed")])
        )


def column(name: str, otherwise: float | None = None) -> Callable[[ArmRuns], float]:
    """Return the quantity that is a number of run.json."""
    return lambda runs: runs.mean(name, otherwise)


def head_width(runs: ArmRuns) -> float:
    """d_key where it is set, else width / heads."""
    return runs.mean("spec.model.d_key", runs.mean("spec.model.width") / runs.mean("spec.model.heads"))


def epochs(runs: ArmRuns) -> float:
    """Epochs of the last stretch that was read."""
    if "read" not in runs.records:
        raise MissingRowsError(f"{runs.name} does not record what it read")
    return float(np.mean([json.loads(read)[-1]["epochs"] for read in runs.records["read"]]))


def tokens_per_parameter(runs: ArmRuns) -> float:
    """Tokens for each parameter, without embeddings."""
    return runs.mean("tokens") / runs.mean("parameters_non_embedding")


def tokens_per_new_parameter(runs: ArmRuns) -> float:
    """Tokens of the stage for each parameter that growth added."""
    before = float(np.mean([parent["parameters_non_embedding"] for parent in runs.parents]))
    new = runs.mean("parameters_non_embedding") - before
    return float(runs.mean("tokens") / new) if new else math.inf


def start_tokens_per_parameter(runs: ArmRuns) -> float:
    """All tokens that the run read from which this one starts, for each of its parameters."""
    read = [parent["read"][-1]["tokens_cumulative"] for parent in runs.parents if "read" in parent]
    if not read:
        raise MissingRowsError(f"{runs.name} starts from a run that does not record what it read")
    return float(np.mean(read) / np.mean([parent["parameters_non_embedding"] for parent in runs.parents]))


def final_rate_share(runs: ArmRuns) -> float:
    """Last learning rate by the largest."""
    return runs.over_seeds("train.csv", lambda rows: rows["lr"].iloc[-1] / rows["lr"].max())


def still_falling(runs: ArmRuns) -> float:
    """Nats that the validation loss falls in a tenth of the run, from the last evaluation at or before 0.9 of it on."""

    def slope(curve: DataFrame) -> float:
        steps, loss = curve["step"].to_numpy(float), curve["loss_nats"].to_numpy(float)
        early = np.flatnonzero(steps <= 0.9 * steps[-1])
        if not len(early):
            raise MissingRowsError(f"{runs.name} has no evaluation before the last tenth")
        return float((loss[early[-1]] - loss[-1]) / (10 * (steps[-1] - steps[early[-1]]) / steps[-1]))

    return runs.over_seeds("curve", slope)


def rise_from_best(runs: ArmRuns) -> float:
    """Last validation loss minus the smallest of the run."""
    return runs.over_seeds("curve", lambda curve: curve["loss_nats"].iloc[-1] - curve["loss_nats"].min())


def overfit(runs: ArmRuns) -> float:
    """Last validation loss minus that of training in the last tenth, freed of label smoothing."""
    kind = runs.records["spec.task.kind"].iloc[0]
    if kind not in ("translation", "classification"):
        raise MissingRowsError("the splits of a text are not drawn from one pool")
    share = runs.mean("spec.task.label_smoothing", runs.mean("spec.task.smoothing", 0.0))
    classes = runs.mean("spec.model.vocabulary" if kind == "translation" else "spec.model.classes")

    def late(rows: DataFrame) -> float:
        loss = rows.loc[rows["step"] > 0.9 * rows["step"].max(), "loss_nats"].mean()
        return float((loss - share * math.log(classes)) / (1 - share))

    return runs.over_seeds("curve", lambda curve: curve["loss_nats"].iloc[-1]) - runs.over_seeds("train.csv", late)


def above_chance(runs: ArmRuns) -> float:
    """Lower end of accuracy over guessing."""
    return runs.evidence.over_chance(runs.arm)


def suites_above_chance(runs: ArmRuns) -> float:
    """Suites of which that end is above zero."""
    return float(sum(runs.evidence.over_chance(runs.arm, suite) > 0 for suite in _suites(runs)))


def fewest_shots(runs: ArmRuns) -> float:
    """Solved examples in front of a question, the fewest of the suites."""
    return float(min(shots(suite) for suite in _suites(runs)))


def _suites(runs: ArmRuns) -> Sequence[str]:
    rows = runs.evidence.rows
    return rows.arms.suites or sorted(rows.rows("prune_questions.csv", runs.name)["task"].unique())


def loss_by_pruning(runs: ArmRuns) -> float:
    """Loss with the policy minus that with the whole cache."""
    rows = runs.evidence.rows
    table, full = rows.rows("prune.csv", runs.name), Arm(run=runs.name, policy="full")
    means = [rows.policy(table, arm)["loss_nats"].mean() for arm in (runs.arm, full)]
    return float(means[0] - means[1])


def _searched(runs: ArmRuns) -> DataFrame:
    """Return the runs among which its rate was searched."""
    found = searched.searched_rates(runs.results, runs.evidence.rows.study, runs.arm, runs.records)
    if found.empty:
        raise MissingRowsError(f"no rate of {runs.name} was searched with its model, data and start")
    return found


def budget(runs: ArmRuns) -> float:
    """Mean realised budget of the cache."""
    return runs.evidence.rows.realised_budget(runs.arm, runs.evidence.measured)


QUANTITIES: dict[str, Callable[[ArmRuns], float]] = {
    "depth": column("spec.model.layers"),
    "heads": column("spec.model.heads"),
    "head_width": head_width,
    "dilation": column("spec.model.depth.dilation", 0.0),
    "period": column("spec.model.depth.period", 0.0),
    "steps": column("spec.steps"),
    "tokens": column("tokens"),
    "epochs": epochs,
    "tokens_per_parameter": tokens_per_parameter,
    "tokens_per_new_parameter": tokens_per_new_parameter,
    "start_tokens_per_parameter": start_tokens_per_parameter,
    "final_rate_share": final_rate_share,
    "still_falling": still_falling,
    "rise_from_best": rise_from_best,
    "overfit": overfit,
    "above_chance": above_chance,
    "suites_above_chance": suites_above_chance,
    "shots": fewest_shots,
    "loss_by_pruning": loss_by_pruning,
    "rate_inside": lambda runs: searched.rate_inside(_searched(runs), runs.mean("spec.optimizer.lr")),
    "rates_searched": lambda runs: float(_searched(runs)["lr"].nunique()),
    "search_share": lambda runs: float(_searched(runs)["tokens"].min() / runs.mean("tokens")),
    "width": column("spec.model.width"),
    "rotary": column("spec.model.position.fraction", 0.0),
    "rate": column("spec.optimizer.lr"),
    "parameters": column("parameters"),
    "parameters_non_embedding": column("parameters_non_embedding"),
    "flops": column("flops"),
    "flops_cumulative": column("flops_cumulative"),
    "budget": budget,
}
"""Of one arm. Of several: `same_grid`, `gain_of_depth`, and x_apart and x_ratio of these."""


def unmet(evidence: Evidence, item: str | None) -> list[str]:
    """Return the conditions of a claim's regime that an item does not meet, each with our value and the needed one."""
    arms = arms_of(evidence, item)
    return [line for condition in evidence.claim.regime for line in _violations(evidence, item, condition, arms)]


def sizes(evidence: Evidence, item: str | None) -> str:
    """Return the parameters (without embedding) of an item's models, and the tokens that they were trained on."""
    parts = []
    read = "images" if evidence.claim.study == "vision" else "tokens"
    for name, word in (("parameters_non_embedding", "parameters"), ("tokens", read)):
        values = [runs.mean(name) for runs in arms_of(evidence, item).values()]
        ends = dict.fromkeys(map(si, (min(values), max(values))))
        parts += [f"{' to '.join(ends)} {word}"] if max(values) > 0 else []
    return ", ".join(parts)


def si(value: float) -> str:
    """Return a count in thousands or millions."""
    return f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value / 1e3:.3g} k"


def arms_of(evidence: Evidence, item: str | None) -> dict[str, ArmRuns]:
    """Return the runs of the arms of an item, over the seeds that all of them have."""
    mapped = evidence.rows.arms.of(item)
    names = {name: evidence.rows.run(arm) for name, arm in mapped.items() if arm.constant is None}
    records = {name: evidence.rows.records(run) for name, run in names.items()}
    seeds = set.intersection(*(set(table["seed"]) for table in records.values()))
    return {
        name: ArmRuns(evidence, mapped[name], run, records[name][records[name]["seed"].isin(seeds)])
        for name, run in names.items()
    }


def _violations(evidence: Evidence, item: str | None, condition: Condition, arms: dict[str, ArmRuns]) -> list[str]:
    low = -math.inf if condition.at_least is None else condition.at_least
    high = math.inf if condition.at_most is None else condition.at_most
    single = condition.quantity in QUANTITIES
    lines = []
    for names in [(name,) for name in condition.arms] if single else [condition.arms]:
        if missing := [name for name in names if name not in arms]:
            lines.append(f"{condition.quantity}: no run for arm {missing[0]}")
            continue
        own = [arms[name] for name in names]
        if condition.quantity in CURVES and any((runs.records["status"] == "diverged").any() for runs in own):
            continue
        try:
            found = _value(evidence, item, condition.quantity, names, own)
        except MissingRowsError as error:
            lines.append(f"{condition.quantity} ({', '.join(names)}): {error}")
            continue
        if not low <= found <= high:
            needed = f"at least {low:g}" if found < low else f"at most {high:g}"
            quantity = SHOWN.get(condition.quantity, condition.quantity.replace("_", " "))
            lines.append(f"{quantity} ({', '.join(names)}) {found:.3g}, needed {needed}")
    return lines


def _value(evidence: Evidence, item: str | None, quantity: str, names: tuple[str, ...], arms: list[ArmRuns]) -> float:
    if quantity in QUANTITIES:
        return QUANTITIES[quantity](arms[0])
    if quantity == "same_grid":
        return float(len({frozenset(f"{rate:.6g}" for rate in _searched(runs)["lr"]) for runs in arms}) == 1)
    if quantity == "gain_of_depth":
        first, second = (Linear({lv.name: (1.0, lv)}) for lv in (evidence.level(item, n, "loss_nats") for n in names))
        return (first - second).ends(evidence.protocol.confidence)[0]
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
