"""The verdicts for people: claims.md, claims.html, the blocks of README.md and docs/verdicts.md, and what changed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from pandas import DataFrame

from formerlab.errors import UserError
from formerlab.files import replacing, write_text
from formerlab.report import pages
from formerlab.report.claims.registry import ClaimArms, read_claims
from formerlab.report.claims.table import frame, ours, verdicts, worded
from formerlab.report.claims.verdict import Outcome, Verdict
from formerlab.results.read import Results

KINDS = {"measured": "decided by trained models", "exact": "decided by arithmetic and algebra, without training"}
ORDER: tuple[Outcome, ...] = ("agrees", "contradicts", "cannot_tell", "not_tested", "holds", "fails")
COLUMNS, MORE = ("published", "ours", "what was run", "word"), ("source", "runs", "traps")
ABSENT = "not registered"
RULES = (
    "Each claim was registered with its criterion; what a later version changed is marked. A measured claim agrees or "
    "contradicts by its 95 % interval and a minimal effect; cannot tell is all else. Not tested: no rows, too few "
    "seeds, or runs of which the paper does not speak; the reason names the condition, and numbers that exist are "
    "shown. Exact claims hold or fail. p is that of `holds`, with Holm's correction for the headline claims that have "
    "a verdict at the scale."
)
FIRST_SCREEN = {
    "transformer-single-head-worse": "loss with one head minus with four, nats",
    "tokenformer-growth-beats-continuing": "loss grown minus trained on, nats",
    "tokenformer-continued-training-lower": "what tokens bring minus what padding brings at the last step, nats",
    "vision-matches-vit-equal-parameters": "log ratio of error rates (as good: at most 0.05)",
    "denseformer-better-at-equal-depth": "loss of plain minus 1x1, nats",
    "denseformer-gain-persists-with-training": "loss of plain minus 1x1 after eight times the tokens, nats",
    "decay-beats-h2o": "accuracy of Decay minus H2O",
    "decay-needs-no-recent-window": "accuracy lost by having no recent window, beyond a quarter of H2O's loss",
}
"""The claims on the first screen of the README, and what their first number is."""


def markdown(found: list[Verdict], scale: str) -> str:
    """Return all verdicts as Markdown, by paper below the headline claims."""
    parts = [f"# Claims at scale {scale}", *_head(found)]
    for title, group in _groups(found):
        parts += [f"## {title}", pipes(readable(group))]
    return "\n\n".join(parts) + "\n"


def html(found: list[Verdict], scale: str) -> str:
    """Return the same as a page, with sources, runs and traps."""
    parts = [pages.paragraph(text) for text in _head(found)]
    for title, group in _groups(found):
        parts += [pages.heading(title), pages.table(readable(group, more=True))]
    return pages.page(f"Claims at scale {scale}", parts)


def _head(found: Sequence[Verdict]) -> list[str]:
    """Return the rules, what later versions of the claims changed and what was known by then, and the counts."""
    registry = read_claims()
    notes = [f"Version {change.version} ({change.date}); known by then: {change.known}." for change in registry.changes]
    return [RULES, " ".join([f"The registered claims are version {registry.version}.", *notes]), counts(found)]


def _groups(found: list[Verdict]) -> list[tuple[str, list[Verdict]]]:
    """Return headline claims, then the others by kind and paper, in the order of the registry."""
    others = [verdict for verdict in found if not verdict.claim.headline]
    groups = {"Headline claims": [verdict for verdict in found if verdict.claim.headline]}
    for kind, meaning in KINDS.items():
        for study in dict.fromkeys(verdict.claim.study for verdict in others):
            of_kind = [v for v in others if (v.claim.study, v.claim.kind) == (study, kind)]
            groups[f"{study}, {kind}: {meaning}"] = of_kind
    return [(title, verdicts) for title, verdicts in groups.items() if verdicts]


def best(found: Mapping[str, Sequence[Verdict]]) -> list[Verdict]:
    """Return every claim once: from the first scale that tests it, else the first with numbers, else the first."""

    def rank(verdict: Verdict) -> int:
        return 0 if verdict.outcome != "not_tested" else 1 if any(item.values for item in verdict.items) else 2

    columns = zip(*found.values(), strict=True)
    return [min(of_claim, key=rank) for of_claim in columns]


def first_screen(found: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the claims of FIRST_SCREEN in a line each; `found` is by scale."""
    by_id = {verdict.claim.id: verdict for verdict in best(found)}
    rows = []
    for name, meaning in FIRST_SCREEN.items():
        verdict = by_id[name]
        deciding = [item for item in verdict.items if item.outcome == verdict.outcome and item.values]
        number = next(iter(deciding[0].values.values())).partition(" (SD")[0] if deciding else ""
        reason = deciding[0].reason.partition(";")[0] if deciding else ""
        word = f"**{verdict.outcome.replace('_', ' ')}**" + (f": {reason}" if reason else "")
        ran = deciding[0].ran if deciding else ""
        published = verdict.claim.published.partition(";")[0]
        rows.append((verdict.claim.statement, published, f"{meaning}: {number}", ran, word))
    return pipes(DataFrame(rows, columns=["claim", *COLUMNS]), bold=False)


def all_block(found: Mapping[str, Sequence[Verdict]], testable: Mapping[str, Sequence[str]]) -> str:
    """Return every claim once as Markdown for docs/verdicts.md, with the scales that have all its arms.

    Below stand the verdicts that new definitions alone changed, as they were registered with them.
    """
    once = sorted(best(found), key=lambda verdict: ORDER.index(verdict.outcome))
    parts = [RULES, counts(once)]
    for kind, meaning in KINDS.items():
        group = [verdict for verdict in once if verdict.claim.kind == kind]
        table = readable(group)
        if kind == "measured":
            scales = [", ".join(testable.get(verdict.claim.id, ())) or "none yet" for verdict in group]
            table = table.assign(**{"scales with all arms": scales})
        parts += [f"### {kind}: {meaning}", pipes(table)]
    return "\n\n".join(parts)


def counts(found: Sequence[Verdict]) -> str:
    """Return how many claims have which verdict; what models decide and what arithmetic decides are never added up."""
    sentences = []
    for kind in KINDS:
        words = Counter(verdict.outcome for verdict in found if verdict.claim.kind == kind)
        listed = ", ".join(f"{word.replace('_', ' ')} {words[word]}" for word in ORDER if words[word])
        sentences += [f"Of {words.total()} {kind} claims: {listed}."] if listed else []
    return " ".join(sentences)


def readable(found: Sequence[Verdict], *, more: bool = False) -> DataFrame:
    """Return a row per claim as text; p where any of them has one, no column that is empty, and `more` on request."""
    table = DataFrame([_row(verdict) for verdict in found], columns=["claim", *COLUMNS, "p (Holm)", *MORE])
    empty = [name for name in ("what was run", "p (Holm)") if not table[name].any()]
    return table.drop(columns=[*empty, *(() if more else MORE)])


def _row(verdict: Verdict) -> tuple[str, ...]:
    claim, changed = verdict.claim, read_claims().changed(verdict.claim)
    shown = [item for item in verdict.counted or verdict.items if item.values or item.reason]
    reasons = dict.fromkeys(item.reason for item in shown if item.reason)
    word = worded(verdict.outcome, verdict) + (f": {' / '.join(reasons)}" if reasons else "")
    named = len(verdict.items) > 1
    return (
        f"{claim.id}\n{claim.statement}",
        claim.published,
        "\n".join(f"{item.item}: " * named + ours(item) for item in verdict.items if item.values),
        "\n".join(dict.fromkeys(item.ran for item in shown if item.ran)),
        word + (f"\n[{changed}]" if changed else ""),
        "" if verdict.holm_p is None else f"{verdict.holm_p:.3g}",
        *(claim.source, ", ".join(verdict.runs), "\n".join(claim.traps)),
    )


def pipes(table: DataFrame, *, bold: bool = True) -> str:
    """Return a table as Markdown; the first line of its first column is bold."""
    first = table.columns[0]
    if bold:
        table = table.assign(**{first: table[first].str.replace(r"^(.*)", r"**\1**", n=1, regex=True)})
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(pages.markdown, line)) + " |" for line in lines)


def changes(then: DataFrame, now: DataFrame) -> DataFrame:
    """Return a row per claim and item whose verdict is another in two files claims.csv: then, now, and both numbers.

    A claim, or an item, that one of them lacks counts as not registered there.
    """
    key = ["claim", "item"]
    both = [rows[[*key, "kind", "verdict", "ours"]].fillna("").drop_duplicates(key) for rows in (then, now)]
    table = both[0].merge(both[1], on=key, how="outer", suffixes=("_then", "_now"))
    table["kind"] = table["kind_now"].fillna(table["kind_then"])
    table = table.rename(columns={"verdict_then": "then", "verdict_now": "now"}).fillna({"then": ABSENT, "now": ABSENT})
    shown = table[table["then"] != table["now"]].fillna("")
    shown = shown.sort_values(["kind", *key], ascending=[False, True, True])
    return shown[[*key, "kind", "then", "now", "ours_then", "ours_now"]].reset_index(drop=True)


def read_verdicts(path: Path) -> DataFrame:
    """Return the rows of a claims.csv. Raises UserError where it is not such a file."""
    try:
        return pd.read_csv(path, dtype=str, usecols=["claim", "item", "kind", "verdict", "ours"])
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: cannot be read ({reason}); name a claims.csv, which claims --out writes") from None


def write_claims(results: Results, arms: Mapping[str, Mapping[str, ClaimArms]], out: Path) -> list[Path]:
    """Write claims.csv (everything), claims.md and claims.html (for people) into `out`; return their paths."""
    found = verdicts(results, arms)
    paths = [out / f"claims.{ending}" for ending in ("csv", "md", "html")]
    with replacing(paths[0]) as temporary:
        frame(found).to_csv(temporary, index=False, lineterminator="\n")
    write_text(paths[1], markdown(found, results.scale))
    write_text(paths[2], html(found, results.scale))
    return paths
