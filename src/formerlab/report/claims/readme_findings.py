"""The findings in README.md: a list of five, a table of claims and a table of studies, with numbers from the committed
rows.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pandas import DataFrame

from formerlab.report.claims.quantity import Quantity
from formerlab.report.claims.registry import read_claims
from formerlab.report.claims.render import (
    CONDITION_NOT_MET,
    SIGNS,
    best_verdicts,
    compact_markdown_table,
    item_name,
    outcome_text,
)
from formerlab.report.claims.verdict import Item, Verdict
from formerlab.yaml_files import read_yaml, study_names


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
    topic: str = ""
    """Title of the finding, if the claim is one of the five findings."""
    finding: str = ""
    """The finding in plain words; {0} is our first number, {1} the next."""


README_CLAIMS = {
    "vision-matches-vit-equal-parameters": ReadmeClaim(
        "A Tokenformer classifies images as well as a vision Transformer (ViT) of equal size.",
        "error rate of Tokenformer divided by error rate of ViT; claimed: at most 1.05",
        "1.01 (B/16), 0.98 (L/16), ImageNet",
        "Ten epochs of CIFAR-10 (accuracy 65.9 against 64.4 %) measure how fast a model learns. The learning rates "
        "were searched on two epochs.",
        math.exp, "", "z.2f",
        "Tokenformer on images",
        "With attention to learned key-value pairs (*parameter tokens*) in place of weight matrices, a Tokenformer "
        "makes {0} times as many errors on CIFAR-10 as a vision Transformer of equal size (paper, ImageNet: 1.01 and "
        "0.98 times)."),
    "tokenformer-worse-than-modern-transformer": ReadmeClaim(
        "At equal size, a Tokenformer is slightly worse than a modern Transformer (a third party's claim).",
        "perplexity of the Tokenformer relative to a Transformer with RMSNorm, SwiGLU and rotary positions, 6 M "
        "tokens; claimed: higher",
        "+2.4 % (124 M parameters)",
        "The interval uses a variance pooled over similar runs; an interval from these three seeds alone includes "
        "zero. After eight times the tokens the Tokenformer has the lower mean perplexity."),
    "denseformer-gain-persists-with-training": ReadmeClaim(
        "DenseFormer's averages over earlier blocks still help after eight times as many training tokens (our own "
        "claim).",
        "perplexity of DenseFormer relative to the plain model, 8 blocks; claimed: lower", "-4.1 % (48 blocks)",
        "Both models have one learning rate, which was searched on 6 % of the tokens and favours DenseFormer. The "
        "interval rests on three seeds alone, and the change since 4 M tokens includes zero. On validation text the "
        "perplexity is 3.4 % lower.",
        _perplexity_of_gain,
        topic="DenseFormer, 8 blocks, our own claim",
        finding="With a learned average of all earlier outputs as the input of each of 8 blocks, the perplexity on "
        "six test books is {0} than without averages (paper, 48 blocks: 4.1 % lower)."),
    "tokenformer-growth-saves-cost": ReadmeClaim(
        "A Tokenformer and its growth cost at most half of a Transformer trained from scratch to the same loss.",
        "training FLOPs of all stages divided by FLOPs from scratch; claimed: at most 0.5",
        "0.40 to 0.42 (TPU hours, interpolated by us)",
        "Condition not met: no result of growth could meet the criterion, because the model before growth already "
        "costs 89 % of our most expensive Transformer. The paper grew three times.",
        float, " times", "z.1f"),
    "tokenformer-zero-keys-default-tau": ReadmeClaim(
        "With the paper's default scale, adding tokens with zero keys leaves the output unchanged (exact).",
        "largest change of a logit when all tokens are doubled, in standard deviations of the logits; claimed: 0",
        "0 (\"perfectly resume the model state\")",
        "The paper's proof keeps the tau of the smaller model; then nothing changes. `formerlab.grow` does this by "
        "default. The paper does not say that its proof excludes its default.",
        float, "", "z.1f", "Growth without change, exact",
        "New parameter tokens with zero keys should leave the output unchanged, but with the paper's default scale of "
        "the scores, doubling the tokens changes a logit by up to {0} standard deviations (paper: 0); with the scale "
        "of the smaller model nothing changes."),
    "tokenformer-continued-training-lower": ReadmeClaim(
        "After further training on new text, growth by parameter tokens has a lower loss than growth in width "
        "(Net2Net).",
        "validation perplexity after growth by parameter tokens relative to growth in width, each divided by the "
        "perplexity of its model without growth; claimed: lower",
        "no number",
        "Tested on this text alone. Net2Net's parent had too high a learning rate and more to gain. We changed the "
        "reference model after we had seen results; with the first one, we could not tell.",
        _perplexity_of_gain),
    "decay-score-beats-protected-random": ReadmeClaim(
        "Eviction by score is clearly better than random eviction that protects the first and the most recent tokens "
        "(our own claim).",
        "perplexity under Decay relative to protected random eviction; claimed: lower by at least 47, 31 and 12 % at "
        "budgets of 10, 20 and 40 %. These limits are a quarter of Decay's advantage, in nats, over random eviction "
        "without protection",
        "no such comparison",
        "Condition not met: no policy could meet our criterion, because even with the full cache, perplexity is only "
        "26, 12 and 4 % lower than under protected random eviction. Decay has the lower perplexity at every budget.",
        _perplexity_of_gain),
    "decay-beats-h2o": ReadmeClaim(
        "With 40 % of the cache, Decay answers more questions than H2O.",
        "accuracy of Decay minus accuracy of H2O at alpha 0.2; claimed: at least 0.2 percentage points, a quarter of "
        "the paper's effect scaled to what H2O loses here, and an interval above 0",
        "4.0 points (OPT-2.7B)",
        "H2O loses only 1.2 points here (paper: 5.9), so there was little to win back. On three of the five question "
        "sets SmolLM2 is at chance; on the two others Decay is 0.4 and 1.3 points worse.",
        _percent, " points", "z.1f", "Cache pruning",
        "With 40 % of the KV cache of SmolLM2-135M-Instruct, the accuracy of Decay as published (it lets old attention "
        "fade and reserves nothing) minus the accuracy of H2O (it sums all attention and reserves half of the cache "
        "for recent tokens) is {0} percentage points (paper, OPT-2.7B: 4.0); H2O itself loses only 1.2 points here."),
    "tokenformer-growth-beats-continuing": ReadmeClaim(
        "For equal FLOPs, growing a Tokenformer beats training it further (our own claim).",
        "perplexity of the grown model relative to the model trained further, after short, medium and long training "
        "(5, 20, 39 M tokens); claimed: lower",
        "no such comparison",
        "Conditions not met: the search of learning rates over the whole long stage is not finished, and half of the "
        "grown model's rate is better by 0.011 nats (one seed); the model trained further hardly improves in the "
        "medium stage; the short stage is shorter than any published one. Its perplexity is 45.7 after the short and "
        "46.0 after the long stage: a weak control.",
        topic="Growth or more training",
        finding="For equal FLOPs, the perplexity on 45 novels of a Tokenformer grown as published (random keys) is {0} "
        "than the perplexity of the ungrown model trained further after a short stage, and {2} after a long one (the "
        "paper has no such comparison), but the ungrown model had all but stopped learning; with zero keys, the "
        "default of `formerlab.grow`, growing changes less than 1 %."),
    "tokenformer-growth-equal-total-flops": ReadmeClaim(
        "For equal FLOPs of all stages, a grown Tokenformer is as good as the same model trained from scratch (implied "
        "by the paper's claim on cost).",
        "perplexity of the grown model relative to the model from scratch; claimed: at most 2 % higher",
        "no number",
        "Condition not met: the grown model reads its text 6.1 times, the model from scratch 2.3 times."),
    "denseformer-better-at-equal-depth": ReadmeClaim(
        "DenseFormer has a lower loss than a plain model of equal depth.",
        "perplexity of DenseFormer relative to the plain model, 24 blocks; claimed: lower",
        "-2.6 % (24 blocks, books), -4.1 % (48 blocks)",
        "Condition not met: the search of learning rates over whole runs is not finished; no lower rate of the plain "
        "model is trained yet, and half the rate of DenseFormer is better by 0.010 nats (one seed). Both models have "
        "a rate of 1e-2. At 2e-2, which a short search had chosen, the plain model is worse, and the perplexity of "
        "DenseFormer is 7 % lower.",
        _perplexity_of_gain),
    "transformer-single-head-worse": ReadmeClaim(
        "One attention head is worse than eight.",
        "perplexity with one head relative to the base model; claimed: higher", "+7.6 %",
        "Conditions not met: all models were still learning, and our base model has four heads (eight are needed)."),
}  # fmt: skip
"""The claims in the README."""
SHORT = {CONDITION_NOT_MET: "no verdict", "not tested: no run": "no run"}
README_ORDER = ("agrees", "holds", "contradicts", "fails", "cannot_tell", "not_tested")


def readme_blocks(by_scale: Mapping[str, Sequence[Verdict]]) -> tuple[str, str]:
    """Return two blocks of Markdown: a list of findings, and the claims of README_CLAIMS with a table of studies.

    `by_scale` has the verdicts by scale. Findings and claims are in the order of README_ORDER.

    † marks a claim whose verdict was altered when its criterion or statistics changed after results existed, with the
    verdict before the change.
    """
    by_id = {verdict.claim.id: verdict for verdict in best_verdicts(by_scale)}
    findings, rows = [], []
    for name in sorted(README_CLAIMS, key=lambda name: README_ORDER.index(by_id[name].outcome)):
        verdict, line = by_id[name], README_CLAIMS[name]
        every_item = verdict.claim.criterion.combine == "tested"
        items = [item for item in verdict.items if item.quantities and (every_item or item.outcome == verdict.outcome)]
        former = read_claims().former_outcome(verdict.claim)
        mark = f" † (before: {outcome_text(former, [])})" if former else ""
        sign, word = SIGNS[verdict.outcome], outcome_text(verdict.outcome, verdict.items)
        if line.topic:
            numbers = [_finding_number(item, line) for item in items]
            finding = line.finding.format(*numbers, *["(no run)"] * 3)
            findings.append(f"- {sign} **{line.topic} ({word}).** {finding}")
        rows.append({
            "verdict": f"{sign} {word}{mark}",
            "claim, and the number that decides it": f"**{line.claim}**\n{line.number}",
            "ours": "\n".join(f"{item_name(item)}: " * (len(items) > 1) + number_text(item, line) for item in items),
            "published": line.published,
            "main objection": line.objection,
        })  # fmt: skip
    summary = (
        f"{len(rows)} claims with intervals and the main objection to each (% is a change of perplexity; "
        "† marks a verdict that a change of its criterion altered after results existed)"
    )
    claims = f"<details><summary>{summary}</summary>\n\n{compact_markdown_table(DataFrame(rows))}\n</details>"
    return "\n".join(findings), f"{claims}\n\n{studies([*by_id.values()])}"


def studies(verdicts: Sequence[Verdict]) -> str:
    """Return a Markdown table of the studies in the current folder: their questions, and the number of claims that have
    each verdict.
    """
    lines = ["| study | question | claims on trained models | claims decided by arithmetic |", "|---|---|---|---|"]
    for study in study_names(Path()):
        question, cells = read_yaml(Path(), f"workflow/studies/{study}.yaml")["question"], []
        for kind in ("measured", "exact"):
            of_kind = [v for v in verdicts if (v.claim.study, v.claim.kind) == (study, kind)]
            of_kind.sort(key=lambda verdict: (README_ORDER.index(verdict.outcome), not verdict.items[0].quantities))
            counts = Counter(outcome_text(verdict.outcome, verdict.items) for verdict in of_kind)
            texts = (f"{SHORT.get(text, text)} {count}" for text, count in counts.items())
            cells.append(", ".join(texts) or "none")
        lines.append(f"| [`{study}`](docs/{study}.md) | {question} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _finding_number(item: Item, line: ReadmeClaim) -> str:
    """Return the first number of a criterion; a change of perplexity as "5.1 % lower [4.5, 5.7]"."""
    if line.unit != " %":
        return number_text(item, line).removesuffix(line.unit)
    mean, low, high = _converted(item, line)
    sign = -1 if mean < 0 else 1
    ends = sorted((sign * low, sign * high))
    return f"{sign * mean:z.1f} % {'lower' if mean < 0 else 'higher'} [{ends[0]:z.1f}, {ends[1]:z.1f}]"


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
