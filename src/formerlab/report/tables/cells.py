"""Cells of tables: values side by side, pooled intervals, verdicts, values in words, n-gram baselines."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns
from formerlab.report.claims.arms import read_arms, registered_arms
from formerlab.report.claims.limits import limits_in_words, values_in_words
from formerlab.report.claims.quantity import Combination, MissingRowsError, Quantity
from formerlab.report.claims.registry import Arm, ClaimArms, read_claims
from formerlab.report.claims.render import outcome_text, reasons
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.claims.verdict import evaluate, exact_numbers
from formerlab.report.columns import MINUS, verdict_words
from formerlab.report.pages import format_table
from formerlab.report.runs import estimate, language_baselines, load_runs
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE, Interval


def side_by_side(
    rows: DataFrame, keys: list[str], labels: Series, value: str, among: Iterable[str] = (), *, pooled: bool = False
) -> DataFrame:
    """Return a row per combination of `keys`, with `value` and its interval ends in columns named by `labels`.

    `among` gives the order of the columns; by default the order of the rows. With `pooled`, the ends of the pooled
    interval are added.
    """
    table, ends = rows[keys].drop_duplicates(ignore_index=True), "[]+" if pooled else "[]"
    for label in among or labels.unique():
        names = (expand_columns(f"{name}{ends}") for name in (value, label.replace(" ", "~")))
        renamed = dict(zip(*names, strict=True))
        block = rows.loc[labels == label, [*keys, *(name for name in renamed if name in rows)]]
        table = pd.merge(table, block.rename(columns=renamed), on=keys, how="left")
    return table


def arm_runs(claim: str, scale: str, item: str | None = None) -> dict[str, str]:
    """Return the runs of the arms of a claim, or of an item of the claim, by arm; empty if none are registered."""
    return {name: str(arm.run) for name, arm in registered_arms(claim, scale).for_item(item).items()}


def with_pooled(
    rows: DataFrame, results: Results, study: str, a: str, b: str, name: str, metric: str = "loss_nats"
) -> DataFrame:
    """Return rows with the interval that verdicts use, as `<name>_pooled_low` and `<name>_pooled_high`.

    `a` and `b` are the columns with the names of the two runs, and `name` is the column of the difference, in nats
    (loss_nats) or points of accuracy (error_rate). The ends are NaN for published rows, for rows of single seeds, for
    rows without a difference, and if the runs share fewer than two seeds.
    """
    reader, sign = claim_rows(results, study), 1.0 if metric == "loss_nats" else -100.0
    mean = (rows.get("source", "ours") == "ours") & (rows.get("part", "mean") == "mean")
    differ = rows.get(name, Series(np.nan, rows.index)).notna() & rows[a].ne(rows[b]) & mean
    intervals = [
        pooled_estimate(reader, f"{name}_pooled", {first: sign, second: -sign}, metric)
        for first, second in rows.loc[differ, [a, b]].to_numpy()
    ]
    ends = [f"{name}_pooled_{end}" for end in ("low", "high")]
    return rows.join(DataFrame(intervals, rows.index[differ], ends))


@lru_cache(maxsize=4)
def _shared_rows(results: Results, study: str) -> dict[Any, Any]:
    """Return the cache of rows of a study, so that the claims of a table and of its notes read the rows once."""
    return {}


def claim_rows(results: Results, study: str, arms: ClaimArms | None = None) -> ClaimRows:
    """Return the rows of a study for the arms of a claim, or for `pooled_estimate`."""
    return ClaimRows(results, study, arms or ClaimArms(), _shared_rows(results, study))


def pooled_estimate(
    reader: ClaimRows,
    name: str,
    signs: Mapping[str, float],
    metric: str = "loss_nats",
    logarithm: bool = False,
    **arm: Any,
) -> dict[Any, Any]:
    """Return, as `name`, the sum over runs of sign * metric (or of its logarithm), with the interval that verdicts use.

    The result is empty if a run has no such metric.
    """
    try:
        terms = {
            reader.run_metric(Arm(run=run, **arm), metric, logarithm=logarithm): sign for run, sign in signs.items()
        }
    except MissingRowsError:
        return {}
    return estimate(name, Combination(terms).interval(CONFIDENCE))


def processor(device: str) -> str:
    """Return a short name of the processor in the column `device` of a record."""
    return device.replace("(R)", "").removesuffix(" Processor")


NEEDED_BLOCKS = r"Blocks of .*needed: at least (\d+)"
"""Matches the number of blocks in the reason of a claim that needs deeper models."""


class ClaimVerdict(NamedTuple):
    """The verdict on a claim, as tables and figures write it."""

    word: str
    """Verdict in words."""
    runs: frozenset[str]
    """Runs of the items that decide; empty if the claim is not tested."""
    reasons: tuple[str, ...] = ()
    """Conditions that are not met."""
    claim: str = ""
    """Statement of the claim, its limits and our values."""
    items: Mapping[str, str] = {}
    """Verdict in words by item."""
    quantity: str = ""
    """Label of the first quantity."""
    interval: Interval | None = None
    """Interval of the first quantity; None if it has no value or is a single number."""
    needed: str = ""
    """Limits that the quantities must meet."""
    quantities: Mapping[str, Quantity | float] = {}
    """Quantities of the first item, by name."""
    item_quantities: Mapping[str, Mapping[str, Quantity | float]] = {}
    """Quantities by item and name."""


def claim_verdicts(results: Results, study: str, *claims: str) -> dict[str, ClaimVerdict]:
    """Return the verdict on each claim, by default on all claims of the study with registered arms. The set of runs is
    empty if the claim is not tested.
    """
    arms = read_arms(Path(), results.scale).get(study, {})
    return {claim: _claim_verdict(results, study, claim, arms.get(claim)) for claim in claims or arms}


def claim_words(verdicts: Mapping[str, ClaimVerdict], names: Mapping[str, str]) -> str:
    """Return the verdicts on the claims of `names` after their short names: `a, b: agrees; c: no verdict`. Claims that
    are not tested are left out.
    """
    by_word = dict[str, list[str]]()
    for claim, name in names.items():
        by_word.setdefault(verdicts[claim].word, []).append(name)
    by_word.pop("not tested", None)
    return "; ".join(f"{', '.join(claims)}: {word}" for word, claims in by_word.items())


def _claim_verdict(results: Results, study: str, name: str, arms: ClaimArms | None) -> ClaimVerdict:
    claim = next((claim for claim in read_claims().claims if claim.id == name), None)
    if claim is None or (claim.kind == "measured" and arms is None):
        return ClaimVerdict("not tested", frozenset())
    rows = claim_rows(results, study, arms)
    verdict = evaluate(claim, rows, exact_numbers(results).get(claim.id, {}), results.scale)
    word = outcome_text(verdict.outcome, verdict.items).partition(":")[0]
    items = {item.item: outcome_text(item.outcome, [item]).partition(":")[0] for item in verdict.items if item.item}
    why = reasons([item for item in verdict.counted or verdict.items if item.texts])
    limits = limits_in_words(verdict.items)
    text = claim.statement.rstrip(".") + with_prefix(". Needed: ", limits)
    text += with_prefix(". Ours: ", values_in_words(verdict.items)) + "."
    name, value = next(iter(verdict.items[0].quantities.items()), ("", None))
    label, interval = claim.labels.get(name, name).partition(" | ")[0], None
    if isinstance(value, Quantity):
        interval = value.interval(CONFIDENCE)
    runs = set(verdict.runs if word != "not tested" else ())
    if verdict.counted and arms is not None:  # otherwise no item decides
        of_items, of_counted = (
            {arm.run for item in items for arm in arms.for_item(item.item).values()}
            for items in (verdict.items, verdict.counted)
        )
        runs -= of_items - of_counted
    by_item = {item.item: item.quantities for item in verdict.items if item.item}
    quantities = verdict.items[0].quantities
    return ClaimVerdict(word, frozenset(runs), tuple(why), text, items, label, interval, limits, quantities, by_item)


def with_verdicts(
    rows: DataFrame, results: Results, study: str, masks: Mapping[str, Any], mirrored: bool = False
) -> DataFrame:
    """Return rows with the verdicts on the claims that use the run of a row, in `verdict`: `agrees (<claim>)`, or
    `no verdict (<claim>): <first reason>`, separated by semicolons; and with the limits of these claims in `needed`
    (`needed_words`).

    `masks` maps each claim to a mask of candidate rows. A claim is shown in a candidate row if it uses the run of that
    row; an exact claim is shown in all of them. Tables for readers show a letter in place of the claim
    (`write.with_claim_letters`).
    """
    words, limits = Series("", rows.index), Series("", rows.index)
    for claim, verdict in claim_verdicts(results, study, *masks).items():
        used = rows["run"].isin(verdict.runs) | (verdict.word in ("holds", "fails"))  # exact claims use no runs
        words += (used & masks[claim]).map({True: f"; {verdict_cell(claim, verdict)}", False: ""})
        limits += (used & masks[claim]).map({True: f"; {needed_words(verdict, mirrored)}", False: ""})
    cells = {"verdict": words, "needed": limits}
    return rows.assign(**{name: text.str.removeprefix("; ").replace("", None) for name, text in cells.items()})


_SHORTER = {"an interval that ends at or below": "interval at most", "an interval that begins at or above":
            "interval at least", "an interval": "interval", "a mean of": "mean", " and ": ", "}  # fmt: skip
_MIRRORED = {"above": "below", "below": "above", "least": "most", "most": "least"}


def needed_words(verdict: ClaimVerdict, mirrored: bool = False) -> str:
    """Return the limits of a claim without the label of its quantity, such as `interval above 0, mean at least 0.2`.
    With `mirrored`, return the limits of the negative of the quantity, for tables that show b minus a where
    the claim has a minus b.
    """
    text = re.sub(" (nats|points|times)", "", verdict.needed.rpartition(": ")[2])
    for words, shorter in _SHORTER.items():
        text = text.replace(words, shorter)
    if mirrored:
        text = re.sub("above|below|least|most", lambda match: _MIRRORED[match[0]], text)
        text = re.sub(r"(?<= )(?=0\.\d|[1-9])", MINUS, text)
    return text


def verdict_cell(claim: str, verdict: ClaimVerdict) -> str:
    """Return the verdict on a claim as `with_verdicts` writes it."""
    return f"{verdict.word} ({claim})" + with_prefix(": ", next(iter(verdict.reasons), ""))


def in_words(row: "Series[Any]", name: str) -> str:
    """Return a value of a row with its interval as text, as tables show it, or "not known" if it is missing."""
    columns = [column for column in expand_columns(f"{name}[]+") if column in row]
    cells = format_table(DataFrame([row[columns]]))
    return str(cells.iloc[0, 0]) if cells.size else "not known"


def first_row(rows: DataFrame, **values: Any) -> "Series[Any] | None":
    """Return the first row with these values, or None."""
    matching = rows[rows[[*values]].eq(Series(values)).all(axis=1)]
    return matching.iloc[0] if len(matching) else None


def negated(rows: DataFrame, name: str, new: str) -> DataFrame:
    """Return rows with the column `new`, the negative of column `name`, and the ends of its intervals."""
    mean, low, high, *pooled = expand_columns(f"{name}[]+")
    swapped = zip(expand_columns(f"{new}[]+"), (mean, high, low, *pooled[::-1]), strict=True)
    return rows.assign(**{column: -rows[opposite] for column, opposite in swapped if opposite in rows})


def answer_word(row: "Series[Any]") -> str:
    """Return the verdict of a row as the answer to the question of a table."""
    words = {"agrees": "Yes", "holds": "Yes", "contradicts": "No", "fails": "No"}
    return words.get(verdict_words(row["verdict"]), "We cannot tell")


def with_verdict(row: "Series[Any]") -> str:
    """Return the verdict of a row in round brackets, or "" if no claim uses the row."""
    return f" ({words})" if (words := verdict_words(row["verdict"])) else ""


def ngrams(results: Results, study: str, runs: Sequence[str]) -> DataFrame:
    """Return the language baselines of these runs, and the 5-gram models of their data sets from other studies."""
    names = "5-gram on " + load_runs(results, study, runs)["data.name"]
    others = [other for other in ("denseformer", "tokenformer") if other != study and len(results.runs(other))]
    shared = [
        rows[rows["run"].isin(names)] for other in others if len(rows := language_baselines(results, other, ["*"]))
    ]
    return pd.concat([language_baselines(results, study, runs), *shared]).drop_duplicates("run")


def ngram_levels(rows: DataFrame) -> str:
    """Return the perplexities of the 5-gram models among labelled rows (`write.with_labels`) in words, or ""."""
    named = rows[rows["variant"].astype(str).str.startswith("5-gram")]
    levels = ", ".join(f"{row.perplexity:.1f} on {row.regime}" for row in named.itertuples())
    return f"a 5-gram model has perplexity {levels}" if levels else ""


def with_prefix(prefix: str, text: str) -> str:
    """Return the text after the prefix, or "" if the text is empty."""
    return prefix + text if text else ""
