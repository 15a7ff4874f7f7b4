"""Depth, loss and speed of every run (DenseFormer, arXiv:2402.02622, Table 1)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._depth import METHODS, speeds
from formerlab.report.figures._runs import TRANSFORMER, by_run, held_out_losses, paired_difference
from formerlab.report.figures.denseformer_depth import published_depths
from formerlab.results.measures import FORWARD
from formerlab.results.read import Results

STUDY = "denseformer"
READS = ("test.csv", "run.json", "speed.csv")
RUNS = ("plain-*", "dwa-*", "gains-*", "connect-*", "last-*", "random-*", "softmax-*", "attention-*", "mudd-*")
CAPTION = (
    "Depth, parameters, held-out loss and speed of every run, after Table 1 of DenseFormer (arXiv:2402.02622). "
    "Loss minus plain is the difference to the plain Transformer of the same depth, paired by seed. In brackets: "
    "95 % Student t interval over seeds. With a single seed only the difference has one, from a paired bootstrap "
    "over windows; it speaks of these two models alone, and the column interval says so. Inference batches are "
    "full forward passes of as many sequences as the column says, measured alone on our machine; training tokens/s "
    "are those of the runs, other jobs beside them. Speeds of different machines are not comparable. After ±: the "
    "published standard error over three runs."
)

_COLUMNS = (
    *(
        "source",
        "run",
        "variant",
        "layers",
        "parameters",
        "perplexity",
        "perplexity_low",
        "perplexity_high",
        "perplexity_se",
    ),
    *("loss_nats", "loss_nats_low", "loss_nats_high"),
    *("loss_minus_plain_nats", "loss_minus_plain_nats_low", "loss_minus_plain_nats_high", "interval"),
    *("tokens_per_s", "inference_batches_per_s", f"{FORWARD}_sequences", "seeds", "diverged"),
)


def table(results: Results) -> DataFrame:
    """Return a row per run in the order of depth, then Table 1."""
    losses = held_out_losses(results, STUDY, RUNS)
    ours = []
    if len(losses):
        runs = by_run(losses).assign(mixed=lambda rows: rows["variant"] != TRANSFORMER)
        runs = runs.merge(speeds(results, STUDY), on="run", how="left")
        runs = runs.assign(inference_batches_per_s=1 / runs[f"{FORWARD}_time_s"])
        runs = runs.sort_values(["layers", "mixed", "variant", "run"], ignore_index=True)
        ours.append(runs.join(DataFrame([_against_plain(results, losses, runs, run) for run in runs.index])))
    return pd.concat([*ours, published_depths()], ignore_index=True).reindex(columns=list(_COLUMNS))


def _against_plain(results: Results, losses: DataFrame, runs: DataFrame, place: int) -> dict[str, object]:
    mine = runs.iloc[place].to_dict()
    plain = runs[(runs["variant"] == TRANSFORMER) & (runs["layers"] == mine["layers"])]["run"]
    if mine["variant"] == TRANSFORMER or plain.empty:
        return {}
    difference = paired_difference(results, losses, mine["run"], plain.iloc[0])
    name = "loss_minus_plain_nats"
    ends = {name: difference.mean, f"{name}_low": difference.low, f"{name}_high": difference.high}
    return ends | {"interval": METHODS[difference.method]}
