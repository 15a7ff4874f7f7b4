"""Figures of the vision study (Tokenformer, arXiv:2410.23168)."""

from collections.abc import Sequence
from functools import partial
from textwrap import fill

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot, shown_columns
from formerlab.report.panel import Panel, Style, sheet
from formerlab.report.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, look
from formerlab.report.vision import COMPARED, NAMES, accuracies, against, by_run, floors, published_accuracies
from formerlab.results.read import Results

STUDY = "vision"


GROUPS: dict[str, tuple[str, str, str]] = {
    "sizes": (BLACK, "black models", "vit vit-wider tokenformer-matched tokenformer"),
    "scores": (BLUE, "blue scores and their norm", "score-exp-l1 score-gelu-l1 score-gelu-l2"),
    "norms": (GREEN, "green norms of blocks", "norm-bias norm-gain-bias"),
    "growth": (ORANGE, "orange growth",
               "tokenformer-small tokenformer-short trained-on grown-random-sqrt grown-zero-keep"),
    "depth": (PURPLE, "purple averages over depth", "vit-dwa tokenformer-dwa"),
    "floor": (GREY, "grey a model without depth", ""),
}  # fmt: skip
"""Runs that answer one question: their colour, what the caption says of it, and their names."""
PUBLISHED = {"sizes": "Table 2", "scores": "Table 4", "norms": "Table 5"}
_COLUMNS = shown_columns("source part group run seed model top1_percent[] seeds diverged")


def accuracy_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and a row per published value, by group; `part` is `mean`, or `seed` for a row per seed."""
    measured = accuracies(results, runs)
    groups = {run: name for name, (_, _, names) in GROUPS.items() for run in names.split()}
    ours = by_run(measured).assign(part="mean")
    seeds = measured[["run", "seed", "top1_percent"]].merge(ours[["source", "run", "model"]], on="run")
    ours = pd.concat([ours, seeds.assign(part="seed")], ignore_index=True)
    ours = ours.assign(group=ours["run"].map(groups).fillna("other"))
    lowest = floors(results, runs).assign(group="floor", part="mean")
    theirs = [published_accuracies(table).assign(source="published", group=name) for name, table in PUBLISHED.items()]
    return pd.concat([ours, lowest, *theirs], ignore_index=True).reindex(columns=_COLUMNS)


def draw_accuracy(data: DataFrame) -> Figure:
    """Draw a line per run, ours left and the published right."""
    rank = data["group"].map({name: number for number, name in enumerate(GROUPS)}).fillna(99)
    place = data["run"].map({run: number for number, run in enumerate(NAMES)}).fillna(99)
    rows = data.assign(rank=rank, place=place, label=data["model"].map(partial(fill, width=26)))
    shown = [words for name, (_, words, _) in GROUPS.items() if name in set(data["group"])]
    panel = partial(
        Panel, "top1_percent", "label", by="label", kind="forest", xlabel="top-1 accuracy (%)", style=_of_group
    )
    return sheet(
        panel(where={"source": "ours"}),
        panel(where={"source": "published"}, title="ImageNet-1K"),
        notes=[f"Colours: {', '.join(shown)}."],
    )(rows.sort_values(["rank", "place"], kind="stable"))


def _of_group(name: str, rows: DataFrame) -> Style:
    own = look(name.replace("\n", " ").rpartition(" (")[0]).colour
    return {"color": GROUPS.get(str(rows["group"].iloc[0]), (own,))[0], "marker": "o"}


vision_accuracy = Plot(
    reads=("test.csv", "floors.csv", "run.json"),
    runs=("*",),
    caption=(
        "Top-1 accuracy on test images of every run, after Tables 2, 4 and 5 of Tokenformer (arXiv:2410.23168). "
        "Parameter-matched is a Tokenformer with as many parameters as the ViT; the linear probe is a classifier of "
        "the pixels without any depth. To see: whether the parameter-matched Tokenformer reaches the ViT, whether exp "
        "is worse than GeLU, and whether parameters of the norms matter. Right: the published values on ImageNet-1K, "
        "single runs: compare differences, never levels."
    ),
    data=accuracy_data,
    draw=draw_accuracy,
)


_PARENT = "tokenformer-small"
_LOOKS = {
    "grown-random-sqrt": (VERMILION, "^", "grown: random keys, tau sqrt(n)\n(the published way)"),
    "grown-zero-keep": (GREEN, "D", "grown: zero keys, tau kept"),
    "trained-on": (BLUE, "*", "the parent, trained on\n(not grown, equal FLOPs)"),
    "tokenformer-short": (SKY, "s", "from scratch,\nsteps of the stage alone"),
    "tokenformer": (BLACK, "s", "from scratch, full steps"),
}


def growth_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return how many points of top-1 each run is above the parent; `part` is `mean`, or `seed` for a row per seed."""
    measured = accuracies(results, runs)
    if _PARENT not in set(measured["run"]):
        return DataFrame()
    level = measured[measured["run"] == _PARENT].set_index("seed")["top1_percent"]
    rows = []
    for run in [run for run in _LOOKS if run in set(measured["run"])]:
        above = against(results, measured, run, _PARENT)
        shared = {"source": "ours", "run": run, "model": _LOOKS[run][2], "parent": _PARENT}
        own = measured[measured["run"] == run]
        cost = float(own["flops_cumulative"].mean())
        rows.append(shared | above | {"part": "mean", "flops_cumulative": cost, "seeds": len(own)})
        found = own.assign(above=own["top1_percent"] - own["seed"].map(level)).dropna(subset="above")
        rows += [shared | {"part": "seed", "seed": one.seed, COMPARED: one.above} for one in found.itertuples()]
    return DataFrame(rows)


def draw_growth(data: DataFrame) -> Figure:
    """Draw how far every run is above the parent, the best on top."""
    costs = data.groupby("run")["flops_cumulative"].max()
    names = [f"{model}\n{costs[run] / 1e12:.2g} TFLOP" for run, model in zip(data["run"], data["model"], strict=True)]
    best = data["run"].map(data[data["part"] == "mean"].set_index("run")[COMPARED])
    panel = Panel(COMPARED, "label", by="label", kind="forest", zero=0.0, xlabel="top-1, points above the parent",
                  style=dict(zip(names, [_LOOKS[run][:2] for run in data["run"]], strict=True)))  # fmt: skip
    notes = ["Paired by seed. TFLOP: of all training behind a model, its parent's included."]
    rows = data.assign(label=names, best=best).sort_values("best", ascending=False, kind="stable")
    return sheet(panel, notes=notes)(rows)


vision_growth = Plot(
    reads=("test.csv", "run.json"),
    runs=("tokenformer-small", "tokenformer-short", "tokenformer", "grown-*", "trained-on"),
    needs=("grown-*",),
    caption=(
        "Accuracy on test images of Tokenformers that grew, minus that of the model they grew from; beside them that "
        "model trained on for the FLOPs of the stage, and Tokenformers of the grown size from scratch. To see: growing "
        "has helped where a grown model is right of the parent trained on. Nobody has published this for images; the "
        "method is that of Tokenformer (arXiv:2410.23168, section 3.3)."
    ),
    data=growth_data,
    draw=draw_growth,
)
