"""Loss and accuracy of every policy at every budget (Decay article, Fig 4a and Table 2)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._pruning import ARM, arms, ordered
from formerlab.report.figures._questions import SUITES, counted
from formerlab.report.published import DECAY, published
from formerlab.report.tables._accuracy import CHANCE, accuracies
from formerlab.results.read import Results

STUDY = "decay"
READS = ("prune.csv", "prune_questions.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "Held-out perplexity and zero-shot accuracy of every eviction policy at every budget, after Fig. 4a and Table 2 "
    "of the Decay article (accuracies at 40 % of the tokens, zero-shot). Loss minus Full is paired: the same "
    "windows of the same model, with the 95 % interval over windows, and over seeds where there are several, in "
    "brackets (with one seed it speaks of this model alone). Compare policies at equal realised budget. "
    "After ±: one standard error over questions and seeds. The published models are OPT-2.7B and LLaMA-2-7B-chat on "
    "other questions."
)

_COLUMNS = (
    *("source", "run", "arm", "policy", "alpha", "recent", "budget", "realised_budget"),
    *("perplexity", "loss_nats", "increase_nats", "increase_nats_low", "increase_nats_high", "seeds", "windows"),
)


def table(results: Results) -> DataFrame:
    """Return a row per run and arm, then the published rows."""
    ours = arms(results, STUDY, RUNS)
    questions = results.rows("prune_questions.csv", STUDY, RUNS)
    if len(questions):
        scored = accuracies(counted(questions), ARM)
        guessing = scored["run"] == CHANCE
        arms_scored = scored[~guessing]
        ours = ours.merge(arms_scored.drop(columns="seeds"), on=ARM, how="outer") if len(ours) else arms_scored
        ours = pd.concat([ordered(ours), scored[guessing]], ignore_index=True).assign(source="ours")
    answers = [name for name in ours.columns if "(" in name or name == "questions"]
    columns = [*_COLUMNS, *answers]
    blocks = [block for block in (ours.reindex(columns=columns), _published()) if len(block)]
    return pd.concat(blocks, ignore_index=True)


def _published() -> DataFrame:
    rows = published(DECAY, "Fig 4a", "Table 2")
    order = [*(f"{suite}_acc" for suite in SUITES), "average"]
    rows = rows.assign(value=rows["value"].astype(float) / 100)
    wide = rows.pivot(index=["model", "setting"], columns="metric", values="value")
    wide = wide.reindex(pd.MultiIndex.from_frame(rows[["model", "setting"]].drop_duplicates()))[order]
    wide.columns = [f"{name} (published)" for name in order]
    return wide.reset_index().rename(columns={"model": "run", "setting": "arm"}).assign(source="published")
