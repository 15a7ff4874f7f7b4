"""Long texts: speed and memory of decoding, and whether a number read long ago is found (passkey, arXiv:2305.16300)."""

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame
from scipy import special

from formerlab.report.drawings import Plot
from formerlab.report.figures.decay.budget import style_of_policy
from formerlab.report.names import RELEASED
from formerlab.report.panel import Panel, Style, hollow, sheet
from formerlab.report.pruning import CONFIGURATION, decoding, model_of, one_model, ordered, size_of
from formerlab.report.runs import missing_note
from formerlab.report.style import GREY, look
from formerlab.results.read import Results

STUDY = "decay"
_LINES = ("-", "--", ":", "-.")


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, number of sequences, cache and length, with the machine where the stage noted it."""
    rows, record = decoding(results, STUDY, runs), results.stage_record(STUDY, "decode")
    return rows if rows.empty else rows.assign(device=record.get("device"), threads=record.get("threads"))


def draw(data: DataFrame) -> Figure:
    """Draw speed, bytes and the time of the prompt, a column of panels per run and number of sequences."""
    cases = [f"{RELEASED.get(model_of(run), model_of(run))}, {'one sequence' if count == 1 else f'{count} sequences'}"
             for run, count in zip(data["run"], data["sequences"], strict=True)]  # fmt: skip
    sizes = ["whole cache" if budget == 1 else f"pruned to {size_of(budget)}" for budget in data["budget"]]
    rows = data.assign(case=cases, size=sizes, data_set="").drop_duplicates(["case", "configuration", "length"])
    pruned = sorted({budget for budget in data["budget"] if budget != 1}, reverse=True)
    lines = {1.0: "-"} | {budget: _LINES[place % len(_LINES)] for place, budget in enumerate(pruned)}

    def style(name: str, points: DataFrame) -> Style:
        """Return colour and marker of the policy, line and filling of the budget."""
        budget = float(points["budget"].iloc[0])
        line = lines[budget]
        colour, marker = look(points["policy"].iloc[0])
        if name in sizes:
            colour, marker = look("full") if budget == 1 else (GREY, "s")
        return {"color": colour, "marker": marker, "linestyle": line} | hollow(line != "-")

    panel = partial(Panel, "length", each="case", log="x", ticks="{:g}".format, style=style,
                    xlabel="tokens read before")  # fmt: skip
    panels = [panel("tokens_per_s", by="configuration", ylabel="decoded tokens\nper second", log="xy")]
    panels.append(panel("cache_bytes", by="size", ylabel="keys and values\nheld (bytes)", log="xy"))
    if data["prompt_ratio"].notna().any():
        panels.append(panel("prompt_ratio", by="configuration", ylabel="prompt: seconds\nover Full's"))
    notes = [
        f"Median and quartiles of {data['repetitions'].min():.0f} repetitions, caches in turns, taken alone on "
        f"{machine(data)}. Points of one length are moved sideways so that none hides another. Bytes are without the "
        "scores and positions of a pruned cache, which stand in decay_decode_table.",
        *missing_note(list(data["policy"]), ["full", "dynamic_cache"]),
    ]
    return sheet(*panels, notes=notes, columns=rows["case"].nunique(), height=1.7)(rows)


def machine(data: DataFrame) -> str:
    """Return on what was measured."""
    device, threads = data[["device", "threads"]].iloc[0]
    if not isinstance(device, str):
        return "a machine that no record names"
    return f"{device}, {threads:.0f} thread{'s' if threads > 1 else ''}"


decay_decode = Plot(
    reads=("decode.csv", "run.json"),
    runs=("*",),
    caption=(
        "Decoding with whole and pruned caches: tokens per second, bytes of the keys and values held, and the time in "
        "which the prompt was read, against the tokens that were read before. Full is our whole cache, DynamicCache "
        "that of transformers in the same model. A pruned cache holds a share of the length. To see: where pruning "
        "pays for its own work; its bytes are its budget, whichever policy chooses. Measured alone on the machine, in "
        "turns, on an untrained model of the run's shape, or a released one: nothing learned matters to speed. Points "
        "are medians, bars quartiles of the repetitions. No speeds were published."
    ),
    data=data,
    draw=draw,
)


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
    names = []
    for row in data.to_dict("records"):
        size = f", {size_of(row['budget'])}" if several else ""
        names.append(f"{row['configuration']}{size}: {row['all_found']} of {row['all_numbers']} found")
    depths = [f"Number {depth:.0%} into the text" for depth in data["depth"]]
    rows = data.assign(series=names, at=depths, data_set="").sort_values("depth", kind="stable")
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
