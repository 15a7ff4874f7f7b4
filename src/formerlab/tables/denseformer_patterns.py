"""Which earlier outputs are averaged: DenseFormer beside rivals and successors (arXiv:2402.02622, Tables 4, 7)."""

import pandas as pd
from pandas import DataFrame

from formerlab.figures._depth import at_last_step, gains, published_table
from formerlab.results import Results

STUDY = "denseformer"
READS = ("test.csv", "depth.csv", "run.json")
RUNS = ("*plain-*", "*dwa-*", "*gains-*", "*connect-*", "*last-*", "random-*", "softmax-*", "attention-*", "mudd-*")
CATEGORY = "DenseFormer"
CAPTION = (
    "Held-out loss of every way to mix the outputs of earlier blocks, after Tables 4 and 7 of DenseFormer "
    "(arXiv:2402.02622). Gain is the loss of the plain Transformer of the same depth and batch minus that of the "
    "run, paired by seed, with its 95 % interval; what the interval speaks of stands beside it. Weights counts "
    "the learned mixing weights; sparsity is the exact share of those of 1x1 that are absent (the paper prints 1 "
    "- 1/(kp)). Attention Residuals and MUDD make their weights anew for every token and have none to count. "
    "Last-K is there in each reading of the paper: the embedding enters always, as one of the last K, or never. "
    "Softmax weights, Attention Residuals, MUDD and random patterns are not of the paper. After ±: the published "
    "standard error."
)
_COLUMNS = (
    *("source", "run", "setting", "variant", "layers", "weights", "sparsity", "perplexity", "perplexity_low"),
    *("perplexity_high", "perplexity_se", "loss_nats", "gain_nats", "gain_nats_low", "gain_nats_high", "interval"),
    *("seeds", "diverged"),
)


def table(results: Results) -> DataFrame:
    """Return a row per run, shallow before deep, then Tables 4 and 7."""
    ours = gains(results, STUDY, RUNS)
    if len(ours):
        ours = ours[ours["setting"].isin(("main", "small-batch"))]
        rows = at_last_step(results.rows("depth.csv", STUDY, RUNS))
        counts = rows.groupby(["run", "seed"]).size().groupby("run").max()
        full = ours["layers"] * (ours["layers"] + 3) / 2
        ours = ours.assign(weights=ours["run"].map(counts))
        ours["sparsity"] = 1 - ours["weights"] / full
        ours = ours.sort_values(["setting", "layers", "loss_nats"])
    theirs = published_table("Table 4", "Table 7").rename(columns={"model": "variant"})
    theirs = theirs.assign(sparsity=theirs["sparsity"] / 100, layers=48.0, run=theirs["table_or_figure"])
    return pd.concat([ours, theirs], ignore_index=True).reindex(columns=list(_COLUMNS))
