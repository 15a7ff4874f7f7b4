"""What tables and figures of the vision study share: accuracy of a run from its predictions, names, comparisons."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.calibration import expected_calibration_error
from formerlab.report.published import TOKENFORMER, published
from formerlab.report.runs import ends, variant
from formerlab.results.read import Results
from formerlab.statistics import Interval, over_examples, paired_student, student

STUDY = "vision"

NAMES = {
    "vit": "ViT",
    "vit-wider": "ViT, a third more parameters",
    "tokenformer-matched": "Tokenformer, parameter-matched",
    "tokenformer": "Tokenformer: L2 norm, then GeLU; norms without parameters",
    "score-exp-l1": "exp, then L1 norm (softmax times n)",
    "score-gelu-l1": "GeLU, then L1 norm times n (our definition)",
    "score-gelu-l2": "GeLU, then L2 norm",
    "norm-bias": "norms with bias",
    "norm-gain-bias": "norms with gain and bias",
    "tokenformer-small": "a quarter of the tokens",
    "tokenformer-short": "all tokens, on the steps of a stage alone",
    "trained-on": "a quarter of the tokens, trained on, not grown",
    "grown-random-sqrt": "grown: random keys, tau sqrt(n)",
    "grown-zero-keep": "grown: zero keys, tau kept",
    "vit-dwa": "ViT with averages over depth",
    "tokenformer-dwa": "Tokenformer with averages over depth",
}
"""What a reader calls a run."""

METRICS = ("top1_percent", "top5_percent", "loss_nats", "calibration_error")
SHARED = ("parameters", "flops_cumulative")
"""Numbers of run.json that seeds share."""

COMPARED = "top1_points"

COLUMNS = (
    "source -run model parameters top1_percent[] top1_points[] compared_with interval -top5_percent loss_nats[] "
    "calibration_error -flops_cumulative -images seeds -diverged"
)
"""Columns of the tables."""


def accuracies(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return one row per run and seed: the columns of `Results.runs` with the metrics of its test images."""
    records = results.runs(STUDY, runs)
    if records.empty:
        return records
    rows = results.rows("test.csv", STUDY, runs)
    metrics = [
        {"run": run, "seed": seed} | _metrics(group) for (run, seed), group in rows.groupby(["run", "seed"], sort=False)
    ]
    records["diverged"] = records["status"] == "diverged"
    return records.merge(DataFrame(metrics), on=["run", "seed"])


def _metrics(rows: DataFrame) -> dict[str, float]:
    right = rows["rank"] == 0
    return {
        "top1_percent": 100 * float(right.mean()),
        "top5_percent": 100 * float((rows["rank"] < 5).mean()),
        "loss_nats": float(np.mean(rows["loss_nats"].to_numpy())),
        "calibration_error": expected_calibration_error(rows["confidence"], right),
        "images": len(rows),
    }


def by_run(measured: DataFrame) -> DataFrame:
    """Return one row per run: the mean of each metric over seeds with its Student interval, and what seeds share."""
    rows = []
    for run, group in measured.groupby("run", sort=False):
        row: dict[str, Any] = {
            "source": "ours",
            "run": run,
            "model": NAMES.get(str(run)) or f"{variant(group.iloc[0].to_dict())} ({run})",
        }
        for metric in METRICS:
            row |= ends(metric, student(group[metric]))
        row |= {name: group[name].astype(float).mean() for name in SHARED if name in group}
        rows.append(row | {"images": group["images"].iloc[0], "seeds": len(group), "diverged": group["diverged"].sum()})
    return DataFrame(rows)


def against(results: Results, measured: DataFrame, run: str, reference: str) -> dict[str, Any]:
    """Return how many points of top-1 a run is above another, paired by seed, and what its interval speaks of.

    With one shared seed it is a paired bootstrap over the test images, of these two models alone.
    """
    of: dict[str, dict[int, float]] = {}
    for name, seed, value in measured[["run", "seed", "top1_percent"]].itertuples(index=False, name=None):
        of.setdefault(str(name), {})[int(seed)] = float(value)
    if run == reference or reference not in of or run not in of:
        return {}
    interval = paired_student(of[run], of[reference])
    if interval.seeds == 1:
        interval = _over_images(results, run, reference, min(set(of[run]) & set(of[reference])))
    methods = {"student": "over seeds", "bootstrap": "over images, these two models only", "none": "none"}
    return ends(COMPARED, interval) | {"compared_with": reference, "interval": methods[interval.method]}


def _over_images(results: Results, run: str, reference: str, seed: int) -> Interval:
    rows = results.rows("test.csv", STUDY, (run, reference))
    rows = rows[rows["seed"] == seed].assign(right=lambda frame: 100.0 * (frame["rank"] == 0))
    pairs = rows.pivot(index="window", columns="run", values="right").dropna()
    return over_examples((pairs[run] - pairs[reference]).to_numpy()[None, :])


def comparison(results: Results, runs: Sequence[str], *, compared: Mapping[str, str]) -> DataFrame:
    """Return our rows of a table: `compared` gives each run the run that it is compared with."""
    del runs
    measured = accuracies(results, tuple(compared))
    if measured.empty:
        return measured
    table = by_run(measured)
    points = [against(results, measured, run, compared[run]) for run in table["run"]]
    order = {run: place for place, run in enumerate(compared)}
    table = table.join(DataFrame(points)).sort_values("run", key=lambda names: names.map(order), ignore_index=True)
    return pd.concat([floors(results, tuple(compared)), table], ignore_index=True)


def floors(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per model without depth and data set (floors.csv), in the form of `by_run`."""
    rows, records = results.rows("floors.csv", STUDY, runs), results.runs(STUDY, runs)
    found = []
    for (run, seed, floor), group in rows.groupby(["run", "seed", "floor"], sort=False):
        data = records[(records["run"] == run) & (records["seed"] == seed)]["data.name"].iloc[0]
        found.append(
            {
                "source": "ours",
                "run": f"{floor} on {data}",
                "model": f"{floor}, on the pixels",
                "top1_percent": 100 * float((group["rank"] == 0).mean()),
                "top5_percent": 100 * float((group["rank"] < 5).mean()),
                "loss_nats": float(np.mean(group["loss_nats"].to_numpy())),
                "images": len(group),
            }
        )
    return DataFrame(found).drop_duplicates("run") if found else DataFrame()


def published_accuracies(place: str) -> DataFrame:
    """Return the published rows of a table of the paper."""
    rows = published(TOKENFORMER, place)
    values = rows.assign(value=rows["value"].astype(float)).pivot_table("value", "model", "metric", sort=False)
    frame = DataFrame({"model": values.index, "top1_percent": values["top1_accuracy"].to_numpy()})
    if "parameters" in values:
        frame["parameters"] = 1e6 * values["parameters"].to_numpy()
    return frame
