"""Speed and memory of decoding against the length of the text, with whole and pruned caches."""

from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.names import RELEASED
from formerlab.report.panel import Panel, Style, hollow, sheet
from formerlab.report.pruning import decoding, model_of, size_of
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
    rows = data.assign(case=cases, size=sizes).drop_duplicates(["case", "configuration", "length"])
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
