"""Loss of Transformers from scratch against FLOPs, tokens and parameters, and grown models beside their envelope."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from formerlab.report.drawings import Plot
from formerlab.report.panel import Panel, Style, figure, hollow
from formerlab.report.runs import GROWN, TOKENFORMER, TRAINED_ON, seed_notes, short
from formerlab.report.scaling import FLOPS, PARAMETERS, STUDY, TOKENS, scaling
from formerlab.report.style import BLACK, GREY, look
from formerlab.report.tokenformer import equal_to_grown
from formerlab.results.read import Results

START = "before growth"
SHOWN = {
    f"{GROWN}: random keys, tau sqrt(n)": "grown: random keys, tau sqrt(n)",
    f"{GROWN}: zero keys, tau kept": "grown: zero keys, tau kept",
    f"{TOKENFORMER}, {TRAINED_ON}": "parent trained on",
}
"""The runs of chains that are drawn, and their labels; the table has the others."""


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the rows of `scaling` with each run's peak rate, and what a parent trained on shares with what grew."""
    rows = scaling(results, runs)
    if rows.empty:
        return rows
    rows = rows[rows["part"] != "law"].dropna(axis=1, how="all")
    records = results.runs(STUDY, runs).drop_duplicates("run").set_index("run")
    chain = rows[rows["part"] == "chain"].set_index("run")
    trained = [run for run in chain.index if str(chain.loc[run, "variant"]).endswith(TRAINED_ON)]
    rows["equal"] = rows["run"].map({run: equal_to_grown(chain, run) for run in trained})
    return rows.assign(lr=rows["run"].map(records["spec.optimizer.lr"]))


def named(data: DataFrame) -> DataFrame:
    """Return the rows with what the series of the panels are called: `model`, `size` and `length`."""
    chain = data[data["part"] == "chain"]
    shown = chain[chain["variant"].isin(SHOWN)]
    names = {run: START for run in shown["parent"].dropna()}
    for run, variant, equal in shown[["run", "variant", "equal"]].itertuples(index=False, name=None):
        names[run] = SHOWN[variant] + (f", equal {equal}" if isinstance(equal, str) and equal else "")
    sizes = [f"{short(size, 3)} parameters" for size in data[PARAMETERS].fillna(0)]
    data = data.assign(size=sizes, length=[f"{short(tokens)} tokens" for tokens in data[TOKENS].fillna(0)])
    scratch = set(data.loc[data["part"] == "scratch", "run"])
    own = [names.get(run) or (size if run in scratch else None) for run, size in zip(data["run"], sizes, strict=True)]
    rows = data.assign(model=Series(own, data.index, dtype=object))
    return rows[rows["part"].ne("chain") | rows["model"].notna()]


def draw(data: DataFrame) -> Figure:
    """Draw the envelope with the chains, then the same runs by tokens and by parameters."""
    data = named(data)
    parts = data["part"].replace({"scratch": "mean", "chain": "mean"})
    points = data.assign(part=parts, scratch=data["part"].eq("scratch"))
    drawn = points[points["part"].isin(["mean", "seed"])]
    rows = drawn[drawn["model"].notna()].sort_values(["scratch", TOKENS, PARAMETERS], ascending=[False, True, True])
    style = _styles(rows)
    shared = partial(Panel, y="loss_nats", log="xy", ylabel="held-out loss (nats per token)", style=style)
    panels = [
        shared(FLOPS, by="model", title="{setting}: grown models and the envelope", xlabel="cumulative FLOPs",
               finish=partial(_envelope, data=data)),
        shared(TOKENS, by="size", where={"scratch": True}, title="From scratch, size by size", xlabel="tokens"),
    ]  # fmt: skip
    notes = [
        "Grey: lower envelope of the runs from scratch; thin lines join runs of equal tokens. Points of equal "
        "parameters are joined in the second panel.",
        *rate_note(data[data["part"] == "scratch"]),
    ]
    return figure(rows, panels, [*seed_notes(rows), *notes], columns=1, height=2.6)


def rate_note(scratch: DataFrame) -> list[str]:
    """Say that the length of a run did not choose its rate, where it did not."""
    rates = scratch.groupby(PARAMETERS)["lr"].unique()
    if (rates.map(len) > 1).any() or (scratch.groupby(PARAMETERS)[TOKENS].nunique() < 2).any():
        return []
    said = ", ".join(f"{rate[0]:g} for {short(float(str(size)), 3)}" for size, rate in rates.items())
    return [f"Each size from scratch has one peak learning rate at all its lengths: {said} parameters."]


def _styles(rows: DataFrame) -> Callable[[str, DataFrame], Style]:
    """Return how series are drawn: sizes in purples, the darker the larger, and joined where tokens are across."""
    scratch, found = rows[rows["scratch"]], {START: {"color": BLACK, "marker": "s", "linestyle": ""}}
    names = list(dict.fromkeys(scratch.sort_values(PARAMETERS)["size"]))
    for name, share, marker in zip(names, np.linspace(0.45, 1, len(names)), "osD^vPX" * len(names), strict=False):
        found[name] = {"color": to_hex(colormaps["PuRd"](share)), "marker": marker}

    def style(name: str, points: DataFrame) -> Style:
        if name in found:
            return found[name]
        kind = look(str(points["variant"].iloc[0]))
        return {"color": kind.colour, "marker": kind.marker, "linestyle": ""} | hollow(name.endswith("equal tokens"))

    return style


def _envelope(axes: Axes, rows: DataFrame, *, data: DataFrame) -> None:
    """Draw the envelope, join runs of equal tokens, and what started from another run to that run."""
    scratch, chain = (data[data["part"] == part] for part in ("scratch", "chain"))
    lowest = scratch[scratch["lowest"].astype(bool)].sort_values(FLOPS)
    axes.plot(lowest[FLOPS], lowest["loss_nats"], color=GREY, linewidth=4, alpha=0.4, zorder=0)
    for _, equal in scratch.sort_values(PARAMETERS).groupby(TOKENS):
        axes.plot(equal[FLOPS], equal["loss_nats"], color=GREY, linewidth=0.7, zorder=0)
    places = chain.set_index("run")[[FLOPS, "loss_nats"]]
    for run, parent, variant in chain.loc[chain["parent"].isin(places.index), ["run", "parent", "variant"]].to_numpy():
        if variant in SHOWN:
            axes.plot(*places.loc[[parent, run]].to_numpy(float).T, color=look(variant).colour, linewidth=1)


tokenformer_scaling = Plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    needs=("envelope-*",),
    caption=(
        "Tokenformers that grow or train on beside Transformers from scratch (arXiv:2410.23168). Those are of three "
        "sizes and three lengths, every one with its own full schedule, against FLOPs and tokens; these pay for all "
        "their ancestors. To see: growing saves cost where a grown model lies below and "
        "to the left of the grey envelope; how much, at equal loss, is in the table tokenformer_envelope. The parent "
        "that was trained on is the other control: growing helps where the grown model is lower at equal FLOPs. Small "
        "models and few tokens: the slopes are those of this range."
    ),
    data=data,
    draw=draw,
)
