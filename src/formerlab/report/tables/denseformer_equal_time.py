"""Equal training time (arXiv:2402.02622, Table 3)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._depth import METHODS, published_table
from formerlab.report.figures._runs import by_run, held_out_losses, paired_difference
from formerlab.results.read import Results

STUDY = "denseformer"
READS = ("test.csv", "run.json", "speed.csv")
RUNS = ("plain-*", "dwa-*", "equal-time-*")
CAPTION = (
    "A plain Transformer that trains for as long as a DenseFormer, after Table 3 of DenseFormer "
    "(arXiv:2402.02622). Its steps are those of the DenseFormer times the ratio of the two times of a step, "
    "measured beside each other on an otherwise idle machine, and its learning rate follows a schedule of its own "
    "length. The plain Transformer with as many steps stands above it: what the added steps bring by themselves. "
    "Gain is the loss of a plain run minus that of the DenseFormer, paired by seed, with its 95 % interval. "
    "Training time is that of the steps alone, as the runs themselves had it, other jobs beside them. After ±: "
    "the published standard error."
)
_COLUMNS = (
    *("source", "run", "layers", "steps", "step_time_ratio", "training_time_s", "training_time_hours", "perplexity"),
    *("perplexity_low", "perplexity_high", "perplexity_se", "loss_nats", "gain_nats", "gain_nats_low"),
    *("gain_nats_high", "interval", "seeds"),
)


def table(results: Results) -> DataFrame:
    """Return three rows per comparison (plain, plain for equal time, DenseFormer), then Table 3."""
    theirs = published_table("Table 3").rename(columns={"model": "run", "training_steps": "steps"})
    theirs = theirs.rename(columns={"training_time": "training_time_hours"})
    blocks = [*_ours(results), theirs]
    return pd.concat(blocks, ignore_index=True).reindex(columns=list(_COLUMNS))


def _ours(results: Results) -> list[DataFrame]:
    losses = held_out_losses(results, STUDY, RUNS)
    if losses.empty or "equal_time.arm" not in losses:
        return []
    rows, runs = by_run(losses).set_index("run"), losses.drop_duplicates("run").set_index("run")
    found = []
    for name in runs.index[runs["equal_time.arm"].notna()]:
        arm, reference = runs.loc[name, ["equal_time.arm", "equal_time.reference"]]
        for run in (reference, name, arm):
            if run not in rows.index:
                continue
            row = {**rows.loc[run].to_dict(), "run": run, "steps": runs.loc[run, "spec.steps"]}
            if run == name:
                row["step_time_ratio"] = runs.loc[name, "equal_time.time_ratio"]
            if run != arm and arm in rows.index:
                gain = paired_difference(results, losses, run, arm)
                ends = {"gain_nats": gain.mean, "gain_nats_low": gain.low, "gain_nats_high": gain.high}
                row |= ends | {"interval": METHODS[gain.method]}
            found.append(row)
    return [DataFrame(found)] if found else []
