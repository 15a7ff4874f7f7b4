"""Figures of the vision study (Tokenformer, arXiv:2410.23168)."""

from collections.abc import Sequence
from textwrap import fill

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot, shown_columns
from formerlab.report.panel import Panel, sheet
from formerlab.report.tables.vision import (
    COMPARED,
    NAMES,
    accuracies,
    against,
    image_floors,
    models,
    published_accuracies,
)
from formerlab.results.read import Results

GROUPS = {
    "sizes": "vit vit-wider tokenformer-matched tokenformer",
    "scores": "score-exp-l1 score-gelu-l1 score-gelu-l2",
    "norms": "norm-bias norm-gain-bias",
    "growth": "tokenformer-small tokenformer-short trained-on grown-random-sqrt grown-zero-keep",
    "depth": "vit-dwa tokenformer-dwa",
    "floor": "",
}
"""Runs that answer one question, and have one colour."""
PUBLISHED = {"sizes": "Table 2", "scores": "Table 4", "norms": "Table 5"}
_COLUMNS = shown_columns("source part group run seed model top1_percent[] seeds diverged")


def draw_accuracy(data: DataFrame) -> Figure:
    """Draw a line per run, ours left and the published right."""
    own = data["model"].str.replace(r" \(.*", "", regex=True)
    rows = data.assign(
        rank=data["group"].map({name: number for number, name in enumerate(GROUPS)}),
        order=data["run"].map({run: number for number, run in enumerate(NAMES)}),
        label=[fill(name, 26) for name in data["model"]],
        look=data["group"].where(data["group"].ne("other"), own),
    )
    ours, theirs = (
        Panel("top1_percent", "label", by="label", kind="forest", where={"source": source}, title=title,
              xlabel="top-1 accuracy (%)", style="look")
        for source, title in (("ours", "{setting}"), ("published", "ImageNet-1K"))
    )  # fmt: skip
    return sheet(ours, theirs)(rows.sort_values(["rank", "order"], kind="stable"))


@plot(
    reads=("test.csv", "floors.csv", "run.json"),
    runs=("*",),
    draw=draw_accuracy,
)
def vision_accuracy(results: Results, runs: Sequence[str]) -> DataFrame:
    """Top-1 accuracy on test images of every run, after Tables 2, 4 and 5 of Tokenformer (arXiv:2410.23168).
    Parameter-matched is a Tokenformer with as many parameters as the ViT; the linear probe is a classifier of the
    pixels without any depth. Black: models; blue: scores and their norm; green: norms of blocks; orange: growth;
    purple: averages over depth; grey: a model without depth. To see: whether the parameter-matched Tokenformer reaches
    the ViT, whether exp is worse than GeLU, and whether parameters of the norms matter. Right: the published values on
    ImageNet-1K, single runs: compare differences, never levels.
    """
    measured = accuracies(results, runs)
    groups = {run: name for name, names in GROUPS.items() for run in names.split()}
    ours = models(measured).assign(part="mean")
    seeds = measured[["run", "seed", "top1_percent"]].merge(ours[["source", "run", "model"]], on="run")
    ours = pd.concat([ours, seeds.assign(part="seed")], ignore_index=True)
    ours = ours.assign(group=ours["run"].map(groups).fillna("other"))
    lowest = image_floors(results, runs).assign(group="floor", part="mean")
    theirs = [published_accuracies(table).assign(source="published", group=name) for name, table in PUBLISHED.items()]
    return pd.concat([ours, lowest, *theirs], ignore_index=True).reindex(columns=_COLUMNS)


_PARENT = "tokenformer-small"
GROWTH = {
    "grown-random-sqrt": "grown: random keys, tau sqrt(n)\n(the published way)",
    "grown-zero-keep": "grown: zero keys, tau kept",
    "trained-on": "the parent, trained on\n(not grown, equal FLOPs)",
    "tokenformer-short": "from scratch,\nsteps of the stage alone",
    "tokenformer": "from scratch, full steps",
}


def draw_growth(data: DataFrame) -> Figure:
    """Draw how far every run is above the parent, the best on top."""
    means = data[data["part"] == "mean"].set_index("run")
    cost = data["run"].map(means["flops_cumulative"]) / 1e12
    rows = data.assign(
        label=data["model"] + [f"\n{tera:.2g} TFLOP" for tera in cost],
        look=data["model"].str.split("\n").str[0],
        best=data["run"].map(means[COMPARED]),
    ).sort_values("best", ascending=False, kind="stable")
    panel = Panel(COMPARED, "label", by="label", kind="forest", zero=0.0, style="look",
                  xlabel="top-1, points above the parent")  # fmt: skip
    return sheet(panel)(rows)


@plot(
    reads=("test.csv", "run.json"),
    runs=("tokenformer-small", "tokenformer-short", "tokenformer", "grown-*", "trained-on"),
    needs=("grown-*",),
    draw=draw_growth,
)
def vision_growth(results: Results, runs: Sequence[str]) -> DataFrame:
    """Accuracy on test images of Tokenformers that grew, minus that of the model they grew from, paired by seed; beside
    them that model trained on for the FLOPs of the stage, and Tokenformers of the grown size from scratch. TFLOP count
    all training behind a model, its parent's included. To see: growing has helped where a grown model is right of the
    parent trained on. Nobody has published this for images; the method is that of Tokenformer (arXiv:2410.23168,
    section 3.3).
    """
    measured = accuracies(results, runs)
    if _PARENT not in set(measured["run"]):
        return DataFrame()
    level = measured[measured["run"] == _PARENT].set_index("seed")["top1_percent"]
    rows = []
    for run in [run for run in GROWTH if run in set(measured["run"])]:
        shared = {"source": "ours", "run": run, "model": GROWTH[run], "parent": _PARENT}
        own = measured[measured["run"] == run]
        cost = {"part": "mean", "flops_cumulative": float(own["flops_cumulative"].mean()), "seeds": len(own)}
        rows.append(shared | against(results, measured, run, _PARENT) | cost)
        above = own.assign(above=own["top1_percent"] - own["seed"].map(level)).dropna(subset="above")
        rows += [shared | {"part": "seed", "seed": one.seed, COMPARED: one.above} for one in above.itertuples()]
    return DataFrame(rows)
