"""The conditions of a claim on its runs (`regime` in claims.yaml), in terms of the quantities of protocol.quantities.

A quantity is a function of the runs of one arm. `<x>_apart` is the largest x of several arms divided by the smallest,
minus 1. `parameters_apart` is computed with and without embeddings, and the smaller value counts.
`<x>_ratio` is the x of the first arm divided by the x of the second. `same_grid` and `gain_of_depth` compare arms too.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from formerlab.report.claims.quantity import Combination, MissingRowsError
from formerlab.report.claims.registry import Arm, Claim, Condition
from formerlab.report.claims.rows import WINDOW_METRICS, ClaimRows, policy_rows
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE

CURVES = (
    *("final_rate_share", "still_falling", "still_learning", "rise_from_best"),
    *("overfit", "rate_inside", "gain_of_depth"),
)
"""Quantities that are not checked if a compared run diverged."""
PHRASES = {
    "depth": ("blocks of {of}: {value}", "{:.3g}"),
    "heads": ("attention heads of {of}: {value}", "{:.3g}"),
    "final_rate_share": ("final learning rate of {of}: {value} of the peak", "{:.3g}"),
    "still_falling": ("decrease of the validation loss of {of} in the last tenth of training: {value} nats", "{:.2g}"),
    "still_learning": (
        "decrease of the validation loss of {of} in the second half of training: {value} nats",
        "{:.3f}",
    ),
    "overfit": ("validation loss minus training loss of {of}: {value} nats", "{:.3g}"),
    "search_share": ("the learning rate of {of} was searched on {value} of the training tokens", "{:.0%}"),
    "rates_searched_apart": ("the number of learning rates that were searched for {of} differs by {value}", "{:.0%}"),
    "rate_inside": ("the learning rate of {of} is not the best of its search, or is at the end of the range", "{:.0f}"),
    "loss_by_pruning": ("loss with {of} minus loss with the full cache: {value} nats", "{:.3g}"),
    "earlier_cost": (
        "the FLOPs of the models before {of} are already {value} times the FLOPs of our most expensive Transformer, so "
        "no result could meet the criterion",
        "{:.2f}",
    ),
    "epochs_apart": ("the number of epochs of {of} differs by {value}", "{:.0%}"),
}
"""Message template and number format by quantity. Other quantities are shown by their name."""


@dataclass(frozen=True)
class ArmRuns:
    """The run of an arm, restricted to the seeds that are compared."""

    rows: ClaimRows
    arm: Arm
    label: str
    """Name of the arm in quotes, for messages."""
    name: str
    records: DataFrame
    metric: str
    """The metric on which the criterion compares policies (`Criterion.metric`)."""

    @property
    def parents(self) -> list[dict[str, Any]]:
        """The records of the parent runs. Raises MissingRowsError without a parent."""
        records = [self.rows.results.stage_record(name, "train") for name in self.records["init.id"].dropna()]
        if not records or not all(records):
            raise MissingRowsError(f"{self.label} does not start from a run of this scale")
        return records

    @property
    def suites(self) -> Sequence[str]:
        """The suites whose questions the arm answers."""
        return self.rows.arms.suites or sorted(self.rows.rows("prune_questions.csv", self.name)["task"].unique())

    def mean(self, column: str, otherwise: float | None = None) -> float:
        """Return the mean over seeds of a column of run.json.

        Raises MissingRowsError if there are no values and `otherwise` is None.
        """
        values = self.records[column].dropna() if column in self.records else Series(dtype=float)
        if values.empty and otherwise is None:
            raise MissingRowsError(f"{self.label} does not record {column}")
        return float(values.astype(float).mean()) if len(values) else float(otherwise or 0.0)

    def over_seeds(self, file: str, reduce: Callable[[DataFrame], float]) -> float:
        """Return the mean over seeds of `reduce`. `file` is a file of rows, or "curve" for validation loss by step."""
        table = self.rows.validation_curve(self.name) if file == "curve" else self.rows.rows(file, self.name)
        table = table[table["seed"].isin(self.records["seed"])]
        return float(np.mean([reduce(group) for _, group in table.groupby("seed")]))

    @cached_property
    def search_runs(self) -> DataFrame:
        """The runs of the learning rate search with the same model, data and initial weights.

        The columns are lr, seed, tokens and loss. Raises MissingRowsError without such runs.
        """
        results, candidates = self.rows.results, []
        patterns = self.arm.searched or ((f"{results.scale}/{self.arm.best_of}",) if self.arm.best_of else ())
        record = results.stage_record(str(self.records["id"].iloc[0]), "train")
        parents = self.rows.all_runs()["run"].isin(self.records["init.id"].dropna().astype(str).str.split("/").str[1])
        starts = {*self.records["init.weights_sha256"].dropna(), *self.rows.all_runs()["weights_sha256"][parents]}
        for scale, _, names in (pattern.partition("/") for pattern in patterns):
            root = results.root.resolve().parent / scale
            if not root.is_dir():
                continue
            search = results if scale == results.scale else Results(root)
            for run in search.runs(self.rows.study, [names]).to_dict("records"):
                same = search.stage_record(run["id"], "train")["spec"]["model"] == record["spec"]["model"]
                same &= run["data.fingerprint"] == record["data"]["fingerprint"]
                if same and (not starts or run.get("init.weights_sha256") in starts):
                    loss = run["final.valid_loss_nats"]
                    loss = math.inf if pd.isna(loss) else loss
                    candidates.append((run["spec.optimizer.lr"], run["seed"], run["tokens"], loss))
        if not candidates:
            raise MissingRowsError(f"{self.label} has no learning rate search with its model, data and initial weights")
        return DataFrame(candidates, columns=["lr", "seed", "tokens", "loss"])


def epochs(runs: ArmRuns) -> float:
    """Return the number of epochs over the last training data set. Raises MissingRowsError if it is not recorded."""
    if "read" not in runs.records:
        raise MissingRowsError(f"{runs.label} does not record its training data")
    return float(np.mean([json.loads(read)[-1]["epochs"] for read in runs.records["read"]]))


def tokens_per_new_parameter(runs: ArmRuns) -> float:
    """Return the tokens of the stage per parameter that growth added."""
    parents = float(np.mean([parent["parameters_non_embedding"] for parent in runs.parents]))
    new = runs.mean("parameters_non_embedding") - parents
    return float(runs.mean("tokens") / new) if new else math.inf


def start_tokens_per_parameter(runs: ArmRuns) -> float:
    """Return all tokens that the parent run was trained on, per parameter of the parent."""
    read = [parent["read"][-1]["tokens_cumulative"] for parent in runs.parents if "read" in parent]
    if not read:
        raise MissingRowsError(f"{runs.label} starts from a run that does not record its training data")
    return float(np.mean(read) / np.mean([parent["parameters_non_embedding"] for parent in runs.parents]))


def earlier_cost(runs: ArmRuns) -> float:
    """Return the FLOPs of all models before the run's last stage, relative to the largest FLOPs in its envelope."""
    scratch = runs.rows.results.runs(runs.rows.study, runs.arm.envelope)["flops_cumulative"].max()
    return float((runs.mean("flops_cumulative") - runs.mean("flops")) / scratch)


def still_falling(runs: ArmRuns) -> float:
    """Return the decrease of the validation loss over about the last tenth of the run, in nats per tenth.

    The decrease is measured from the last evaluation at or before 0.9 of the run.
    """

    def slope(curve: DataFrame) -> float:
        fraction, gain = _gain_after(curve, 0.9, runs.label)
        return gain / (10 * fraction)

    return runs.over_seeds("curve", slope)


def still_learning(runs: ArmRuns) -> float:
    """Return the decrease of the validation loss since the last evaluation at or before half of the run, in nats."""
    return runs.over_seeds("curve", lambda curve: _gain_after(curve, 0.5, runs.label)[1])


def _gain_after(curve: DataFrame, fraction: float, arm: str) -> tuple[float, float]:
    """Return the remaining fraction of the run and the decrease of the validation loss in nats, both from the last
    evaluation at or before `fraction` of the run. Raise MissingRowsError without such an evaluation.
    """
    steps, loss = curve["step"].to_numpy(float), curve["loss_nats"].to_numpy(float)
    early = np.flatnonzero(steps <= fraction * steps[-1])
    if not len(early):
        raise MissingRowsError(f"{arm} has no evaluation in the first {fraction:.0%} of its steps")
    return float((steps[-1] - steps[early[-1]]) / steps[-1]), float(loss[early[-1]] - loss[-1])


def overfit(runs: ArmRuns) -> float:
    """Return the last validation loss minus the mean unsmoothed training loss over the last tenth of training, in nats.

    Raises MissingRowsError for language modelling, and for rows that have only the loss with label smoothing.
    """
    if runs.records["spec.task.kind"].iloc[0] not in ("translation", "classification"):
        raise MissingRowsError(
            "overfit is undefined for language modelling: training and validation text are different documents"
        )
    smoothing = runs.mean("spec.task.label_smoothing", runs.mean("spec.task.smoothing", 0.0))

    def final_loss(rows: DataFrame) -> float:
        last = rows[rows["step"] > 0.9 * rows["step"].max()]
        losses = last.get("unsmoothed_nats", Series(np.nan, last.index)) if smoothing else last["loss_nats"]
        if losses.isna().any():
            raise MissingRowsError(
                f"validation loss minus training loss of {runs.label}: not known, because the rows have only the "
                "training loss with label smoothing"
            )
        return float(losses.mean())

    validation = runs.over_seeds("curve", lambda curve: curve["loss_nats"].iloc[-1])
    return validation - runs.over_seeds("train.csv", final_loss)


def loss_by_pruning(runs: ArmRuns) -> float:
    """Return the loss with the policy minus the loss with the full cache, in nats."""
    table, full = runs.rows.rows("prune.csv", runs.name), Arm(run=runs.name, policy="full")
    means = [policy_rows(table, arm)["loss_nats"].mean() for arm in (runs.arm, full)]
    return float(means[0] - means[1])


def examples(runs: ArmRuns) -> float:
    """Return the number of examples (windows, questions, pairs or images) on which the metric of the criterion is
    measured.
    """
    if runs.metric in WINDOW_METRICS:
        return float(runs.rows.window_and_document_counts(runs.arm, runs.metric)[0])
    return float(sum(map(len, runs.rows.load_examples(runs.arm, runs.metric).names.values())))


def rate_inside(runs: ArmRuns) -> float:
    """Return 1 if the rate is the best of its search, which has a rate within a factor of 2 on each side, otherwise 0.

    Two rates are compared over the seeds that both have, or by their means if they share no seed.
    """
    by_rate = runs.search_runs.groupby(["lr", "seed"])["loss"].mean().unstack()
    steps = by_rate.index.to_numpy(float) / runs.mean("spec.optimizer.lr")
    inside = any(0.4999 < step < 0.9999 for step in steps) and any(1.0001 < step < 2.0001 for step in steps)
    at_rate = by_rate[np.abs(steps - 1) < 1e-4]
    if not inside or at_rate.empty:
        return 0.0
    losses = at_rate.iloc[0]

    def better(candidate: Series) -> bool:
        shared = (losses.notna() & candidate.notna()).to_numpy()
        first, second = ((by_seed[shared] if shared.any() else by_seed).mean() for by_seed in (losses, candidate))
        return bool(second < first)

    return float(not any(better(by_rate.iloc[row]) for row in range(len(by_rate))))


def shots(suite: str) -> int:
    """Return the number of solved examples before a question, read from the name of a suite."""
    match = re.search(r"_(\d+)_shots", suite)
    return int(match[1]) if match else 0


RECORDED = ("tokens", "parameters", "parameters_non_embedding", "flops", "flops_cumulative")
QUANTITIES: dict[str, Callable[[ArmRuns], float]] = {
    **{name: partial(ArmRuns.mean, column=name) for name in RECORDED},
    **{name: partial(ArmRuns.mean, column=f"spec.model.{name}") for name in ("heads", "width")},
    "depth": partial(ArmRuns.mean, column="spec.model.layers"),
    "rate": partial(ArmRuns.mean, column="spec.optimizer.lr"),
    "steps": partial(ArmRuns.mean, column="spec.steps"),
    # 0 if a model has no such layer
    "dilation": partial(ArmRuns.mean, column="spec.model.depth.dilation", otherwise=0.0),
    "period": partial(ArmRuns.mean, column="spec.model.depth.period", otherwise=0.0),
    "rotary": partial(ArmRuns.mean, column="spec.model.position.fraction", otherwise=0.0),
    **{f.__name__: f for f in (epochs, tokens_per_new_parameter, start_tokens_per_parameter, earlier_cost)},
    **{f.__name__: f for f in (still_falling, still_learning, overfit, loss_by_pruning, examples, rate_inside)},
    "head_width": lambda runs: runs.mean(
        "spec.model.d_key", runs.mean("spec.model.width") / runs.mean("spec.model.heads")
    ),
    "tokens_per_parameter": lambda runs: runs.mean("tokens") / runs.mean("parameters_non_embedding"),
    "final_rate_share": lambda runs: runs.over_seeds("train.csv", lambda rows: rows["lr"].iloc[-1] / rows["lr"].max()),
    "rise_from_best": lambda runs: runs.over_seeds(
        "curve", lambda rows: rows["loss_nats"].iloc[-1] - rows["loss_nats"].min()
    ),
    "above_chance": lambda runs: runs.rows.above_chance(runs.arm),
    "suites_above_chance": lambda runs: float(sum(runs.rows.above_chance(runs.arm, s) > 0 for s in runs.suites)),
    "shots": lambda runs: float(min(map(shots, runs.suites))),
    "rates_searched": lambda runs: float(runs.search_runs["lr"].nunique()),
    "search_share": lambda runs: float(runs.search_runs["tokens"].min() / runs.mean("tokens")),
    "budget": lambda runs: runs.rows.cache_size(runs.arm, runs.metric),
}
"""Quantities of one arm, by name."""


def arm_runs(claim: Claim, rows: ClaimRows, item: str | None) -> dict[str, ArmRuns]:
    """Return the runs of the arms of an item, restricted to the seeds that all of them have."""
    arms = {name: arm for name, arm in rows.arms.for_item(item).items() if arm.constant is None}
    runs = {name: rows.select_run(arm) for name, arm in arms.items()}
    records = {name: rows.records(run) for name, run in runs.items()}
    seeds = set.intersection(*(set(table["seed"]) for table in records.values()))
    return {
        name: ArmRuns(
            rows, arms[name], _quoted([name]), runs[name], table[table["seed"].isin(seeds)], claim.criterion.metric
        )
        for name, table in records.items()
    }


def model_sizes(arms: dict[str, ArmRuns]) -> str:
    """Return the parameters (without embedding) and the training tokens or images of an item's models as text.

    For example, `197 k to 201 k parameters, 6.14 M tokens`.
    """
    kinds = {kind for runs in arms.values() for kind in runs.records.get("spec.task.kind", ())}
    texts = []
    for name, unit in (
        ("parameters_non_embedding", "parameters"),
        ("tokens", "images" if "classification" in kinds else "tokens"),
    ):
        values = [runs.mean(name) for runs in arms.values()]
        ends = dict.fromkeys(f"{v / 1e6:.3g} M" if v >= 1e6 else f"{v / 1e3:.3g} k" for v in (min(values), max(values)))
        texts += [f"{' to '.join(ends)} {unit}"] if max(values) > 0 else []
    return ", ".join(texts)


def unmet_conditions(claim: Claim, arms: dict[str, ArmRuns]) -> list[str]:
    """Return the conditions of a claim that an item does not meet, with the measured and the needed value."""
    return [line for condition in claim.regime for line in _violations(condition, arms)]


def _violations(condition: Condition, arms: dict[str, ArmRuns]) -> Iterator[str]:
    quantity, of = condition.quantity, (condition.of,) if isinstance(condition.of, str) else condition.of
    low, high = condition.at_least, condition.at_most
    phrase, number = PHRASES.get(quantity, (f"{quantity.replace('_', ' ')} of {{of}}: {{value}}", "{:.3g}"))
    violations: dict[tuple[str, str], list[str]] = {}
    for names in [(name,) for name in of] if quantity in QUANTITIES else [of]:
        if missing := [name for name in names if name not in arms]:
            condition_name = quantity.replace("_", " ")
            yield f"'{missing[0]}' has no run, so the condition on its {condition_name} cannot be checked"
            continue
        compared = [arms[name] for name in names]
        if quantity in CURVES and any((runs.records["status"] == "diverged").any() for runs in compared):
            continue
        try:
            value = _quantity_value(quantity, compared)
        except MissingRowsError as error:
            yield str(error)
            continue
        if not low <= value <= high:
            needed = f"at least {number.format(low)}" if value < low else f"at most {number.format(high)}"
            violations.setdefault((number.format(value), needed), []).extend(names)
    for (text, needed), violating in violations.items():
        line = phrase.format(of=_quoted(violating), value=text) + f" (needed: {needed})" * (quantity != "rate_inside")
        yield line.replace("%", " %")


def _quoted(arms: Sequence[str]) -> str:
    """Return the names of arms in quotes, such as `'a', 'b' and 'c'`."""
    *first, last = (f"'{name.replace('_', ' ')}'" for name in arms)
    return f"{', '.join(first)} and {last}" if first else last


def _quantity_value(quantity: str, arms: list[ArmRuns]) -> float:
    if quantity in QUANTITIES:
        return QUANTITIES[quantity](arms[0])
    if quantity == "same_grid":
        return float(len({frozenset(f"{rate:.6g}" for rate in runs.search_runs["lr"]) for runs in arms}) == 1)
    if quantity == "gain_of_depth":
        first, second = (Combination({runs.rows.run_metric(runs.arm, "loss_nats"): 1.0}) for runs in arms)
        return (first - second).ends(CONFIDENCE)[0]
    base, _, comparison = quantity.rpartition("_")
    if quantity == "parameters_apart":
        return min(_spread([QUANTITIES[x](runs) for runs in arms]) for x in ("parameters", "parameters_non_embedding"))
    values = [QUANTITIES[base](runs) for runs in arms]
    return _spread(values) if comparison == "apart" else values[0] / values[1]


def _spread(values: Sequence[float]) -> float:
    """Return the largest value divided by the smallest, minus 1."""
    if max(values) == min(values):
        return 0.0
    return max(values) / min(values) - 1 if min(values) > 0 else math.inf
