"""Figures of the two studies of language models: training curves, and searches for learning rates.

A search is a family of runs that differ in `optimizer.lr` alone. The chosen rate has the lowest validation loss at the
last step, as the mean over seeds. Arms of claims that are the best of several runs use the same rule.
"""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from formerlab.report.catalogue import catalogue, expand_columns, plot
from formerlab.report.claims.arms import read_arms
from formerlab.report.families import families
from formerlab.report.names import data_set_label
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    GROWN,
    TOKENFORMER,
    TRANSFORMER,
    last_step_rows,
    load_runs,
    seed_count,
    summarize,
    validation_losses,
    variant_label,
)
from formerlab.report.studies.tokenformer import WAYS_TO_GROW
from formerlab.report.style import BLACK, GREY, NARROW, VERMILION, WIDEST, ink, plot_style
from formerlab.results.read import Results, flatten

RATE = "optimizer.lr"
DISTINGUISHING_KEYS = (
    *("model.projection.kind", "model.norm.kind", "model.feedforward.activation", "model.feedforward.kind"),
    "model.projection.tokens",
)
"""Keys of a spec that distinguish models of the same name, the most informative first."""
PLAIN = {"rmsnorm": "modern Transformer", "layernorm": "classic Transformer"}
"""Names of the Transformers of the study of Tokenformers, by kind of norm."""
WORDS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "linear": TRANSFORMER, "pattention": TOKENFORMER}
"""Labels of values of a spec."""
PHRASES = {"tokens": "{} parameter tokens", "mixing_start_step": "from step {}"}
"""Labels of numbers of a spec, by the last part of their key."""
QUESTIONS = {"hyper-connections-": "Hyper-Connections", "score-": "score functions"}
"""Prefixes of runs whose curves have a panel of their own, and its title."""
MOST = 4
"""Maximum number of curves in a panel."""
DIFFERENCE = expand_columns("difference_nats[]")


def _setting_label(key: str, value: object) -> str:
    if isinstance(value, str):
        return WORDS.get(value, value)
    name = key.rpartition(".")[2]
    return PHRASES.get(name, f"{name.replace('_', ' ')} {{}}").format(value)


def _panel_label(record: dict[str, Any], scale: str, width: bool) -> str:
    model, parts = record["spec"]["model"], [data_set_label(record["data"]["name"], None, scale)]
    parts += [f"{model['layers']:.0f} blocks"] if model.get("layers") else []
    parts += [f"width {model['width']:.0f}"] if width else []
    parts += ["from a parent"] if record["init"] else []
    return ", ".join([*parts, f"{record['spec']['steps']:.0f} steps"])


def shorten(panels: Series) -> Series:
    """Return the names of panels without the parts that all of them share."""
    parts = [name.split(", ") for name in panels]
    shared = set.intersection(*map(set, parts)) if len({*panels}) > 1 else set()
    return Series(
        [", ".join(part for part in name if part not in shared) for name in parts], panels.index, dtype=object
    )


def family_labels(first_records: Sequence[dict[str, Any]], scale: str, *, width: bool = False) -> DataFrame:
    """Return a row per family with its panel, variant and name, given the record of its first run.

    A panel is a data set, a depth, a number of training steps, whether runs start from a parent, and, if asked for, a
    width. The name is the variant and the settings in which the family differs from other families of the variant in
    the panel. The most frequent value of a setting is left out.
    """
    specs = [flatten({"spec": record["spec"]}) for record in first_records]
    panels, variants = [_panel_label(record, scale, width) for record in first_records], map(variant_label, specs)
    named = PLAIN if first_records[0]["study"] == "tokenformer" else {}
    plain = Series([named.get(str(spec.get("spec.model.norm.kind")), TRANSFORMER) for spec in specs], dtype=object)
    labels = DataFrame({"panel": panels, "variant": list(variants)})
    labels["family"] = labels["variant"].replace(WAYS_TO_GROW).str.removeprefix(f"{GROWN}: ")
    labels["family"] = labels["family"].mask(labels["variant"].eq(TRANSFORMER), plain)
    all_keys = dict.fromkeys([*DISTINGUISHING_KEYS, *(key.removeprefix("spec.") for spec in specs for key in spec)])
    keys = [key for key in all_keys if key not in ("study", "name", "seed", RATE)]
    for key in (*keys, RATE):  # the rate is last: it distinguishes families that differ in nothing else
        values = Series([spec.get(f"spec.{key}") for spec in specs], dtype=object)
        groups = labels.groupby(["panel", "family"]).groups if values.astype(str).nunique() > 1 else {}
        for alike in list(groups.values()):
            if values[alike].astype(str).nunique() > 1:
                counts = values[labels["variant"] == labels.loc[alike[0], "variant"]].astype(str).value_counts()
                usual = counts.index[0] if counts.iloc[0] > counts.iloc[1] else None
                labels.loc[alike, "family"] += [
                    f", {_setting_label(key, value)}" * (str(value) != usual) for value in values[alike]
                ]
    order = labels["panel"].str.replace(r"\d+", lambda number: number[0].zfill(9), regex=True)
    return labels.assign(_order=order)


def styled(rows: DataFrame, by: str) -> DataFrame:
    """Add plot styles. Series (column `by`) of the same colour in a panel get different shades and markers."""
    series = rows.dropna(subset=by).drop_duplicates(["panel", by])[["panel", "variant", by]]
    colours = series["variant"].map(lambda name: plot_style(name)["color"])
    of_colour = series.groupby(["panel", colours])[by]
    nth, counts = of_colour.cumcount(), of_colour.transform("size")
    shades = [to_hex(sns.light_palette(colour, count + 3, reverse=True)[at])
              for colour, at, count in zip(colours, nth, counts, strict=True)]  # fmt: skip
    series = series.assign(_color=shades, _linestyle="-", _marker=nth.sub(1).map(dict(enumerate("^Dv>s"))))
    return rows.merge(series, "left", ["panel", "variant", by])


def compared_runs(study: str, scale: str) -> list[str]:
    """Return the patterns of the runs that the registered claims of a study compare at a scale."""
    claims = read_arms(Path(), scale).get(study, {}).values()
    return [pattern for claim in claims for _, arm in claim.named() if (pattern := arm.run or arm.best_of)]


def plotted_runs(runs: DataFrame, patterns: Sequence[str]) -> DataFrame:
    """Return the rows of the runs that have a curve, with its `_series`, its `_panel` and its control.

    The control is the Transformer of the panel; among several it is the one with the shortest name. Runs without a
    control are shown only if no run has one. Of runs that differ only in the learning rate, the best is shown. A panel
    has at most MOST curves: first of runs that match the patterns, then of runs with a low loss.
    """
    runs = runs.assign(_series=runs["family"].str.replace(r", lr [^,]+", "", regex=True))
    runs = runs.loc[runs.groupby(["panel", "_series"])["loss_nats"].idxmin()]
    plain = runs[runs["variant"].eq(TRANSFORMER)].sort_values("_series", key=lambda names: names.str.len())
    plain = plain.drop_duplicates("panel").set_index("panel")
    runs = runs.assign(control=runs["panel"].map(plain["run"]), _control=runs["panel"].map(plain["_series"]))
    beside = runs[runs["control"].notna() & runs["run"].ne(runs["control"])]
    runs = beside if len(beside) else runs.assign(control=None, _control=None)
    questions = [next((f", {name}" for prefix, name in QUESTIONS.items() if run.startswith(prefix)), "")
                 for run in runs["run"]]  # fmt: skip
    others = [not any(fnmatchcase(run, pattern) for pattern in patterns) for run in runs["run"]]
    runs = runs.assign(_panel=runs["panel"] + questions, _other=others).sort_values(["_panel", "_other", "loss_nats"])
    return runs[runs.groupby("_panel").cumcount() < MOST]


def draw_curves(data: DataFrame) -> Figure:
    """Draw differences to the control, with the last steps beside them, or losses."""
    panel = partial(Panel, "step", by="_series", kind="band", facet="_panel", style="variant",
                    xlabel="training step")  # fmt: skip
    intervals = "curves: means; right of them: last step, with 95 % Student t intervals over seeds."
    return layout(
        panel("difference_nats", ends=True, zero=0.0, same_limits="y", share_y=True, ylabel="loss difference (nats)",
              title="{_panel}: minus {_control}"),
        panel("_loss", log="xy", ylabel="validation loss (nats)"),
        notes=lambda rows: [f"{seed_count(rows['seeds'])}; {intervals if rows['seeds'].max() > 1 else 'no interval.'}"],
        height=1.7, width=NARROW if data["_panel"].nunique() == 1 else WIDEST,
    )(data)  # fmt: skip


@plot(studies="tokenformer", reads="eval.csv", within_regime=True, draw=draw_curves)
def curves(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Training curves of models that were trained from scratch, as means over seeds: validation loss minus the loss of
    a Transformer of the same data set, depth, width and number of steps, which is the line at zero, paired by seed. All
    panels have the same y range, from the second half of training and the intervals (95 %, over seeds) of the last
    step; earlier points beyond it are cut. The loss itself is shown if no panel has such a Transformer. Of several
    learning rates the best is shown. A panel has at most four models, first those that the registered claims compare;
    the CSV has the losses of all models. To see: whether a run that is lower at the end was lower from early on.
    """
    records = {record["run"]: record for record in results.records() if record["study"] == study and not record["init"]}
    by_seed = validation_losses(results, study, runs)
    by_seed = by_seed[by_seed["step"].gt(0) & by_seed["run"].isin(records)]
    if by_seed.empty:
        return by_seed
    rows = by_seed.groupby(["run", "step"])["loss_nats"].agg(loss_nats="mean", seeds="size").reset_index()
    names = rows["run"].unique()
    labels = family_labels([records[run] for run in names], results.scale, width=True).assign(run=names, source="ours")
    rows = rows.merge(labels)
    plotted = plotted_runs(rows.drop_duplicates("run", keep="last"), compared_runs(study, results.scale))
    rows = rows.merge(plotted[["run", "_panel", "_series", "control", "_control"]], "left")
    rows["panel"] = rows.pop("_panel").fillna(rows["panel"])
    rows["_loss"] = rows["loss_nats"].where(rows["_series"].notna() & rows["control"].isna())
    controls = plotted.set_index("run")["control"].dropna().to_dict()
    differences = summarize(by_seed, "loss_nats", ["run", "step"], controls, "difference_nats")
    differences = differences[differences["part"] == "mean"].reindex(columns=["run", "step", *DIFFERENCE])
    rows = rows.merge(differences, "left", ["run", "step"]).sort_values(["_order", "panel", "run", "step"])
    rows = styled(rows, "_series")
    return rows.assign(_panel=shorten(rows.loc[rows["_series"].notna(), "panel"]))


def at_the_edge(rows: DataFrame) -> list[str]:
    """Return a line for every family whose best rate is the lowest or highest of its grid, or that diverged at every
    rate.
    """
    lines = []
    for (panel, family, _), group in rows[rows["part"] == "mean"].groupby(SEARCH, sort=False):
        chosen = group[group["chosen"]]
        if chosen.empty:
            lines.append(f"{family} ({panel}): diverged at every rate")
        elif not chosen["inside"].iloc[0]:
            best, low, high = chosen["lr"].iloc[0], group["lr"].min(), group["lr"].max()
            lines.append(f"{family} ({panel}): {best:g}, of {low:g} to {high:g}")
    return lines


def draw_rates(data: DataFrame) -> Figure:
    """Draw a row per search: each rate relative to the best one, with its excess loss as shade and number."""
    means = data[data["part"] == "mean"].assign(_panel=lambda rows: shorten(rows["panel"]))
    keys = [means[key] for key in SEARCH]
    best = means[["lr", "loss_nats"]].where(means["chosen"]).groupby(keys).transform("max")
    means["_step"] = np.log2(means["lr"] / best["lr"].fillna(means["lr"].groupby(keys).transform("median")))
    means["_excess"] = 1000 * (means["loss_nats"] - best["loss_nats"])
    searches = [rows for _, rows in means.groupby(SEARCH, sort=False)][::-1]
    note = (
        f"{seed_count(means['seeds'])}; shades and numbers: loss minus the lowest of the row, in 0.001 nats per token; "
    )
    note += "searched: tokens, in percent of the longest run that uses the best rate (framed)"
    edges, tall = at_the_edge(data), 0.19 * len(searches)
    more = f" At the edge of the grid, so a better rate may lie beyond it: {'; '.join(edges)}." if edges else ""
    figure = Figure((WIDEST, height := tall + 1.05), label=f"{note}.{more}")
    figure.text(0.012, 0.03 / height, fill(note, 110), color=GREY, fontsize=7)
    axes = figure.add_axes((3.7 / WIDEST, 0.75 / height, 2.75 / WIDEST, tall / height))
    low, high = int(min(-1, means["_step"].min())), int(max(1, means["_step"].max()))
    ticks = {step: f"1/{2**-step}" if step < 0 else str(2**step) for step in range(low, high + 1)}
    axes.set_xticks([*ticks], ticks.values(), fontsize=7)
    axes.set(xlim=(low - 0.6, high + 0.6), ylim=(-0.6, len(searches) - 0.4), yticks=[],
             xlabel="learning rate relative to the best")  # fmt: skip
    write = partial(
        axes.annotate, xycoords=("axes fraction", "data"), textcoords="offset points", va="center", fontsize=7
    )
    write("searched", (1, len(searches)), (34, 0), ha="right", color=GREY)
    for at, rows in enumerate(searches):
        for step, excess, chosen in rows[["_step", "_excess", "chosen"]].to_numpy():
            shade = 1 - 0.12 * np.clip(np.log10(max(excess, 1)), 0, 3)  # white to grey; white if the run diverged
            axes.text(step, at, "div." if np.isnan(excess) else f"{excess:.0f}", fontsize=7, ha="center", va="center",
                      bbox={"boxstyle": "square,pad=0.25", "facecolor": "white" if np.isnan(excess) else str(shade),
                            "edgecolor": BLACK if chosen else "none"})  # fmt: skip
        for lr in rows.loc[rows["chosen"] & ~rows["inside"], "lr"]:
            axes.text(1 if lr > rows["lr"].min() else -1, at, "edge", fontsize=7, ha="center", va="center",
                      color=ink(VERMILION))  # fmt: skip
        first = rows.iloc[0]
        share = f"{100 * first['share']:.0f} %" if pd.notna(first["share"]) else "\N{EN DASH}"
        write(first["family"], (0, at), (-258, 0), color=ink(plot_style(first["variant"])["color"]))
        write(first["_panel"], (0, at), (-8, 0), color=GREY, ha="right")
        write(share, (1, at), (34, 0), ha="right")
    return figure


SEARCH = ["panel", "family", "scale"]
"""Columns that identify a search."""
LONG_RUNS = "overnight"
"""Scale whose learning rates the searches choose. Its own searches are over whole runs."""


def _searched_share(rows: DataFrame, records: dict[Any, dict[str, Any]], used: Results) -> Series:
    """Return for each row the tokens of its search relative to the longest run of the same model, data and kind of
    start that uses the chosen rate at scale LONG_RUNS, or NaN.
    """

    def key(record: dict[str, Any], rate: object) -> tuple[object, ...]:
        model = json.dumps(record["spec"]["model"], sort_keys=True)
        return record["study"], model, record["data"]["fingerprint"], record["init"] is not None, rate

    tokens = DataFrame(
        [(key(record, flatten(record["spec"]).get(RATE)), record["tokens"]) for record in used.records()]
    )
    longest = tokens.groupby(0)[1].max()
    best = rows[rows["chosen"]].drop_duplicates("number").set_index("number")["lr"]
    shares = {at: records[at]["tokens"] / longest.get(key(records[at], rate), np.nan) for at, rate in best.items()}
    return rows["number"].map(shares)


@plot(studies="denseformer tokenformer", reads="eval.csv", varied="optimizer.lr", draw=draw_rates)
def rates(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Search for the learning rates of the study, a row per searched model: validation loss at the end of training at
    each peak learning rate, minus the lowest of the row, against the rate relative to the best one (framed). Runs of a
    row differ in nothing else. The right column is the length of the searched runs in percent of the longest run of
    scale overnight that uses the best rate; 100 % are searches over whole runs. To see: each framed rate has a higher
    and a lower rate beside it. If it does not, the missing side is marked as an edge, and a comparison at that rate may
    be unfair. A search over a small part of a run may choose another rate than the whole run.
    """
    root = results.root.resolve().with_name(LONG_RUNS)
    used = Results(root) if root.is_dir() else None
    frames = [_searches(results, runs, study, used)]
    if used and used.scale != results.scale and (names := catalogue()[f"{study}_rates"].run_names(used)):
        frames.append(_searches(used, names, study, used, least=3))
    rows = pd.concat([frame for frame in frames if len(frame)] or frames, ignore_index=True)
    return rows.sort_values(["_order", "lr"], kind="stable", ignore_index=True).drop(columns="_order")


def _searches(results: Results, runs: Sequence[str], study: str, used: Results | None, least: int = 2) -> DataFrame:
    """Return the mean and the losses by seed of every rate of the searches with at least `least` rates."""
    columns = expand_columns("source panel family variant lr chosen inside part run seed loss_nats[] seeds diverged")
    columns += ["share", "_order"]
    records = {record["id"]: record for record in results.records()}
    losses = last_step_rows(validation_losses(results, study, runs))
    runs_at_rates = load_runs(results, study, runs).merge(losses, "left", ["run", "seed"])
    runs_at_rates["number"] = families([records[name]["spec"] for name in runs_at_rates["id"]], RATE)
    runs_at_rates["lr"] = runs_at_rates[f"spec.{RATE}"].astype(float)
    runs_at_rates["loss_nats"] = runs_at_rates["loss_nats"].mask(runs_at_rates["diverged"])
    rates_of_seed = runs_at_rates.groupby(["number", "seed"])["lr"].transform("nunique")  # compare on equal seeds
    most = rates_of_seed.groupby(runs_at_rates["number"]).transform("max")
    runs_at_rates = runs_at_rates[(rates_of_seed == most) & (most >= least)]
    if runs_at_rates.empty:
        return DataFrame(columns=[*columns, "scale"])
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
    labels = family_labels([records[name] for name in first_ids], results.scale).set_index(first_ids.index)
    rows = pd.concat([means, seeds], ignore_index=True).join(labels, on="number")
    of_number = {number: records[name] for number, name in first_ids.items()}
    rows["share"] = _searched_share(rows, of_number, used) if used else np.nan
    return rows[columns].assign(scale=results.scale)
