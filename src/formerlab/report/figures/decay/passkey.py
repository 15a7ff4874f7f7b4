"""Whether a number that was read long ago is still found (passkey retrieval, arXiv:2305.16300)."""

import textwrap
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame
from scipy import special

from formerlab.report.drawings import Plot
from formerlab.report.pruning import CONFIGURATION, one_model, ordered
from formerlab.report.style import canvas
from formerlab.results.read import Results

STUDY = "decay"
DIGITS_ARE_DARK_FROM = 0.6
"""Shares found from which a cell is dark, so that its digits are white."""
Counts: TypeAlias = NDArray[np.int64]
Shares: TypeAlias = NDArray[np.float64]


def passkey_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per configuration, length and depth: the share of the numbers that were found.

    `all_found` of `all_numbers` were at all lengths and depths together, with the exact 95 % interval of that share.
    """
    rows = results.rows("passkey.csv", STUDY, runs)
    if rows.empty:
        return DataFrame()
    rows = one_model(rows)
    keys = [*CONFIGURATION, "length", "depth"]
    found = rows.groupby(keys, sort=False, dropna=False)["found"].agg(found="mean", numbers="size").reset_index()
    totals = rows.groupby(CONFIGURATION, sort=False, dropna=False)["found"].agg(all_found="sum", all_numbers="size")
    low, high = binomial_ends(totals["all_found"].to_numpy(), totals["all_numbers"].to_numpy())
    totals = totals.assign(all_low=low, all_high=high).reset_index()
    return ordered(found.merge(totals, on=CONFIGURATION)).assign(source="ours")


def binomial_ends(found: Counts, numbers: Counts) -> tuple[Shares, Shares]:
    """Return both ends of the 95 % interval of a share by Clopper and Pearson."""
    missed = numbers - found
    low = np.where(found > 0, special.betaincinv(np.maximum(found, 1), missed + 1, 0.025), 0.0)
    high = np.where(missed > 0, special.betaincinv(found + 1, np.maximum(missed, 1), 0.975), 1.0)
    return low, high


def draw_passkey(data: DataFrame) -> Figure:
    """Draw a panel per configuration: depth down, length across."""
    pruned = data[data["policy"] != "full"]
    names = list(dict.fromkeys(data["configuration"]))
    several = pruned["budget"].nunique() > 1
    panels = [
        (name, budget)
        for name in names
        for budget in sorted(data.loc[data["configuration"] == name, "budget"].unique())
    ]
    run = str(data["run"].iloc[0])
    kept = "" if several or pruned.empty else f"Caches keep {pruned['budget'].iloc[0]:.0%} of the text. "
    notes = [
        f"Model: {run.partition('-')[2]}. {kept}A cell: numbers found of those asked for; found is one of which every "
        "token was the most probable one. Titles: all cells together, and the exact 95 % interval of the share, as if "
        "all numbers were equally hard."
    ]
    columns = min(len(panels), 4 if len(panels) % 4 in (0, 3) else 3)
    figure, axes = canvas([1.3] * len(panels), notes, height=1.0, right=0.15, columns=columns, below=0.8)
    for place, (panel, (name, budget)) in enumerate(zip(axes, panels, strict=True)):
        rows = data[(data["configuration"] == name) & (data["budget"] == budget)]
        cells = rows.pivot_table("found", "depth", "length").sort_index()
        asked = rows.pivot_table("numbers", "depth", "length").sort_index()
        panel.imshow(cells.to_numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        for down, across in ((down, across) for down in range(cells.shape[0]) for across in range(cells.shape[1])):
            share, numbers = float(cells.iloc[down, across]), float(asked.iloc[down, across])
            colour = "white" if share > DIGITS_ARE_DARK_FROM else "black"
            words = f"{share * numbers:.0f}/{numbers:.0f}"
            panel.text(across, down, words, ha="center", va="center", fontsize=7, color=colour)
        panel.grid(visible=False)
        total = rows.iloc[0]
        sure = f"{100 * total['all_low']:.0f} to {100 * total['all_high']:.0f} %"
        heading = f"{name}: {budget:.0%}" if several else name
        panel.set_title(
            f"{textwrap.fill(heading, 18)}\n{total['all_found']} of {total['all_numbers']} found\n({sure})", fontsize=8
        )
        panel.set_xticks(range(cells.shape[1]), [f"{length / 1024:g}k" for length in cells.columns])
        first = place % columns == 0
        panel.set_yticks(range(cells.shape[0]), [f"{depth:.0%}" for depth in cells.index] if first else [])
        if first:
            panel.set_ylabel("place in the text")
        panel.set_xlabel("tokens of the text")
    return figure


decay_passkey = Plot(
    reads=("passkey.csv", "run.json"),
    runs=("long-*",),
    caption=(
        "Which policy still finds a number that stands once in a long and dull text and is asked for at its end "
        "(passkey retrieval, arXiv:2305.16300), by length of the text and place of the number. Pruning acts from the "
        "first token on, so a policy has to keep the number before it knows that it will be asked for. To see: what "
        "the whole cache finds, which may itself fail some and so is the bound; how much of it a pruned cache still "
        "finds; and whether a number that stands in a window of recent tokens is found for that. With one number a "
        "cell, the intervals in the titles part policies that find most from those that find next to none, no others."
    ),
    data=passkey_data,
    draw=draw_passkey,
    needs=("long-*",),
)
