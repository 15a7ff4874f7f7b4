"""Figures of every study that trains: training curves, and searches for learning rates.

A search is a family of runs that differ in `optimizer.lr` alone. The chosen rate has the lowest validation loss at the
last step, as the mean over seeds. Arms of claims that are the best of several runs use the same rule.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import to_hex
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.families import families
from formerlab.report.figures.transformer import VARIANTS
from formerlab.report.names import data_set_label
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    GROWN,
    last_step_rows,
    load_runs,
    seed_notes,
    summarize,
    validation_losses,
    variant_label,
)
from formerlab.report.studies.tokenformer import WAYS_TO_GROW
from formerlab.report.style import BROWN, LEAF, PINK, SKY, TAN, look
from formerlab.report.tables.vision import NAMES
from formerlab.results.read import Results, flatten

RATE = "optimizer.lr"
TOLD = (
    *("model.projection.kind", "model.norm.kind", "model.feedforward.activation", "model.feedforward.kind"),
    *("model.width", "model.projection.tokens", "steps"),
)
"""Keys of a spec that distinguish models of the same name, the most informative first."""
LABELS = {
    "transformer": {"base": "base"} | {run: label for run, (label, _) in VARIANTS.items()},
    "vision": NAMES,
}
"""Labels of runs by study, instead of the settings that distinguish them."""
_LINES = ("-", "--", ":", "-.")
_COLOURS = (SKY, BROWN, LEAF, PINK, TAN)
"""Colours of the second and further series in a panel of a single variant."""
MOST = 6
"""Maximum number of curves in a panel."""


def told_apart(firsts: Sequence[dict[str, Any]], scale: str) -> DataFrame:
    """Return a row per family with its panel, variant and name, given the record of its first run.

    A panel is a data set, a depth, and whether runs start from a parent. The name is that of LABELS, or says how a
    family differs from others of its variant in the panel; the value that most of them have is left out.
    """
    flat, panels = [flatten({"spec": record["spec"]}) for record in firsts], []
    for record in firsts:
        layers, start = record["spec"]["model"].get("layers"), "from a parent" if record["init"] else "from scratch"
        depth = f"{layers:.0f} blocks" if layers else ""
        panels.append(", ".join(filter(None, [data_set_label(record["data"]["name"], None, scale), depth, start])))
    known = DataFrame({"panel": panels, "variant": [variant_label(one) for one in flat]})
    known["family"] = known["variant"].replace(WAYS_TO_GROW).str.removeprefix(f"{GROWN}: ")
    others = (key.removeprefix("spec.") for one in flat for key in one)
    keys = [key for key in dict.fromkeys([*TOLD, *others]) if key not in ("study", "name", "seed", RATE)]
    for key in (*keys, RATE):  # last: it tells those apart that differ in nothing else
        values = Series([one.get(f"spec.{key}") for one in flat], dtype=object)
        groups = known.groupby(["panel", "family"]).groups if values.astype(str).nunique() > 1 else {}
        for alike in list(groups.values()):
            counts = values[alike].astype(str).value_counts()
            if len(counts) > 1:
                usual = counts.index[0] if 2 * counts.iloc[0] > len(alike) else None
                label = "" if isinstance(values[alike[0]], str) else key.rpartition(".")[2].replace("_", " ") + " "
                known.loc[alike, "family"] += [f", {label}{v}" * (str(v) != usual) for v in values[alike]]
    labels = [LABELS.get(record["study"], {}).get(record["run"]) for record in firsts]
    return known.assign(family=Series(labels, dtype=object).fillna(known["family"]))


def styled(rows: DataFrame, by: str) -> DataFrame:
    """Add plot styles. The series `by` of a variant in a panel have its colour; from the second on, it is lighter, the
    line dashed and the marker another one, which is hollow. In a panel of one variant, they have the colours of
    _COLOURS instead.
    """
    firsts = rows.drop_duplicates(["panel", by])[["panel", "variant", by]]
    of_variant = firsts.groupby(["panel", "variant"])[by]
    nth, counts = of_variant.cumcount(), of_variant.transform("size")
    shades = [to_hex(sns.light_palette(look(name)["color"], 2 * count, reverse=True)[at])
              for name, at, count in zip(firsts["variant"], nth, counts, strict=True)]  # fmt: skip
    alone = firsts.groupby("panel")["variant"].transform("nunique").eq(1) & nth.between(1, len(_COLOURS))
    firsts = firsts.assign(
        _color=Series(shades, firsts.index).mask(alone, nth.sub(1).map(dict(enumerate(_COLOURS)))),
        _linestyle=nth.mod(len(_LINES)).map(dict(enumerate(_LINES))).mask(alone, "-"),
        _markerfacecolor=(nth.gt(0) & ~alone).map({True: "white", False: None}),
        _marker=nth.sub(1).map(dict(enumerate("^Dv>s"))),
    )
    return rows.merge(firsts, "left", ["panel", "variant", by])


def split(rows: DataFrame, by: str) -> DataFrame:
    """Add the column `_panel`: the panel, in numbered parts if it has more than MOST series `by`."""
    series = rows.dropna(subset=by).drop_duplicates(["panel", by])
    count = series.groupby("panel")["panel"].transform("size")
    parts = np.ceil(count / MOST)
    part = series.groupby("panel").cumcount() // np.ceil(count / parts) + 1
    numbers = " (" + part.astype(int).astype(str) + " of " + parts.astype(int).astype(str) + ")"
    series = series.assign(_panel=series["panel"] + numbers.where(parts > 1, ""))
    return rows.merge(series[["panel", by, "_panel"]], "left")


def best_rates(means: DataFrame) -> Series:
    """Return the series of each row without its learning rate, and a missing value for runs at another than the best
    rate of their series and length.
    """
    last = means.sort_values("step").drop_duplicates("run", keep="last")
    last = last.assign(name=last["_series"].str.replace(r", lr [^,]+", "", regex=True))
    best = last.loc[last.groupby(["panel", "name", "step"])["loss_nats"].idxmin()].set_index("run")["name"]
    return means["run"].map(best)


@plot(every_study=True, reads="eval.csv", draw=layout(
    Panel("step", "loss_nats", by="_series", unit="run", kind="band", each="_panel", log="xy", style="variant",
          xlabel="training step", ylabel="validation loss (nats)"),
    height=2.2
))  # fmt: skip
def curves(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Training curves: validation loss against the training step for every run of the study, as the mean over seeds;
    both axes are logarithmic. Each depth has a panel, and runs that start from a parent have their own; a panel with
    more than six models is split. A model that was trained for several lengths has a line for each, at its best
    learning rate. To see: whether curves still fall at the end of training, and whether a run that is lower at the end
    was lower from early on.
    """
    by_seed = validation_losses(results, study, runs).query("step > 0")
    means = by_seed.groupby(["run", "step"], sort=False)["loss_nats"].agg(loss_nats="mean", seeds="size").reset_index()
    known = {record["run"]: record for record in results.records() if record["study"] == study}
    told = told_apart([known[run] for run in means["run"].unique()], results.scale)
    means = means.assign(source="ours").merge(told.assign(run=means["run"].unique()))
    means = means.sort_values(["panel", "run", "step"])
    means["_series"] = means["family"].str.replace(r", steps \d+", "", regex=True)  # the x axis shows the length
    means["_series"] = best_rates(means)
    return styled(split(means, "_series"), "_series")


def at_the_edge(rows: DataFrame) -> list[str]:
    """Return a line for every family whose best rate is the lowest or highest of its grid, or that diverged at every
    rate.
    """
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


@plot(every_study=True, reads="eval.csv", varied="optimizer.lr", draw=layout(
    Panel("lr", "loss_nats", by="family", each="_panel", log="x", ring="chosen", style="variant",
          xlabel="peak learning rate", ylabel="validation loss at the end (nats)", ticks="{:.3g}".format),
    notes=_notes, height=1.7
))  # fmt: skip
def rates(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Search for the learning rates of the study: validation loss at the end of training, in nats per token, target
    token or image, against the peak learning rate, for every model with a searched rate. Runs of a line differ in
    nothing else. Each depth has a panel, and runs that start from a parent have their own; a panel with more than six
    models is split. The best rate is ringed. To see: each ringed rate has a higher and a lower rate beside it in the
    grid. If it does not, the caption says so at its end, and a comparison at that rate may be unfair.
    """
    records = {record["id"]: record for record in results.records()}
    losses = last_step_rows(validation_losses(results, study, runs))
    found = load_runs(results, study, runs).merge(losses, "left", ["run", "seed"])
    found["number"] = families([records[name]["spec"] for name in found["id"]], RATE)
    found["lr"], found["loss_nats"] = found[f"spec.{RATE}"].astype(float), found["loss_nats"].mask(found["diverged"])
    # a run may stand twice, under two names
    found = found[found["number"] >= 0].drop_duplicates(["number", "lr", "seed"])
    found["run"] = found.groupby(["number", "lr"])["run"].transform("first")
    rows = summarize(found, "loss_nats", keys := ["number", "lr", "run"])
    means = rows[rows["part"] == "mean"].merge(found.groupby(keys)["diverged"].sum().reset_index())
    grid = means.groupby("number")
    means["chosen"] = means["loss_nats"] == grid["loss_nats"].transform("min")
    means["inside"] = means["lr"].gt(grid["lr"].transform("min")) & means["lr"].lt(grid["lr"].transform("max"))
    seeds = rows[rows["part"] == "seed"].merge(means[[*keys, "chosen", "inside"]])
    firsts = found.drop_duplicates("number").set_index("number")["id"]
    told = styled(told_apart([records[name] for name in firsts], results.scale), "family").set_index(firsts.index)
    rows = pd.concat([means, seeds]).join(told, on="number").sort_values(["panel", "number", "lr"], ignore_index=True)
    columns = expand_columns("source panel family variant lr chosen inside part run seed loss_nats[] seeds diverged")
    return split(rows[[*columns, "_color", "_linestyle", "_markerfacecolor", "_marker"]], "family")
