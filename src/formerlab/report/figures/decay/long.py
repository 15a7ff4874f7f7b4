"""Long texts: speed and memory of decoding, and retrieval of a number from far back (passkey, arXiv:2305.16300)."""

from functools import partial
from textwrap import fill

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
RATIOS = ("speed_ratio", "prompt_ratio")
TICK = "\N{CHECK MARK}"
LOWEST = -10
"""Log-probability of a number below which cells have the palest grey, in nats."""
PALE = sns.light_palette("#9a9a9a", as_cmap=True)


def _notes(rows: DataFrame) -> list[str]:
    device, threads = rows[["device", "threads"]].iloc[0]
    machine = f"{device}, threads: {threads:.0f}" if isinstance(device, str) else "unknown machine"
    cases, policies = ("; ".join(rows[name].unique()) for name in ("_case", "_policies"))
    return [f"{cases}; lines: mean of {policies}, bars: from the lowest to the highest of them; medians of "
            f"{rows['repetitions'].min():.0f} repetitions; {machine}."]  # fmt: skip


def draw_decode(data: DataFrame) -> Figure:
    """Draw the mean of the policies and their range by budget: decoding speed, and the time to read the prompt."""
    pruned = data[data["budget"].ne(1)]
    keys = ["_case", "budget", "length", "device", "threads"]
    ends = {"": "mean", "_low": "min", "_high": "max"}
    columns = {f"{name}{end}": (name, reduce) for name in RATIOS for end, reduce in ends.items()}
    cells = pruned.groupby(keys, sort=False, dropna=False).agg(**columns, repetitions=("repetitions", "min"))
    cells = cells.reset_index().assign(source="ours", _policies=", ".join(pruned["_policy"].unique()), _style="full")
    cells["_cache"] = "cache of " + cells["budget"].map(budget_text)
    cells["_linestyle"] = cells["budget"].rank(method="dense").map({1.0: "-", 2.0: "--", 3.0: ":"})
    case = "{_case}: " * (cells["_case"].nunique() > 1)
    panel = partial(Panel, "length", by="_cache", facet="_case", ticks="{:g}".format, log="x", zero=1.0,
                    xlabel="prompt length (tokens)")  # fmt: skip
    return layout(
        panel("speed_ratio", ylabel="decoding speed\n(full cache = 1)", title=f"{case}Decoding: above 1 is faster"),
        panel("prompt_ratio", ylabel="time to read the prompt\n(full cache = 1)",
              title=f"{case}Reading the prompt: above 1 is slower"),
        notes=_notes, height=1.9,
    )(cells)  # fmt: skip


@plot(reads="decode.csv", draw=draw_decode)
def decay_decode(results: Results, runs: list[str]) -> DataFrame:
    """Decoding with pruned caches, relative to the full cache in the same repetition, against the length of the prompt:
    decoding speed and time to read the prompt. The policies differ by little, so a line is their mean. Runs are
    measured in turns on an otherwise idle machine, with an untrained model of the run's shape or a released model.
    Whichever policy chooses, a cache of 40 % holds 40 % of the bytes of the keys and values, plus the scores and
    positions (decay_decode_table). The CSV has each policy, its quartiles, and DynamicCache, the cache of transformers.
    No speeds were published. To see: at which lengths pruning saves more time than it takes.
    """
    rows, record = decode_speeds(results, STUDY, runs), results.stage_record(STUDY, "decode")
    if rows.empty:
        return rows
    return rows.assign(
        device=record.get("device"),
        threads=record.get("threads"),
        _case=rows["run"].map(model_label)
        + rows["sequences"].map(lambda count: f", {count} sequences" if count > 1 else ", one sequence"),
        _policy=rows["configuration"],
        _data_set="",
    )


def _sizes(rows: DataFrame) -> list[str]:
    return [budget_text(budget) for budget in rows.loc[rows["policy"] != "full", "budget"].unique()]


def draw_passkey(data: DataFrame) -> Figure:
    """Draw a heat map per position of the number, with a row per policy and a column per length of the text.

    Texts in which the full cache does not find the number show nothing about a policy, and are left out.
    """
    full = data[data["policy"].eq("full") & data["found"].gt(0)]
    if len(full):
        data = data.merge(full[["length", "depth"]])
    hits = data.groupby("_series", sort=False)[["_hits", "numbers"]].transform("sum").astype(str)
    data = data.assign(_series=data["_series"] + ": " + hits["_hits"] + " of " + hits["numbers"])
    names, depths = data["_series"].unique(), sorted(data["depth"].unique())
    caches = f"caches of {' or '.join(_sizes(data))} of the text; " * bool(_sizes(data))
    note = (f"n = {data['numbers'].max()} number per cell, no intervals; {caches}black cells ({TICK}) and the counts "
            "in the labels: numbers that were found (every token is the most probable one).")  # fmt: skip
    figure = Figure((WIDEST, 1.4 + 0.2 * len(names)), layout="constrained", label=note)
    figure.supxlabel(fill(note, 115), x=0.01, ha="left", color=GREY, fontsize=7)
    lowest = max(data["log_prob"].min(), LOWEST)
    widths = data.groupby("depth")["length"].nunique()
    grid = figure.subplots(1, len(depths), sharey=True, squeeze=False, width_ratios=widths.tolist())
    for axes, depth in zip(grid[0], depths, strict=True):
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
    most probable one. The label of a policy counts them. Texts in which the full cache does not find the number are in
    the CSV only. A policy must retain the number before it reads the question. To see: which rows look like the full
    cache, which is the bound. At 4k tokens and 90 %, the number is inside the window of recent tokens.
    """
    rows = first_model_rows(results.rows("passkey.csv", STUDY, runs))
    cells = rows.groupby([*CONFIGURATION, "length", "depth"], sort=False, dropna=False)
    scores = cells.agg(found=("found", "mean"), numbers=("found", "size"), log_prob=("log_prob", "mean")).reset_index()
    totals = rows.groupby(CONFIGURATION, sort=False, dropna=False)["found"].agg(all_found="sum", all_numbers="size")
    table = label_and_sort(scores.merge(totals.reset_index(), on=CONFIGURATION)).assign(source="ours")
    sizes = ", " + table["budget"].map(budget_text) if len(_sizes(table)) > 1 else ""
    return table.assign(_series=table["configuration"] + sizes, _hits=(table["found"] * table["numbers"]).astype(int))
