"""Long texts: speed and memory of decoding, and whether a number read long ago is found (passkey, arXiv:2305.16300)."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame
from scipy import special

from formerlab.report.drawings import plot
from formerlab.report.figures.decay.budget import looks
from formerlab.report.names import RELEASED
from formerlab.report.panel import Panel, sheet
from formerlab.report.pruning import CONFIGURATION, decoding, model_of, one_model, ordered, size_of
from formerlab.results.read import Results

STUDY = "decay"
_LINES = ("--", ":", "-.")


def draw(data: DataFrame) -> Figure:
    """Draw speed, bytes and the time of the prompt, a column of panels per run and number of sequences.

    Colour and marker are those of the policy, the line and the filling those of the budget.
    """
    cases = [f"{RELEASED.get(model_of(run), model_of(run))}, {'one sequence' if count == 1 else f'{count} sequences'}"
             for run, count in zip(data["run"], data["sequences"], strict=True)]  # fmt: skip
    sizes = ["whole cache" if budget == 1 else f"pruned to {size_of(budget)}" for budget in data["budget"]]
    pruned = sorted({budget for budget in data["budget"] if budget != 1}, reverse=True)[1:]
    rows = data.assign(
        case=cases,
        size=sizes,
        whole=np.where(data["budget"].eq(1), "full", "local"),
        data_set="",
        linestyle=data["budget"].map({budget: _LINES[at % len(_LINES)] for at, budget in enumerate(pruned)}),
        markerfacecolor=data["budget"].isin(pruned).map({True: "white", False: None}),
    ).drop_duplicates(["case", "configuration", "length"])
    shared: dict[str, Any] = {"each": "case", "ticks": "{:g}".format, "xlabel": "tokens read before"}
    panels = [
        Panel("length", "tokens_per_s", by="configuration", style="policy", log="xy",
              ylabel="decoded tokens\nper second", **shared),
        Panel("length", "cache_bytes", by="size", style="whole", log="xy",
              ylabel="keys and values\nheld (bytes)", **shared),
        Panel("length", "prompt_ratio", by="configuration", style="policy", log="x",
              ylabel="prompt: seconds\nover Full's", **shared),
    ][: 2 + data["prompt_ratio"].notna().any()]  # fmt: skip
    device, threads = data[["device", "threads"]].iloc[0]
    machine = f"{device}, {threads:.0f} threads" if isinstance(device, str) else "a machine that no record names"
    notes = [f"Median and quartiles of {data['repetitions'].min():.0f} repetitions on {machine}."]
    return sheet(*panels, notes=notes, columns=rows["case"].nunique(), height=1.7)(rows)


@plot(
    reads=("decode.csv", "run.json"),
    runs=("*",),
    draw=draw,
)
def decay_decode(results: Results, runs: Sequence[str]) -> DataFrame:
    """Decoding with whole and pruned caches: tokens per second, bytes of the keys and values held, and the time in
    which the prompt was read, against the tokens that were read before. Full is our whole cache, DynamicCache that of
    transformers in the same model. A pruned cache holds a share of the length. To see: where pruning pays for its own
    work; its bytes are its budget, whichever policy chooses. Measured alone on the machine, in turns, on an untrained
    model of the run's shape, or a released one: nothing learned matters to speed. Points are medians, bars quartiles of
    the repetitions, moved sideways where one would hide another. Bytes are without the scores and positions of a pruned
    cache, which stand in decay_decode_table. No speeds were published.
    """
    rows, record = decoding(results, STUDY, runs), results.stage_record(STUDY, "decode")
    return rows if rows.empty else rows.assign(device=record.get("device"), threads=record.get("threads"))


Counts: TypeAlias = NDArray[np.int64]
Shares: TypeAlias = NDArray[np.float64]


def binomial_ends(found: Counts, numbers: Counts) -> tuple[Shares, Shares]:
    """Return both ends of the 95 % interval of a share by Clopper and Pearson."""
    missed = numbers - found
    low = np.where(found > 0, special.betaincinv(np.maximum(found, 1), missed + 1, 0.025), 0.0)
    high = np.where(missed > 0, special.betaincinv(found + 1, np.maximum(missed, 1), 0.975), 1.0)
    return low, high


def draw_passkey(data: DataFrame) -> Figure:
    """Draw a panel per depth at which the number stands, a line per configuration."""
    budgets = data.loc[data["policy"] != "full", "budget"].unique()
    sizes = [f", {size_of(budget)}" if len(budgets) > 1 else "" for budget in data["budget"]]
    found = [f": {right} of {count} found" for right, count in zip(data["all_found"], data["all_numbers"], strict=True)]
    depths = [f"Number {depth:.0%} into the text" for depth in data["depth"]]
    rows = data.assign(series=data["configuration"] + sizes + found, at=depths, data_set="", look=looks(data))
    panel = Panel("length", "log_prob", by="series", each="at", log="x", ticks=lambda value: f"{value / 1024:g}k",
                  xlabel="tokens of the text", ylabel="log-probability of\nthe number (nats)",
                  style="look")  # fmt: skip
    notes = [f"Caches keep {' or '.join(map(size_of, budgets))} of the text."] * bool(len(budgets))
    return sheet(panel, notes=notes, columns=1)(rows.sort_values("depth", kind="stable"))


@plot(
    reads=("passkey.csv", "run.json"),
    runs=("long-*",),
    draw=draw_passkey,
    needs=("long-*",),
)
def decay_passkey(results: Results, runs: Sequence[str]) -> DataFrame:
    """Which policy still finds a number that stands once in a long and dull text and is asked for at its end (passkey
    retrieval, arXiv:2305.16300): log-probability of the number against the length of the text, a panel for each place
    of the number; beside each policy how many numbers it found of all, every token as the most probable one. Pruning
    acts from the first token on, so a policy has to keep the number before it knows that it will be asked for. To see:
    which lines stay near that of the whole cache, which is the bound; and whether a number that stands in a window of
    recent tokens is found for that. Exact intervals of the shares found are among the numbers.
    """
    rows = one_model(results.rows("passkey.csv", STUDY, runs))
    cells = rows.groupby([*CONFIGURATION, "length", "depth"], sort=False, dropna=False)
    found = cells.agg(found=("found", "mean"), numbers=("found", "size"), log_prob=("log_prob", "mean")).reset_index()
    totals = rows.groupby(CONFIGURATION, sort=False, dropna=False)["found"].agg(all_found="sum", all_numbers="size")
    low, high = binomial_ends(totals["all_found"].to_numpy(), totals["all_numbers"].to_numpy())
    totals = totals.assign(all_low=low, all_high=high).reset_index()
    return ordered(found.merge(totals, on=CONFIGURATION)).assign(source="ours")
