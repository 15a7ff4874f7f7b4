"""One-shot compression of a prompt: another mode than eviction step by step, in a table of its own."""

import numpy as np
from pandas import DataFrame

from formerlab.report.figures._pruning import ARM, ordered
from formerlab.results.read import Results
from formerlab.statistics import over_examples

STUDY = "decay"
READS = ("prune_once.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "One-shot compression, as kvpress and SnapKV do it: the first half of each window is read as a prompt without "
    "pruning, a part of its keys is kept once, and the loss is that of the second half. Compare nothing here with the "
    "tables of step-by-step eviction, whose prompts are pruned while they are read: at the same ratio this is the "
    "easier task. Budgets are shares of the prompt. Loss minus Full is paired, with its 95 % interval over windows "
    "and seeds."
)


def table(results: Results) -> DataFrame:
    """Return a row per run and arm."""
    rows = results.rows("prune_once.csv", STUDY, RUNS)
    if rows.empty:
        return DataFrame(columns=["source"])
    found = []
    for run, mine in rows.groupby("run", sort=False):
        grids = {
            key: block.pivot_table("loss_nats", "seed", "window").to_numpy()
            for key, block in mine.groupby([*ARM, "realised_budget"], sort=False, dropna=False)
        }
        full = next((grid for key, grid in grids.items() if key[1] == "full"), None)
        for key, grid in grids.items():
            row = dict(zip([*ARM, "realised_budget"], key, strict=True))
            row |= {"loss_nats": grid.mean(), "perplexity": np.exp(grid.mean())}
            if full is not None and key[1] != "full":
                gap = over_examples(grid - full)
                row |= {"increase_nats": gap.mean, "increase_nats_low": gap.low, "increase_nats_high": gap.high}
            found.append(row | {"seeds": grid.shape[0], "windows": grid.shape[1], "run": run})
    table = ordered(DataFrame(found)).assign(source="ours")
    columns = ["source", "run", "arm", "policy", "budget", "realised_budget", "perplexity", "loss_nats"]
    return table.reindex(
        columns=[*columns, *(f"increase_nats{end}" for end in ("", "_low", "_high")), "seeds", "windows"]
    )
