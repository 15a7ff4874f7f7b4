"""How near the kept tokens are to the ideal choice, and where they stand (A2SF, arXiv:2407.20485, Table 2)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures.decay_bias import PANELS, measured
from formerlab.report.published import published
from formerlab.results.read import Results

STUDY = "decay"
READS = ("prune_masks.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "Cosine between the attention rows under each policy and the ideal ones, which keep of the past the keys of the "
    "largest unpruned attention, with and without position 0, whose attention decides the cosine alone; and where the "
    "kept keys stand: share of the first 40 % and 10 % of the positions so far, and mean position (0.4, 0.1 and 0.5 "
    "are even). All arms choose from the attention of the same unpruned pass. In brackets: 95 % interval over "
    "windows and seeds. Published: A2SF, Table 2, LLaMA-2-7B at 20 %."
)
COSINES = {"distance_to_ideal": "cosine", "distance_to_ideal_without_first": "cosine_without_first"}


def table(results: Results) -> DataFrame:
    """Return a row per run and arm, and the published cosines."""
    rows = measured(results.rows("prune_masks.csv", STUDY, RUNS), list(PANELS))
    if rows.empty:
        return _published()
    keys = ["source", "run", "arm", "policy", "alpha", "recent", "budget", "seeds", "windows"]
    found = rows[keys].drop_duplicates().reset_index(drop=True)
    for metric in PANELS:
        block = rows[rows["metric"] == metric]
        name = COSINES.get(metric, metric)
        values = {"value": name, "value_low": f"{name}_low", "value_high": f"{name}_high"}
        if metric in COSINES:
            block = block.assign(
                value=1 - block["value"], value_low=1 - block["value_high"], value_high=1 - block["value_low"]
            )
        found = found.merge(block[[*keys, *values]].rename(columns=values), on=keys, how="left")
    return pd.concat([found, _published()], ignore_index=True)


def _published() -> DataFrame:
    rows = published("A2SF (2407.20485)", "Table 2")
    rows = rows[rows["setting"].str.contains("average")]
    table = DataFrame({"run": "LLaMA-2-7B", "arm": rows["model"], "cosine": rows["value"].astype(float)})
    return table.assign(budget=0.2, source="published")
