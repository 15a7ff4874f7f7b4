"""Cost and loss of every run (Tokenformer, arXiv:2410.23168, Tables 6 and 7)."""

import re

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._runs import by_run, held_out_losses
from formerlab.report.published import TOKENFORMER, published
from formerlab.results.read import Results

STUDY = "tokenformer"
READS = ("test.csv", "run.json")
RUNS = ("transformer-*", "tokenformer-*", "grown-*", "net2net-*", "hypercloning-*")
CAPTION = (
    "Size, training cost and held-out loss of every run, after Tables 6 and 7 of Tokenformer (arXiv:2410.23168). "
    "Cumulative FLOPs include all ancestors of a grown model. In brackets: 95 % Student t interval over seeds, none "
    "with one seed. Perplexity is exp of the mean loss. A run that diverged counts as a uniform guess. The published "
    "values are those of OpenWebText at 124M to 1.4B parameters: compare ratios, never levels."
)

_COLUMNS = (
    *("source", "run", "variant", "parameters", "parameters_non_embedding", "tokens", "flops", "flops_cumulative"),
    *("loss_nats", "loss_nats_low", "loss_nats_high", "perplexity", "perplexity_low", "perplexity_high"),
    *("seeds", "diverged"),
)


def table(results: Results) -> DataFrame:
    """Return a row per run in the order of cost, then the published rows."""
    losses = held_out_losses(results, STUDY, RUNS)
    ours = [by_run(losses).sort_values(["flops_cumulative", "run"])] if len(losses) else []
    return pd.concat([*ours, _published()], ignore_index=True).reindex(columns=list(_COLUMNS))


def _published() -> DataFrame:
    rows = published(TOKENFORMER, "Tables 6-7", "Table 6", "Table 7").query("metric == 'perplexity'")
    sizes = [re.search(r"([\d.]+)(M|B)$", model) for model in rows["model"]]
    settings = rows["setting"].str.removeprefix("OpenWebText; ")
    return DataFrame(
        {
            "source": "published",
            "run": rows["model"],
            "variant": [
                f"{setting} ({note})" if note else setting for setting, note in zip(settings, rows["note"], strict=True)
            ],
            "parameters": [float(size[1]) * {"M": 1e6, "B": 1e9}[size[2]] for size in sizes if size],
            "perplexity": rows["value"].astype(float),
        }
    )
