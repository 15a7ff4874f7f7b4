"""Whether a number that was read long ago is still found (passkey retrieval, arXiv:2305.16300)."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.pruning import CONFIGURATION, one_model, ordered
from formerlab.report.style import canvas
from formerlab.results.read import Results

STUDY = "decay"
DIGITS_ARE_DARK_FROM = 0.6
"""Shares found from which a cell is dark, so that its digits are white."""


def passkey_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per configuration, length and depth: the share of the numbers that were found."""
    rows = results.rows("passkey.csv", STUDY, runs)
    if rows.empty:
        return DataFrame()
    rows = one_model(rows)
    keys = [*CONFIGURATION, "length", "depth"]
    found = rows.groupby(keys, sort=False, dropna=False)["found"].agg(found="mean", numbers="size").reset_index()
    return ordered(found).assign(source="ours")


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
    run, numbers = str(data["run"].iloc[0]), int(data["numbers"].min())
    kept = "" if several or pruned.empty else f"Caches keep {pruned['budget'].iloc[0]:.0%} of the text. "
    notes = [
        f"Model: {run.partition('-')[2]}. {kept}A cell: share of {numbers} number{'s' * (numbers > 1)} of which every "
        "token was the most probable one."
    ]
    figure, axes = canvas([1.9] * len(panels), notes, height=1.7, right=0.3, columns=min(5, len(panels)))
    for place, (panel, (name, budget)) in enumerate(zip(axes, panels, strict=True)):
        rows = data[(data["configuration"] == name) & (data["budget"] == budget)]
        cells = rows.pivot_table("found", "depth", "length").sort_index()
        panel.imshow(cells.to_numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        for down, across in ((down, across) for down in range(cells.shape[0]) for across in range(cells.shape[1])):
            share = float(cells.iloc[down, across])
            colour = "white" if share > DIGITS_ARE_DARK_FROM else "black"
            panel.text(across, down, f"{share:.2g}", ha="center", va="center", fontsize=7, color=colour)
        panel.grid(visible=False)
        panel.set_title(f"{name}: {budget:.0%}" if several else name, fontsize=8.5)
        panel.set_xticks(range(cells.shape[1]), [f"{length / 1024:g}k" for length in cells.columns])
        first = place % 5 == 0
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
        "first token on, so a policy has to keep the number before it knows that it will be asked for. To see: a "
        "window of recent tokens finds only what stands in it; what scores find, and where."
    ),
    data=passkey_data,
    draw=draw_passkey,
    needs=("long-*",),
)
