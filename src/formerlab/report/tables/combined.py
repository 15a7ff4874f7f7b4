"""The table of the combined study, which is ours alone."""

from collections.abc import Sequence

import pandas as pd
from pandas import DataFrame

from formerlab.report.combined import PRUNED, cells, contrasts, levels
from formerlab.report.drawings import Table
from formerlab.results.read import Results


def main(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per cell, then a row per contrast."""
    by_seed = cells(results, runs)
    if not by_seed:
        return DataFrame()
    found = levels(by_seed)
    found["name"] += ", " + found["policy"].map({"full": "Full"} | PRUNED)
    return pd.concat([found, contrasts(by_seed)], ignore_index=True)


combined_table = Table(
    reads=("prune.csv", "run.json"),
    runs=("*",),
    caption=(
        "Linear or Pattention x plain or DWA x Full, H2O or Decay at 40 % of the tokens: held-out loss of every cell, "
        "main effects, and interactions as differences of differences, zero where two ideas add up (of pruning: of "
        "what it costs). Brackets: 95 % Student t interval over seeds, each contrast computed by seed, not corrected "
        "for their number."
    ),
    ours=main,
    columns="source kind name loss_nats[] effect_nats[] seeds",
)
