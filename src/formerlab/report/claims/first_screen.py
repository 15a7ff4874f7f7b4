"""The table of ten claims in README.md: one plain sentence and one number for each."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pandas import DataFrame

from formerlab.report.claims.registry import read_claims
from formerlab.report.claims.render import ORDER, SIGNS, best, item_name, pipes
from formerlab.report.claims.verdict import Item, Verdict


def _percent(value: float) -> float:
    return 100 * value


class Line(NamedTuple):
    """A claim in the table of the README, in plain words. `ours` has the unit of `published`."""

    claim: str
    number: str
    """The compared number, with its unit."""
    claimed: str
    """The range of the number in which the claim agrees."""
    published: str
    format: str = ".3f"
    convert: Callable[[float], float] = float
    """Converts a value of the criterion to the shown unit."""


FIRST_SCREEN = {
    "vision-matches-vit-equal-parameters": Line(
        "A Tokenformer classifies images as well as a vision Transformer (ViT) of equal size.",
        "error rate of Tokenformer / error rate of ViT", "≤ 1.05", "1.01", ".2f", math.exp),
    "denseformer-gain-persists-with-training": Line(
        "Averages over depth still help after eight times the training.",
        "loss of the plain model - loss of DenseFormer, nats", "> 0", "0.042"),
    "decay-needs-no-recent-window": Line(
        "Decay needs no part of the cache for recent tokens.",
        "accuracy lost by dropping that part: Decay's minus a quarter of H2O's, points", "≤ 0", "no number", ".1f",
        _percent),
    "tokenformer-growth-saves-cost": Line(
        "Growing a Tokenformer costs at most half of a Transformer from scratch with equal loss.",
        "training FLOPs of all stages / FLOPs from scratch", "≤ 0.5", "0.41", ".1f"),
    "tokenformer-continued-training-lower": Line(
        "On new text, growth by parameter tokens ends lower than growth in width (Net2Net).",
        "gain by tokens - gain in width, nats", "> 0", "no number"),
    "decay-beats-h2o": Line(
        "With 40 % of the cache, Decay answers more questions than H2O.",
        "accuracy of Decay - accuracy of H2O, points", "> 0", "4.0", ".1f", _percent),
    "transformer-single-head-worse": Line(
        "One attention head is worse than eight.", "loss with one head - loss of the base model, nats", "> 0",
        "0.073"),
    "tokenformer-growth-beats-continuing": Line(
        "For equal FLOPs, growing a Tokenformer beats training it further.",
        "loss grown - loss trained further, nats, by length of the stage", "< 0", "no such comparison"),
    "tokenformer-growth-equal-total-flops": Line(
        "For equal FLOPs, growth is as good as the same Tokenformer from scratch.",
        "loss grown - loss from scratch, nats", "≤ 0.02", "no such comparison"),
    "denseformer-better-at-equal-depth": Line(
        "DenseFormer has a lower loss than a plain model of equal depth.",
        "loss of the plain model - loss of DenseFormer, nats", "> 0", "0.042"),
}  # fmt: skip
"""The claims of the table in the README."""


def first_screen(by_scale: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the claims of FIRST_SCREEN as a Markdown table in the order of ORDER, given the verdicts by scale.

    † marks a claim whose verdict was altered when its criterion or statistics changed after results existed.
    """
    by_id = {verdict.claim.id: verdict for verdict in best(by_scale)}
    rows = []
    for name in sorted(FIRST_SCREEN, key=lambda name: ORDER.index(by_id[name].outcome)):
        verdict, line = by_id[name], FIRST_SCREEN[name]
        cases = verdict.claim.criterion.combine == "tested"  # then all items with numbers are shown
        items = [item for item in verdict.items if item.names and (cases or item.outcome == verdict.outcome)]
        numbers = [f"{item_name(item)} " * (len(items) > 1) + shown(item, line) for item in items]
        mark = " †" * read_claims().altered(verdict.claim)
        word = f"{SIGNS[verdict.outcome]} {verdict.outcome.replace('_', ' ')}{mark}"
        row = {"verdict": word, "claim": line.claim, "number": line.number, "claimed": line.claimed}
        rows.append(row | {"published": line.published, "ours": ", ".join(numbers)})
    return pipes(DataFrame(rows))


def shown(item: Item, line: Line) -> str:
    """Return the first number of a criterion with its interval, in the unit of the line."""
    interval = next(iter(item.names.values())).interval(item.confidence)
    mean, low, high = (f"{line.convert(end):z{line.format}}" for end in (interval.mean, interval.low, interval.high))
    return f"{mean} [{low}, {high}]"
