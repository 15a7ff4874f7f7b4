"""Searches for a learning rate: validation loss against rate, and whether the best lies inside its grid.

A search is a family of runs that differ in `optimizer.lr` alone. Chosen is the rate with the lowest validation loss at
the last step, the mean over seeds, as for an arm of a claim that is the best of several runs.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from formerlab.report.families import families
from formerlab.report.names import data_set
from formerlab.report.runs import GROWN, ends, variant
from formerlab.results.read import Results, flatten
from formerlab.statistics import student, weighted_means

RATE = "optimizer.lr"
TOLD = (
    "model.projection.kind",
    "model.norm.kind",
    "model.feedforward.activation",
    "model.feedforward.kind",
    "model.width",
    "steps",
)
"""Keys of a spec that a reader tells models of the same name apart by, the telling ones first."""
_LINES = ("-", "--", ":", "-.")


def searches(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Return a row per family, rate and seed (`part` is `seed`), and one per family and rate (`mean`), by rate.

    `loss_nats` is the validation loss at the last step; a run that diverged has none. `chosen` marks the best rate of a
    family, and `inside` says whether the family has a lower and a higher one.
    """
    losses = last_losses(results, study, runs)
    records = [record for record in results.records() if record["id"] in losses]
    members: dict[int, list[dict[str, Any]]] = {}
    for record, number in zip(records, families([record["spec"] for record in records], RATE), strict=True):
        members.setdefault(number, []).append(record)
    members.pop(-1, None)
    found = sorted(members.values(), key=lambda own: (own[0]["init"] is not None, own[0]["data"]["name"] == "second"))
    told = told_apart([own[0] for own in found], results.scale).to_dict("records")
    return DataFrame(
        {"source": "ours", "panel": said["panel"], "family": said["family"]} | said | row
        for own, said in zip(found, told, strict=True)
        for row in _family(own, losses)
    )


def last_losses(results: Results, study: str, runs: Sequence[str]) -> dict[str, float]:
    """Return the validation loss at the last step by run id, NaN where the run diverged."""
    rows = results.rows("eval.csv", study, runs)
    rows = rows[(rows["split"] == "valid") & (rows["step"] == rows.groupby(["run", "seed"])["step"].transform("max"))]
    found = results.runs(study, runs).set_index(["run", "seed"])
    losses = weighted_means(rows, ["run", "seed"]).reindex(found.index).where(found["status"] == "finished")
    return dict(zip(found["id"], losses, strict=True))


def _family(members: Sequence[dict[str, Any]], losses: dict[str, float]) -> list[dict[str, Any]]:
    known = [(r["spec"]["optimizer"]["lr"], r["seed"], r["run"], losses[r["id"]]) for r in members]
    table = DataFrame(known, columns=["lr", "seed", "run", "loss_nats"]).astype({"lr": float})
    by_rate = dict([*table.drop_duplicates(["lr", "seed"]).groupby("lr")])  # a run may stand twice, under two names
    rates, means = [*by_rate], {rate: float(np.mean(rows["loss_nats"].to_numpy())) for rate, rows in by_rate.items()}
    best = min((rate for rate in rates if not math.isnan(means[rate])), key=lambda rate: means[rate], default=None)
    rows: list[dict[str, Any]] = []
    for rate, seeds in by_rate.items():
        shared = {"lr": rate, "chosen": rate == best, "inside": rates[0] < rate < rates[-1]}
        rows += [shared | {"part": "seed"} | row for row in seeds[["run", "seed", "loss_nats"]].to_dict("records")]
        interval, diverged = student(seeds["loss_nats"]), int(seeds["loss_nats"].isna().sum())
        mean = {"part": "mean", "run": seeds["run"].iloc[0]} | ends("loss_nats", interval)
        rows.append(shared | mean | {"seeds": interval.seeds, "diverged": diverged})
    return rows


def told_apart(firsts: Sequence[dict[str, Any]], scale: str) -> DataFrame:
    """Return a row per family, given by the record of its first run: its panel, variant, name and look.

    The panel is a data set, a depth, and whether runs start from another. The name says what tells a family from others
    of its variant there; the second of them is dashed and hollow.
    """
    flat, panels = [flatten({"spec": record["spec"]}) for record in firsts], []
    for record in firsts:
        layers, start = record["spec"]["model"].get("layers"), "from a parent" if record["init"] else "from scratch"
        depth = f"{layers:.0f} blocks" if layers else ""
        panels.append(", ".join(filter(None, [data_set(record["data"]["name"], None, scale), depth, start])))
    known = DataFrame({"panel": panels, "variant": [variant(one) for one in flat]})
    known["family"] = known["variant"].str.removeprefix(f"{GROWN}: ")
    others = (key.removeprefix("spec.") for one in flat for key in one)
    for key in (key for key in dict.fromkeys([*TOLD, *others]) if key not in ("study", "name", "seed", RATE)):
        values = Series([one.get(f"spec.{key}") for one in flat], dtype=object)
        for alike in [*known.groupby(["panel", "family"]).groups.values()]:
            if values[alike].astype(str).nunique() > 1:
                label = "" if isinstance(values[alike[0]], str) else key.rpartition(".")[2].replace("_", " ") + " "
                known.loc[alike, "family"] += [f", {label}{value}" for value in values[alike]]
    nth = known.groupby(["panel", "variant"]).cumcount()
    known["_linestyle"] = nth.mod(len(_LINES)).map(dict(enumerate(_LINES)))
    return known.assign(_markerfacecolor=nth.gt(0).map({True: "white", False: None}))


def at_the_edge(rows: DataFrame) -> list[str]:
    """Return a line for every family whose best rate is the lowest or the highest of its grid, or that has none."""
    lines = []
    for (panel, family), group in rows[rows["part"] == "mean"].groupby(["panel", "family"], sort=False):
        chosen = group[group["chosen"]]
        if chosen.empty:
            lines.append(f"{family} ({panel}): diverged at every rate")
        elif not chosen["inside"].iloc[0]:
            best, low, high = chosen["lr"].iloc[0], group["lr"].min(), group["lr"].max()
            lines.append(f"{family} ({panel}): {best:g}, of {low:g} to {high:g}")
    return lines
