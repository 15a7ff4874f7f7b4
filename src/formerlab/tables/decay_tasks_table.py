"""Alpha chosen per suite against one alpha for all suites, each judged on the other half of the questions."""

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from formerlab.figures._questions import answers, title
from formerlab.results import Results
from formerlab.statistics import bootstrap, bootstrap_means

STUDY = "decay"
READS = ("prune_questions.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "Does it pay to choose alpha per task? The questions of every suite are halved by a hash of their ids. Of each "
    "half, own is the alpha of the best accuracy on the other half of the same suite, common the one of the best mean "
    "over the other halves of all suites; both are judged where they were not chosen, per model. gain is own minus "
    "common with its 95 % bootstrap interval over questions (seeds first). Reading the best alpha off the curve "
    "itself would make it differ between tasks by chance. The grid is that of the sweep, without a recent part."
)

Grid = NDArray[np.float64]
Halves = NDArray[np.int_]


def table(results: Results) -> DataFrame:
    """Return a row per run, budget and task, and their mean."""
    rows = answers(results, STUDY, RUNS)
    rows = rows[(rows["policy"] == "decay") & (rows["recent"] == 0)]
    found = []
    for (run, budget), group in rows.groupby(["run", "budget"], sort=False):
        alphas = tuple(sorted(group["alpha"].unique()))
        if len(alphas) < 2:
            continue
        found_grids = {str(task): _grid(block) for task, block in group.groupby("task", sort=False)}
        tasks = {task: pair for task, pair in found_grids.items() if pair is not None}
        judged = _judged({task: grid for task, (grid, _) in tasks.items()}, {t: half for t, (_, half) in tasks.items()})
        for task, (own, common, places) in judged.items():
            gain = bootstrap(own - common)
            row = {"source": "ours", "run": run, "budget": budget, "task": title(task)}
            row |= {"own alphas": ", ".join(sorted({f"{alphas[place]:g}" for place in places[0]}))}
            row |= {"common alphas": ", ".join(sorted({f"{alphas[place]:g}" for place in places[1]}))}
            row |= {"acc_own": own.mean(), "acc_common": common.mean(), "gain": gain.mean}
            found.append(
                row | {"gain_low": gain.low, "gain_high": gain.high, "seeds": len(own), "questions": own.shape[1]}
            )
        if judged:
            drawn = np.mean([bootstrap_means(own - common) for own, common, _ in judged.values()], axis=0)
            mean = float(np.mean([(own - common).mean() for own, common, _ in judged.values()]))
            ends = dict(zip(("gain_low", "gain_high"), np.quantile(drawn, [0.025, 0.975]), strict=True))
            found.append({"source": "ours", "run": run, "budget": budget, "task": "mean of these", "gain": mean} | ends)
    return DataFrame(found) if found else DataFrame(columns=["source"])


def _grid(block: DataFrame) -> tuple[Grid, Halves] | None:
    """Return answers (alphas x seeds x examples) and the half of each example; none where either half is empty."""
    table = block.pivot_table("value", ["alpha", "seed"], "example").dropna(axis=1).sort_index()
    alphas = table.index.get_level_values("alpha").nunique()
    seeds = table.index.get_level_values("seed").nunique()
    halves = np.array([half_of(str(example)) for example in table.columns])
    if len(table) != alphas * seeds or len(set(halves)) < 2:
        return None
    return table.to_numpy().reshape(alphas, seeds, -1), halves


def half_of(example: str) -> int:
    """Return 0 or 1, by a hash of an example's id: the same halves on every machine, for every run."""
    return hashlib.blake2b(example.encode()).digest()[0] % 2


def _judged(
    grids: Mapping[str, Grid], halves: Mapping[str, Halves]
) -> dict[str, tuple[Grid, Grid, tuple[list[int], list[int]]]]:
    """Return by task the answers with its own and with the common alpha (seeds x examples), and which were chosen."""
    seeds = min((grid.shape[1] for grid in grids.values()), default=0)
    result: dict[str, tuple[Grid, Grid, tuple[list[int], list[int]]]] = {
        task: (np.zeros(grid.shape[1:])[:seeds], np.zeros(grid.shape[1:])[:seeds], ([], []))
        for task, grid in grids.items()
    }
    for seed in range(seeds):
        for half in (0, 1):
            means = {task: grid[:, seed, halves[task] != half].mean(axis=1) for task, grid in grids.items()}
            common = int(np.mean(list(means.values()), axis=0).argmax())
            for task, grid in grids.items():
                own, here = int(means[task].argmax()), halves[task] == half
                result[task][0][seed, here] = grid[own, seed, here]
                result[task][1][seed, here] = grid[common, seed, here]
                result[task][2][0].append(own)
                result[task][2][1].append(common)
    return result
