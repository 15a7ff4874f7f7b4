"""Cells and factorial contrasts of the combined study, which is ours alone."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._combined import PRUNED, cells, contrasts, levels
from formerlab.results.read import Results

STUDY = "combined"
READS = ("prune.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "Factorial analysis of Linear or Pattention x plain or DWA x Full, H2O or Decay at 40 % of the tokens: held-out "
    "loss of every cell, main effects, and interactions as differences of differences, zero where two ideas add up (of "
    "pruning: of what it costs). Brackets: 95 % Student t interval over seeds, each contrast computed by seed. To see: "
    "whether an interaction is of the size of a main effect. The intervals are not corrected for their number."
)
_COLUMNS = ("loss_nats", "loss_nats_low", "loss_nats_high", "effect_nats", "effect_nats_low", "effect_nats_high")


def table(results: Results) -> DataFrame:
    """Return a row per cell, then a row per contrast."""
    by_seed = cells(results)
    if not by_seed:
        return DataFrame(columns=["source"])
    found = levels(by_seed)
    found["name"] += ", " + found["policy"].map({"full": "Full"} | PRUNED)
    rows = pd.concat([found, contrasts(by_seed)], ignore_index=True)
    return rows.assign(source="ours")[["source", "kind", "name", *_COLUMNS, "seeds"]]
