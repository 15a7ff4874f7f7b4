"""Figure `rates`: learning rate searches of the studies denseformer and tokenformer.

A search is a family of runs that differ in `optimizer.lr` alone. The chosen rate has the lowest validation loss at the
last step, as the mean over seeds. Arms of claims that are the best of several runs use the same rule.
"""

import json
import math
from collections.abc import Sequence
from functools import partial
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pandas import DataFrame, Series

from formerlab.report.catalogue import catalogue, expand_columns, plot
from formerlab.report.families import families
from formerlab.report.names import data_set_label
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
from formerlab.report.style import BLACK, GREY, LETTER, ink, plot_style
from formerlab.report.tables.cells import claim_verdicts
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
DASH = "\N{EN DASH}"


def _setting_label(key: str, value: object) -> str:
    if isinstance(value, str):
        return WORDS.get(value, value)
    name = key.rpartition(".")[2]
    return PHRASES.get(name, f"{name.replace('_', ' ')} {{}}").format(value)


def _panel_label(record: dict[str, Any], scale: str) -> str:
    model, parts = record["spec"]["model"], [data_set_label(record["data"]["name"], None, scale)]
    parts += [f"{model['layers']:.0f} blocks"] if model.get("layers") else []
    parts += ["from a parent"] if record["init"] else []
    return ", ".join([*parts, f"{record['spec']['steps']:.0f} steps"])


def shorten(panels: Series) -> Series:
    """Return the names of panels without the elements that all of them share."""
    elements = [name.split(", ") for name in panels]
    shared = set.intersection(*map(set, elements)) if len({*panels}) > 1 else set()
    names = [", ".join(element for element in name if element not in shared) for name in elements]
    return Series(names, panels.index, dtype=object)


def family_labels(first_records: Sequence[dict[str, Any]], scale: str) -> DataFrame:
    """Return a row per family with its panel, variant and name, given the record of its first run.

    A panel is a data set, a depth, a number of training steps, and whether runs start from a parent. The name is the
    variant and the settings in which the family differs from other families of the variant in the panel. The most
    frequent value of a setting is left out.
    """
    specs = [flatten({"spec": record["spec"]}) for record in first_records]
    panels, variants = [_panel_label(record, scale) for record in first_records], map(variant_label, specs)
    named = PLAIN if first_records[0]["study"] == "tokenformer" else {}
    plain = Series([named.get(str(spec.get("spec.model.norm.kind")), TRANSFORMER) for spec in specs], dtype=object)
    labels = DataFrame({"panel": panels, "variant": list(variants)})
    labels["family"] = labels["variant"].replace(WAYS_TO_GROW).str.removeprefix(f"{GROWN}: ")
    labels["family"] = labels["family"].mask(labels["variant"].eq(TRANSFORMER), plain)
    all_keys = dict.fromkeys([*DISTINGUISHING_KEYS, *(key.removeprefix("spec.") for spec in specs for key in spec)])
    keys = [key for key in all_keys if key not in ("study", "name", "seed", RATE)]
    for key in keys:
        values = Series([spec.get(f"spec.{key}") for spec in specs], dtype=object)
        groups = labels.groupby(["panel", "family"]).groups if values.astype(str).nunique() > 1 else {}
        for rows_of_family in list(groups.values()):
            if values[rows_of_family].astype(str).nunique() > 1:
                counts = (
                    values[labels["variant"] == labels.loc[rows_of_family[0], "variant"]].astype(str).value_counts()
                )
                usual = counts.index[0] if counts.iloc[0] > counts.iloc[1] else None
                labels.loc[rows_of_family, "family"] += [
                    f", {_setting_label(key, value)}" * (str(value) != usual) for value in values[rows_of_family]
                ]
    order = labels["panel"].str.replace(r"\d+", lambda number: number[0].zfill(9), regex=True)
    return labels.assign(_order=order)


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


def _write_search(axes: Axes, at: int, zero: int, search: DataFrame) -> None:
    """In row `at`, frame the best rate (column `zero`), mark it if it is an edge of the grid, mark the rates that
    claims use, and write the text columns.
    """
    first, middle = search.iloc[0], at + 0.5
    for inside in search.loc[search["chosen"], "inside"]:
        axes.add_patch(Rectangle((zero, at), 1, 1, fill=False, edgecolor=BLACK))
        if not inside:
            x = zero + (1 if search["_step"].min() < 0 else -1)
            axes.add_patch(Rectangle((x + 0.06, at + 0.06), 0.88, 0.88, fill=False, edgecolor=BLACK, linestyle=":"))
            axes.text(x + 0.5, middle, "?", fontsize=7, ha="center", va="center")
    used = zero + search.loc[search["used"], "_step"]
    axes.plot(used + 0.85, np.full(len(used), at + 0.22), "o", color=BLACK, markersize=3, clip_on=False)
    searched = f"{100 * first['share']:.0f}" if pd.notna(first["share"]) else DASH
    write = partial(
        axes.annotate, xycoords=("axes fraction", "data"), textcoords="offset points", va="center", fontsize=7
    )
    write(first["family"], (0, middle), (-200, 0), color=ink(plot_style(first["variant"])["color"]))
    power = math.floor(math.log10(first["_best"]))
    rate = f"{first['_best'] / 10**power:.3g}e{power}"
    for words, side, x in ((first["_steps"], 0, -52), (rate, 0, -8), (searched, 1, 40)):
        write(words, (side, middle), (x, 0), ha="right")


def draw_rates(data: DataFrame) -> Figure:
    """Draw a heat map of excess losses with a row per search, in groups of equal data set, depth and kind of start."""
    means = data[data["part"] == "mean"].assign(_panel=lambda rows: shorten(rows["panel"]))
    keys = [means[key] for key in SEARCH]
    best = means[["lr", "loss_nats"]].where(means["chosen"]).groupby(keys).transform("max")
    means["_best"] = best["lr"].fillna(means["lr"].groupby(keys).transform("median"))
    means["_step"] = np.log2(means["lr"] / means["_best"]).round().astype(int)
    low, high = max(-3, min(-1, means["_step"].min())), min(4, max(1, means["_step"].max()))
    means["_excess"] = 1000 * (means["loss_nats"] - best["loss_nats"])
    means[["_group", "_steps"]] = means["_panel"].str.extract(r"(.*?)(?:, )?(?:(\d+) steps|)$").fillna("").to_numpy()
    edges = at_the_edge(data)
    note = (
        f"{seed_count(means['seeds'])}; cells: loss minus the loss at the best rate (framed), in 0.001 nats per token, "
        "dark is worse (logarithmic); dot: a claim rests on runs at this rate; searched: tokens, in percent of the "
        f"longest run that uses the best rate ({DASH}: no such run)"
    )
    note += "; ?: edge of the grid, a better rate may lie there" * bool(edges)
    note += "; the CSV has the rates further away" * (not means["_step"].between(low, high).all())
    more = f" At the edge of the grid, so a better rate may lie beyond it: {'; '.join(edges)}." if edges else ""
    rows: list[DataFrame | str] = []
    for name, group in means.groupby("_group", sort=False):
        rows += [str(name), *(search for _, search in group.groupby(SEARCH, sort=False))]
    steps = range(low, high + 1)
    grid = DataFrame(np.nan, range(len(rows)), steps)
    texts = grid.astype(object)
    for at, search in enumerate(rows):
        if isinstance(search, str):
            continue
        digits = int(search["_excess"].between(0, 0.5, inclusive="neither").any())  # zeros beside the best are no ties
        for step, excess in search.loc[search["_step"].isin(steps), ["_step", "_excess"]].to_numpy():
            grid.loc[at, step] = np.log10(max(excess, 1)) if excess == excess else 3.5
            texts.loc[at, step] = f"{excess:.{digits if excess else 0}f}" if excess == excess else "div."
    tall, wide = 0.2 * len(rows), 0.29 * len(steps)
    height, width = tall + 1.35, wide + 3.5
    figure = Figure((width, height), label=f"{note}.{more}")
    figure.text(0.05 / width, 0.03 / height, fill(note, int(width / LETTER)), color=GREY, fontsize=7)
    axes = figure.add_axes((2.85 / width, 1.0 / height, wide / width, tall / height))
    ticks = [f"1/{2**-step}" if step < 0 else str(2**step) for step in steps]
    sns.heatmap(grid, ax=axes, vmin=0, vmax=5, cmap="Greys", cbar=False, annot=texts, fmt="", linewidths=1,
                annot_kws={"fontsize": 7, "color": BLACK}, xticklabels=ticks, yticklabels=False)  # fmt: skip
    axes.set(xlabel="learning rate relative to the best")
    axes.tick_params(axis="x", labelsize=7, rotation=0)
    axes.grid(visible=False)
    for words, side, x in (("steps", 0, -52), ("best rate", 0, -8), ("searched\n(% of run)", 1, 40)):
        axes.annotate(words, (side, 1), (x, 2), xycoords="axes fraction", textcoords="offset points", color=GREY,
                      ha="right", fontsize=7)  # fmt: skip
    for at, search in enumerate(rows):
        if isinstance(search, DataFrame):
            _write_search(axes, at, -low, search)
        else:
            axes.annotate(search, (0, at + 0.62), (-200, 0), xycoords=("axes fraction", "data"), va="center",
                          textcoords="offset points", fontsize=7, fontweight="bold")  # fmt: skip
    return figure


SEARCH = ["panel", "family", "scale"]
"""Columns that identify a search."""
LONG_RUNS = "overnight"
"""Scale whose learning rates the searches choose. Searches at this scale use full-length runs."""


def _used(study: str, used: Results, rows: DataFrame, records: dict[Any, dict[str, Any]]) -> Series:
    """Return, for each row, whether a claim of scale LONG_RUNS uses a run at this rate. Of the runs with the same
    model, data, schedule and kind of start, only the shortest that is at least as long as the search counts.
    """

    def setting(record: dict[str, Any]) -> list[object]:
        return [record["study"], record["init"] is not None, *map(record["spec"].get, ("model", "data", "schedule"))]

    runs, rates = {run for verdict in claim_verdicts(used, study).values() for run in verdict.runs}, dict[Any, Any]()
    claimed = sorted((run for run in used.records() if run["run"] in runs), key=lambda run: run["tokens"])
    for at, search in records.items():
        longer = [run for run in claimed if setting(run) == setting(search) and run["tokens"] >= search["tokens"]]
        rates[at] = {run["spec"]["optimizer"]["lr"] for run in longer if run["tokens"] == longer[0]["tokens"]}
    return Series([lr in rates[at] for at, lr in zip(rows["number"], rows["lr"], strict=True)], rows.index)


def _searched_fraction(rows: DataFrame, records: dict[Any, dict[str, Any]], used: Results) -> Series:
    """Return, for each row, the tokens of its search divided by the tokens of the longest run at scale LONG_RUNS with
    the same model, data set, kind of start and chosen rate. NaN if there is no such run.
    """

    def key(record: dict[str, Any], rate: object) -> tuple[object, ...]:
        model = json.dumps(record["spec"]["model"], sort_keys=True)
        # By name, because the docstrings of newer packages have another fingerprint.
        return record["study"], model, record["data"]["name"], record["init"] is not None, rate

    tokens = DataFrame(
        [(key(record, flatten(record["spec"]).get(RATE)), record["tokens"]) for record in used.records()]
    )
    longest = tokens.groupby(0)[1].max()
    best = rows[rows["chosen"]].drop_duplicates("number").set_index("number")["lr"]
    fractions = {at: records[at]["tokens"] / longest.get(key(records[at], rate), np.nan) for at, rate in best.items()}
    return rows["number"].map(fractions)


@plot(studies="denseformer tokenformer", reads="eval.csv", varied="optimizer.lr", draw=draw_rates)
def rates(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Search for the learning rates of the study, with a row per searched model. A cell is the validation loss after
    the last step minus the lowest of the row. The x axis is the peak rate relative to the best one (framed). Runs of a
    row differ only in the rate. A dot marks the rates of the runs on which claims rest; they may differ from the best
    one, which a verdict then says. The right column is the length of the searched runs in percent of the longest run of
    scale overnight that uses the best rate; 100 % is a search over whole runs. To see: each framed rate has a higher
    and a lower rate beside it. If it does not, the missing side is marked as an edge, and a comparison at that rate may
    be unfair. A search over a small fraction of a run may choose a different rate from a search over the whole run.
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
    columns += ["share", "used", "_order"]
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
    rows["share"] = _searched_fraction(rows, of_number, used) if used else np.nan
    rows["used"] = _used(study, used, rows, of_number) if used else False
    return rows[columns].assign(scale=results.scale)
