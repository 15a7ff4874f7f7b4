"""Comparison of cache policies: loss minus the loss of H2O at the same budget, and needle-in-a-haystack accuracy."""

from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd
from pandas import DataFrame
from scipy.stats import binomtest

from formerlab.report.catalogue import expand_columns
from formerlab.report.studies.pruning import (
    CONFIGURATION,
    MINUS_H2O,
    configuration_label,
    on_common_windows,
    paired_losses,
    text_labels,
)
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE

POLICIES = (
    *("Full", "Ideal", "Decay 0.95, half recent", "Decay 0.2, half recent", "Decay 0.2", "H2O", "TOVA", "SnapKV"),
    *("StreamingLLM", "Random, protected", "Random", "Local", "H2O, budget by head", "H2O, budget by layer"),
    *("Decay 0.2, budget by head", "Decay 0.2, budget by layer"),
)
"""Labels of the compared configurations. Others are left out."""


NEEDLES = ("needle_single.csv", "needle_multikey.csv")
"""Files of a scale that `formerlab answer-tasks` writes for the model of the comparison."""
MIN_FULL_SCORE_PERCENT = 50.0
"""`long_context.MIN_FULL_SCORE` in percent. It is copied so that changes of the evaluation code do not make figures
stale; a test checks that both are equal."""
_SETTINGS = CONFIGURATION[1:]


def labelled(rows: DataFrame, policies: Sequence[str] | None = POLICIES) -> DataFrame:
    """Return the rows of the policies (None: all), with their label as `configuration`."""
    cells = rows[["policy", "alpha", "recent"]].drop_duplicates()
    cells["configuration"] = [configuration_label(*cell) for cell in cells.itertuples(index=False)]
    cells = cells[cells["configuration"].isin(policies)] if policies else cells
    return rows.merge(cells, on=["policy", "alpha", "recent"])


def losses(results: Results, study: str, runs: Sequence[str], policies: Sequence[str] | None = POLICIES) -> DataFrame:
    """Return one row per text, model (`run`), budget and policy; `policies` has the labels of the policies (None: all).
    The full cache is repeated for every budget.

    `increase_nats` is the loss minus the loss of the full cache, and `minus_h2o_nats` is the loss minus the loss of H2O
    (half recent) at the same budget. Both are paired on the windows on which both policies were evaluated, even if in
    different runs, and have 95 % intervals (`pruning.paired_losses`).
    """
    rows = results.rows("prune.csv", study, runs)
    texts = text_labels(results, study, runs)
    rows = rows.assign(text=rows["run"].map(texts), run=rows["run"].str.partition("-")[2])
    rows = labelled(rows, policies)
    rows = rows.drop_duplicates(["text", *CONFIGURATION, "seed", "window"])
    table, columns = [], ["text", "configuration", *CONFIGURATION]
    for _, group in rows.groupby(["text", "run"], sort=False):
        full = group["policy"] == "full"
        for budget in group.loc[~full, "budget"].unique():
            of_budget = group[full | group["budget"].eq(budget)].assign(budget=budget)
            arms = of_budget.drop_duplicates("configuration")[columns].to_dict("records")
            table += [arm | _differences(of_budget, arm["configuration"]) for arm in arms]
    columns += ["realised_budget", "seeds", "windows", "loss_nats", *expand_columns(f"increase_nats[] {MINUS_H2O}[]")]
    return DataFrame(table, columns=columns)


def _differences(rows: DataFrame, name: str) -> dict[Hashable, Any]:
    """Return the loss of a configuration and its paired differences to the full cache and to H2O; the difference to
    itself is 0.
    """
    row = dict[Hashable, Any]()
    for base, column in (("full", "increase_nats"), ("h2o", MINUS_H2O)):
        arm, columns = rows["configuration"] == name, expand_columns(f"{column}[]")
        pair = paired_losses(on_common_windows(rows[arm | rows["policy"].eq(base)]), ["run"], base, column)
        is_base = bool(rows.loc[arm, "policy"].eq(base).all())
        of_arm = pair[pair["policy"].eq(base) == is_base].iloc[0].drop(CONFIGURATION).to_dict()
        row |= of_arm | (dict.fromkeys(columns, 0.0) if is_base else {})
    return row


def needles(results: Results) -> DataFrame:
    """Return the percentage of needles that each policy finds, by task and budget, with the exact binomial interval.

    The full cache is repeated for every budget. The column `by_text` has a digit per example, 1 if the needle was
    found. The column `decides` is "no" for a task on which the full cache scores below MIN_FULL_SCORE_PERCENT, or was
    not measured: such a task is not used to compare policies.
    """
    files, records = [results.rows_of(file, "") for file in NEEDLES], []
    columns = [*_SETTINGS, "task", "configuration", *expand_columns("found_percent[]"), "examples", "by_text"]
    if any(len(rows) for rows in files):
        rows = pd.concat(files, ignore_index=True)
        rows = labelled(rows[rows["metric"] == "string_match"])
        for key, group in rows.groupby(columns[:6], sort=False, dropna=False):
            test = binomtest(int(group["value"].eq(1).sum()), len(group))
            low, high = test.proportion_ci(CONFIDENCE, method="exact")
            percents = {"found_percent": 100 * test.statistic, "found_percent_low": 100 * low}
            records.append(dict(zip(columns, key, strict=False)) | percents | {"found_percent_high": 100 * high})
            digits = "".join(
                group.sort_values("example", key=pd.to_numeric)["value"].eq(1).map({True: "1", False: "0"})
            )
            records[-1] |= {"examples": len(group), "by_text": digits}
    table = DataFrame(records, columns=columns)
    full, pruned = table[table["policy"] == "full"], table[table["policy"] != "full"]
    beside_each = full.drop(columns="budget").merge(pruned[["task", "budget"]].drop_duplicates(), on="task")
    table = pd.concat([beside_each, pruned], ignore_index=True)
    deciding = full.loc[full["found_percent"] >= MIN_FULL_SCORE_PERCENT, "task"]
    return table.assign(decides=table["task"].isin(deciding).map({True: "yes", False: "no"}))
