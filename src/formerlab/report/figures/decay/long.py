"""Long texts: speed and memory of decoding, and retrieval of a number from far back (passkey, arXiv:2305.16300)."""

from functools import partial
from textwrap import fill

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.panel import Panel, layout
from formerlab.report.studies import policy_comparison
from formerlab.report.studies.pruning import (
    CONFIGURATION,
    PUBLISHED_BUDGET,
    budget_text,
    decode_speeds,
    first_model_rows,
    label_and_sort,
    model_label,
    scorer,
)
from formerlab.report.style import BLACK, GREY, LIGHT_GREEN, WIDEST, ink, plot_style
from formerlab.results.read import Results

STUDY = "decay"
STYLES = {"_marker": ["H", "D"], "_color": ["#8C8C8C", GREY], "_linestyle": ["--", "-"]}
"""Plot styles of pruned caches, the smallest cache first."""
SHORT = {"needle_single_512": "512 tokens:\none number", "needle_multikey_512": "512 tokens:\none of four"}
"""Tasks with texts of 512 tokens."""
SQUARES = {"found": BLACK, "not found": "#dcdcdc", "not found by the full cache either (cross)": "white"}
"""Colour of the square of a hidden number, by outcome."""


def _notes(rows: DataFrame) -> list[str]:
    device, threads = rows[["device", "threads"]].iloc[0]
    machine = f"{device}, threads: {threads:.0f}" if isinstance(device, str) else "unknown machine"
    cases, policies = ("; ".join(rows[name].unique()) for name in ("_case", "_policies"))
    return [f"{cases}; lines: mean of {policies} (medians of {rows['repetitions'].min():.0f} repetitions), "
            f"bars: from their lowest to their highest quartile; {machine}; times: at {rows['length'].max():g} "
            "tokens."]  # fmt: skip


def draw_decode(data: DataFrame) -> Figure:
    """Draw the speeds of decoding and of reading the prompt by budget: mean of the policies and range of quartiles."""
    data = data[data["policy"].ne("dynamic_cache")]
    data = data.assign(prompt_speed=1 / data["prompt_ratio"], token_ms=1000 / data["tokens_per_s"])
    pruned = data["budget"].ne(1)
    keys = ["_case", "budget", "length", "device", "threads"]
    data = data.assign(prompt_speed_low=1 / data["prompt_ratio_high"], prompt_speed_high=1 / data["prompt_ratio_low"])
    columns = {f"{name}{end}": (f"{name}{end}", reduce) for name in ("speed_ratio", "prompt_speed")
               for end, reduce in {"": "mean", "_low": "min", "_high": "max"}.items()}  # fmt: skip
    columns |= {name: (name, "mean") for name in ("token_ms", "prompt_s")}
    cells = data.groupby(keys, sort=False, dropna=False).agg(**columns, repetitions=("repetitions", "min"))
    cells = cells.reset_index().assign(source="ours", _policies=", ".join(data.loc[pruned, "_policy"].unique()))
    names = cells["budget"].map(lambda budget: "full cache" if budget == 1 else f"cache of {budget_text(budget)}")
    last = cells.groupby(["_case", "budget"])[["token_ms", "prompt_s"]].transform("last")
    cells["_decoding"] = names + last["token_ms"].map(":\n{:.0f} ms per token".format)
    cells["_reading"] = names + last["prompt_s"].map(":\n{:.1f} s".format)
    cells["_style"] = "full"
    for column, values in STYLES.items():
        cells[column] = cells["budget"].rank(method="dense").map(dict(enumerate(values, 1))).where(cells["budget"] < 1)
    case = "{_case}: " * (cells["_case"].nunique() > 1)
    panel = partial(Panel, "length", facet="_case", ticks="{:g}".format, log="x", xlabel="prompt length (tokens)",
                    finish=lambda axes, rows: axes.set(ylim=(0, 2.05), yticks=np.linspace(0, 2, 5)))  # fmt: skip
    return layout(
        panel("speed_ratio", by="_decoding", ylabel="speed (full cache = 1)",
              title=f"{case}Decoding (higher: faster)"),
        panel("prompt_speed", by="_reading", ylabel="speed (full cache = 1)",
              title=f"{case}Reading the prompt (higher: faster)"),
        notes=_notes, height=1.9,
    )(cells)  # fmt: skip


@plot(reads="decode.csv", draw=draw_decode)
def decay_decode(results: Results, runs: list[str]) -> DataFrame:
    """Speed of decoding and of reading the prompt with pruned caches, against the length of the prompt. Speeds are
    relative to the full cache in the same repetition. The policies differ by little, so a line is their mean. The
    caches are measured in turns on an otherwise idle machine, with an untrained model of the run's shape or a released
    model. With every policy, a cache of 40 % holds 40 % of the bytes of the keys and values, plus the scores and
    positions (decay_decode_table). The CSV has each policy, its quartiles, and DynamicCache, the full cache of the
    transformers library. No speeds were published. To see: at which lengths pruning saves more time than it takes.
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
    """Draw a row per policy: a square per number of long texts, and the percentage of numbers found in short texts."""
    data = data[data["_task"].notna()].sort_values(["depth", "length"], kind="stable", ignore_index=True)
    short = data["task"].isin(SHORT)
    squares = data[~short].assign(_hit=data["by_text"].map(list)).explode("_hit", ignore_index=True)
    squares["_text"] = squares.groupby(["_task", "configuration"], sort=False).cumcount()
    full = squares[squares["policy"].eq("full")].set_index(["_task", "_text"])["_hit"]
    lost = full.reindex(pd.MultiIndex.from_frame(squares[["_task", "_text"]])).eq("0").to_numpy()
    hit = squares["_hit"].eq("1")
    squares["number"] = hit.map({True: "found", False: "not found"}).mask(lost & ~hit, [*SQUARES][-1])
    step = np.where(squares["depth"].notna(), 1.4, 1)  # room for the lengths below the squares
    squares["_column"] = step * squares["_text"] + 0.7 * (squares["depth"].rank(method="dense").fillna(1) - 1)
    models = ", ".join(filter(None, data["run"].fillna("").map(model_label).unique()))
    caches = f"; caches of {' or '.join(_sizes(data))} of the text" * bool(_sizes(data))
    counts = data.loc[short, "numbers"].max()
    texts = f"; points: percent of {counts:.0f} texts, bars: exact 95 % interval" if short.any() else ""
    note = f"{models}{caches}; squares: a column is one text with one hidden number{texts}."
    panels = {str(name): rows for name, rows in squares.groupby("_task", sort=False)}
    order = [*policy_comparison.POLICIES, *data["configuration"]]
    names = sorted(data["configuration"].unique(), key=order.index)
    kinds = data.drop_duplicates("configuration").set_index("configuration")["policy"].map(scorer)
    colours = [LIGHT_GREEN if "half" in name else plot_style(kinds[name])["color"] for name in names]
    tall = len(names)
    figure = Figure((WIDEST, 1.5 + 0.17 * tall), layout="constrained", label=note)
    figure.supxlabel(fill(note, 115), x=0.01, ha="left", color=GREY, fontsize=7)
    widths = [6.2 + rows["_column"].max() for rows in panels.values()]
    bars = list(data[short].groupby("_task", sort=False))
    widths = [*widths, *[9.0] * len(bars)]
    grid = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    for axes, (title, rows) in zip(grid[len(panels) :], bars, strict=True):
        at = rows["configuration"].map(names.index)
        style = {"color": [colours[row] for row in at]}
        axes.hlines(at, rows["found_percent_low"], rows["found_percent_high"], linewidth=1.4, **style)
        axes.scatter(rows["found_percent"], at, s=18, zorder=3, **style)
        axes.set(title=title, xlim=(-4, 104), xticks=(0, 50, 100), xlabel="% found")
        axes.grid(visible=False, axis="y")
    for axes, (title, rows), width in zip(grid, panels.items(), widths, strict=False):
        rows = rows.assign(_row=rows["configuration"].map(names.index))
        sns.scatterplot(rows, x="_column", y="_row", hue="number", palette=SQUARES, hue_order=SQUARES, marker="s", s=24,
                        edgecolor=GREY, linewidth=0.4, ax=axes)  # fmt: skip
        missed = rows[rows["number"].eq([*SQUARES][-1])]
        axes.scatter(missed["_column"], missed["_row"], marker="x", s=10, color=GREY, linewidths=0.6)
        for row, hits in rows.groupby("_row")["_hit"]:
            axes.text(width - 4.9, row, f"{hits.eq('1').sum()} of {len(hits)}", va="center", fontsize=7)
        for row in {*range(tall)} - {*rows["_row"]}:
            axes.text(0, row, "not run", va="center", fontsize=7, color=GREY)
        positions, lengths = (rows.groupby(by)["_column"].mean() for by in ("depth", ["_column", "length"]))
        axes.set(title=title, ylabel="", xlim=(-1, width - 1), xlabel="thousand tokens, position of number")
        axes.set_xticks(positions, [f"\n{100 * depth:.0f} %" for depth in positions.index])
        axes.set_xticks(lengths, [f"{length / 1024:g}" for _, length in lengths.index], minor=True, fontsize=7)
        axes.tick_params(axis="x", length=0, which="both")
        axes.grid(visible=False)
        sns.despine(ax=axes, left=True, bottom=True)
        handles, labels = axes.get_legend_handles_labels()
        axes.get_legend().remove()
        figure.legend(handles, labels, loc="outside upper left", ncols=3)
    for axes in grid:
        axes.tick_params(axis="y", length=0)
        axes.set(ylim=(tall - 0.4, -0.6), yticks=range(tall), yticklabels=names if axes is grid[0] else [])
    for colour, label in zip(colours, grid[0].get_yticklabels(), strict=True):
        label.set_color(ink(colour))
    return figure


@plot(reads="passkey.csv", runs="long-*", needs="long-*", draw=draw_passkey)
def decay_passkey(results: Results, runs: list[str]) -> DataFrame:
    """Hidden numbers that a pruned cache still finds, by policy. The number occurs once and is asked for at the end, so
    a policy must retain it before it reads the question. Left: a number at three positions of a long and monotonous
    text (passkey retrieval, arXiv:2305.16300), one text per length and position; a number is found if every token is
    the most probable one. A column is the same text in all rows. Right: twenty texts of 512 tokens, by RULER's rules,
    with one number, and with four numbers and a question about one. A policy without a point was not run. The CSV has
    the answers by text and log-probabilities of the numbers in long texts. To see: which rows look like the full cache.
    """
    rows = first_model_rows(results.rows("passkey.csv", STUDY, runs))
    cells = rows.groupby([*CONFIGURATION, "length", "depth"], sort=False, dropna=False)
    long = cells.agg(found=("found", "mean"), numbers=("found", "size"), log_prob=("log_prob", "mean"),
                     by_text=("found", lambda hits: "".join(map("{:.0f}".format, hits)))).reset_index()  # fmt: skip
    short = policy_comparison.needles(results).rename(columns={"examples": "numbers"})
    short = short[short["budget"].eq(PUBLISHED_BUDGET)].assign(found=lambda table: table["found_percent"] / 100)
    table = pd.concat([label_and_sort(long).assign(task="passkey"), short], ignore_index=True)
    lengths = " to ".join(f"{length / 1024:g}k" for length in long["length"].agg(["min", "max"]).unique())
    tasks = {"passkey": f"{lengths} tokens"} | SHORT
    return table.assign(source="ours", _task=table["task"].map(tasks))
