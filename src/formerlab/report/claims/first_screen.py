"""The table of findings in README.md: for each claim a plain sentence, one number, and the main objection."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pandas import DataFrame

from formerlab.report.claims.registry import read_claims
from formerlab.report.claims.render import ORDER, SIGNS, best_verdicts, compact_markdown_table, item_name, outcome_text
from formerlab.report.claims.verdict import Item, Verdict


def _percent(value: float) -> float:
    return 100 * value


class TableLine(NamedTuple):
    """A claim in the table of the README, in plain words. `ours` has the unit of `published`."""

    claim: str
    number: str
    """The number that decides, with the range in which the claim agrees."""
    published: str
    objection: str
    """The main reason for which the paper's author could dispute our number; the unmet conditions if there are any."""
    unit: str = "nats"
    """Unit behind our number; a difference in nats is shown in percent of the perplexity too."""
    format: str = ".3f"
    convert: Callable[[float], float] = float
    """Converts a value of the criterion to the shown unit."""


FIRST_SCREEN = {
    "vision-matches-vit-equal-parameters": TableLine(
        "A Tokenformer classifies images as well as a vision Transformer (ViT) of equal size.",
        "error rate of Tokenformer / error rate of ViT; claimed: at most 1.05", "1.01 (B/16), 0.98 (L/16)",
        "Ten epochs of CIFAR-10 (accuracy 65.9 against 64.4 %) measure how fast a model learns. By the condition on "
        "learning rates that holds for language models this would be not tested.",
        "", ".2f", math.exp),
    "tokenformer-worse-than-modern-transformer": TableLine(
        "At equal size, a Tokenformer is slightly worse than a modern Transformer (a third party's claim).",
        "loss of Tokenformer - loss of a Transformer with RMSNorm, SwiGLU and rotary positions; claimed: above 0",
        "0.024 nats (124 M parameters)",
        "The interval of these three seeds alone includes zero. After eight times the tokens the Tokenformer's mean "
        "loss is lower."),
    "denseformer-gain-persists-with-training": TableLine(
        "DenseFormer's averages over earlier blocks still help after eight times the training (our own claim).",
        "loss of the plain model - loss of DenseFormer, 8 blocks; claimed: above 0", "0.042 nats (48 blocks)",
        "The learning rates were searched on 6 % of the tokens; by the condition for 24 blocks this would be not "
        "tested. The test text is six books."),
    "tokenformer-growth-saves-cost": TableLine(
        "A Tokenformer and its growth cost at most half of a Transformer trained from scratch to the same loss.",
        "training FLOPs of all stages / FLOPs from scratch; claimed: at most 0.5",
        "0.41 (TPU hours, interpolated by us)",
        "The model before growth alone costs as much as the Transformer, so growth could not win here. The paper grew "
        "three times.", "times", ".1f"),
    "tokenformer-continued-training-lower": TableLine(
        "On new text, growth by parameter tokens ends lower than growth in width (Net2Net).",
        "gain by tokens - gain in width; claimed: above 0", "no number",
        "Growth in width costs more FLOPs for the same tokens. The reference model was changed when we knew that it "
        "favours Net2Net."),
    "decay-score-beats-protected-random": TableLine(
        "Eviction by score is clearly better than random eviction that protects the first and the most recent tokens "
        "(our own claim).",
        "loss with protected random eviction - loss with Decay; claimed: at least a quarter of the gap between "
        "unprotected random eviction and Decay (0.637, 0.370, 0.133)", "no such comparison",
        "Decay has the lower loss at every budget. The limit of a quarter is our own."),
    "decay-beats-h2o": TableLine(
        "With 40 % of the cache, Decay answers more questions than H2O.",
        "accuracy of Decay - accuracy of H2O; claimed: above 0", "4.0 points (OPT-2.7B)",
        "On three of the five question sets SmolLM2 is at chance; on the two others Decay is 0.4 and 1.3 "
        "points worse.", "points", ".1f", _percent),
    "tokenformer-growth-beats-continuing": TableLine(
        "For equal FLOPs, growing a Tokenformer beats training it further (our own claim).",
        "loss grown - loss trained further, after short, medium and long training (5, 20, 39 M tokens); claimed: "
        "below 0",
        "no such comparison",
        "Conditions not met: the rate of the long stage was searched on a quarter of it (half is needed); the parent "
        "hardly improves in the medium stage; the short stage is shorter than any published one."),
    "denseformer-better-at-equal-depth": TableLine(
        "DenseFormer has a lower loss than a plain model of equal depth.",
        "loss of the plain model - loss of DenseFormer, 24 blocks; claimed: above 0", "0.042 nats (48 blocks)",
        "Condition not met: the learning rates were searched on 26 % of the tokens (half is needed), and the gain "
        "depends on them."),
    "transformer-single-head-worse": TableLine(
        "One attention head is worse than eight.",
        "loss with one head - loss of the base model; claimed: above 0", "0.073 nats",
        "Conditions not met: all models were still learning, and our base model has four heads (eight are needed)."),
}  # fmt: skip
"""The claims of the table in the README."""


def first_screen(by_scale: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the claims of FIRST_SCREEN as a Markdown table in the order of ORDER, given the verdicts by scale.

    † marks a claim whose verdict was altered when its criterion or statistics changed after results existed.
    """
    by_id = {verdict.claim.id: verdict for verdict in best_verdicts(by_scale)}
    rows = []
    for name in sorted(FIRST_SCREEN, key=lambda name: ORDER.index(by_id[name].outcome)):
        verdict, line = by_id[name], FIRST_SCREEN[name]
        cases = verdict.claim.criterion.combine == "tested"  # then all items with numbers are shown
        items = [item for item in verdict.items if item.names and (cases or item.outcome == verdict.outcome)]
        numbers = [f"{_label(item)}: " * (len(items) > 1) + number_text(item, line) for item in items]
        mark = " †" * read_claims().altered(verdict.claim)
        rows.append({
            "verdict": f"{SIGNS[verdict.outcome]} {outcome_text(verdict.outcome, verdict.items)}{mark}",
            "claim, and the number that decides it": f"**{line.claim}**\n{line.number}",
            "ours": "\n".join(numbers),
            "published": line.published,
            "main objection": line.objection,
        })  # fmt: skip
    return compact_markdown_table(DataFrame(rows))


def _label(item: Item) -> str:
    return item_name(item).removeprefix("budget ").replace(" percent", " %")


def number_text(item: Item, line: TableLine) -> str:
    """Return the first number of a criterion with its interval, in the unit of the line; a difference in nats also as
    a difference of perplexity in percent.
    """
    interval = next(iter(item.names.values())).interval(item.confidence)
    mean, low, high = (f"{line.convert(end):z{line.format}}" for end in (interval.mean, interval.low, interval.high))
    text = f"{mean} [{low}, {high}] {line.unit}".rstrip()
    return f"{text} ({100 * math.expm1(interval.mean):+.1f} % perplexity)" if line.unit == "nats" else text
