"""Searches for a learning rate: validation loss against rate, and whether the best lies inside its grid.

A search is a family of runs that differ in `optimizer.lr` alone. Chosen is the rate with the lowest validation loss at
the last step, the mean over seeds, as for an arm of a claim that is the best of several runs.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pandas import DataFrame

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


def searches(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Return a row per family, rate and seed (`part` is `seed`), and one per family and rate (`mean`), by rate.

    `loss_nats` is the validation loss at the last step; a run that diverged has none. `chosen` marks the best rate of a
    family, and `inside` says whether the family has a lower and a higher one.
    """
    losses = last_losses(results, study, runs)
    records = [record for record in results.records() if record["id"] in losses]
    found = families([record["spec"] for record in records], RATE)
    frames = []
    for number in sorted(set(found) - {-1}):
        members = [record for record, family in zip(records, found, strict=True) if family == number]
        frames.append((members[0], _family(members, losses)))
    frames.sort(key=lambda frame: (frame[0]["init"] is not None, frame[0]["data"]["name"] == "second"))
    names = names_apart([first for first, _ in frames], results.scale)
    rows = [
        {"source": "ours", "panel": panel_of(first, results.scale), "family": name, "variant": variant_of(first)} | row
        for (first, rows), name in zip(frames, names, strict=True)
        for row in rows
    ]
    return DataFrame(rows)


def last_losses(results: Results, study: str, runs: Sequence[str]) -> dict[str, float]:
    """Return the validation loss at the last step by run id, NaN where the run diverged."""
    rows = results.rows("eval.csv", study, runs)
    rows = rows[(rows["split"] == "valid") & (rows["step"] == rows.groupby(["run", "seed"])["step"].transform("max"))]
    means = weighted_means(rows, ["run", "seed"]).to_dict()
    found = results.runs(study, runs)
    return {
        f"{study}/{run}/seed{seed}": means.get((run, seed), math.nan) if status == "finished" else math.nan
        for run, seed, status in zip(found["run"], found["seed"], found["status"], strict=True)
    }


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


def panel_of(record: dict[str, Any], scale: str) -> str:
    """Return the panel of a run: its data set, the depth of its model, and whether it starts from another run."""
    data, layers = data_set(record["data"]["name"], None, scale), record["spec"]["model"].get("layers")
    start = "from a parent" if record["init"] else "from scratch"
    return f"{data}, {layers:.0f} blocks, {start}" if layers else f"{data}, {start}"


def variant_of(record: dict[str, Any]) -> str:
    """Return what a reader calls the model of a run."""
    return variant(flatten({"spec": record["spec"]}))


def names_apart(firsts: Sequence[dict[str, Any]], scale: str) -> list[str]:
    """Return what a reader calls each family, by what tells it from others of its panel."""
    flat = [flatten({"spec": record["spec"]}) for record in firsts]
    names = [variant_of(record).removeprefix(f"{GROWN}: ") for record in firsts]
    known = [*TOLD, *(key.removeprefix("spec.") for key in dict.fromkeys(key for one in flat for key in one))]
    own = ("study", "name", "seed", RATE)
    for key in (key for key in known if key not in own):
        places = list(zip(names, (panel_of(first, scale) for first in firsts), strict=True))
        values = [one.get(f"spec.{key}") for one in flat]
        for place in {place for place in places if places.count(place) > 1}:
            alike = [number for number, other in enumerate(places) if other == place]
            if len({str(values[number]) for number in alike}) > 1:
                label = "" if isinstance(values[alike[0]], str) else key.rpartition(".")[2].replace("_", " ") + " "
                for number in alike:
                    names[number] += f", {label}{values[number]}"
    return names


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
