"""Flow of information over depth, and singular values (DenseFormer, arXiv:2402.02622, Fig 6, 7, 9 and 13)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.runs import TRANSFORMER, summary, variant
from formerlab.results.read import Results
from formerlab.results.schema import COSINE, PRUNED, SINGULAR

STUDY = "denseformer"


def compared(results: Results, rows: DataFrame, runs: Sequence[str]) -> DataFrame:
    """Return the rows of flow.csv of the deepest of the depths that most kinds of models share, with kind and depth."""
    records = results.runs(STUDY, runs).drop_duplicates("run")
    records = records[records["run"].isin(rows["run"])]
    variants = [variant(record) for record in records.to_dict("records")]
    records = records.assign(variant=variants, layers=records["spec.model.layers"])
    kinds = records.groupby("layers")["variant"].nunique()
    deepest = records[records["layers"] == kinds.index[kinds == kinds.max()].max()]
    return rows.merge(deepest[["run", "variant", "layers"]], on="run")


@plot(
    reads=("flow.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa"),
    draw=sheet(
        Panel("place", "value", kind="band", where={"measure": COSINE}, title="What each block passes on",
              xlabel="block i", ylabel="cosine of Y_i with the embedding"),
        Panel("place", "value", kind="band", where={"measure": PRUNED}, title="Without the smallest mixing weights",
              xlabel="share of the mixing weights dropped", ylabel="added loss (nats per token)", name="none"),
    ),
)  # fmt: skip
def denseformer_flow(results: Results, runs: Sequence[str]) -> DataFrame:
    """How far information flows over depth. Left: mean cosine between what each block passes on, Y_i, and the embedding
    X_0, for the deepest models that were looked at, after Fig. 6 and 9 of DenseFormer (arXiv:2402.02622). To see: how
    much of the embedding is left after each block; in the paper a DenseFormer stays near it over most of its depth and
    the plain Transformer leaves it early. Right: held-out loss, less that of the whole model, when the smallest mixing
    weights are dropped after training, after Fig. 7: in the paper perplexity rises sharply beyond 15 %. The paper
    prints no numbers for these figures.
    """
    rows = results.rows("flow.csv", STUDY, runs)
    rows = compared(results, rows[rows["measure"].isin([COSINE, PRUNED])], runs)
    whole = rows[(rows["measure"] == PRUNED) & (rows["place"] == 0)].set_index(["run", "seed"])["value"]
    shift = [whole.get((row.run, row.seed), 0.0) if row.measure == PRUNED else 0.0 for row in rows.itertuples()]
    rows, keys = rows.assign(value=rows["value"] - np.array(shift)), ["variant", "run", "layers", "measure", "place"]
    found = summary(rows, "value", keys)
    found.insert(9, "kept", rows.groupby(keys, sort=False)["kept"].mean().reset_index()["kept"])
    return found


def draw_spectra(data: DataFrame) -> Figure:
    """Draw a panel per matrix; the Transformer's line is dashed, for it may lie on another."""
    rows = data.rename(columns={"lowest": "value_low", "highest": "value_high"}).drop(columns="seeds")
    rows = rows.assign(marker="", linestyle=rows["variant"].map({TRANSFORMER: "--"}))
    panel = Panel("place", "value", kind="band", each="matrix", xlabel="rank (share of all)",
                  ylabel="singular value / largest", name="legend")  # fmt: skip
    return sheet(panel, columns=3, height=1.5)(rows)


@plot(
    reads=("flow.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa"),
    draw=draw_spectra,
)
def denseformer_spectra(results: Results, runs: Sequence[str]) -> DataFrame:
    """Singular values of the weights of trained models, each over the largest of its matrix and averaged over blocks,
    after Fig. 13 of DenseFormer (arXiv:2402.02622), of the deepest models that were looked at. Query, key and value
    count as one matrix. Lines are means over seeds, bands reach from the lowest seed to the highest. To see: whether
    averages over depth change how many directions the weights use; the paper finds no difference to the Transformer,
    and prints no numbers.
    """
    rows = results.rows("flow.csv", STUDY, runs)
    rows = rows[rows["measure"].str.startswith(SINGULAR)]
    rows = compared(results, rows, runs).assign(matrix=lambda rows: rows["measure"].str.removeprefix(SINGULAR))
    of_seeds = rows.groupby(["variant", "run", "layers", "matrix", "place"], sort=False)["value"]
    table = of_seeds.agg(value="mean", lowest="min", highest="max", seeds="count").reset_index()
    return table.assign(source="ours")
