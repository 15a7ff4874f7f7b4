"""The claims in README.md, with numbers from the committed rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pandas import DataFrame

from formerlab.report.claims.quantity import Quantity
from formerlab.report.claims.registry import read_claims
from formerlab.report.claims.render import (
    SIGNS,
    best_verdicts,
    compact_markdown_table,
    item_name,
    outcome_counts,
    outcome_text,
)
from formerlab.report.claims.verdict import Item, Verdict


def _percent(value: float) -> float:
    return 100 * value


def _perplexity(difference: float) -> float:
    """Convert a difference of losses in nats, A minus B, to the change of perplexity from B to A in percent."""
    return 100 * math.expm1(difference)


def _perplexity_of_gain(gain: float) -> float:
    """Convert a gain in nats, loss of B minus loss of A, to the change of perplexity from B to A in percent."""
    return _perplexity(-gain)


class ReadmeClaim(NamedTuple):
    """A claim in the README in plain words. Our numbers are converted to the unit of `published`."""

    claim: str
    number: str
    """The deciding metric, and the value that is needed for the claim to agree."""
    published: str
    objection: str
    """The main objection to our number; the unmet conditions if there are any."""
    convert: Callable[[float], float] = _perplexity
    """Converts a value of the criterion to the shown unit."""
    unit: str = " %"
    format: str = "+z.1f"
    folded: bool = False
    """Whether the claim is in the folded table of more claims."""


README_CLAIMS = {
    "vision-matches-vit-equal-parameters": ReadmeClaim(
        "A Tokenformer classifies images as well as a vision Transformer (ViT) of equal size.",
        "errors relative to the ViT, CIFAR-10; needed: the whole interval at most 1.05",
        "1.01 and 0.98 (ImageNet, 86 M and 307 M parameters)",
        "Ten epochs show which model learns faster. The learning rates were searched on two epochs, which our rule for "
        "growth and for 24 blocks would not accept.",
        math.exp, "", "z.2f"),
    "denseformer-better-at-equal-depth": ReadmeClaim(
        "Averages over all earlier blocks (DenseFormer) lower the loss at equal depth.",
        "perplexity, 24 blocks, 1.2 M parameters, 45 novels; needed: 0.7 % lower",
        "-2.6 % (24 blocks, books), -4.1 % (48 blocks)",
        "One text; the three tested seeds also chose the learning rates. The paper's main comparisons, with deeper "
        "models and at equal time, were not run.",
        _perplexity_of_gain),
    "tokenformer-continued-training-lower": ReadmeClaim(
        "On new text, growth by parameter tokens starts lower, falls faster and ends lower than growth in width "
        "(Net2Net).",
        "perplexity at the end, each relative to no growth; needed: lower",
        "lower (no number)",
        "It starts lower; whether it falls faster is open. The model that Net2Net enlarged had too high a learning "
        "rate, so it had more to gain.",
        _perplexity_of_gain),
    "tokenformer-zero-keys-default-tau": ReadmeClaim(
        "New parameter tokens with zero keys leave the output unchanged, with the paper's default scale of the scores.",
        "largest change of a logit, in standard deviations; needed: 0",
        "0 (\"perfectly resume the model state\")",
        "The paper's proof keeps the scale of the smaller model; then nothing changes. `formerlab.grow` does this by "
        "default.",
        float, "", "z.1f"),
    "decay-beats-h2o": ReadmeClaim(
        "With 40 % of the KV cache, Decay answers more questions than H2O.",
        "accuracy, SmolLM2-135M-Instruct with 4-bit weights; needed: 0.2 points",
        "4.0 points (OPT-2.7B)",
        "One small model, for which H2O loses only 1.2 points (paper: 5.9), so there was little to win back.",
        _percent, " points", "z.1f"),
    "tokenformer-growth-saves-cost": ReadmeClaim(
        "Growing a Tokenformer costs at most half of training a Transformer from scratch to the same loss.",
        "FLOPs of all training; needed: the whole interval at most 0.5",
        "0.40 to 0.42 times (TPU hours, interpolated by us)",
        "Condition not met: the model before growth already cost 89 % of our most expensive Transformer, so 0.5 was "
        "out of reach. The interval is partly extrapolated.",
        float, " times", "z.2g"),
    "denseformer-gain-persists-with-training": ReadmeClaim(
        "DenseFormer's averages still help after eight times as many training tokens (our own claim).",
        "perplexity, 8 blocks, 32 M tokens, six books; needed: 1.1 % lower",
        "-4.1 % (48 blocks)",
        "Both models have one learning rate, which was searched on 6 % of the tokens and favours DenseFormer. On "
        "validation text the perplexity is 3.4 % lower.",
        _perplexity_of_gain, folded=True),
    "tokenformer-worse-than-modern-transformer": ReadmeClaim(
        "At equal size, a Tokenformer is slightly worse than a modern Transformer (a third party's claim).",
        "perplexity, 6 M tokens; needed: 0.6 % higher",
        "+2.4 % (124 M parameters)",
        "With these three seeds alone the interval includes zero. After eight times the tokens the Tokenformer is "
        "better: -3.7 [-7.1, -0.2] %.", folded=True),
    "decay-score-beats-protected-random": ReadmeClaim(
        "Eviction by score is clearly better than random eviction that protects the first and most recent tokens "
        "(our own claim).",
        "perplexity by cache size; needed: 47, 31 and 12 % lower",
        "no such comparison",
        "Condition not met: our threshold was out of reach, as even the full cache is only 26, 12 and 4 % lower.",
        _perplexity_of_gain, folded=True),
    "tokenformer-growth-beats-continuing": ReadmeClaim(
        "For equal FLOPs, growing a Tokenformer beats training it further (our own claim).",
        "perplexity after short, medium and long training (5, 20, 39 M tokens); needed: lower",
        "no such comparison",
        "Conditions not met: unfinished search of learning rates; the model trained further had nearly stopped "
        "learning. From scratch, the grown size has a 10 % lower perplexity.", folded=True),
}  # fmt: skip
"""The claims in the README."""
README_ORDER = ("agrees", "holds", "contradicts", "fails", "cannot_tell", "not_tested")


def readme_findings(by_scale: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the claims of README_CLAIMS as Markdown, in the order of README_ORDER: a table, a sentence with the number
    of all claims that have each verdict, and a folded table.

    `by_scale` has the verdicts by scale. † marks a verdict that changed when the criterion or the statistics of its
    claim changed after results existed; the folded part has the verdict before the change.
    """
    by_id = {verdict.claim.id: verdict for verdict in best_verdicts(by_scale)}
    shown: list[dict[str, str]] = []
    folded: list[dict[str, str]] = []
    earlier: list[str] = []
    for name in sorted(README_CLAIMS, key=lambda name: README_ORDER.index(by_id[name].outcome)):
        verdict, line = by_id[name], README_CLAIMS[name]
        every_item = verdict.claim.criterion.combine == "tested"
        items = [item for item in verdict.items if item.quantities and (every_item or item.outcome == verdict.outcome)]
        former = read_claims().former_outcome(verdict.claim)
        altered = former not in ("", verdict.outcome)
        earlier += [f"{line.claim} Before: *{outcome_text(former, [])}*."] * altered
        word = outcome_text(verdict.outcome, verdict.items).partition(":")[0]
        (folded if line.folded else shown).append({
            "verdict": f"{SIGNS[verdict.outcome]} {word}{' †' * altered}",
            "claim, and what decides it": f"**{line.claim}**\n{line.number}",
            "ours": "\n".join(f"{item_name(item)}: " * (len(items) > 1) + number_text(item, line) for item in items),
            "published": line.published,
            "main objection": line.objection,
        })  # fmt: skip
    tables = [compact_markdown_table(DataFrame(rows)) for rows in (shown, folded)]
    summary = f"{len(folded)} more claims, and the verdicts before a criterion changed (†)"
    details = f"<details><summary>{summary}</summary>\n\n{tables[1]}\n\n{'<br>'.join(earlier)}\n</details>"
    return "\n\n".join([tables[0], outcome_counts([*by_id.values()]), details])


def _converted(item: Item, line: ReadmeClaim) -> list[float]:
    """Return the mean and the ends of the interval of the first number of a criterion in the unit of the line, or the
    number alone if it is exact.
    """
    value = next(iter(item.quantities.values()))
    if not isinstance(value, Quantity):
        return [line.convert(value)]
    interval = value.interval(item.confidence)
    return [line.convert(interval.mean), *sorted(map(line.convert, (interval.low, interval.high)))]


def number_text(item: Item, line: ReadmeClaim) -> str:
    """Return the first number of a criterion in the unit of the line, with its interval if it is measured."""
    mean, *ends = (f"{value:{line.format}}" for value in _converted(item, line))
    interval = f" [{', '.join(ends)}]" if ends else ""
    return f"{mean}{interval}{line.unit}"
