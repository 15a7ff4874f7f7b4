"""Whether a number that was read long ago is still found (passkey retrieval, arXiv:2305.16300)."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame
from scipy import special

from formerlab.report.drawings import Plot
from formerlab.report.figures.decay.budget import style_of_policy
from formerlab.report.panel import Panel, sheet
from formerlab.report.pruning import CONFIGURATION, one_model, ordered, size_of
from formerlab.results.read import Results

STUDY = "decay"
Counts: TypeAlias = NDArray[np.int64]
Shares: TypeAlias = NDArray[np.float64]


def passkey_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per configuration, length and depth: the share of the numbers that were found.

    `log_prob` is the mean log-probability of the number in nats. `all_found` of `all_numbers` were found at all lengths
    and depths together, with the exact 95 % interval of that share.
    """
    rows = one_model(results.rows("passkey.csv", STUDY, runs))
    cells = rows.groupby([*CONFIGURATION, "length", "depth"], sort=False, dropna=False)
    found = cells.agg(found=("found", "mean"), numbers=("found", "size"), log_prob=("log_prob", "mean")).reset_index()
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
    """Draw a panel per depth at which the number stands, a line per configuration."""
    several = data.loc[data["policy"] != "full", "budget"].nunique() > 1
    names = [
        f"{row.configuration}{f', {size_of(row.budget)}' * several}: {row.all_found} of {row.all_numbers} found"
        for row in data.itertuples()
    ]
    depths = [f"Number {depth:.0%} into the text" for depth in data["depth"]]
    rows = data.assign(series=names, at=depths).sort_values("depth", kind="stable")
    panel = Panel("length", "log_prob", by="series", each="at", log="x", ticks=lambda value: f"{value / 1024:g}k",
                  xlabel="tokens of the text", ylabel="log-probability of\nthe number (nats)",
                  style=style_of_policy)  # fmt: skip
    kept = data.loc[data["policy"] != "full", "budget"]
    share = f"Caches keep {kept.iloc[0]:.0%} of the text. " if len(kept) and not several else ""
    return sheet(panel, notes=[share + "Found is a number of which every token was the most probable one."], columns=1)(
        rows
    )


decay_passkey = Plot(
    reads=("passkey.csv", "run.json"),
    runs=("long-*",),
    caption=(
        "Which policy still finds a number that stands once in a long and dull text and is asked for at its end "
        "(passkey retrieval, arXiv:2305.16300): log-probability of the number against the length of the text, a panel "
        "for each place of the number; beside each policy how many numbers it found of all. Pruning acts from the "
        "first token on, so a policy has to keep the number before it knows that it will be asked for. To see: which "
        "lines stay near that of the whole cache, which is the bound; and whether a number that stands in a window of "
        "recent tokens is found for that. Exact intervals of the shares found are among the numbers."
    ),
    data=passkey_data,
    draw=draw_passkey,
    needs=("long-*",),
)
