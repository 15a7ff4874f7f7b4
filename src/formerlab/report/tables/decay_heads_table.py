"""Alpha per layer and head, chosen on calibration windows, against the best single alpha chosen on the same."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.results.read import Results
from formerlab.statistics import over_examples

STUDY = "decay"
READS = ("prune_calibrated.csv", "prune_alphas.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "What a forgetting factor of its own brings to every layer and head. All choices are made on windows of the "
    "validation text, from the same grid of alphas; losses are those of the test text. per head: each head takes the "
    "alpha whose attention rows are nearest to the ideal ones. single by distance: one alpha for all, by the same "
    "measure. single by loss: one alpha for all, by the loss itself, the strongest single choice. The difference is "
    "paired: the same windows of the same model, with the 95 % interval over windows and seeds in brackets. None of "
    "the published codes has this."
)
BEST = "single_by_loss"


def table(results: Results) -> DataFrame:
    """Return a row per run, budget and choice."""
    rows = results.rows("prune_calibrated.csv", STUDY, RUNS)
    chosen = results.rows("prune_alphas.csv", STUDY, RUNS)
    if rows.empty:
        return DataFrame(columns=["source"])
    found = []
    for (run, budget), group in rows.groupby(["run", "budget"], sort=False):
        grids = {
            choice: block.pivot_table("loss_nats", "seed", "window").to_numpy()
            for choice, block in group.groupby("choice", sort=False)
        }
        mine = chosen[(chosen["run"] == run) & (chosen["budget"] == budget)]
        for choice, grid in grids.items():
            alphas = mine.loc[mine["choice"] == choice, "alpha"]
            row = {"source": "ours", "run": run, "budget": budget, "choice": str(choice).replace("_", " ")}
            row |= {"alphas": _spread(alphas), "loss_nats": grid.mean()}
            row |= {"realised_budget": group.loc[group["choice"] == choice, "realised_budget"].mean()}
            if choice != BEST and BEST in grids:
                gap = over_examples(grid - grids[BEST])
                row |= {"minus_best_single_nats": gap.mean}
                row |= {"minus_best_single_nats_low": gap.low, "minus_best_single_nats_high": gap.high}
            found.append(row | {"seeds": grid.shape[0], "windows": grid.shape[1]})
    return DataFrame(found)


def _spread(alphas: pd.Series) -> str:
    """Return the chosen alphas for readers: their median and range where there are several."""
    low, middle, high = np.quantile(alphas, [0, 0.5, 1])
    return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"
