"""What mixing gains in other settings (arXiv:2402.02622, Tables 2 and 6, section 4.2)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._depth import gains, published_table
from formerlab.results.read import Results

STUDY = "denseformer"
READS = ("test.csv", "run.json")
RUNS = ("plain-*", "dwa-*", "no-decay-*", "small-batch-*", "long-context-*", "books-*", "modern-*")
CAPTION = (
    "Held-out loss of DenseFormer and of its plain Transformer in other settings: a smaller batch, a longer "
    "context, a second corpus, a modern backbone (RMSNorm, SwiGLU, rotary positions) at several learning rates, "
    "and mixing weights without weight decay; after Tables 2 and 6 and section 4.2 of DenseFormer "
    "(arXiv:2402.02622). Gain is the loss of the plain Transformer of the same setting minus that of the run, "
    "paired by seed, with its 95 % interval; what the interval speaks of stands beside it. Losses of different "
    "corpora cannot be compared. The second corpus is books in the paper (PG-19) and here what the data set named "
    "in the table is. The backbone and the run without decay are not of the paper. After ±: the published "
    "standard error; it gives none for PG-19."
)
_COLUMNS = (
    *("source", "setting", "run", "variant", "layers", "lr", "batch", "context", "data", "perplexity"),
    *("perplexity_low", "perplexity_high", "perplexity_se", "loss_nats", "gain_nats", "gain_nats_low"),
    *("gain_nats_high", "interval", "seeds", "diverged"),
)
_ASKED = {"lr": "spec.optimizer.lr", "batch": "spec.task.batch", "context": "spec.task.context", "data": "data.name"}


def table(results: Results) -> DataFrame:
    """Return a row per run of every other setting and of what the runs without decay are compared with; then theirs."""
    ours = gains(results, STUDY, RUNS)
    if len(ours):
        undecayed = ours.loc[ours["setting"] == "no-decay", "run"].str.removeprefix("no-decay-")
        compared = {*("dwa-" + undecayed), *ours.loc[ours["setting"] == "no-decay", "plain"]}
        ours = ours[(ours["setting"] != "main") | ours["run"].isin(compared)]
        specs = results.runs(STUDY, RUNS).drop_duplicates("run").set_index("run")
        for name, column in _ASKED.items():
            ours = ours.assign(**{name: ours["run"].map(specs[column]) if column in specs else None})
        ours = ours.sort_values(["setting", "lr", "layers", "run"])
    theirs = published_table("Table 2", "Table 6", "text").dropna(subset="perplexity")
    theirs = theirs.rename(columns={"model": "variant", "table_or_figure": "run"})
    return pd.concat([ours, theirs], ignore_index=True).reindex(columns=list(_COLUMNS))
