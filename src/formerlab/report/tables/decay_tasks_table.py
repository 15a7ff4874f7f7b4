"""Alpha chosen per suite against one alpha for all suites, each judged on the other half of the questions."""

import numpy as np
from pandas import DataFrame

from formerlab.report.figures._questions import answers, title
from formerlab.report.two_fold import Grid, Halves, half_of, judged
from formerlab.results.read import Results
from formerlab.statistics import bootstrap_means, interval_over, over_examples

STUDY = "decay"
READS = ("prune_questions.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "Does it pay to choose alpha per task? The questions of every suite are halved by a hash of their ids. Of each "
    "half, own is the alpha of the best accuracy on the other half of the same suite, common the one of the best mean "
    "over the other halves of all suites; both are judged where they were not chosen, per model. gain is own minus "
    "common with its 95 % interval over questions and seeds. Reading the best alpha off the curve "
    "itself would make it differ between tasks by chance. The grid is that of the sweep, without a recent part."
)


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
        grids, halves = ({task: pair[part] for task, pair in tasks.items()} for part in (0, 1))
        answered = judged(grids, halves)
        for task, (own, common, *places) in answered.items():
            gain = over_examples(own - common)
            row = {"source": "ours", "run": run, "budget": budget, "task": title(task)}
            row |= {"own alphas": ", ".join(sorted({f"{alphas[place]:g}" for place in places[0]}))}
            row |= {"common alphas": ", ".join(sorted({f"{alphas[place]:g}" for place in places[1]}))}
            row |= {"acc_own": own.mean(), "acc_common": common.mean(), "gain": gain.mean}
            found.append(
                row | {"gain_low": gain.low, "gain_high": gain.high, "seeds": len(own), "questions": own.shape[1]}
            )
        if answered:
            gains = [own - common for own, common, *_ in answered.values()]
            of_seeds = np.mean([gain.mean(axis=1) for gain in gains], axis=0)
            drawn = np.mean([bootstrap_means(gain, random_seed=place) for place, gain in enumerate(gains)], axis=0)
            mean = interval_over(of_seeds, drawn, sum(gain.shape[1] for gain in gains))
            row = {"source": "ours", "run": run, "budget": budget, "task": "mean of these", "gain": mean.mean}
            found.append(row | {"gain_low": mean.low, "gain_high": mean.high})
    return DataFrame(found) if found else DataFrame(columns=["source"])


def _grid(block: DataFrame) -> tuple[Grid, Halves] | None:
    """Return answers (alphas x seeds x examples) and the half of each example; none where some are missing."""
    table = block.pivot_table("value", ["alpha", "seed"], "example").dropna(axis=1).sort_index()
    alphas = table.index.get_level_values("alpha").nunique()
    seeds = table.index.get_level_values("seed").nunique()
    halves = np.array([half_of(str(example)) for example in table.columns])
    if len(table) != alphas * seeds:
        return None
    return table.to_numpy().reshape(alphas, seeds, -1), halves
