"""Table of the added perplexity and the lost accuracy at each cache budget."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.names import PRUNING_LABELS
from formerlab.report.studies import policy_comparison, pruning, questions
from formerlab.report.studies.questions import LOCAL_SUFFIX, SUITES
from formerlab.report.tables.cells import in_words, negated, side_by_side
from formerlab.results.read import Results

STUDY = "decay"
_POLICIES = ("H2O", "Decay 0.95, half recent", "Decay 0.2", "Decay 0.2, half recent", "TOVA", "Local")
_IN_CSV_ONLY = ("Full", "Decay 0.2, half recent", "TOVA")
_LONG_RUNS, _QUESTION_RUNS = "long-", ("released-", "budgets-")


def _losses(results: Results, runs: list[str]) -> DataFrame:
    """Return the increase of the perplexity over the full cache, in percent, by text, policy and budget."""
    long = [run for run in runs if run.startswith(_LONG_RUNS)]
    short = [run for run in runs if run not in long and not run.startswith("budgets-")]
    tables = []
    for names, length in ((short, ""), (long, " of 2,048 tokens")):
        if not names:  # a scale without long windows
            continue
        rows = policy_comparison.losses(results, STUDY, names, ("Full", *_POLICIES))
        windows = rows.groupby("text")["windows"].transform("max").map(", {:.0f} windows".format)
        rows["text"] = rows["text"].replace(PRUNING_LABELS) + windows + length
        rows["run"] = (_LONG_RUNS if length else "") + rows["run"]
        for end in ("", "_low", "_high"):
            rows[f"perplexity_increase_percent{end}"] = 100 * np.expm1(rows[f"increase_nats{end}"])
        tables.append(rows)
    return pd.concat(tables, ignore_index=True)


def _answers(results: Results, runs: list[str]) -> DataFrame:
    """Return the accuracy minus the accuracy of the full cache by run, policy and budget, for the mean of the sets."""
    rows = questions.load_answers(results, STUDY, [run for run in runs if run.startswith(_QUESTION_RUNS)])
    rows = policy_comparison.labelled(rows, ("Full", *_POLICIES)).drop(columns="configuration")
    rows = rows[rows["task"].str.removesuffix(LOCAL_SUFFIX).isin(SUITES)]
    tables, full = [], rows["policy"].eq("full")
    for budget in rows.loc[~full, "budget"].unique():
        tables.append(questions.accuracies(rows[full | rows["budget"].eq(budget)]))
    table = pd.concat(tables, ignore_index=True) if tables else DataFrame(columns=["task", "policy"])
    table = table[table["task"].astype(str).str.startswith(questions.MEAN_LABEL) & table["policy"].ne("full")]
    table = table.rename(columns=lambda name: name.replace("difference", "minus_full"))
    table = table.rename(columns={"low": "accuracy_low", "high": "accuracy_high"})
    return table.drop_duplicates(["run", "configuration", "budget"])


def _by_budget(rows: DataFrame) -> dict[str, DataFrame]:
    """Return a block of perplexities by text, and a block of accuracies, each with a column per budget."""
    rows, blocks = rows[~rows["configuration"].isin(_IN_CSV_ONLY)], dict[str, DataFrame]()
    rows = negated(rows, "minus_full", "lost")
    rows = rows.assign(**{column: 100 * rows[column] for column in expand_columns("lost[]")})
    for heading, value, keys, unit in (
        ("added perplexity, % of the perplexity with Full", "perplexity_increase_percent", ["text"], "of the tokens ↓"),
        ("accuracy that pruning loses, mean of five sets", "lost", [], "(points) ↓"),
    ):
        measured = rows[rows[value].notna()]
        if keys:  # Local adds 5 to 40 times as much perplexity as the others
            measured = measured[measured["configuration"].ne("Local")]
        labels = {budget: f"{pruning.budget_text(budget)} {unit}" for budget in sorted(measured["budget"].unique())}
        measured = measured.sort_values("configuration", key=lambda names: names.map(_POLICIES.index), kind="stable")
        if keys:
            texts = [*rows["text"].dropna().unique()]
            measured = measured.sort_values("text", key=lambda names: names.map(texts.index), kind="stable")
        names = measured["budget"].map(labels)
        keys = ["run", *keys] if keys else keys  # the run of a text, for its window length
        blocks[heading] = side_by_side(measured, [*keys, "configuration"], names, value, labels.values())
        if not keys:  # the size is measured after the answer, the budget is a fraction of the prompt
            sizes = measured.groupby("budget")["realised_budget"].mean()
            words = ", ".join(f"{100 * size:.1f} %" for size in sizes)
            asked = ", ".join(f"{questions:,.0f}" for questions in measured.groupby("budget")["questions"].max())
            blocks[f"{heading}\nMeasured cache sizes {words}; questions {asked}"] = blocks.pop(heading)
    return {heading: table for heading, table in blocks.items() if len(table)}


def _answer(rows: DataFrame) -> str:
    rows = rows[
        rows["configuration"].eq("H2O")
        & rows["text"].astype(str).str.fullmatch(rf"{PRUNING_LABELS['books']}, \d+ windows")
    ]
    rows = rows.sort_values("budget")
    words = [
        f"{in_words(row, 'perplexity_increase_percent')} % at {pruning.budget_text(row['budget'])}"
        for _, row in rows.iterrows()
    ]
    return f"With H2O, the perplexity of {PRUNING_LABELS['books']} rises by {', '.join(words)}." if words else ""


@table(reads="prune.csv prune_questions.csv", runs="released-* budgets-* random-* novels-* tight-* wikitext-* long-*",
       needs="budgets-*", readers=_by_budget, answer=_answer,
       columns="source run text configuration policy budget realised_budget perplexity_increase_percent[] "
               "increase_nats[] accuracy[] minus_full[] windows questions")  # fmt: skip
def decay_budgets_table(results: Results, runs: list[str]) -> DataFrame:
    """What does each cache budget cost?

    - Compared with the full cache, by budget in percent of the tokens. Sets: ARC-c, ARC-e, OpenBookQA, PIQA,
    WinoGrande.
    - Brackets: 95 % interval over novels, windows or questions, for this one model.
    - Doubt: at 10 and 20 % no accuracy is clearly above chance. Decay 0.95, half recent, was chosen by these losses.
    """
    return pd.concat([_losses(results, runs), _answers(results, runs)], ignore_index=True)
