"""Write the verdicts as claims.csv, claims.html, and the block of docs/verdicts.md."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from pandas import DataFrame

from formerlab.files import write_text
from formerlab.report import pages
from formerlab.report.claims.registry import ClaimArms, read_claims
from formerlab.report.claims.verdict import Item, Outcome, Verdict, evaluate_results
from formerlab.report.names import RELEASED_NAMES
from formerlab.results.read import Results

KINDS = {"measured": "decided by trained models", "exact": "decided by arithmetic and algebra, without training"}
ORDER: tuple[Outcome, ...] = ("agrees", "contradicts", "cannot_tell", "not_tested", "holds", "fails")
RULES = (
    "Each claim was registered with its criterion; later changes are marked. A measured claim agrees or contradicts "
    "if its 95 % interval decides; otherwise we cannot tell. It is not tested if there is no run, or if our runs have "
    "numbers but do not meet a condition of the claim. Exact claims hold or fail."
)
CONDITION_NOT_MET = "not tested: condition not met"
SIGNS = {"agrees": "✔", "contradicts": "✘", "cannot_tell": "?", "not_tested": "-", "holds": "✔", "fails": "✘"}


def write_claims(results: Results, arms: Mapping[str, Mapping[str, ClaimArms]], out: Path) -> list[Path]:
    """Write claims.csv (all columns) and claims.html (for readers) into `out`; return their paths."""
    evaluated = evaluate_results(results, arms)
    paths = [out / "claims.csv", out / "claims.html"]
    write_text(paths[0], verdict_frame(evaluated).to_csv(index=False, lineterminator="\n"))
    write_text(paths[1], html(evaluated, results.scale))
    return paths


def verdict_frame(evaluated: Sequence[Verdict]) -> DataFrame:
    """Return a row per claim. A claim with several items has a row for the combined verdict, then a row per item."""
    rows = []
    for verdict in evaluated:
        claim, parts = verdict.claim, [(item.outcome, item, [item]) for item in verdict.items]
        joint = [(verdict.outcome, Item(claim, None, {}, None), [*verdict.items])] if len(parts) > 1 else []
        rows += [
            {
                "claim": claim.id,
                "kind": claim.kind,
                "headline": claim.headline,
                "item": item.item,
                "outcome": outcome,
                "verdict": verdict_text(outcome, verdict, items),
                "changed": read_claims().revisions(claim).note,
                "ours": item.ours,
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
            for outcome, item, items in [*joint, *parts]
        ]
    return DataFrame(rows)


def outcome_text(outcome: str, items: Iterable[Item]) -> str:
    """Return an outcome of `items` in words; for not_tested with its cause, so that nobody takes it for a missing run
    beside a number.
    """
    if outcome != "not_tested":
        return outcome.replace("_", " ")
    measured = any(item.names for item in items if item.outcome == outcome)
    return CONDITION_NOT_MET if measured else "not tested: no run"


def verdict_text(outcome: str, verdict: Verdict, items: Iterable[Item]) -> str:
    """Return the outcome of `items` in words, with the scale or the model on which it was found."""
    word = outcome_text(outcome, items)
    if outcome == "not_tested" or verdict.claim.kind == "exact":
        return word
    if verdict.scale == "pretrained":
        models = [RELEASED_NAMES.get(next(filter(run.endswith, RELEASED_NAMES), ""), run) for run in verdict.runs]
        return f"{word} for {', '.join(dict.fromkeys(models))}"
    alone = max(item.seeds for item in verdict.items) == 1 and any(item.examples for item in verdict.items)
    qualifier = ", this model alone" if alone else ""
    qualifier += ", this held-out text alone" if any(item.one_text for item in verdict.counted) else ""
    tested = [item.item for item in verdict.counted if item.item]
    cases = f" ({', '.join(tested)})" if verdict.claim.criterion.combine == "tested" else ""
    return f"{word} at scale {verdict.scale}{cases}{qualifier}"


def html(evaluated: Sequence[Verdict], scale: str) -> str:
    """Return a page with all verdicts: the headline claims first, then the others by study."""
    registry = read_claims()
    notes = [f"Version {change.version} ({change.date}); known by then: {change.known}." for change in registry.changes]
    versions = " ".join([f"The registered claims are version {registry.version}.", *notes])
    parts = [pages.paragraph(text) for text in (RULES, versions, outcome_counts(evaluated))]
    groups: dict[str, list[Verdict]] = {}
    for verdict in sorted(evaluated, key=lambda each: (not each.claim.headline, [*KINDS].index(each.claim.kind))):
        title = f"{verdict.claim.study}, {verdict.claim.kind}: {KINDS[verdict.claim.kind]}"
        groups.setdefault("Headline claims" if verdict.claim.headline else title, []).append(verdict)
    for title, group in groups.items():
        parts += [pages.heading(title), pages.html_table(verdict_table(group))]
    return pages.html_page(f"Claims at scale {scale}", parts)


def best_verdicts(by_scale: Mapping[str, Sequence[Verdict]]) -> list[Verdict]:
    """Return one verdict per claim: from the first scale that tests it, otherwise from the first scale with numbers,
    otherwise from the first scale.
    """

    def rank(verdict: Verdict) -> int:
        return 0 if verdict.outcome != "not_tested" else 1 if any(item.names for item in verdict.items) else 2

    return [min(of_claim, key=rank) for of_claim in zip(*by_scale.values(), strict=True)]


def verdict_cards(by_scale: Mapping[str, Sequence[Verdict]]) -> str:
    """Return one card per claim as Markdown for docs/verdicts.md, sorted by verdict."""

    def title(verdict: Verdict) -> str:
        return f"{SIGNS[verdict.outcome]} {_sentence(outcome_text(verdict.outcome, verdict.items))}"

    once = sorted(best_verdicts(by_scale), key=lambda verdict: (ORDER.index(verdict.outcome), title(verdict)))
    parts = [RULES, outcome_counts(once)]
    for heading, group in groupby(once, key=title):
        parts += [f"### {heading}", "\n".join(map(verdict_card, group))]
    return "\n\n".join(parts)


def verdict_card(verdict: Verdict) -> str:
    """Return a claim as one Markdown list entry: statement, published, ours, why it is not tested, what was run."""
    cells, claim = _verdict_cells(verdict), verdict.claim
    keys = {"published": "published", "ours": "ours", "why": "why", "verdict": "word", "run": "what was run"}
    lines = [f"{name.capitalize()}: {cells[key].replace(chr(10), '. ')}" for name, key in keys.items() if cells[key]]
    p = f"; p after Holm's correction {cells['p (Holm)']}" if cells["p (Holm)"] else ""
    lines = [*map(pages.escape_markdown, lines), f"Registered as `{claim.id}`{pages.escape_markdown(p)}"]
    return f"- **{pages.escape_markdown(claim.statement)}**<br>{'<br>'.join(lines)}"


def outcome_counts(evaluated: Sequence[Verdict]) -> str:
    """Return the number of claims with each verdict in words, separately for measured and exact claims."""
    sentences = []
    for kind in KINDS:
        of_kind = [verdict for verdict in evaluated if verdict.claim.kind == kind]
        words = Counter(outcome_text(v.outcome, v.items) for v in sorted(of_kind, key=lambda v: ORDER.index(v.outcome)))
        listed = "; ".join(f"{word} {count}" for word, count in words.items())
        sentences += [f"Of {len(of_kind)} {kind} claims: {listed}."] if listed else []
    return " ".join(sentences)


def verdict_table(evaluated: Sequence[Verdict]) -> DataFrame:
    """Return a row per claim as text, without its columns that are empty in all rows."""
    table = DataFrame(map(_verdict_cells, evaluated))
    return table.drop(columns=[name for name in table if not table[name].any()])


def _verdict_cells(verdict: Verdict) -> dict[str, str]:
    claim, changed = verdict.claim, read_claims().revisions(verdict.claim).note
    items = [item for item in verdict.counted or verdict.items if item.values or item.reason]
    return {
        "claim": f"{claim.id}\n{claim.statement}",
        "published": claim.published,
        "ours": _our_numbers(verdict),
        "what was run": "\n".join(dict.fromkeys(item.ran for item in items if item.ran)),
        "word": verdict_text(verdict.outcome, verdict, verdict.items) + (f" [{changed}]" if changed else ""),
        "why": "\n".join(_reasons(items, claim.arms)),
        "p (Holm)": "" if verdict.holm_p is None else "< 0.001" if verdict.holm_p < 0.001 else f"{verdict.holm_p:.3f}",
        "source": claim.source,
        "runs": ", ".join(verdict.runs),
        "traps": "\n".join(claim.traps),
    }


def _our_numbers(verdict: Verdict) -> str:
    """Return each number of a claim behind its meaning, by item if there are several."""
    items = [item for item in verdict.items if item.values]
    parts = []
    for name in dict.fromkeys(name for item in items for name in item.values):
        texts = {item_name(item): item.values[name] for item in items}
        same = len({*texts.values()}) == 1 or len(verdict.items) == 1
        numbers = [*texts.values()][:1] if same else [f"{item} {text}" for item, text in texts.items()]
        parts.append(f"{verdict.claim.labels[name]}: {', '.join(numbers)}")
    return "; ".join(parts)


def _reasons(items: Sequence[Item], arms: Mapping[str, str]) -> list[str]:
    """Return each reason why items are not tested, with the items that it concerns if it does not concern all.

    The meaning of the arms that the reasons name in one word follows.
    """
    by_reason: dict[str, list[str]] = {}
    for item in items:
        for reason in filter(None, item.reason.split("; ")):
            by_reason.setdefault(reason, []).append(item_name(item))
    lines = [
        _sentence(reason if len(names) == len(items) else f"{', '.join(names)}: {reason}")
        for reason, names in by_reason.items()
    ]
    named = [f"'{arm}' = {text}" for arm, text in arms.items() if any(f"'{arm}'" in line for line in lines)]
    return [*lines, *([f"Arms: {'; '.join(named)}"] if named else [])]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def item_name(item: Item) -> str:
    """Return the name of an item in words; empty if the claim has no items."""
    return (item.item or "").replace("_", " ")


def compact_markdown_table(table: DataFrame) -> str:
    """Return a table as Markdown."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(pages.escape_markdown, line)) + " |" for line in lines)
