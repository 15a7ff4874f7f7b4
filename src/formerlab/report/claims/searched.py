"""The runs among which the learning rate of an arm was searched (protocol.quantities.rate_inside)."""

from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.report.claims.arms import Arm
from formerlab.results.read import Results


def searched_rates(results: Results, study: str, arm: Arm, records: DataFrame) -> DataFrame:
    """Return lr, tokens and loss of the searched runs with the arm's model, data and, if it has one, start."""
    patterns = arm.searched or ((f"{results.scale}/{arm.best_of}",) if arm.best_of else ())
    own = _records(results)[str(records["id"].iloc[0])]
    starts = _weights_of_start(results, study, records)
    rows = []
    for pattern in patterns:
        scale, _, runs = pattern.partition("/")
        root = results.root.resolve().parent / scale
        if scale != results.scale and not root.is_dir():
            continue
        others = results if scale == results.scale else Results(root)
        known = _records(others)
        for _, run in others.runs(study, [runs]).iterrows():
            alike = known[str(run["id"])]["spec"]["model"] == own["spec"]["model"]
            if (
                alike
                and run["data.fingerprint"] == own["data"]["fingerprint"]
                and (not starts or run.get("init.weights_sha256") in starts)
            ):
                loss = run["final.valid_loss_nats"]
                rows.append((run["spec.optimizer.lr"], run["tokens"], float("inf") if pd.isna(loss) else loss))
    return DataFrame(rows, columns=["lr", "tokens", "loss"])


def _records(results: Results) -> dict[str, dict[str, Any]]:
    return {record["id"]: record for record in results.all_records()}


def _weights_of_start(results: Results, study: str, records: DataFrame) -> set[str]:
    """Return the weights of every seed of the run that an arm starts from; nothing where it starts from scratch."""
    parents = {str(name).split("/")[1] for name in records.get("init.id", pd.Series(dtype=object)).dropna()}
    known = {str(sha) for sha in results.runs(study, sorted(parents)).get("weights_sha256", ())} if parents else set()
    return known | set(records.get("init.weights_sha256", pd.Series(dtype=object)).dropna())


def rate_inside(found: DataFrame, own: float) -> float:
    """Return 1 where a rate is the best of the searched ones, with others at most a factor of two below and above."""
    by_rate = found.groupby("lr")["loss"].mean()
    steps = by_rate.index.to_numpy(float) / own
    inside = any(0.4999 < step < 0.9999 for step in steps) and any(1.0001 < step < 2.0001 for step in steps)
    return float(inside and abs(steps[by_rate.to_numpy().argmin()] - 1) < 1e-4)
