"""Flow of information over depth (DenseFormer, arXiv:2402.02622, Fig 6, 7 and 9)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly
from formerlab.report.runs import ends, n_seeds, variant
from formerlab.report.style import canvas, look, widen
from formerlab.results.read import Results
from formerlab.results.schema import COSINE, PRUNED
from formerlab.statistics import student

STUDY = "denseformer"


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return mean and interval over seeds of every measure, at the depth that most kinds of models share.

    Of several such depths it is the deepest. `part` is mean, or seed for a row per seed.
    """
    rows = results.rows("flow.csv", STUDY, runs)
    rows = rows[rows["measure"].isin([COSINE, PRUNED])] if len(rows) else rows
    if rows.empty:
        return DataFrame()
    rows = compared(results, rows, runs)
    whole = rows[(rows["measure"] == PRUNED) & (rows["place"] == 0)].set_index(["run", "seed"])["value"]
    shift = [whole.get((row.run, row.seed), 0.0) if row.measure == PRUNED else 0.0 for row in rows.itertuples()]
    rows = rows.assign(value=rows["value"] - np.array(shift))
    found = []
    for keys, group in rows.groupby(["variant", "run", "layers", "measure", "place"], sort=False):
        interval = student(group["value"])
        row = dict(zip(("variant", "run", "layers", "measure", "place"), keys, strict=True))
        found.append(
            {"source": "ours", **row, **ends("value", interval), "kept": group["kept"].mean(), "seeds": interval.seeds}
        )
    seeds = rows[["run", "variant", "layers", "measure", "place", "seed", "value"]]
    return pd.concat(
        [DataFrame(found).assign(part="mean"), seeds.assign(source="ours", part="seed")], ignore_index=True
    )


def compared(results: Results, rows: DataFrame, runs: Sequence[str]) -> DataFrame:
    """Return the rows of flow.csv of the deepest of the depths that most kinds of models share, with kind and depth."""
    records = results.runs(STUDY, runs).drop_duplicates("run")
    records = records[records["run"].isin(rows["run"])]
    records = records.assign(
        variant=[variant(record) for record in records.to_dict("records")], layers=records["spec.model.layers"]
    )
    kinds = records.groupby("layers")["variant"].nunique()
    deepest = records[records["layers"] == kinds.index[kinds == kinds.max()].max()]
    return rows.merge(deepest[["run", "variant", "layers"]], on="run")


_TITLES = {COSINE: "What each block passes on", PRUNED: "Without the smallest mixing weights"}


def draw(data: DataFrame) -> Figure:
    """Draw cosines left and pruned losses right."""
    seeds = int(data["seeds"].max())
    spread = "bands: 95 % Student t interval over seeds; thin lines: seeds" if seeds > 1 else "no interval"
    notes = [f"{data['layers'].max():.0f} blocks, {n_seeds([seeds])}; {spread}."]
    if seeds > 1:
        notes.append("Right: the axis ends beyond the last seed; the band may leave it.")
    if PRUNED not in set(data["measure"]):
        notes.append("Missing, no finished runs: a model with mixing weights.")
    figure, axes = canvas([3.4, 3.4], notes, right=[1.7, 1.6])
    labels = (
        ("block i", "cosine of Y_i with the embedding"),
        ("mixing weights dropped (%)", "added loss (nats per token)"),
    )
    for panel, measure, (x, y), factor in zip(axes, (COSINE, PRUNED), labels, (1, 100), strict=True):
        names = []
        shown = data[data["measure"] == measure].sort_values("place")
        seeds_of = shown[shown["part"] == "seed"]
        for name, rows in shown[shown["part"] == "mean"].groupby("variant"):
            colour, marker = look(str(name))
            place = factor * rows["place"]
            for _, own in seeds_of[seeds_of["variant"] == name].groupby("seed"):
                panel.plot(factor * own["place"], own["value"], color=colour, linewidth=0.5, alpha=0.6)
            panel.plot(place, rows["value"], color=colour, marker=marker, markersize=3.5)
            panel.fill_between(place, rows["value_low"], rows["value_high"], color=colour, alpha=0.2, linewidth=0)
            names.append(Label(place.iloc[-1], rows["value"].iloc[-1], str(name), colour))
        if measure == PRUNED and len(seeds_of):  # the band of a spread that grows at the end would flatten the rest
            low, high = seeds_of["value"].min(), seeds_of["value"].max()
            panel.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
        panel.set_title(_TITLES[measure])
        panel.set_xlabel(x)
        panel.set_ylabel(y)
        widen(panel, 0.05)
        if names:
            label_directly(panel, names)
    return figure


denseformer_flow = Plot(
    reads=("flow.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa"),
    caption=(
        "How far information flows over depth. Left: mean cosine between what each block passes on, Y_i, and the "
        "embedding X_0, for the deepest models that were looked at, after Fig. 6 and 9 of DenseFormer "
        "(arXiv:2402.02622). To see: how much of the embedding, whose cosine with itself is 1, is left after each "
        "block; in the paper a DenseFormer stays near it over most of its depth and the plain Transformer leaves it "
        "early. Right: held-out loss, less that of the whole model, when the smallest mixing weights are dropped after "
        "training, after Fig. 7: in the paper perplexity rises sharply beyond 15 %. The paper prints no numbers for "
        "these figures."
    ),
    data=data,
    draw=draw,
)
