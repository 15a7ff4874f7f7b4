"""Write the verdicts as claims.csv, claims.html, and the block of docs/verdicts.md."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pandas import DataFrame

from formerlab.files import write_text
from formerlab.report import pages
from formerlab.report.claims.quantity import Quantity
from formerlab.report.claims.registry import ClaimArms, read_claims
from formerlab.report.claims.verdict import Item, Outcome, Verdict, evaluate_results
from formerlab.report.names import RELEASED_NAMES
from formerlab.results.read import Results

KINDS = {"measured": "about trained models", "exact": "proved or counted, without training"}
ORDER: tuple[Outcome, ...] = ("agrees", "contradicts", "cannot_tell", "not_tested", "holds", "fails")
RULES = (
    "Each claim was registered with its criterion; later changes are marked. A measured claim agrees if its 95 % "
    "interval meets the criterion, and contradicts if the interval meets the failure criterion; otherwise we cannot "
    'tell. "No verdict" means that we measured the quantity, but our runs do not meet a condition of the claim; "not '
    'tested" means that we did not measure it, as a run or a measurement is missing. Exact claims hold or fail.'
)
CONDITION_NOT_MET = "no verdict: condition not met"
NOT_MEASURED = "not tested: not measured"
ORIGINS = {"paper": "the four papers", "third-party": "third parties", "own": "our own"}
"""Origins of the claims about trained models."""


class Unit(NamedTuple):
    """Format of a quantity of a criterion, conversion from the unit of the rows, and suffix."""

    format: str
    convert: Callable[[float], float] = float
    suffix: str = ""


UNITS = {
    "nats": Unit(".3f", suffix=" nats"),
    "points": Unit(".1f", lambda fraction: 100 * fraction, " points"),
    "ratio": Unit(".2f", math.exp),
    "times": Unit(".2g", suffix=" times"),
    "BLEU": Unit(".1f", suffix=" BLEU"),
}
"""Units by the name after ` | ` in the labels of labels.yaml; `ratio` converts the logarithm of a ratio."""
SIGNS = {"agrees": "✔", "contradicts": "✘", "cannot_tell": "?", "not_tested": "○", "holds": "✔", "fails": "✘"}


ITEM_WORDS = {
    r"^(?:budget )?(\d+) percent|(\d+) percent": r"\1\2 %",
    r"^lm ": "",
    r"^scale ": "growth to ",
    r"(\d)m\b": r"\1M",
    r"^b16": "B/16",
    r"^l16": "L/16",
    r"^last k": "last four",
    r"^(books|web text) (\d+)$": r"\2 blocks, trained on \1",
}
"""Patterns in the names of items, with the words that replace them."""


def write_claims(results: Results, arms: Mapping[str, Mapping[str, ClaimArms]], out: Path) -> list[Path]:
    """Write claims.csv (all columns) and claims.html (for readers) into `out`; return their paths."""
    evaluated = evaluate_results(results, arms)
    paths = [out / "claims.csv", out / "claims.html"]
    write_text(paths[0], verdict_frame(evaluated).to_csv(index=False, lineterminator="\n"))
    write_text(paths[1], verdicts_page(evaluated, results.scale))
    return paths


def verdict_frame(evaluated: Sequence[Verdict]) -> DataFrame:
    """Return a row per claim. A claim with several items has a row for the combined verdict, then a row per item."""
    rows = []
    for verdict in evaluated:
        claim, by_item = verdict.claim, [(item.outcome, item, [item]) for item in verdict.items]
        combined = [(verdict.outcome, Item(claim, None, {}, None), [*verdict.items])] if len(by_item) > 1 else []
        rows += [
            {
                "claim": claim.id,
                "kind": claim.kind,
                "headline": claim.headline,
                "item": item.item,
                "outcome": outcome,
                "verdict": verdict_text(outcome, verdict, items),
                "changed": read_claims().revisions(claim),
                "ours": "; ".join(f"{name} = {text}" for name, text in item.texts.items()),
                "published": claim.published,
                "ran": item.ran,
                "seeds": item.seeds or None,
                "examples": item.examples or None,
                "reason": item.reason,
                "holm_p": verdict.holm_p,
                "runs": ", ".join(verdict.runs),
                "statement": claim.statement,
                "source": claim.source,
                "traps": " | ".join(claim.traps),
            }
            for outcome, item, items in [*combined, *by_item]
        ]
    return DataFrame(rows)


def outcome_text(outcome: str, items: Iterable[Item]) -> str:
    """Return an outcome of `items` in words. The text of `not_tested` names its cause, a missing
    measurement or an unmet condition.
    """
    if outcome != "not_tested":
        return outcome.replace("_", " ")
    measured = any(item.quantities for item in items if item.outcome == outcome)
    return CONDITION_NOT_MET if measured else NOT_MEASURED


def verdict_text(outcome: str, verdict: Verdict, items: Iterable[Item]) -> str:
    """Return the outcome of `items` in words, with the scale or the model on which the claim was evaluated."""
    word = outcome_text(outcome, items)
    if outcome == "not_tested" or verdict.claim.kind == "exact":
        return word
    if verdict.scale == "pretrained":
        models = [RELEASED_NAMES.get(next(filter(run.endswith, RELEASED_NAMES), ""), run) for run in verdict.runs]
        return f"{word} for {', '.join(dict.fromkeys(models))}"
    alone = max(item.seeds for item in verdict.items) == 1 and any(item.examples for item in verdict.items)
    qualifier = ", this model alone" if alone else ""
    qualifier += ", this held-out text alone" if any(item.few_documents for item in verdict.counted) else ""
    tested = [item_name(item) for item in verdict.counted if item.item]
    cases = f" ({', '.join(tested)})" if verdict.claim.criterion.combine == "tested" else ""
    return f"{word} at scale {verdict.scale}{cases}{qualifier}"


def verdicts_page(evaluated: Sequence[Verdict], scale: str) -> str:
    """Return a page with all verdicts: the headline claims first, then the others by kind and study."""
    registry = read_claims()
    notes = [
        f"Version {change.version} ({change.date}); results known at that date: {change.known}."
        for change in registry.changes
    ]
    versions = " ".join([f"The registered claims are version {registry.version}.", *notes])
    blocks = [pages.paragraph(text) for text in (RULES, versions, outcome_counts(evaluated))]
    groups: dict[str, list[Verdict]] = {}
    for verdict in sorted(evaluated, key=lambda each: (not each.claim.headline, [*KINDS].index(each.claim.kind))):
        title = f"{verdict.claim.study}, {verdict.claim.kind}: {KINDS[verdict.claim.kind]}"
        groups.setdefault("Headline claims" if verdict.claim.headline else title, []).append(verdict)
    for title, group in groups.items():
        table = DataFrame(map(_verdict_cells, group))
        empty = [name for name in table if not table[name].any()]
        blocks += [pages.heading(title), pages.html_table(table.drop(columns=empty))]
    return pages.html_page(f"Claims at scale {scale}", blocks)


def best_verdicts(by_scale: Mapping[str, Sequence[Verdict]]) -> list[Verdict]:
    """Return one verdict per claim: from the first scale that tests it, otherwise from the first scale with numbers,
    otherwise from the first scale.
    """

    def rank(verdict: Verdict) -> int:
        return 0 if verdict.outcome != "not_tested" else 1 if any(item.quantities for item in verdict.items) else 2

    return [min(of_claim, key=rank) for of_claim in zip(*by_scale.values(), strict=True)]


def verdict_cards(by_scale: Mapping[str, Sequence[Verdict]]) -> str:
    """Return one card per claim as Markdown for docs/verdicts.md, sorted by verdict."""

    def title(verdict: Verdict) -> str:
        return f"{SIGNS[verdict.outcome]} {_sentence(outcome_text(verdict.outcome, verdict.items))}"

    verdicts = sorted(best_verdicts(by_scale), key=lambda verdict: (ORDER.index(verdict.outcome), title(verdict)))
    blocks = [RULES, outcome_counts(verdicts), _counts_by_origin(verdicts)]
    for heading, group in groupby(verdicts, key=title):
        blocks += [f"### {heading}", "\n".join(map(verdict_card, group))]
    return "\n\n".join(blocks)


def verdict_card(verdict: Verdict) -> str:
    """Return a claim as one Markdown list entry.

    The entry has the statement, the published result, our result, the runs, the verdict, and the reason if the claim is
    not tested.
    """
    cells, claim = _verdict_cells(verdict), verdict.claim
    keys = {"published": "published", "ours": "ours", "run": "what was run", "verdict": "word", "why": "why"}
    lines = [f"{name.capitalize()}: {cells[key].replace(chr(10), '. ')}" for name, key in keys.items() if cells[key]]
    p = f"; p after Holm's correction {cells['p (Holm)']}" if cells["p (Holm)"] else ""
    note = f" ({cells['changed']})" if cells["changed"] else ""
    lines = [*map(pages.escape_markdown, lines), f"Registered as `{claim.id}`{pages.escape_markdown(note + p)}"]
    return f"- **{pages.escape_markdown(claim.statement)}**<br>{'<br>'.join(lines)}"


def outcome_counts(evaluated: Sequence[Verdict]) -> str:
    """Return the number of claims with each verdict in words, separately for measured and exact claims."""
    by_kind = [(KINDS[kind], [verdict for verdict in evaluated if verdict.claim.kind == kind]) for kind in KINDS]
    return " ".join(f"Of {len(group)} claims {title}: {count_outcomes(group)}." for title, group in by_kind if group)


def _counts_by_origin(evaluated: Sequence[Verdict]) -> str:
    """Return the number of claims about trained models with each verdict, by origin, as a list."""
    groups = {
        words: [verdict for verdict in evaluated if (verdict.claim.kind, verdict.claim.origin) == ("measured", origin)]
        for origin, words in ORIGINS.items()
    }
    lines = [f"- {words}, {len(group)} claims: {count_outcomes(group)}" for words, group in groups.items() if group]
    return "\n".join(["The claims about trained models, by origin:", "", *lines])


def count_outcomes(evaluated: Sequence[Verdict]) -> str:
    """Return the number of claims with each verdict, in the order of ORDER: "agrees 3; contradicts 1"."""
    in_order = sorted(evaluated, key=lambda verdict: ORDER.index(verdict.outcome))
    counts = Counter(outcome_text(verdict.outcome, verdict.items) for verdict in in_order)
    return "; ".join(f"{text} {count}" for text, count in counts.items())


def _verdict_cells(verdict: Verdict) -> dict[str, str]:
    claim = verdict.claim
    items = [item for item in verdict.counted or verdict.items if item.texts or item.reason]
    return {
        "claim": f"{claim.id}\n{claim.statement}",
        "published": claim.labels.get("published", claim.published),
        "ours": _our_numbers(verdict),
        "what was run": "\n".join(dict.fromkeys(item.ran for item in items if item.ran)),
        "word": verdict_text(verdict.outcome, verdict, verdict.items),
        "why": "\n".join(reasons(items)),
        "changed": read_claims().revisions(claim),
        "p (Holm)": "" if verdict.holm_p is None else "< 0.001" if verdict.holm_p < 0.001 else f"{verdict.holm_p:.3f}",
        "source": claim.source,
        "runs": ", ".join(verdict.runs),
        "traps": "\n".join(claim.traps),
    }


def _our_numbers(verdict: Verdict) -> str:
    """Return `label: value` for each quantity of a claim, with one value per item if the items differ."""
    items = [item for item in verdict.items if item.texts]
    numbers_by_name = []
    for name in dict.fromkeys(name for item in items for name in item.texts):
        texts = {item_name(item): in_unit(item, name) for item in items}
        same = len({*texts.values()}) == 1 or len(verdict.items) == 1
        numbers = [*texts.values()][:1] if same else [f"{item} {text}" for item, text in texts.items()]
        numbers_by_name.append(f"{verdict.claim.labels[name].partition(' | ')[0]}: {', '.join(numbers)}")
    return "; ".join(numbers_by_name)


def in_unit(item: Item, name: str) -> str:
    """Return a quantity of a criterion in the unit of its label, with an interval if it is measured."""
    unit, value = unit_of(item, name), item.quantities[name]
    interval = value.interval(item.confidence) if isinstance(value, Quantity) else None
    if not unit or (interval and not interval.known):
        return item.texts[name].partition(" (SD ")[0]
    form, convert, suffix = UNITS[unit]
    if interval is None:
        return f"{convert(value):{form}}{suffix}"
    low, high = (f"{convert(end):{form}}" for end in (interval.low, interval.high))
    return f"{convert(interval.mean):z{form}} [{low}, {high}]{suffix}"


def unit_of(item: Item, name: str) -> str:
    """Return the unit of a quantity: the unit of its label, or the first unit of the claim."""
    units = {key: label.partition(" | ")[2] for key, label in item.claim.labels.items() if key in item.quantities}
    return units.get(name) or next(filter(None, units.values()), "")


def reasons(items: Sequence[Item]) -> list[str]:
    """Return the reasons why items are not tested; names of items precede a reason that applies to some items only."""
    by_reason: dict[str, list[str]] = {}
    for item in items:
        text = re.sub(r"a planned run \([^)]*\)", "a planned run", item.reason)
        for arm, description in item.claim.arms.items():
            text = text.replace(f"'{arm.replace('_', ' ')}'", item.claim.labels.get(f"arm {arm}", description))
        for reason in filter(None, text.split("; ")):
            by_reason.setdefault(reason, []).append(item_name(item))
    return [
        _sentence(reason if len(names) == len(items) else f"{', '.join(names)}: {reason}")
        for reason, names in by_reason.items()
    ]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def item_name(item: Item) -> str:
    """Return the name of an item in words; empty if the claim has no items."""
    text = re.sub(r"(\d)_(\d+)b\b", r"\1.\2B", item.item or "").replace("_", " ")
    for pattern, words in ITEM_WORDS.items():
        text = re.sub(pattern, words, text)
    return text


def compact_markdown_table(table: DataFrame) -> str:
    """Return a table of text as Markdown, without padding and alignment."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(pages.escape_markdown, line)) + " |" for line in lines)
