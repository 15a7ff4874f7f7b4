"""Figures of the vision study (Tokenformer, arXiv:2410.23168)."""

from textwrap import fill

import pandas as pd
from pandas import DataFrame

from formerlab.report.drawings import plot, shown_columns
from formerlab.report.panel import Panel, sheet
from formerlab.report.runs import held_out, minus, paired
from formerlab.report.tables import vision as tables
from formerlab.results.read import Results

GROUPS = {
    "sizes": "vit vit-wider tokenformer-matched tokenformer",
    "scores": "score-exp-l1 score-gelu-l1 score-gelu-l2",
    "norms": "norm-bias norm-gain-bias",
    "growth": "tokenformer-small tokenformer-short trained-on grown-random-sqrt grown-zero-keep",
    "depth": "vit-dwa tokenformer-dwa",
    "floor": "",
}
"""Groups of runs that answer one question and share a marker."""
PUBLISHED = {"sizes": "Table 2", "scores": "Table 4", "norms": "Table 5"}
_COLUMNS = shown_columns("source part group run seed model top1_percent[] seeds diverged")


@plot(reads="test.csv floors.csv", draw=sheet(
    Panel("top1_percent", "_label", by="_label", kind="forest", xlabel="top-1 accuracy (%)",
          published={"title": "ImageNet-1K"}),
    order="_rank _order"
))  # fmt: skip
def vision_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Top-1 accuracy of every run on test images, after Tables 2, 4 and 5 of Tokenformer (arXiv:2410.23168).
    Parameter-matched is a Tokenformer with as many parameters as the ViT; the linear probe classifies the pixels.
    Black: Vision Transformers; blue: Tokenformers (diamonds: norms of blocks, triangles: growth); orange: averages over
    depth; grey: the linear probe. To see: whether the parameter-matched Tokenformer reaches the ViT, whether exp is
    worse than GeLU, and whether parameters of the norms matter. The published values on ImageNet-1K are from single
    runs: compare differences and not levels.
    """
    measured = tables.accuracies(results, runs)
    groups = {run: name for name, names in GROUPS.items() for run in names.split()}
    ours = tables.models(measured).assign(part="mean")
    seeds = measured[["run", "seed", "top1_percent"]].merge(ours[["source", "run", "model"]], on="run")
    ours = pd.concat([ours, seeds.assign(part="seed")], ignore_index=True)
    ours = ours.assign(group=ours["run"].map(groups).fillna("other"))
    lowest = tables.image_floors(results, runs).assign(group="floor", part="mean")
    theirs = [tables.published_accuracies(table).assign(group=name) for name, table in PUBLISHED.items()]
    printed = pd.concat(theirs).assign(source="published")
    found = pd.concat([ours, lowest, printed], ignore_index=True).reindex(columns=_COLUMNS)
    return found.assign(
        _rank=found["group"].map({name: number for number, name in enumerate(GROUPS)}),
        _order=found["run"].map({run: number for number, run in enumerate(tables.NAMES)}),
        _label=[fill(name, 26) for name in found["model"]],
        _look=found["group"]
        .mask(found["group"].eq("sizes") & found["model"].str.lower().str.startswith("tokenformer"), "scores")
        .mask(found["group"].eq("other"), found["model"].str.replace(r" \(.*", "", regex=True)),
    )


_PARENT = "tokenformer-small"
GROWTH = {
    "grown-random-sqrt": "grown as published",
    "grown-zero-keep": "grown with zero keys",
    "trained-on": "parent trained further,\nequal FLOPs",
    "tokenformer-short": "final size from scratch,\nsteps of the stage",
    "tokenformer": "final size from scratch",
}


@plot(reads="test.csv", runs="tokenformer-small tokenformer-short tokenformer grown-* trained-on", needs="grown-*",
      draw=sheet(
    Panel(tables.COMPARED, "_label", by="_label", kind="forest", zero=0.0, xlabel="top-1, points above the parent"),
    order="_below"
))  # fmt: skip
def vision_growth(results: Results, runs: list[str]) -> DataFrame:
    """Accuracy of grown Tokenformers on test images, minus that of their parent, paired by seed. The controls are the
    parent trained further for the FLOPs of the stage, and Tokenformers of the grown size from scratch. TFLOP count all
    training of a model, including its parent's. To see: growing helps if a grown model is right of the parent trained
    further. No results are published for images; the method is that of Tokenformer (arXiv:2410.23168, section 3.3).
    """
    measured = tables.accuracies(results, runs)
    if _PARENT not in set(measured["run"]):
        return DataFrame()
    rows = []
    for run in GROWTH:
        points, parents = (held_out(measured, one, "top1_percent") for one in (run, _PARENT))
        if not (mean := paired(measured, run, _PARENT, tables.COMPARED, "top1_percent", results)):
            continue  # not finished, or no seed in common
        mean |= {"compared_with": _PARENT}
        cost = held_out(measured, run, "flops_cumulative").mean()
        shared = {"source": "ours", "run": run, "model": GROWTH[run], "parent": _PARENT}
        shared |= {"_below": -mean[tables.COMPARED], "_look": GROWTH[run].replace("\n", " ")}
        shared |= {"_label": f"{GROWTH[run]}\n{cost / 1e12:.2g} TFLOP"}
        rows.append(shared | mean | {"part": "mean", "flops_cumulative": cost, "seeds": len(points)})
        above = minus(points, parents).items()
        rows += [shared | {"part": "seed", "seed": seed, tables.COMPARED: value} for seed, value in above]
    return DataFrame(rows)
