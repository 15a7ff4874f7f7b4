"""Long texts: speed and memory of decoding, and retrieval of a number from far back (passkey, arXiv:2305.16300)."""

from functools import partial
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
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
from formerlab.report.style import BLACK, GREY, WIDEST, PlotStyle, ink, plot_style
from formerlab.results.read import Results

STUDY = "decay"
SHORT = {"needle_single_512": "", "needle_multikey_512": "one of four numbers: "}
"""Tasks with texts of 512 tokens, and the beginning of the labels of their rows."""
MISSED = "#e4e4e4"
"""Colour of the square of a number that a policy does not find."""


def _notes(rows: DataFrame) -> list[str]:
    device, threads = rows[["device", "threads"]].iloc[0]
    machine = f"{device}, threads: {threads:.0f}" if isinstance(device, str) else "unknown machine"
    cases, policies = ("; ".join(rows[name].unique()) for name in ("_case", "_policies"))
    return [f"{cases}; bars: quartiles of {rows['repetitions'].min():.0f} repetitions, bands: lowest to highest "
            f"quartile of {policies}; {machine}; times: at {rows['length'].max():g} tokens."]  # fmt: skip


def _finish_speeds(axes: Axes, rows: DataFrame, name: str) -> None:
    """Draw a band over all policies for each budget, and set the limits."""
    for _, cells in rows[rows["budget"].ne(1)].groupby("budget"):
        axes.fill_between(cells["length"], cells[f"{name}_least"], cells[f"{name}_most"], color=GREY, alpha=0.15, lw=0)
    axes.set(ylim=(0, 2.05), yticks=np.linspace(0, 2, 5))


def draw_decode(data: DataFrame) -> Figure:
    """Draw the speeds of decoding and of reading the prompt by budget: lines of Decay, and bands over all policies."""
    data = data[data["policy"].ne("dynamic_cache")]
    speeds = {f"prompt_speed{end}": 1 / data[f"prompt_ratio{other}"]
              for end, other in (("", ""), ("_low", "_high"), ("_high", "_low"))}  # fmt: skip
    data = data.assign(**speeds, token_ms=1000 / data["tokens_per_s"])
    pruned, keys = data["budget"].ne(1), ["_case", "budget", "length"]
    for name in ("speed_ratio", "prompt_speed"):
        data[f"{name}_least"] = data.groupby(keys)[f"{name}_low"].transform("min")
        data[f"{name}_most"] = data.groupby(keys)[f"{name}_high"].transform("max")
    names = data.loc[pruned, "_policy"].unique()
    line = next(iter(sorted(names, key=lambda name: not name.startswith("Decay"))), "")
    cells = data[~pruned | data["_policy"].eq(line)].assign(source="ours", _policies=", ".join(names))
    cells = cells.drop(columns="_released", errors="ignore")  # the case names the model
    labels = cells["budget"].map(lambda budget: "full cache" if budget == 1 else f"{line}, {budget_text(budget)}")
    last = cells.groupby(["_case", "budget"])[["token_ms", "prompt_s"]].transform("last")
    cells["_decoding"] = labels + last["token_ms"].map(":\n{:.0f} ms per token".format)
    cells["_reading"] = labels + last["prompt_s"].map(":\n{:.1f} s".format)
    cells["_style"] = cells["policy"].map(scorer)
    cells["_linestyle"] = np.where(cells["budget"].eq(cells["budget"].min()), "--", "-")
    case = "{_case}: " * (cells["_case"].nunique() > 1)
    panel = partial(Panel, facet="_case", ticks="{:g}".format, log="x", xlabel="prompt length (tokens, log)",
                    ylabel="speed (full cache = 1)")  # fmt: skip
    return layout(
        panel("length", "speed_ratio", by="_decoding", title=f"{case}Decoding (higher: faster)",
              finish=partial(_finish_speeds, name="speed_ratio")),
        panel("length", "prompt_speed", by="_reading", title=f"{case}Reading the prompt (higher: faster)",
              finish=partial(_finish_speeds, name="prompt_speed")),
        notes=_notes, height=1.9,
    )(cells)  # fmt: skip


@plot(reads="decode.csv", draw=draw_decode)
def decay_decode(results: Results, runs: list[str]) -> DataFrame:
    """Speed of decoding and of reading the prompt with pruned caches, against the length of the prompt. Speeds are
    relative to the full cache in the same repetition. The policies differ by little: lines show Decay, bands all of
    them. The caches are measured in turns on an otherwise idle machine, with an untrained model of the run's shape or a
    released model. With every policy, a cache of 40 % holds 40 % of the bytes of the keys and values, plus the scores
    and positions (decay_decode_table). The CSV has each policy, its quartiles, and DynamicCache, the full cache of the
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


def _found_columns(long: DataFrame) -> tuple[DataFrame, int]:
    """Return a row per policy and long text in which the full cache finds the number, with its column in the figure,
    and the number of other texts.
    """
    texts = long.assign(_hit=long["by_text"].map(list)).explode("_hit", ignore_index=True)
    texts["_text"] = texts.groupby("configuration", sort=False).cumcount()
    found = texts[texts["policy"].eq("full") & texts["_hit"].eq("1")]["_text"]
    shown = texts[texts["_text"].isin(found)]
    column, block = (shown[name].rank(method="dense") - 1 for name in ("_text", "depth"))
    return shown.assign(_column=column + 0.8 * block.fillna(0)), texts["_text"].nunique() - len(found)


def _draw_short(axes: Axes, rows: DataFrame, styles: dict[str, PlotStyle]) -> None:
    """Draw the percentage of short texts in which each policy finds the number, a row per task and policy."""
    for at, row in enumerate(rows.to_dict("records")):
        style = styles[row["configuration"]]
        axes.hlines(at, row["found_percent_low"], row["found_percent_high"], color=style["color"], linewidth=1.4)
        axes.plot(row["found_percent"], at, style["marker"], color=style["color"], markersize=4.5)
        if at and row["task"] != rows["task"].iloc[at - 1]:
            axes.axhline(at - 0.5, color=GREY, linewidth=0.6)
    axes.set(xlim=(-4, 104), xticks=(0, 50, 100), xlabel=f"% of {rows['numbers'].max():.0f} texts in which it is found",
             title="Short texts (512 tokens)")  # fmt: skip
    axes.grid(visible=False, axis="y")


def _draw_long(axes: Axes, rows: DataFrame, names: list[str], styles: dict[str, PlotStyle]) -> None:
    """Draw a square per policy and long text, filled if the number is found."""
    for name, texts in rows.groupby("configuration"):
        at, hit = names.index(str(name)), texts["_hit"].eq("1")
        axes.scatter(texts["_column"], [at] * len(texts), marker="s", s=38, edgecolor=GREY, linewidth=0.4,
                     color=hit.map({True: styles[str(name)]["color"], False: MISSED}))  # fmt: skip
        axes.text(rows["_column"].max() + 0.8, at, f"{hit.sum()} of {len(hit)}", va="center", fontsize=7)
    for depth, column in rows.groupby("depth")["_column"].mean().items():
        axes.text(column, -0.8, f"at {100 * float(str(depth)):.0f} %", ha="center", va="center", fontsize=7)
    columns = rows.drop_duplicates("_column")
    axes.set_xticks(columns["_column"], columns["length"].map(lambda length: f"{length / 1024:g}k"))
    axes.set(xlim=(-0.7, rows["_column"].max() + 2.6), title="Long texts: position of the number",
             xlabel="length of the text (tokens)")  # fmt: skip
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    handles = [Line2D([], [], marker="s", linestyle="", color=color) for color in (BLACK, MISSED)]
    axes.figure.legend(handles, ["found", "not found"], loc="outside upper right", ncols=2)


def draw_passkey(data: DataFrame) -> Figure:
    """Draw the percentage of numbers found in short texts at the left, and a square per long text at the right."""
    data = data[data["_task"].notna()].sort_values(["depth", "length"], kind="stable", ignore_index=True)
    order = [*policy_comparison.POLICIES, *data["configuration"]]
    data = data.sort_values("configuration", key=lambda names: names.map(order.index), kind="stable")
    pairs = data[["configuration", "policy"]].drop_duplicates().to_numpy()
    styles = {name: plot_style(name if "half" in name else scorer(policy)) for name, policy in pairs}
    is_short = data["task"].isin(SHORT)
    short = data[is_short].sort_values("task", key=lambda task: task.map([*SHORT].index), kind="stable")
    long, left_out = _found_columns(data[~is_short])
    models = ", ".join(filter(None, data["run"].fillna("").map(model_label).unique()))
    sizes = [budget_text(budget) for budget in data.loc[data["policy"] != "full", "budget"].unique()]
    note = models + f"; caches of {' or '.join(sizes)} of the text" * bool(sizes)
    note += "; bars: exact 95 % interval" * bool(len(short))
    note += "; squares: a column is one text, the same in all rows" * bool(len(long))
    note += f"; texts left out because the full cache fails: {left_out}" * bool(left_out)
    names = [short["_task"] + short["configuration"], long["configuration"].drop_duplicates()]
    panels = [labels.to_list() for labels in names if len(labels)]
    figure = Figure((WIDEST, 1.3 + 0.19 * max(map(len, panels))), layout="constrained", label=f"{note}.")
    figure.supxlabel(fill(f"{note}.", 115), x=0.01, ha="left", color=GREY, fontsize=7)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    if len(short):
        _draw_short(grid[0], short, styles)
    if len(long):
        _draw_long(grid[-1], long, panels[-1], styles)
    for axes, labels in zip(grid, panels, strict=True):
        axes.tick_params(axis="y", length=0)
        axes.set(ylim=(len(labels) - 0.4, -1.2 if axes is grid[-1] else -0.6))
        axes.set_yticks(range(len(labels)), labels)
        for label in axes.get_yticklabels():
            label.set_color(ink(styles[label.get_text().rpartition(": ")[2]]["color"]))
    return figure


@plot(reads="passkey.csv", runs="long-*", needs="long-*", draw=draw_passkey)
def decay_passkey(results: Results, runs: list[str]) -> DataFrame:
    """Hidden numbers that a pruned cache still finds, by policy. The number occurs once and is asked for at the end, so
    a policy must retain it before it reads the question. Left: twenty texts of 512 tokens, by RULER's rules, with one
    number, and with four numbers and a question about one. Right: a number at three positions of a long and monotonous
    text (passkey retrieval, arXiv:2305.16300), one text per length and position; a number is found if every token is
    the most probable one. Only the policies that were run have a row. The CSV also has the texts in which the full
    cache fails, and log-probabilities. To see: which rows look like the full cache.
    """
    rows = first_model_rows(results.rows("passkey.csv", STUDY, runs))
    cells = rows.groupby([*CONFIGURATION, "length", "depth"], sort=False, dropna=False)
    long = cells.agg(found=("found", "mean"), numbers=("found", "size"), log_prob=("log_prob", "mean"),
                     by_text=("found", lambda hits: "".join(map("{:.0f}".format, hits)))).reset_index()  # fmt: skip
    short = policy_comparison.needles(results).rename(columns={"examples": "numbers"})
    short = short[short["budget"].eq(PUBLISHED_BUDGET)].assign(found=lambda table: table["found_percent"] / 100)
    table = pd.concat([label_and_sort(long).assign(task="passkey"), short], ignore_index=True)
    return table.assign(source="ours", _task=table["task"].map({"passkey": ""} | SHORT))
