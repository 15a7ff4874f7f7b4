"""How each method divides its share of tokens, and what it really keeps (Decay article, Table 1)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._pruning import arms
from formerlab.results.read import Results

STUDY = "decay"
READS = ("prune.csv", "run.json")
RUNS = ("decoder",)
CAPTION = (
    "How the methods divide the tokens they may keep, after Table 1 of the Decay article (Full 100 %; H2O 20 % recent "
    "and 20 % selected; Decay 0 % and 40 %), and the realised budget: the share of keys and values held at the end, "
    "counted. One rounding for all: the total is rounded half up, the recent part down, the rest is selected. The "
    "query's own key comes on top. Comparisons are fair where realised budgets agree within 1 %; the official masks "
    "of H2O keep fewer keys, since their halves overlap."
)
RECENT = {"local": 1.0, "streaming_llm": 1.0, "full": None}
"""Recent share of policies that have no such setting: all but the sink."""


def table(results: Results) -> DataFrame:
    """Return a row per arm, and the published split."""
    ours = arms(results, STUDY, RUNS)
    if ours.empty:
        return _published()
    kinds = ours["policy"].str.split().str[0]
    recent = kinds.map(RECENT).where(kinds.isin(RECENT), ours["recent"].fillna(0.0))
    ours = ours.assign(recent_share=recent * ours["budget"], selected_share=(1 - recent) * ours["budget"])
    columns = [
        "source",
        "run",
        "arm",
        "budget",
        "recent_share",
        "selected_share",
        "realised_budget",
        "seeds",
        "windows",
    ]
    return pd.concat([ours.reindex(columns=columns), _published()], ignore_index=True)


def _published() -> DataFrame:
    rows = [("Full", 1.0, None, None), ("H2O", 0.4, 0.2, 0.2), ("Decay", 0.4, 0.0, 0.4)]
    table = DataFrame(rows, columns=["arm", "budget", "recent_share", "selected_share"])
    return table.assign(source="published", run="OPT-2.7B, LLaMA-2-7B-chat")
