"""The verdicts for people: claims.md, claims.html, and the blocks of README.md and docs/verdicts.md."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from pandas import DataFrame

from formerlab.report import pages
from formerlab.report.claims.registry import read_claims
from formerlab.report.claims.table import frame, word_of
from formerlab.report.claims.verdict import ItemVerdict, Verdict

KINDS = {
    "measured": "decided by trained models",
    "exact": "decided by arithmetic and algebra, without training",
}
RULES = (
    "Each claim was registered with its criterion before the runs that decide it, but for what is marked. Holds and "
    "fails follow from the 95 % interval (Student's t over seeds; of policies on the same models over seeds and "
    "examples together, or with one model over examples alone) and a minimal effect; undecided is all else; "
    "indicative: this scale shows numbers only; provisional: real data, but smaller than the claim asks; withdrawn: "
    "the rows turned out to be no evidence, for the reason given. p is that of `holds`, with Holm's correction for "
    "the headline claims that have a verdict at this scale."
)


def history() -> str:
    """Return what later versions of the registered claims changed, and what was known by then."""
    registry = read_claims()
    notes = [
        f"Version {change.version} ({change.date}) changed or added what is marked so; known by then: {change.known}."
        for change in registry.changes
    ]
    return " ".join([f"The registered claims are version {registry.version}.", *notes])


def markdown(found: list[Verdict], scale: str) -> str:
    """Return all verdicts as Markdown, by paper below the headline claims."""
    parts = [f"# Claims at scale {scale}", RULES, history(), counts(found)]
    for title, verdicts in _groups(found):
        parts += [f"## {title}", pipes(readable(verdicts))]
    return "\n\n".join(parts) + "\n"


def html(found: list[Verdict], scale: str) -> str:
    """Return the same as a page, with sources, runs and traps."""
    parts = [pages.paragraph(text) for text in (RULES, history(), counts(found))]
    for title, verdicts in _groups(found):
        more = DataFrame(
            {
                "source": [verdict.claim.source for verdict in verdicts],
                "runs": [", ".join(verdict.runs) for verdict in verdicts],
                "traps": ["\n".join(verdict.claim.traps) for verdict in verdicts],
            }
        )
        parts += [pages.heading(title), pages.table(pd.concat([readable(verdicts), more], axis=1))]
    return pages.page(f"Claims at scale {scale}", parts)


class OnFirstScreen(NamedTuple):
    """How a claim stands on the first screen of the README."""

    meaning: str
    """What its first number is, and the unit."""
    scales: tuple[str, ...] = ("overnight",)
    """The scales that may judge it, the best first."""


FIRST_SCREEN = {
    "transformer-single-head-worse": OnFirstScreen(
        "loss with one head minus with four, as the base model has here, nats"
    ),
    "transformer-dropout-helps": OnFirstScreen("loss without dropout minus with it, nats"),
    "tokenformer-growth-beats-continuing": OnFirstScreen(
        "loss of the grown model minus its parent's, trained on, nats (holds below zero)"
    ),
    "vision-matches-vit-equal-parameters": OnFirstScreen(
        "logarithm of Tokenformer's error rate over ViT's (holds at or below 0.05)"
    ),
    "denseformer-better-at-equal-depth": OnFirstScreen("loss of the plain stack minus DenseFormer's (1x1), nats"),
    "denseformer-sparse-keeps-the-gain": OnFirstScreen(
        "gain lost beyond the quarter that is allowed, nats (holds at or below zero)"
    ),
    "decay-beats-h2o": OnFirstScreen(
        "accuracy of Decay minus H2O, as a share of the questions", ("pretrained", "overnight")
    ),
    "decay-needs-no-recent-window": OnFirstScreen(
        "accuracy with half of the budget for recent tokens minus with none, less a quarter of what H2O loses against "
        "the whole cache, as a share of the questions (holds at or below zero)",
        ("pretrained", "overnight"),
    ),
}
"""Two claims of each paper for the first screen of the README."""


def first_screen(found: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the claims of FIRST_SCREEN in a line each, with a number that decides; `found` is by scale."""
    by_id = {scale: {verdict.claim.id: verdict for verdict in verdicts} for scale, verdicts in found.items()}
    statements = {claim.id: claim.statement for claim in read_claims().claims}
    rows = []
    for name, (meaning, scales) in FIRST_SCREEN.items():
        mine = [(scale, by_id[scale][name]) for scale in scales if scale in by_id]
        judged = [pair for pair in mine if pair[1].outcome != "not judged"] or mine[-1:]
        scale, outcome, number = scales[-1], "not judged", ""
        if judged:
            scale, verdict = judged[0]
            deciding = [item for item in verdict.items if item.outcome == verdict.outcome]
            shown = next((item for item in deciding if item.values), None)
            outcome = verdict.outcome
            number = f"{meaning}: {next(iter(shown.values.values()))}{_comparisons(verdict, shown)}" if shown else ""
        rows.append((outcome, statements[name], number, scale))
    return pipes(DataFrame(rows, columns=["verdict", "claim", "our number", "scale"]))


def _comparisons(verdict: Verdict, shown: ItemVerdict) -> str:
    """Return, where a claim asks for several comparisons, of which runs the number is, and what each comes to."""
    words = Counter(item.outcome for item in verdict.items if item.outcome != "not judged")
    listed = ", ".join(f"{word} {count}" for word, count in words.items())
    runs = f" ({', '.join(shown.runs)})" if shown.runs else ""
    return f"{runs}; of {words.total()} comparisons: {listed}" if words.total() > 1 else ""


NOTES = {
    "pretrained": "Nothing was trained: these are released models, which the verdict names, SmolLM2-135M-Instruct in "
    "the 4-bit weights of its package ([released.md](released.md)). There is one of each, so intervals are over "
    "questions or windows and speak of that model alone."
}
"""What a reader must know of a scale whose verdicts stand beside those of the largest."""


def all_block(found: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the verdicts by scale as Markdown for docs/verdicts.md: all of the first scale, the judged of others."""
    largest = next(iter(found))
    parts = [_whole_scale(found[largest], largest)]
    for scale in NOTES.keys() & found.keys() - {largest}:
        judged = [verdict for verdict in found[scale] if verdict.outcome != "not judged"]
        if measured := [verdict for verdict in judged if verdict.claim.kind == "measured"]:
            parts += [f"Scale `{scale}`. {counts(measured)} {NOTES[scale]}", pipes(_short(readable(measured)))]
    return "\n\n".join(parts)


def _whole_scale(found: Sequence[Verdict], scale: str) -> str:
    """Return the headline claims, what else has rows, and what has none."""
    shown = [verdict for verdict in found if not verdict.claim.headline and verdict.outcome != "not judged"]
    waiting = Counter(verdict.claim.study for verdict in found if verdict.outcome == "not judged")
    missing = ", ".join(f"{study} {count}" for study, count in waiting.items())
    parts = [
        f"Scale `{scale}`. {counts(found)}",
        f"{RULES} The registered claims are version {read_claims().version}; what it changed or added is marked so.",
        pipes(_short(readable([verdict for verdict in found if verdict.claim.headline]))),
    ]
    for kind, meaning in KINDS.items():
        if others := [verdict for verdict in shown if verdict.claim.kind == kind]:
            parts += [
                f"<details><summary>The other {len(others)} {kind} claims with rows here, {meaning}</summary>",
                pipes(_short(readable(others).drop(columns="published"))),
                "</details>",
            ]
    return "\n\n".join([*parts, f"Not judged here, for want of runs: {missing}."] if missing else parts)


def counts(found: Sequence[Verdict]) -> str:
    """Return how many claims have which verdict; what models decide and what arithmetic decides are never added up."""
    order = ("holds", "fails", "undecided", "indicative", "withdrawn", "not judged")
    sentences = []
    for kind in KINDS:
        words = Counter(word_of(verdict.outcome, verdict) for verdict in found if verdict.claim.kind == kind)
        listed = ", ".join(f"{word} {words[word]}" for word in order if words[word])
        sentences += [f"Of {words.total()} {kind} claims: {listed}."] if listed else []
    return " ".join(sentences)


def readable(found: Sequence[Verdict]) -> DataFrame:
    """Return a row per claim as text; p where any of them is a headline claim."""
    rows = [_row(verdict) for verdict in found]
    columns = ["claim", "verdict", "ours", "published", "n", "p (Holm)"]
    table = DataFrame(rows, columns=columns)
    return table if any(verdict.claim.headline for verdict in found) else table.drop(columns="p (Holm)")


def _short(table: DataFrame) -> DataFrame:
    """Return the table without conditions spelled out: claims.csv and claims.html have them."""
    shorter = table["verdict"].str.replace(r"requires [^\n]*\)", "what it requires is not met)", regex=True)
    return table.assign(verdict=shorter)


def _row(verdict: Verdict) -> dict[str, str]:
    claim, rows = verdict.claim, frame([verdict])
    reasons = [reason for reason in dict.fromkeys(rows["reason"]) if reason and verdict.outcome != "withdrawn"]
    ours = [
        (f"{item}: " if item else "") + text
        for item, text in zip(rows["item"].fillna(""), rows["ours"], strict=True)
        if text
    ]
    n = rows["seeds"].max()
    seeds = f"{n:.0f} seed{'' if n == 1 else 's'}" if rows["seeds"].notna().any() else ""
    examples = f", {rows['examples'].max():.0f} examples" if rows["examples"].notna().any() else ""
    first = rows.iloc[0]
    return {
        "claim": f"{claim.id}\n{claim.statement}",
        "verdict": first["verdict"] + (f" ({'; '.join(reasons)})" if reasons else "") + _mark(first["changed"]),
        "ours": "\n".join(ours),
        "published": claim.published,
        "n": seeds + examples,
        "p (Holm)": "" if verdict.holm_p is None else f"{verdict.holm_p:.3g}",
    }


def _mark(changed: str) -> str:
    """Return a second line that marks a claim whose criterion is younger than the rest."""
    return f"\n[{changed}]" if changed else ""


def pipes(table: DataFrame) -> str:
    """Return a table as Markdown; the first line of its first column is bold."""
    first = table.columns[0]
    table = table.assign(**{first: table[first].str.replace(r"^(.*)", r"**\1**", n=1, regex=True)})
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(pages.markdown, line)) + " |" for line in lines)


def _groups(found: list[Verdict]) -> list[tuple[str, list[Verdict]]]:
    """Return headline claims, then the others by kind and paper, in the order of the registry."""
    groups = [("Headline claims", [verdict for verdict in found if verdict.claim.headline])]
    others = [verdict for verdict in found if not verdict.claim.headline]
    for kind, meaning in KINDS.items():
        for study in dict.fromkeys(verdict.claim.study for verdict in others):
            of_kind = [v for v in others if (v.claim.study, v.claim.kind) == (study, kind)]
            groups.append((f"{study}, {kind}: {meaning}", of_kind))
    return [(title, verdicts) for title, verdicts in groups if verdicts]
