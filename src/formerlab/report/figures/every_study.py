"""Figures of every study that trains: curves of training, and the search for its rates.

A search is a family of runs that differ in `optimizer.lr` alone. Chosen is the rate with the lowest validation loss at
the last step, the mean over seeds, as for an arm of a claim that is the best of several runs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from formerlab.report.drawings import plot
from formerlab.report.families import families
from formerlab.report.names import data_set
from formerlab.report.panel import Panel, sheet
from formerlab.report.runs import GROWN, ends, seed_notes, variant
from formerlab.results.read import Results, flatten
from formerlab.statistics import student, weighted_means

RATE = "optimizer.lr"
TOLD = (
    *("model.projection.kind", "model.norm.kind", "model.feedforward.activation", "model.feedforward.kind"),
    *("model.width", "steps"),
)
"""Keys of a spec that a reader tells models of the same name apart by, the telling ones first."""
_LINES = ("-", "--", ":", "-.")


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


@plot(studies="transformer tokenformer denseformer decay combined vision", reads="eval.csv", draw=sheet(
    Panel("step", "loss_nats", by="family", kind="band", each="panel", log="xy", style="variant",
          xlabel="training step", ylabel="validation loss (nats)"),
    height=2.2
))  # fmt: skip
def curves(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Training curves: validation loss against the training step, the mean over seeds, for every run of the study; both
    axes are logarithmic. Each depth, and what starts from a parent, has a panel. To see: whether curves still fall
    where training ends, and whether one that is lower at the end was so from early on.
    """
    rows = results.rows("eval.csv", study, runs)
    by_seed = weighted_means(rows[rows["split"].eq("valid") & rows["step"].gt(0)], ["run", "seed", "step"])
    means = by_seed.groupby(["run", "step"], sort=False).agg(loss_nats="mean", seeds="size").reset_index()
    known = {record["run"]: record for record in results.records() if record["study"] == study}
    told = told_apart([known[run] for run in means["run"].unique()], results.scale)
    means = means.assign(source="ours").merge(told.assign(run=means["run"].unique()))
    return means.sort_values(["panel", "run", "step"])


def last_losses(results: Results, study: str, runs: Sequence[str]) -> dict[str, float]:
    """Return the validation loss at the last step by run id, NaN where the run diverged."""
    rows = results.rows("eval.csv", study, runs)
    rows = rows[(rows["split"] == "valid") & (rows["step"] == rows.groupby(["run", "seed"])["step"].transform("max"))]
    found = results.runs(study, runs).set_index(["run", "seed"])
    losses = weighted_means(rows, ["run", "seed"]).reindex(found.index).where(found["status"] == "finished")
    return dict(zip(found["id"], losses, strict=True))


def _family(members: Sequence[dict[str, Any]], losses: dict[str, float]) -> list[dict[Any, Any]]:
    """Return a row per rate and seed of a search, and one per rate; `chosen` is the best, `inside` is within a grid."""
    known = [(r["spec"]["optimizer"]["lr"], r["seed"], r["run"], losses[r["id"]]) for r in members]
    table = DataFrame(known, columns=["lr", "seed", "run", "loss_nats"]).astype({"lr": float})
    by_rate = table.drop_duplicates(["lr", "seed"]).groupby("lr")  # a run may stand twice, under two names
    means = by_rate["loss_nats"].agg(lambda seeds: np.mean(seeds.to_numpy()))
    best, rows = means.dropna().idxmin() if means.notna().any() else None, list[dict[Any, Any]]()
    for rate, seeds in by_rate:
        shared = {"lr": rate, "chosen": rate == best, "inside": means.index[0] < rate < means.index[-1]}
        rows += [shared | {"part": "seed"} | row for row in seeds[["run", "seed", "loss_nats"]].to_dict("records")]
        interval, diverged = student(seeds["loss_nats"]), int(seeds["loss_nats"].isna().sum())
        mean = {"part": "mean", "run": seeds["run"].iloc[0]} | ends("loss_nats", interval)
        rows.append(shared | mean | {"seeds": interval.seeds, "diverged": diverged})
    return rows


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


def _notes(rows: DataFrame) -> list[str]:
    edges, gone = at_the_edge(rows), rows[rows["part"].eq("mean") & rows["diverged"].gt(0)]
    diverged = ", ".join(f"{name} at {rate:g}" for name, rate in zip(gone["family"], gone["lr"], strict=True))
    return [
        *seed_notes(rows.drop(columns="diverged")),
        f"At the edge of the grid, so a better rate may lie beyond it: {'; '.join(edges)}." if edges else "",
        f"Diverged, and not drawn: {diverged}." if diverged else "",
    ]


@plot(studies="transformer tokenformer denseformer vision", reads="eval.csv", varied="optimizer.lr", draw=sheet(
    Panel("lr", "loss_nats", by="family", each="panel", log="x", ring="chosen", style="variant",
          xlabel="peak learning rate", ylabel="validation loss at the end (nats)", ticks="{:.2g}".format),
    notes=_notes, height=1.7
))  # fmt: skip
def rates(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Search for the rates of the study: validation loss at the end of training, in nats per token, target token or
    image, against the peak learning rate, for every model whose rate was searched: runs that differ in nothing else.
    Each depth, and what starts from a parent, has a panel; the best rate is ringed. To see: each ringed rate has a
    higher and a lower one beside it in the grid; where it has not, the last sentence says so, and no comparison at that
    rate is fair.
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
