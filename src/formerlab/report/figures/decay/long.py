"""Long texts: speed and memory of decoding, and retrieval of a number from far back (passkey, arXiv:2305.16300)."""

from functools import partial
from textwrap import fill

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.panel import Panel, layout
from formerlab.report.studies.pruning import (
    CONFIGURATION,
    budget_text,
    decode_speeds,
    first_model_rows,
    label_and_sort,
    model_label,
)
from formerlab.report.style import BLACK, GREY, WIDEST
from formerlab.results.read import Results

STUDY = "decay"
_LINES = ("--", ":", "-.")
TICK = "\N{CHECK MARK}"
LOWEST = -10
"""Log-probability of a number below which cells have the palest grey, in nats."""
PALE = sns.light_palette("#9a9a9a", as_cmap=True)


def _notes(rows: DataFrame) -> list[str]:
    device, threads = rows[["device", "threads"]].iloc[0]
    machine = f"{device}, threads: {threads:.0f}" if isinstance(device, str) else "unknown machine"
    cases = "; ".join(rows["_case"].unique())
    return [f"{cases}; medians of {rows['repetitions'].min():.0f} repetitions, bars: quartiles; {machine}."]


def draw_decode(data: DataFrame) -> Figure:
    """Draw speed and prompt time with a panel per case and budget, each beside the full cache, and bytes per case."""
    full = data[data["budget"].eq(1)]
    budgets = sorted({*data["budget"]} - {1.0}, reverse=True)
    beside = [full.assign(_beside=budget) for budget in budgets]
    rows = pd.concat([*beside, data[data["budget"].ne(1)].assign(_beside=data["budget"])], ignore_index=True)
    case = "{_case}, " * (data["_case"].nunique() > 1)
    rows["_panel"] = rows["_case"] + rows["_beside"].map(budget_text)
    rows["_pruned"] = "Cache of " + rows["_beside"].map(budget_text)
    panel = partial(Panel, "length", ticks="{:g}".format, log="x", xlabel="prompt length (tokens)")
    times = partial(panel, by="_policy", style="policy", facet="_panel", name="legend")
    return layout(
        times("speed_ratio", ylabel="decoding speed\n(full cache = 1)", zero=1.0, title=f"{case}{{_pruned}}",
              same_limits="y"),
        panel("_megabytes", by="_size", facet="_case", log="xy", ylabel="keys and values\n(MB)",
              title=f"{case}Memory of any policy"),
        times("prompt_ratio", ylabel="time of the prompt\n(full cache = 1)", zero=1.0, title=f"{case}{{_pruned}}",
              same_limits="y"),
        notes=_notes, columns=len(budgets) + 1, height=1.7,
    )(pd.concat([rows, data.assign(_megabytes=data["cache_bytes"] / 1e6, _marker="")], ignore_index=True))  # fmt: skip


@plot(reads="decode.csv", draw=draw_decode)
def decay_decode(results: Results, runs: list[str]) -> DataFrame:
    """Decoding with full and pruned caches, against the length of the prompt: decoding speed and time to read the
    prompt, relative to the full cache in the same repetition, and bytes of the retained keys and values. Full is our
    full cache, DynamicCache is the cache of transformers; both are shown beside each budget. Runs are measured in turns
    on an otherwise idle machine, with an untrained model of the run's shape or a released model. Points are medians,
    bars quartiles. Bytes exclude the scores and positions of a pruned cache, which are in decay_decode_table. No speeds
    were published. To see: at which lengths pruning saves more time than it takes. The bytes follow from the budget,
    whichever policy chooses.
    """
    rows, record = decode_speeds(results, STUDY, runs), results.stage_record(STUDY, "decode")
    if rows.empty:
        return rows
    return rows.assign(
        device=record.get("device"),
        threads=record.get("threads"),
        _case=rows["run"].map(model_label)
        + rows["sequences"].map(lambda count: f", {count} sequences" if count > 1 else ", one sequence"),
        _policy=[
            name.removesuffix(f", {budget_text(budget)}")
            for name, budget in zip(rows["configuration"], rows["budget"], strict=True)
        ],
        _size=rows["budget"].map(lambda budget: "full" if budget == 1 else budget_text(budget)),
        _style="full",
        _data_set="",
    )


def _sizes(rows: DataFrame) -> list[str]:
    return [budget_text(budget) for budget in rows.loc[rows["policy"] != "full", "budget"].unique()]


def draw_passkey(data: DataFrame) -> Figure:
    """Draw a heat map per position of the number, with a row per policy and a column per length of the text."""
    names, depths = data["_series"].unique(), sorted(data["depth"].unique())
    caches = f"caches of {' or '.join(_sizes(data))} of the text; " * bool(_sizes(data))
    note = (f"n = {data['numbers'].max()} number per cell, no intervals; {caches}black cells ({TICK}) and the counts "
            "in the labels: numbers that were found (every token is the most probable one).")  # fmt: skip
    figure = Figure((WIDEST, 1.4 + 0.2 * len(names)), layout="constrained", label=note)
    figure.supxlabel(fill(note, 115), x=0.01, ha="left", color=GREY, fontsize=7)
    lowest = max(data["log_prob"].min(), LOWEST)
    for axes, depth in zip(figure.subplots(1, len(depths), sharey=True, squeeze=False)[0], depths, strict=True):
        rows = data[data["depth"] == depth]
        rows = rows.assign(length=rows["length"] / 1024, tick=rows["found"].eq(1).map({True: TICK, False: ""}))
        numbers, ticks = (rows.pivot(index="_series", columns="length", values=value).reindex(names)
                          for value in ("log_prob", "tick"))  # fmt: skip
        last = depth == depths[-1]
        bar = {"label": "log-probability of the\nnumber (nats, 0: certain)", "extend": "min"} if last else None
        sns.heatmap(numbers, vmin=lowest, vmax=0, cmap=PALE, ax=axes, cbar=last, linewidths=1, cbar_kws=bar)
        sns.heatmap(numbers, mask=ticks.ne(TICK), cmap=[BLACK], annot=ticks, fmt="", ax=axes, cbar=False, linewidths=1)
        axes.set(title=f"Number at {100 * depth:.0f} %", xlabel="text (k tokens)", ylabel="")
        axes.set_xticklabels([f"{length:g}" for length in numbers], rotation=0)
        axes.tick_params(left=False)
    return figure


@plot(reads="passkey.csv", runs="long-*", needs="long-*", draw=draw_passkey)
def decay_passkey(results: Results, runs: list[str]) -> DataFrame:
    """Retrieval of a number from a long and monotonous text (passkey retrieval, arXiv:2305.16300), by policy. The
    number occurs once and is asked for at the end of the text. Greys are its log-probability by policy and length of
    the text, with a panel for each position of the number. A black cell is a number that was found: every token is the
    most probable one. The label of a policy counts them over all panels. A policy must retain the number before it
    reads the question. To see: which rows look like the full cache, which is the bound, and whether a number inside a
    window of recent tokens is found because of its position.
    """
    rows = first_model_rows(results.rows("passkey.csv", STUDY, runs))
    cells = rows.groupby([*CONFIGURATION, "length", "depth"], sort=False, dropna=False)
    scores = cells.agg(found=("found", "mean"), numbers=("found", "size"), log_prob=("log_prob", "mean")).reset_index()
    totals = rows.groupby(CONFIGURATION, sort=False, dropna=False)["found"].agg(all_found="sum", all_numbers="size")
    table = label_and_sort(scores.merge(totals.reset_index(), on=CONFIGURATION)).assign(source="ours")
    sizes = ", " + table["budget"].map(budget_text) if len(_sizes(table)) > 1 else ""
    counts = ": " + table["all_found"].astype(str) + " of " + table["all_numbers"].astype(str)
    return table.assign(_series=table["configuration"] + sizes + counts)
