"""Write the verdicts as claims.csv, claims.html, and the blocks of README.md and docs/verdicts.md."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pandas import DataFrame

from formerlab.files import write_text
from formerlab.report import pages
from formerlab.report.claims.registry import ClaimArms, read_claims
from formerlab.report.claims.verdict import Item, Outcome, Verdict, verdicts
from formerlab.results.read import Results

KINDS = {"measured": "decided by trained models", "exact": "decided by arithmetic and algebra, without training"}
ORDER: tuple[Outcome, ...] = ("agrees", "contradicts", "cannot_tell", "not_tested", "holds", "fails")
RULES = (
    "Each claim was registered with its criterion; what a later version changed is marked. A measured claim agrees or "
    "contradicts by its 95 % interval and a minimal effect; cannot tell is all else. Not tested: no rows, too few "
    "seeds, or runs of which the paper does not speak; the reason names the condition, and numbers that exist are "
    "shown. Exact claims hold or fail. p is that of `holds`, with Holm's correction for the headline claims that have "
    "a verdict at the scale."
)
FIRST_SCREEN = {
    "transformer-single-head-worse": "loss with one head minus the base model, nats",
    "tokenformer-growth-beats-continuing": "nats grown minus continued, at 0.1, 0.4 and 0.8 of the parent's tokens",
    "tokenformer-growth-saves-cost": "FLOPs of the chain by those of a Transformer from scratch of equal loss",
    "tokenformer-growth-equal-total-flops": "nats grown minus from scratch",
    "tokenformer-continued-training-lower": "gain by tokens minus gain by padding, nats of validation text",
    "vision-matches-vit-equal-parameters": "log ratio of error rates (as good: at most 0.05)",
    "denseformer-better-at-equal-depth": "loss of plain minus 1x1, nats",
    "denseformer-gain-persists-with-training": "loss of plain minus 1x1 after eight times the tokens, nats",
    "decay-beats-h2o": "accuracy of Decay minus H2O",
    "decay-needs-no-recent-window": "accuracy lost by having no recent window, beyond a quarter of H2O's loss",
}
"""The claims of the table in the README, with the meaning of their first number."""


def write_claims(results: Results, arms: Mapping[str, Mapping[str, ClaimArms]], out: Path) -> list[Path]:
    """Write claims.csv (all columns) and claims.html (for readers) into `out`; return their paths."""
    judged = verdicts(results, arms)
    paths = [out / "claims.csv", out / "claims.html"]
    write_text(paths[0], frame(judged).to_csv(index=False, lineterminator="\n"))
    write_text(paths[1], html(judged, results.scale))
    return paths


def frame(judged: Sequence[Verdict]) -> DataFrame:
    """Return a row per claim. A claim with several items has a row for the combined verdict, then a row per item."""
    rows = []
    for verdict in judged:
        claim, parts = verdict.claim, [(item.outcome, item) for item in verdict.items]
        joint = [(verdict.outcome, Item(claim, None, {}, None))] if len(parts) > 1 else []
        rows += [
            {
                "claim": claim.id,
                "kind": claim.kind,
                "headline": claim.headline,
                "item": item.item,
                "outcome": outcome,
                "verdict": worded(outcome, verdict),
                "changed": read_claims().changed(claim),
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
            for outcome, item in [*joint, *parts]
        ]
    return DataFrame(rows)


def worded(outcome: str, verdict: Verdict) -> str:
    """Return the verdict in words, with the scale or the model on which it was found."""
    word = outcome.replace("_", " ")
    if outcome == "not_tested" or verdict.claim.kind == "exact":
        return word
    if verdict.scale == "pretrained":
        return f"{word} for {', '.join(verdict.runs)}"
    alone = max(item.seeds for item in verdict.items) == 1 and any(item.examples for item in verdict.items)
    qualifier = ", this model alone" if alone else ""
    qualifier += ", this held-out text alone" if any(item.one_text for item in verdict.counted) else ""
    tested = [item.item for item in verdict.counted if item.item]
    cases = f" ({', '.join(tested)})" if verdict.claim.criterion.combine == "tested" else ""
    return f"{word} at {verdict.scale}{cases}{qualifier}"


def html(judged: Sequence[Verdict], scale: str) -> str:
    """Return a page with all verdicts: the headline claims first, then the others by study."""
    registry = read_claims()
    notes = [f"Version {change.version} ({change.date}); known by then: {change.known}." for change in registry.changes]
    head = RULES, " ".join([f"The registered claims are version {registry.version}.", *notes]), counts(judged)
    parts = [pages.paragraph(text) for text in head]
    groups: dict[str, list[Verdict]] = {}
    for verdict in sorted(judged, key=lambda each: (not each.claim.headline, [*KINDS].index(each.claim.kind))):
        title = f"{verdict.claim.study}, {verdict.claim.kind}: {KINDS[verdict.claim.kind]}"
        groups.setdefault("Headline claims" if verdict.claim.headline else title, []).append(verdict)
    for title, group in groups.items():
        parts += [pages.heading(title), pages.table(readable(group))]
    return pages.page(f"Claims at scale {scale}", parts)


def best(by_scale: Mapping[str, Sequence[Verdict]]) -> list[Verdict]:
    """Return one verdict per claim: from the first scale that tests it, otherwise from the first scale with numbers,
    otherwise from the first scale.
    """

    def rank(verdict: Verdict) -> int:
        return 0 if verdict.outcome != "not_tested" else 1 if any(item.names for item in verdict.items) else 2

    return [min(of_claim, key=rank) for of_claim in zip(*by_scale.values(), strict=True)]


def first_screen(by_scale: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the claims of FIRST_SCREEN as a Markdown table in the order of ORDER; the verdicts are given by scale."""
    by_id = {verdict.claim.id: verdict for verdict in best(by_scale)}
    rows = []
    for name in sorted(FIRST_SCREEN, key=lambda name: ORDER.index(by_id[name].outcome)):
        verdict, meaning = by_id[name], FIRST_SCREEN[name]
        cases = verdict.claim.criterion.combine == "tested"  # then all items with numbers are shown
        items = [item for item in verdict.items if item.values and (cases or item.outcome == verdict.outcome)]
        named = len(items) > 1
        numbers = [f"{item.item} " * named + next(iter(item.values.values())).partition(" (SD")[0] for item in items]
        reasons = [item.reason.split("; ") for item in items if item.outcome == verdict.outcome]
        reason = min(reasons, key=len)[0] if reasons else ""  # the item with the fewest reasons is closest to a test
        changed = read_claims().changed(verdict.claim)
        word = f"**{verdict.outcome.replace('_', ' ')}**" + (f": {reason}" if reason else "")
        word += f"\n[{changed}]" if changed else ""
        row = {"claim": verdict.claim.statement, "published": verdict.claim.published.partition(";")[0]}
        ran = "\n".join(dict.fromkeys(item.ran for item in items))
        ours = f"{meaning}: {', '.join(numbers)}"
        rows.append(row | {"ours": ours, "what was run": ran, "word": word})
    return pipes(DataFrame(rows), bold=False)


def all_block(by_scale: Mapping[str, Sequence[Verdict]]) -> str:
    """Return one verdict per claim as Markdown for docs/verdicts.md."""
    once = sorted(best(by_scale), key=lambda verdict: ORDER.index(verdict.outcome))
    parts = [RULES, counts(once)]
    for kind, meaning in KINDS.items():
        table = readable([verdict for verdict in once if verdict.claim.kind == kind])
        parts += [f"### {kind}: {meaning}", pipes(table.drop(columns=["source", "runs", "traps"]))]
    return "\n\n".join(parts)


def counts(judged: Sequence[Verdict]) -> str:
    """Return the number of claims with each verdict in words, separately for measured and exact claims."""
    sentences = []
    for kind in KINDS:
        words = Counter(verdict.outcome for verdict in judged if verdict.claim.kind == kind)
        listed = ", ".join(f"{word.replace('_', ' ')} {words[word]}" for word in ORDER if words[word])
        sentences += [f"Of {words.total()} {kind} claims: {listed}."] if listed else []
    return " ".join(sentences)


def readable(judged: Sequence[Verdict]) -> DataFrame:
    """Return a row per claim as text. The columns `what was run` and `p (Holm)` are dropped if they are empty."""
    table = DataFrame(map(_row, judged))
    return table.drop(columns=[name for name in ("what was run", "p (Holm)") if not table[name].any()])


def _row(verdict: Verdict) -> dict[str, str]:
    claim, changed = verdict.claim, read_claims().changed(verdict.claim)
    items = [item for item in verdict.counted or verdict.items if item.values or item.reason]
    reasons = dict.fromkeys(item.reason for item in items if item.reason)
    word = worded(verdict.outcome, verdict) + (f": {' / '.join(reasons)}" if reasons else "")
    named = len(verdict.items) > 1
    return {
        "claim": f"{claim.id}\n{claim.statement}",
        "published": claim.published,
        "ours": "\n".join(f"{item.item}: " * named + item.ours for item in verdict.items if item.values),
        "what was run": "\n".join(dict.fromkeys(item.ran for item in items if item.ran)),
        "word": word + (f"\n[{changed}]" if changed else ""),
        "p (Holm)": "" if verdict.holm_p is None else "< 0.001" if verdict.holm_p < 0.001 else f"{verdict.holm_p:.3f}",
        "source": claim.source,
        "runs": ", ".join(verdict.runs),
        "traps": "\n".join(claim.traps),
    }


def pipes(table: DataFrame, *, bold: bool = True) -> str:
    """Return a table as Markdown; with `bold`, the first line of each cell in the first column is bold."""
    first = table.columns[0]
    if bold:
        table = table.assign(**{first: table[first].str.replace(r"^(.*)", r"**\1**", n=1, regex=True)})
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(pages.markdown, line)) + " |" for line in lines)
