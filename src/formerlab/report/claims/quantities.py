"""The quantities of `regime`, as protocol.quantities defines them: each is a small function of the runs of one arm."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from formerlab.report.claims.judgement import Judgement
from formerlab.report.claims.quantity import MissingRowsError
from formerlab.report.claims.registry import Arm
from formerlab.report.claims.rows import shots
from formerlab.results.read import Results


@dataclass(frozen=True)
class ArmRuns:
    """The run of an arm over the seeds that are compared."""

    judgement: Judgement
    arm: Arm
    name: str
    records: DataFrame

    @cached_property
    def parents(self) -> list[dict[str, Any]]:
        """The records of the runs that they start from."""
        ids = self.records.get("init.id", Series(dtype=object)).dropna()
        known = {record["id"]: record for record in self.judgement.rows.results.all_records()}
        if not len(ids) or not set(ids) <= set(known):
            raise MissingRowsError(f"{self.name} starts from no run of this scale")
        return [known[name] for name in ids]

    @property
    def suites(self) -> Sequence[str]:
        """The suites of which the arm answers questions."""
        rows = self.judgement.rows
        return rows.arms.suites or sorted(rows.rows("prune_questions.csv", self.name)["task"].unique())

    def mean(self, column: str, otherwise: float | None = None) -> float:
        """Return the mean of a number of run.json."""
        values = self.records[column].dropna() if column in self.records else Series(dtype=float)
        if values.empty and otherwise is None:
            raise MissingRowsError(f"{self.name} records no {column}")
        return float(values.astype(float).mean()) if len(values) else float(otherwise or 0.0)

    def over_seeds(self, file: str, find: Callable[[DataFrame], float]) -> float:
        """Return the mean over seeds of a number that is found in the rows of a file; `curve` is validation loss."""
        rows = self.judgement.rows
        table = rows.curve(self.name) if file == "curve" else rows.rows(file, self.name)
        own = table[table["seed"].isin(self.records["seed"])]
        return float(np.mean([find(group) for _, group in own.groupby("seed")]))

    @cached_property
    def searched(self) -> DataFrame:
        """Return lr, tokens and loss of the runs among which its rate was searched: of its model, data and start."""
        results, rows = self.judgement.rows.results, []
        patterns = self.arm.searched or ((f"{results.scale}/{self.arm.best_of}",) if self.arm.best_of else ())
        own = _by_id(results)[str(self.records["id"].iloc[0])]
        starts = self._weights_of_start()
        for pattern in patterns:
            scale, _, names = pattern.partition("/")
            root = results.root.resolve().parent / scale
            if scale != results.scale and not root.is_dir():
                continue
            others = results if scale == results.scale else Results(root)
            known = _by_id(others)
            for _, run in others.runs(self.judgement.rows.study, [names]).iterrows():
                alike = known[str(run["id"])]["spec"]["model"] == own["spec"]["model"]
                alike &= run["data.fingerprint"] == own["data"]["fingerprint"]
                if alike and (not starts or run.get("init.weights_sha256") in starts):
                    loss = run["final.valid_loss_nats"]
                    rows.append((run["spec.optimizer.lr"], run["tokens"], math.inf if pd.isna(loss) else loss))
        if not rows:
            raise MissingRowsError(f"no rate of {self.name} was searched with its model, data and start")
        return DataFrame(rows, columns=["lr", "tokens", "loss"])

    def _weights_of_start(self) -> set[str]:
        """Return the weights of every seed of the run that an arm starts from; nothing where it starts from scratch."""
        rows = self.judgement.rows
        parents = {str(name).split("/")[1] for name in self.records.get("init.id", Series(dtype=object)).dropna()}
        known = rows.results.runs(rows.study, sorted(parents)).get("weights_sha256", ()) if parents else ()
        return {*map(str, known), *self.records.get("init.weights_sha256", Series(dtype=object)).dropna()}


def _by_id(results: Results) -> dict[str, dict[str, Any]]:
    return {record["id"]: record for record in results.all_records()}


def _last(curve: DataFrame) -> float:
    return float(curve["loss_nats"].iloc[-1])


def column(name: str, otherwise: float | None = None) -> Callable[[ArmRuns], float]:
    """Return the quantity that is a number of run.json."""
    return lambda runs: runs.mean(name, otherwise)


def epochs(runs: ArmRuns) -> float:
    """Epochs of the last stretch that was read."""
    if "read" not in runs.records:
        raise MissingRowsError(f"{runs.name} does not record what it read")
    return float(np.mean([json.loads(read)[-1]["epochs"] for read in runs.records["read"]]))


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


def still_falling(runs: ArmRuns) -> float:
    """Nats that the validation loss falls in a tenth of the run, from the last evaluation at or before 0.9 of it on."""

    def slope(curve: DataFrame) -> float:
        steps, loss = curve["step"].to_numpy(float), curve["loss_nats"].to_numpy(float)
        early = np.flatnonzero(steps <= 0.9 * steps[-1])
        if not len(early):
            raise MissingRowsError(f"{runs.name} has no evaluation before the last tenth")
        return float((loss[early[-1]] - loss[-1]) / (10 * (steps[-1] - steps[early[-1]]) / steps[-1]))

    return runs.over_seeds("curve", slope)


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

    return runs.over_seeds("curve", _last) - runs.over_seeds("train.csv", late)


def loss_by_pruning(runs: ArmRuns) -> float:
    """Loss with the policy minus that with the whole cache."""
    rows = runs.judgement.rows
    table, full = rows.rows("prune.csv", runs.name), Arm(run=runs.name, policy="full")
    means = [rows.policy(table, arm)["loss_nats"].mean() for arm in (runs.arm, full)]
    return float(means[0] - means[1])


def rate_inside(runs: ArmRuns) -> float:
    """1 where the rate is the best of the searched ones, with others at most a factor of two below and above."""
    by_rate = runs.searched.groupby("lr")["loss"].mean()
    steps = by_rate.index.to_numpy(float) / runs.mean("spec.optimizer.lr")
    inside = any(0.4999 < step < 0.9999 for step in steps) and any(1.0001 < step < 2.0001 for step in steps)
    return float(inside and abs(steps[by_rate.to_numpy().argmin()] - 1) < 1e-4)


QUANTITIES: dict[str, Callable[[ArmRuns], float]] = {
    "depth": column("spec.model.layers"),
    "heads": column("spec.model.heads"),
    "head_width": lambda runs: runs.mean("spec.model.d_key", runs.mean("spec.model.width") / QUANTITIES["heads"](runs)),
    "dilation": column("spec.model.depth.dilation", 0.0),
    "period": column("spec.model.depth.period", 0.0),
    "steps": column("spec.steps"),
    "tokens": column("tokens"),
    "epochs": epochs,
    "tokens_per_parameter": lambda runs: runs.mean("tokens") / runs.mean("parameters_non_embedding"),
    "tokens_per_new_parameter": tokens_per_new_parameter,
    "start_tokens_per_parameter": start_tokens_per_parameter,
    "final_rate_share": lambda runs: runs.over_seeds("train.csv", lambda rows: rows["lr"].iloc[-1] / rows["lr"].max()),
    "still_falling": still_falling,
    "rise_from_best": lambda runs: runs.over_seeds(
        "curve", lambda it: it["loss_nats"].iloc[-1] - it["loss_nats"].min()
    ),
    "overfit": overfit,
    "above_chance": lambda runs: runs.judgement.over_chance(runs.arm),
    "suites_above_chance": lambda runs: float(sum(runs.judgement.over_chance(runs.arm, s) > 0 for s in runs.suites)),
    "shots": lambda runs: float(min(map(shots, runs.suites))),
    "loss_by_pruning": loss_by_pruning,
    "rate_inside": rate_inside,
    "rates_searched": lambda runs: float(runs.searched["lr"].nunique()),
    "search_share": lambda runs: float(runs.searched["tokens"].min() / runs.mean("tokens")),
    "width": column("spec.model.width"),
    "rotary": column("spec.model.position.fraction", 0.0),
    "rate": column("spec.optimizer.lr"),
    "parameters": column("parameters"),
    "parameters_non_embedding": column("parameters_non_embedding"),
    "flops": column("flops"),
    "flops_cumulative": column("flops_cumulative"),
    "budget": lambda runs: runs.judgement.rows.realised_budget(runs.arm, runs.judgement.measured),
}
"""Of one arm. Of several: `same_grid`, `gain_of_depth`, and x_apart and x_ratio of these (regime.py)."""
