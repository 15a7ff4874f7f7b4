"""Figures of every study that trains: training curves, and searches for learning rates.

A search is a family of runs that differ in `optimizer.lr` alone. The chosen rate has the lowest validation loss at the
last step, as the mean over seeds. Arms of claims that are the best of several runs use the same rule.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.families import families
from formerlab.report.figures.transformer import VARIANTS
from formerlab.report.names import data_set_label
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    GROWN,
    TOKENFORMER,
    TRAINED_FURTHER,
    TRANSFORMER,
    last_step_rows,
    load_runs,
    seed_count,
    seed_notes,
    summarize,
    validation_losses,
    variant_label,
)
from formerlab.report.studies.tokenformer import WAYS_TO_GROW
from formerlab.report.style import BROWN, LEAF, NARROW, PINK, TAN, VIOLET, WIDEST, plot_style
from formerlab.report.tables.vision import NAMES
from formerlab.results.read import Results, flatten

RATE = "optimizer.lr"
DISTINGUISHING_KEYS = (
    *("model.projection.kind", "model.norm.kind", "model.feedforward.activation", "model.feedforward.kind"),
    *("model.width", "model.projection.tokens", "steps"),
)
"""Keys of a spec that distinguish models of the same name, the most informative first."""
LABELS = {
    "transformer": {"base": "base"} | {run: label for run, (label, _) in VARIANTS.items()},
    "vision": {run: re.split(r" \(|:", label)[0] for run, label in NAMES.items()},
}
"""Labels of runs by study, instead of the settings that distinguish them."""
WORDS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "linear": TRANSFORMER, "pattention": TOKENFORMER}
"""Labels of values of a spec."""
PHRASES = {
    "tokens": "{} parameter tokens",
    "steps": "{} steps",
    "mixing_start_step": "averages from step {}",
}
"""Labels of numbers of a spec, by the last part of their key."""
_LINES = ("-", "--", ":", "-.")
_COLOURS = (VIOLET, BROWN, LEAF, PINK, TAN)
"""Colours of the second and further series in a panel of a single variant."""
MOST = 6
"""Maximum number of curves in a panel."""


def _setting_label(key: str, value: object) -> str:
    if isinstance(value, str):
        return WORDS.get(value, value)
    name = key.rpartition(".")[2]
    return PHRASES.get(name, f"{name.replace('_', ' ')} {{}}").format(value)


def family_labels(first_records: Sequence[dict[str, Any]], scale: str) -> DataFrame:
    """Return a row per family with its panel, variant and name, given the record of its first run.

    A panel is a data set, a depth, and whether runs start from a parent. The name is that of LABELS, or says how a
    family differs from others of its variant in the panel; the value that most of them have is left out.
    """
    specs, panels = [flatten({"spec": record["spec"]}) for record in first_records], []
    for record in first_records:
        layers, start = record["spec"]["model"].get("layers"), "from a parent" if record["init"] else "from scratch"
        depth = f"{layers:.0f} blocks" if layers else ""
        panels.append(", ".join(filter(None, [data_set_label(record["data"]["name"], None, scale), depth, start])))
    labels = DataFrame({"panel": panels, "variant": [variant_label(spec) for spec in specs]})
    labels["family"] = labels["variant"].replace(WAYS_TO_GROW).str.removeprefix(f"{GROWN}: ")
    vision = np.array([record["study"] == "vision" for record in first_records])
    labels["family"] = labels["family"].mask(vision, labels["family"].str.replace(TRANSFORMER, "ViT"))
    all_keys = dict.fromkeys([*DISTINGUISHING_KEYS, *(key.removeprefix("spec.") for spec in specs for key in spec)])
    keys = [key for key in all_keys if key not in ("study", "name", "seed", RATE)]
    for key in (*keys, RATE):  # the rate is last: it distinguishes families that differ in nothing else
        values = Series([spec.get(f"spec.{key}") for spec in specs], dtype=object)
        groups = labels.groupby(["panel", "family"]).groups if values.astype(str).nunique() > 1 else {}
        for alike in list(groups.values()):
            counts = values[alike].astype(str).value_counts()
            if len(counts) > 1:
                usual = counts.index[0] if 2 * counts.iloc[0] > len(alike) else None
                labels.loc[alike, "family"] += [
                    f", {_setting_label(key, value)}" * (str(value) != usual) for value in values[alike]
                ]
    names = [LABELS.get(record["study"], {}).get(record["run"]) for record in first_records]
    return labels.assign(family=Series(names, dtype=object).fillna(labels["family"]))


def styled(rows: DataFrame, by: str) -> DataFrame:
    """Add plot styles. The series `by` of a variant in a panel have its colour; from the second on, it is lighter, the
    line dashed and the marker another one. In a panel of one variant, they have the colours of _COLOURS instead.
    """
    series = rows.drop_duplicates(["panel", by])[["panel", "variant", by]]
    of_variant = series.groupby(["panel", "variant"])[by]
    nth, counts = of_variant.cumcount(), of_variant.transform("size")
    shades = [to_hex(sns.light_palette(plot_style(name)["color"], 3 * count, reverse=True)[at])
              for name, at, count in zip(series["variant"], nth, counts, strict=True)]  # fmt: skip
    alone = series.groupby("panel")["variant"].transform("nunique").eq(1) & nth.between(1, len(_COLOURS))
    series = series.assign(
        _color=Series(shades, series.index).mask(alone, nth.sub(1).map(dict(enumerate(_COLOURS)))),
        _linestyle=nth.mod(len(_LINES)).map(dict(enumerate(_LINES))).mask(alone, "-"),
        _marker=nth.sub(1).map(dict(enumerate("^Dv>s"))),
    )
    return rows.merge(series, "left", ["panel", "variant", by])


def split(rows: DataFrame, by: str) -> DataFrame:
    """Add the column `_panel`: the panel, in numbered parts if it has more than MOST series `by`."""
    series = rows.dropna(subset=by).drop_duplicates(["panel", by])
    count = series.groupby("panel")["panel"].transform("size")
    parts = np.ceil(count / MOST)
    part = series.groupby("panel").cumcount() // np.ceil(count / parts) + 1
    numbers = " (" + part.astype(int).astype(str) + "\u00a0of\u00a0" + parts.astype(int).astype(str) + ")"
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


def minus_control(by_seed: DataFrame, means: DataFrame) -> DataFrame:
    """Return the loss of each run minus the loss of its control at the same step, paired by seed, with the run and the
    series of the control.

    The control is the Transformer, or the parent trained further, of the same panel and number of steps; among several
    of one variant it is the one with the shortest name, and parents of several variants are no control.
    """
    runs = means.dropna(subset="_series").groupby("run", as_index=False).agg(
        {"panel": "first", "_series": "first", "variant": "first", "step": "max"}
    )  # fmt: skip
    plain = runs[runs["variant"].eq(TRANSFORMER) | runs["variant"].str.endswith(TRAINED_FURTHER)]
    plain = plain.sort_values("_series", key=lambda names: names.str.len(), kind="stable")
    plain = plain[plain.groupby(["panel", "step"])["variant"].transform("nunique") == 1]
    plain = plain.drop_duplicates(["panel", "step"]).rename(columns={"run": "control", "_series": "_control"})
    pairs = runs.merge(plain[["panel", "step", "control", "_control"]]).query("run != control")
    if pairs.empty:
        return DataFrame(columns=["run", "step", "difference_nats", "control", "_control"])
    controls = dict(zip(pairs["run"], pairs["control"], strict=True))
    rows = summarize(by_seed, "loss_nats", ["run", "step"], controls, "difference_nats")
    rows = rows.loc[rows["part"] == "mean", ["run", "step", *expand_columns("difference_nats[]")]]
    return rows.merge(pairs[["run", "control", "_control"]])


def _draw_last_intervals(axes: Axes, rows: DataFrame) -> None:
    """Draw the interval of each curve at its last step; curves of equal length are shifted sideways."""
    last = rows.dropna(subset="_difference").sort_values("step").drop_duplicates("run", keep="last")
    ends, nth = last[["difference_nats_low", "difference_nats_high"]], last.groupby("step").cumcount()
    colours = last["_color"].fillna(last["variant"].map(lambda name: plot_style(name)["color"]))
    low, high = ends.to_numpy(float).T
    axes.vlines(last["step"] * 1.03**nth, low, high, colors=colours.tolist(), linewidth=1.1)


_curve = partial(Panel, "step", by="_series", unit="run", kind="band", facet="_panel", style="variant",
                 xlabel="training step")  # fmt: skip


@plot(every_study=True, reads="eval.csv", draw=layout(
    _curve("_loss", log="xy", ylabel="validation loss (nats)"),
    _curve("_difference", log="x", zero=0.0, outlier_factor=4.0, title="{_panel}, minus {_control}",
           ylabel="loss difference (nats)", finish=_draw_last_intervals),
    notes=lambda rows: [f"{seed_count(rows['seeds'])}; lines: means; bars at the last steps of differences: 95 % "
                        "Student t intervals over seeds, shifted sideways."],
    group_by="_panel", height=1.7
))  # fmt: skip
def curves(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Training curves of every model of the study that was trained from scratch, as the mean over seeds: validation
    loss minus the loss of the Transformer that was trained for as many steps, paired by seed. The loss itself is shown
    if there is no such Transformer, or if the study has at most six models; both its axes are logarithmic. Each data
    set and depth has a panel, which is split if it has more than six models. A model that was trained for several
    lengths has a line for each, at its best learning rate. To see: whether a run that is lower at the end was lower
    from early on.
    """
    records = {record["run"]: record for record in results.records() if record["study"] == study and not record["init"]}
    by_seed = validation_losses(results, study, runs)
    by_seed = by_seed[by_seed["step"].gt(0) & by_seed["run"].isin(records)]
    if by_seed.empty:
        return by_seed
    means = by_seed.groupby(["run", "step"], sort=False)["loss_nats"].agg(loss_nats="mean", seeds="size").reset_index()
    labels = family_labels([records[run] for run in means["run"].unique()], results.scale)
    labels["panel"] = labels["panel"].str.removesuffix(", from scratch")
    means = means.assign(source="ours").merge(labels.assign(run=means["run"].unique()))
    means = means.sort_values(["panel", "run", "step"])
    means["_series"] = means["family"].str.replace(r", \d+ steps", "", regex=True)  # the x axis shows the length
    means["_series"] = best_rates(means)
    rows = styled(means, "_series").merge(minus_control(by_seed, means), "left")
    rows["_control"] = rows.groupby("panel")["_control"].transform("first")
    few = rows["panel"].nunique() == 1 and rows["_series"].nunique() <= MOST
    rows["_loss"] = rows["loss_nats"].where(rows["_control"].isna() | few)
    rows["_difference"] = rows["difference_nats"].where(rows["_series"].notna())
    rows["_series"] = rows["_series"].where(rows[["_loss", "_difference"]].notna().any(axis=1))
    return split(rows, "_series")


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


def draw_rates(data: DataFrame) -> Figure:
    """Draw the losses of each panel, in one column if there is one panel."""
    panel = Panel("_thousandths", "loss_nats", by="family", facet="_panel", log="x", ring="chosen", style="variant",
                  xlabel="peak learning rate (1e-3)", ylabel="validation loss\nat the end (nats)",
                  ticks="{:.2g}".format)  # fmt: skip
    width = NARROW if data["_panel"].nunique() == 1 else WIDEST
    return layout(panel, notes=_notes, height=1.7, width=width)(data.assign(_thousandths=1000 * data["lr"]))


@plot(every_study=True, reads="eval.csv", varied="optimizer.lr", draw=draw_rates)
def rates(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Search for the learning rates of the study: validation loss at the end of training, in nats per token, target
    token or image, against the peak learning rate, for every model with a searched rate. Runs of a line differ in
    nothing else. Each depth has a panel, and runs that start from a parent have their own; a panel with more than six
    models is split. The best rate is ringed. To see: each ringed rate has a higher and a lower rate beside it in the
    grid. If it does not, the caption says so at its end, and a comparison at that rate may be unfair.
    """
    records = {record["id"]: record for record in results.records()}
    losses = last_step_rows(validation_losses(results, study, runs))
    runs_at_rates = load_runs(results, study, runs).merge(losses, "left", ["run", "seed"])
    runs_at_rates["number"] = families([records[name]["spec"] for name in runs_at_rates["id"]], RATE)
    runs_at_rates["lr"] = runs_at_rates[f"spec.{RATE}"].astype(float)
    runs_at_rates["loss_nats"] = runs_at_rates["loss_nats"].mask(runs_at_rates["diverged"])
    # a run may exist under two names
    runs_at_rates = runs_at_rates[runs_at_rates["number"] >= 0].drop_duplicates(["number", "lr", "seed"])
    runs_at_rates["run"] = runs_at_rates.groupby(["number", "lr"])["run"].transform("first")
    rows = summarize(runs_at_rates, "loss_nats", keys := ["number", "lr", "run"])
    means = rows[rows["part"] == "mean"].merge(runs_at_rates.groupby(keys)["diverged"].sum().reset_index())
    grid = means.groupby("number")
    means["chosen"] = means["loss_nats"] == grid["loss_nats"].transform("min")
    means["inside"] = means["lr"].gt(grid["lr"].transform("min")) & means["lr"].lt(grid["lr"].transform("max"))
    seeds = rows[rows["part"] == "seed"].merge(means[[*keys, "chosen", "inside"]])
    first_ids = runs_at_rates.drop_duplicates("number").set_index("number")["id"]
    labels = family_labels([records[name] for name in first_ids], results.scale)
    labels = styled(labels, "family").set_index(first_ids.index)
    rows = pd.concat([means, seeds]).join(labels, on="number").sort_values(["panel", "number", "lr"], ignore_index=True)
    columns = expand_columns("source panel family variant lr chosen inside part run seed loss_nats[] seeds diverged")
    return split(rows[[*columns, "_color", "_linestyle", "_marker"]], "family")
