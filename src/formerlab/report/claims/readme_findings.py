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
    """The deciding metric, and the values for which the claim agrees."""
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
        "errors of the Tokenformer divided by errors of the ViT on CIFAR-10; needed: at most 1.05",
        "1.01 (B/16) and 0.98 (L/16), ImageNet",
        "Ten epochs (accuracy 65.9 against 64.4 %) show which model learns faster. The learning rates were searched on "
        "two epochs; with our rule for language models there would be no verdict.",
        math.exp, "", "z.2f"),
    "denseformer-better-at-equal-depth": ReadmeClaim(
        "Averages over all earlier blocks (DenseFormer) lower the loss at equal depth.",
        "perplexity of DenseFormer relative to the plain Transformer, 24 blocks, 1.2 M parameters, 45 novels; needed: "
        "at least 0.7 % lower",
        "-2.6 % (24 blocks, books), -4.1 % (48 blocks)",
        "One text and three seeds, which also chose the learning rates. With a rate that a short search had chosen for "
        "the plain model, the difference was twice as large. The paper's main comparisons, with deeper models and at "
        "equal time, were not run.",
        _perplexity_of_gain),
    "tokenformer-continued-training-lower": ReadmeClaim(
        "After further training on new text, growth by parameter tokens has a lower loss than growth in width "
        "(Net2Net).",
        "perplexity on Python docstrings relative to no growth: -0.8 % with parameter tokens, -11.0 % with Net2Net; "
        "the ratio of both decides; needed: lower",
        "lower (no number)",
        "The parent of Net2Net had too high a learning rate, so it had more to gain. We changed the reference model "
        "after we had seen results; with the first one, we could not tell.",
        _perplexity_of_gain),
    "tokenformer-zero-keys-default-tau": ReadmeClaim(
        "Added parameter tokens with zero keys leave the output unchanged, with the paper's default scale of the "
        "scores.",
        "largest change of a logit when the tokens are doubled, in standard deviations of the logits; needed: 0",
        "0 (\"perfectly resume the model state\")",
        "The paper's proof keeps the scale of the smaller model; then nothing changes. `formerlab.grow` does this by "
        "default.",
        float, "", "z.1f"),
    "decay-beats-h2o": ReadmeClaim(
        "With 40 % of the KV cache, Decay answers more questions than H2O.",
        "accuracy of Decay minus accuracy of H2O, SmolLM2-135M-Instruct; needed: at least 0.2 points (the paper's "
        "effect for what H2O loses here, divided by four)",
        "4.0 points (OPT-2.7B)",
        "H2O loses only 1.2 points here (paper: 5.9), so there was little to win back.",
        _percent, " points", "z.1f"),
    "tokenformer-growth-saves-cost": ReadmeClaim(
        "Growing a Tokenformer costs at most half of training a Transformer from scratch to the same loss.",
        "training FLOPs of all stages divided by FLOPs from scratch; needed: at most 0.5",
        "0.40 to 0.42 times (TPU hours, interpolated by us)",
        "Condition not met: the model before growth already costs 89 % of our most expensive Transformer, so no "
        "result could meet the criterion. A Tokenformer from scratch costs 1.8 times as much, too, and has a lower "
        "perplexity than the grown one. The interval includes equal cost and is partly extrapolated.",
        float, " times", "z.2g"),
    "denseformer-gain-persists-with-training": ReadmeClaim(
        "DenseFormer's averages still help after eight times as many training tokens (our own claim).",
        "perplexity of DenseFormer relative to the plain model, 8 blocks, 32 M tokens; needed: at least 1.1 % lower",
        "-4.1 % (48 blocks)",
        "Both models have one learning rate, which was searched on 6 % of the tokens and favours DenseFormer. On "
        "validation text the perplexity is 3.4 % lower.",
        _perplexity_of_gain, folded=True),
    "tokenformer-worse-than-modern-transformer": ReadmeClaim(
        "At equal size, a Tokenformer is slightly worse than a modern Transformer (a third party's claim).",
        "perplexity of the Tokenformer relative to a Transformer with RMSNorm, SwiGLU and rotary positions, 6 M "
        "tokens; needed: at least 0.6 % higher",
        "+2.4 % (124 M parameters)",
        "The interval uses a variance pooled over similar runs; an interval from these three seeds alone includes "
        "zero. After eight times the tokens the Tokenformer has the lower mean perplexity.", folded=True),
    "decay-score-beats-protected-random": ReadmeClaim(
        "Eviction by score is clearly better than random eviction that protects the first and the most recent tokens "
        "(our own claim).",
        "perplexity under Decay relative to protected random eviction; needed: lower by at least 47, 31 and 12 % at "
        "budgets of 10, 20 and 40 % (a quarter of Decay's advantage, in nats, over random eviction without protection)",
        "no such comparison",
        "Condition not met: our criterion was impossible, as even the full cache is only 26, 12 and 4 % lower. Decay "
        "has the lower perplexity at every budget.",
        _perplexity_of_gain, folded=True),
    "tokenformer-growth-beats-continuing": ReadmeClaim(
        "For equal FLOPs, growing a Tokenformer beats training it further (our own claim).",
        "perplexity of the grown model relative to the model trained further, after short, medium and long training "
        "(5, 20, 39 M tokens); needed: lower",
        "no such comparison",
        "Conditions not met: the search of learning rates is not finished, and the model trained further hardly "
        "improves in the medium stage (perplexity 45.7 after the short and 46.0 after the long stage).", folded=True),
}  # fmt: skip
"""The claims in the README."""
README_ORDER = ("agrees", "holds", "contradicts", "fails", "cannot_tell", "not_tested")


def readme_findings(by_scale: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the claims of README_CLAIMS as Markdown, in the order of README_ORDER: a table, a sentence with the number
    of all claims that have each verdict, and a folded table.

    `by_scale` has the verdicts by scale. † marks a claim whose verdict was altered when its criterion or statistics
    changed after results existed, with the verdict before the change.
    """
    by_id = {verdict.claim.id: verdict for verdict in best_verdicts(by_scale)}
    shown: list[dict[str, str]] = []
    folded: list[dict[str, str]] = []
    for name in sorted(README_CLAIMS, key=lambda name: README_ORDER.index(by_id[name].outcome)):
        verdict, line = by_id[name], README_CLAIMS[name]
        every_item = verdict.claim.criterion.combine == "tested"
        items = [item for item in verdict.items if item.quantities and (every_item or item.outcome == verdict.outcome)]
        former = read_claims().former_outcome(verdict.claim)
        mark = f" † (before: {outcome_text(former, [])})" if former not in ("", verdict.outcome) else ""
        (folded if line.folded else shown).append({
            "verdict": f"{SIGNS[verdict.outcome]} {outcome_text(verdict.outcome, verdict.items)}{mark}",
            "claim, and the number that decides it": f"**{line.claim}**\n{line.number}",
            "ours": "\n".join(f"{item_name(item)}: " * (len(items) > 1) + number_text(item, line) for item in items),
            "published": line.published,
            "main objection": line.objection,
        })  # fmt: skip
    tables = [compact_markdown_table(DataFrame(rows)) for rows in (shown, folded)]
    details = f"<details><summary>{len(folded)} more claims</summary>\n\n{tables[1]}\n</details>"
    return f"{tables[0]}\n\n{outcome_counts([*by_id.values()])}\n\n{details}"


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
