"""Long texts: speed and memory of decoding, and retrieval of a number from far back (passkey, arXiv:2305.16300)."""

from functools import partial

import numpy as np
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
from formerlab.report.style import GREY, WIDEST
from formerlab.results.read import Results

STUDY = "decay"
_LINES = ("--", ":", "-.")
TICK = "\N{CHECK MARK}"
_cases = partial(Panel, "length", each="_case", ticks="{:g}".format, xlabel="prompt length (tokens)")


def _notes(rows: DataFrame) -> list[str]:
    device, threads = rows[["device", "threads"]].iloc[0]
    machine = f"{device}, {threads:.0f} threads" if isinstance(device, str) else "an unknown machine"
    return [f"Median and quartiles of {rows['repetitions'].min():.0f} repetitions on {machine}."]


@plot(reads="decode.csv", draw=layout(
    _cases("tokens_per_s", by="configuration", style="policy", log="xy", ylabel="decoded tokens\nper second"),
    _cases("cache_bytes", by="_size", log="xy", ylabel="keys and values\n(bytes)"),
    _cases("prompt_ratio", by="configuration", style="policy", log="x", ylabel="prompt time over\nthe full cache"),
    notes=_notes, columns=0, height=1.7
))  # fmt: skip
def decay_decode(results: Results, runs: list[str]) -> DataFrame:
    """Decoding with full and pruned caches, against the length of the prompt: tokens per second, bytes of the retained
    keys and values, and time to read the prompt. Full is our full cache, DynamicCache is the cache of transformers.
    Runs are measured in turns on an otherwise idle machine, with an untrained model of the run's shape or a released
    model. Points are medians, bars quartiles. Bytes exclude the scores and positions of a pruned cache, which are in
    decay_decode_table. No speeds were published. To see: at which lengths pruning saves more time than it takes. The
    bytes follow from the budget, whichever policy chooses.
    """
    rows, record = decode_speeds(results, STUDY, runs), results.stage_record(STUDY, "decode")
    if rows.empty:
        return rows
    pruned = sorted({budget for budget in rows["budget"] if budget != 1}, reverse=True)[1:]
    return rows.assign(
        device=record.get("device"),
        threads=record.get("threads"),
        _case=rows["run"].map(model_label)
        + rows["sequences"].map(lambda count: f", {count} sequences" if count > 1 else ", one sequence"),
        _size=rows["budget"].map(lambda budget: "full cache" if budget == 1 else f"pruned to {budget_text(budget)}"),
        _look=np.where(rows["budget"].eq(1), "full", "local"),
        _linestyle=rows["budget"].map({budget: _LINES[at % len(_LINES)] for at, budget in enumerate(pruned)}),
        _markerfacecolor=rows["budget"].isin(pruned).map({True: "white", False: None}),
        _data_set="",
    )


def _sizes(rows: DataFrame) -> list[str]:
    return [budget_text(budget) for budget in rows.loc[rows["policy"] != "full", "budget"].unique()]


def draw_passkey(data: DataFrame) -> Figure:
    """Draw a heat map per position of the number, with a row per policy and a column per length of the text."""
    names, places = data["_series"].unique(), sorted(data["depth"].unique())
    caches = f" Caches retain {' or '.join(_sizes(data))} of the text." * bool(_sizes(data))
    note = f"n = {data['numbers'].max()} number in each cell, no intervals; a tick: it was found.{caches}"
    figure = Figure((WIDEST, 1.1 + 0.2 * len(names)), layout="constrained", label=note)
    figure.supxlabel(note, x=0.01, ha="left", color=GREY, fontsize=7)
    lowest = data["log_prob"].min()
    for axes, place in zip(figure.subplots(1, len(places), sharey=True, squeeze=False)[0], places, strict=True):
        rows = data[data["depth"] == place]
        rows = rows.assign(length=rows["length"] / 1024, found=rows["found"].eq(1).map({True: TICK, False: ""}))
        numbers, marks = (rows.pivot(index="_series", columns="length", values=value).reindex(names)
                          for value in ("log_prob", "found"))  # fmt: skip
        last = place == places[-1]
        sns.heatmap(numbers, vmin=lowest, vmax=0, cmap="viridis", annot=marks, fmt="", ax=axes, cbar=last,
                    cbar_kws={"label": "log-probability (nats)"} if last else None)  # fmt: skip
        axes.set(title=f"Number at {place:.0%}", xlabel="tokens of the text", ylabel="")
        axes.set_xticklabels([f"{length:g}k" for length in numbers], rotation=0)
    return figure


@plot(reads="passkey.csv", runs="long-*", needs="long-*", draw=draw_passkey)
def decay_passkey(results: Results, runs: list[str]) -> DataFrame:
    """Retrieval of a number from a long and monotonous text (passkey retrieval, arXiv:2305.16300), by policy. The
    number occurs once and is asked for at the end of the text. Colours are its log-probability by policy and length of
    the text, with a panel for each position of the number. A tick marks a number that was found: every token is the
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
