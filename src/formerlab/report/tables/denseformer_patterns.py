"""Which earlier outputs are averaged: DenseFormer beside rivals and successors (arXiv:2402.02622, Tables 4, 7)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._depth import gains, published_table
from formerlab.results.read import Results

STUDY = "denseformer"
READS = ("test.csv", "run.json")
RUNS = ("*plain-*", "*dwa-*", "*gains-*", "*connect-*", "*last-*", "random-*", "softmax-*", "attention-*", "mudd-*")
CAPTION = (
    "Held-out loss of every way to mix the outputs of earlier blocks, after Tables 4 and 7 of DenseFormer "
    "(arXiv:2402.02622). Gain is the loss of the plain Transformer of the same depth and batch minus that of the "
    "run, paired by seed, with its 95 % interval; what the interval speaks of stands beside it. Sparsity is the "
    "exact share of the weights of 1x1 that are absent, where every added parameter is one weight (the paper "
    "prints 1 - 1/(kp)). Last-K is there in the readings that the paper allows: the embedding enters always, as "
    "one of the last K, or never. Softmax weights, Attention Residuals, MUDD and random patterns are not of the "
    "paper. After ±: the published standard error."
)
STATIC = ("dwa", "last_k", "connect_to_last", "random_sparse", "softmax")
"""Mixers whose parameters are one weight per connection."""
_COLUMNS = (
    *("source", "run", "setting", "variant", "layers", "parameters_added", "sparsity", "perplexity", "perplexity_low"),
    *("perplexity_high", "perplexity_se", "loss_nats", "gain_nats", "gain_nats_low", "gain_nats_high", "interval"),
    *("seeds", "diverged"),
)


def table(results: Results) -> DataFrame:
    """Return a row per run, shallow before deep, then Tables 4 and 7."""
    ours = gains(results, STUDY, RUNS)
    if len(ours):
        ours = ours[ours["setting"].isin(("main", "small-batch"))]
        parameters = ours.set_index("run")["parameters"]
        ours = ours.assign(parameters_added=ours["parameters"] - ours["plain"].map(parameters))
        kinds = results.runs(STUDY, RUNS).drop_duplicates("run").set_index("run")["spec.model.depth.kind"]
        absent = 1 - ours["parameters_added"] / (ours["layers"] * (ours["layers"] + 3) / 2)
        ours["sparsity"] = absent.where(ours["run"].map(kinds).isin(STATIC))
        ours = ours.sort_values(["setting", "layers", "loss_nats"])
    theirs = published_table("Table 4", "Table 7").rename(columns={"model": "variant"})
    theirs = theirs.assign(sparsity=theirs["sparsity"] / 100, layers=48.0, run=theirs["table_or_figure"])
    return pd.concat([ours, theirs], ignore_index=True).reindex(columns=list(_COLUMNS))
