"""Table of the loss and the accuracy that each cache budget costs."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.names import TABLE_LABELS
from formerlab.report.studies import policy_comparison, pruning, questions
from formerlab.report.studies.questions import LOCAL_SUFFIX, SUITES
from formerlab.report.tables.blocks import in_words, side_by_side
from formerlab.results.read import Results

STUDY = "decay"
_SHOWN = ("H2O", "Decay 0.95, half recent", "Decay 0.2", "Decay 0.2, half recent", "TOVA")
_LONG_RUNS, _QUESTION_RUNS = "long-", ("released-", "budgets-")


def _losses(results: Results, runs: list[str]) -> DataFrame:
    """Return the increase of the perplexity over the full cache, in percent, by text, policy and budget."""
    long = [run for run in runs if run.startswith(_LONG_RUNS)]
    short = [run for run in runs if run not in long and not run.startswith("budgets-")]
    tables = []
    for names, length in ((short, ""), (long, ", windows of 2048 tokens")):
        if not names:  # a scale without long windows
            continue
        rows = policy_comparison.losses(results, STUDY, names, ("Full", *_SHOWN))
        rows["text"] = rows["text"].replace(TABLE_LABELS) + length
        for end in ("", "_low", "_high"):
            rows[f"perplexity_increase_percent{end}"] = 100 * np.expm1(rows[f"increase_nats{end}"])
        tables.append(rows)
    return pd.concat(tables, ignore_index=True)


def _answers(results: Results, runs: list[str]) -> DataFrame:
    """Return the accuracy minus the accuracy of the full cache by run, policy and budget, for the mean of the sets."""
    rows = questions.load_answers(results, STUDY, [run for run in runs if run.startswith(_QUESTION_RUNS)])
    rows = policy_comparison.labelled(rows, ("Full", *_SHOWN)).drop(columns="configuration")
    rows = rows[rows["task"].str.removesuffix(LOCAL_SUFFIX).isin(SUITES)]
    tables, full = [], rows["policy"].eq("full")
    for budget in rows.loc[~full, "budget"].unique():
        tables.append(questions.accuracies(rows[full | rows["budget"].eq(budget)]))
    table = pd.concat(tables, ignore_index=True) if tables else DataFrame(columns=["task", "policy"])
    table = table[table["task"].astype(str).str.startswith(questions.MEAN_LABEL) & table["policy"].ne("full")]
    table = table.rename(columns=lambda name: name.replace("difference", "minus_full"))
    table = table.rename(columns={"low": "accuracy_low", "high": "accuracy_high"})
    return table.drop_duplicates(["run", "configuration", "budget"])


def _prices(rows: DataFrame) -> dict[str, DataFrame]:
    """Return a block of perplexities by text, and a block of accuracies, each with a column per budget."""
    blocks, rank = {}, {name: place for place, name in enumerate(_SHOWN)}
    for heading, value, keys, unit in (
        ("perplexity above the perplexity with Full, %", "perplexity_increase_percent", ["text"], "of the tokens ↓"),
        ("accuracy minus Full, mean of the article's five sets", "minus_full", [], "(points) ↑"),
    ):
        shown = rows[rows[value].notna() & rows["policy"].ne("full")]
        shown = shown.assign(**{column: 100 * shown[column] for column in expand_columns("minus_full[]")})
        labels = {budget: f"{pruning.budget_text(budget)} {unit}" for budget in sorted(shown["budget"].unique())}
        table = side_by_side(shown, [*keys, "configuration"], shown["budget"].map(labels), value, labels.values())
        places = {text: place for place, text in enumerate(table["text"].unique())} if keys else {}
        order = table["configuration"].map(rank) + len(rank) * (table["text"].map(places) if keys else 0)
        blocks[heading] = table.loc[order.sort_values().index]
    return {heading: table for heading, table in blocks.items() if len(table)}


def _answer(rows: DataFrame) -> str:
    rows = rows[rows["configuration"].eq("H2O") & rows["text"].eq(TABLE_LABELS["books"])].sort_values("budget")
    words = [
        f"{in_words(row, 'perplexity_increase_percent')} % at {pruning.budget_text(row['budget'])}"
        for _, row in rows.iterrows()
    ]
    return f"With H2O, the perplexity of {TABLE_LABELS['books']} rises by {', '.join(words)}." if words else ""


@table(reads="prune.csv prune_questions.csv", runs="released-* budgets-* random-* novels-* tight-* wikitext-* long-*",
       needs="budgets-*", readers=_prices, answer=_answer,
       columns="source run text configuration policy budget realised_budget perplexity_increase_percent[] "
               "increase_nats[] accuracy[] minus_full[] windows questions")  # fmt: skip
def decay_budgets_table(results: Results, runs: list[str]) -> DataFrame:
    """What does each cache budget cost?

    - Perplexity and accuracy with a pruned cache compared with the full cache, by budget in percent of the tokens.
    - Brackets: 95 % interval over novels, windows or questions, for this one model.
    - Doubt: at 10 and 20 % 500 questions were asked, and at 10 % answers are at chance; empty cells were not run.
    """
    return pd.concat([_losses(results, runs), _answers(results, runs)], ignore_index=True)
