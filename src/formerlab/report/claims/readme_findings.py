"""The main claims in README.md and docs/results.md, with numbers from the committed rows."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pandas import DataFrame

from formerlab.report.claims.quantity import Quantity
from formerlab.report.claims.registry import read_claims
from formerlab.report.claims.render import (
    CONDITION_NOT_MET,
    NOT_MEASURED,
    SIGNS,
    best_verdicts,
    compact_markdown_table,
    item_name,
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
    """A claim of docs/results.md in plain words. Our numbers are converted to the unit of `published`."""

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
    brief: str = ""
    """The claim in README as Markdown: a link to the study, and the metric. Empty: README omits the claim."""
    paper: str = ""
    """The published number in README."""
    result: str = "{}"
    """Our result in README; `{}` is our number."""
    short_objection: str = ""
    """The main objection in README."""


README_CLAIMS = {
    "vision-matches-vit-equal-parameters": ReadmeClaim(
        "A Tokenformer classifies images as well as a vision Transformer (ViT) of equal size.",
        "errors relative to the ViT, CIFAR-10; needed: the whole interval at most 1.05",
        "1.01 and 0.98 (ImageNet, 86 M and 307 M parameters)",
        "Ten epochs show which model learns faster. Rates were searched on two of them; by our rule for language "
        "models there would be no verdict.",
        math.exp, "", "z.2f",
        brief="**[Tokenformer](docs/vision.md)** classifies images as well as a Transformer of equal size. "
        "Errors, Transformer = 1",
        paper="0.98 to 1.01 (ImageNet); needed: interval at most 1.05",
        result="{} (CIFAR-10; 65.9 % correct, Transformer 64.4 %)",
        short_objection="Learning rates were searched on two of ten epochs"),
    "tokenformer-worse-than-modern-transformer": ReadmeClaim(
        "After 6 M tokens, a Tokenformer is worse than a modern Transformer of equal size (a third party's claim).",
        "perplexity, 45 novels; needed: 0.6 % higher",
        "+2.4 % (124 M parameters); the paper, beside a classic Transformer: -3.8 %",
        "The sign changes with training: after 49 M tokens the perplexity is 3.7 [0.2, 7.1] % lower. With three "
        "seeds' variance alone, both include zero.",
        brief="**[Tokenformer](docs/tokenformer_from_scratch.md)** is worse than a modern Transformer of "
        "equal size (a course report). Perplexity",
        paper="+2.4 % ([report](https://github.com/zzox531/nlp_tokenformer); paper, beside a classic Transformer: "
        "-3.8 %); needed: +0.6 %",
        result="{} after 6 M training tokens; -3.7 [-7.1, -0.2] % after 49 M",
        short_objection="Reversed after 49 M tokens; by three seeds alone unclear"),
    "denseformer-better-at-equal-depth": ReadmeClaim(
        "Averages over all earlier blocks (DenseFormer) lower the loss at equal depth.",
        "perplexity, 24 blocks, 1.2 M parameters, 45 novels; needed: 0.7 % lower",
        "-2.6 % (24 blocks, PG-19), -2.7 % (48, PG-19), -4.1 % (48, OpenWebText2)",
        "One text; the three tested seeds also chose the learning rates. The paper's main comparisons, with deeper "
        "models and at equal time, were not run.",
        _perplexity_of_gain,
        brief="**[DenseFormer](docs/denseformer.md)** is better at equal depth. Perplexity, 24 blocks",
        paper="-2.6 % (PG-19); needed: -0.7 %",
        result="{} (novels, from 46.5 to 44.8)",
        short_objection="The three tested seeds also chose the learning rates"),
    "tokenformer-continued-training-lower": ReadmeClaim(
        "On new text, growth by parameter tokens with zero keys starts lower, falls faster and ends lower than "
        "Net2Net.",
        "final validation perplexity, Python docstrings, grown/ungrown: Tokenformer (tau kept) relative to padding "
        "Net2Net; needed: lower",
        "lower (no number)",
        "Weak: *cannot tell* until we, knowing this, changed the reference. One text. Net2Net used a fifth more FLOPs; "
        "its parent's poor learning rate left more to gain.",
        _perplexity_of_gain,
        brief="**[Tokenformer](docs/tokenformer_new_text.md)** growth improves a model on new text more than widening "
        "a Transformer (Net2Net). Perplexity",
        paper="lower at the end (no number); needed: lower",
        result="{} (Python docstrings; grown -0.8 %, widened -11 %, each beside no growth)",
        short_objection="*Cannot tell* until we, knowing this, changed the comparison"),
    "tokenformer-zero-keys-default-tau": ReadmeClaim(
        "New parameter tokens with zero keys leave the output unchanged, with the paper's default scale of the scores.",
        "largest change of a logit, in standard deviations; needed: 0",
        "0 (\"perfectly resume the model state\")",
        "The paper's proof keeps the scale of the smaller model; then nothing changes. `formerlab.grow` does this by "
        "default.",
        float, "", "z.1f"),
    "decay-beats-h2o": ReadmeClaim(
        "With 40 % of the KV cache, Decay (alpha 0.2) answers more questions than H2O.",
        "accuracy, SmolLM2-135M-Instruct, 4-bit weights; needed: 0.2 points, 17 % of the accuracy that H2O loses",
        "4.0 points (OPT-2.7B)",
        "One small model, for which H2O loses only 1.2 points (paper: 5.9), so there was little to win back.",
        _percent, " points", "z.1f",
        brief="**[Decay](docs/decay.md)** is more accurate than H2O with 40 % of the cache. 7153 questions",
        paper="+4.0 points (OPT-2.7B); needed: +0.2, scaled to what H2O costs our model",
        result="{} (SmolLM2-135M-Instruct, 4-bit)",
        short_objection="H2O costs this model only 1.2 points (there 5.9)"),
    "tokenformer-growth-saves-cost": ReadmeClaim(
        "Growing a Tokenformer costs at most half of training a Transformer from scratch to the same loss.",
        "FLOPs of all training; needed: the whole interval at most 0.5",
        "0.40 to 0.42 times (TPU hours, interpolated by us)",
        "Condition not met: the model before growth already cost 89 % of our most expensive Transformer, so 0.5 was "
        "out of reach. The interval is partly extrapolated.",
        float, " times", "z.2g",
        brief="**[Tokenformer](docs/tokenformer.md)** growth costs at most half of a Transformer of equal loss. "
        "Cost, Transformer = 1",
        paper="0.40 to 0.42 (TPU hours, our interpolation); needed: interval at most 0.5",
        result="{} (FLOPs, six books; extrapolated below 2.5)",
        short_objection="Before growth it cost 0.89 of our most expensive Transformer"),
    "tokenformer-growth-equal-total-flops": ReadmeClaim(
        "For equal FLOPs, a grown Tokenformer is as good as the same size from scratch (a third party's claim).",
        "perplexity after long training, 45 novels; needed: whole interval at most 2.0 % higher",
        "no such comparison; the claim on cost implies it",
        "Conditions not met: growth read its text 6.1 times, from scratch 2.3 times; its search had fewer rates. On "
        "all books (two seeds) we saw no difference."),
    "transformer-single-head-worse": ReadmeClaim(
        "One attention head is worse than eight.",
        "perplexity, German to English (Multi30k), 1.8 M parameters; needed: 1.8 % higher",
        "+7.5 % (65 M parameters)",
        "Conditions not met: all models were still learning, and our base has four heads.",
        brief="**[Transformer](docs/transformer.md)** is worse with a single attention head. Perplexity",
        paper="+7.5 % (one instead of eight); needed: +1.8 %",
        result="{} (one instead of four; German to English)",
        short_objection="All models were still learning"),
    "denseformer-gain-persists-with-training": ReadmeClaim(
        "DenseFormer's averages still help after eight times as many training tokens (our own claim).",
        "perplexity, 8 blocks, 32 M tokens, six books; needed: 1.1 % lower",
        "-4.1 % (48 blocks, OpenWebText2)",
        "Both models have one learning rate, which was searched on 6 % of the tokens and favours DenseFormer. On "
        "validation text the perplexity is 3.4 % lower.",
        _perplexity_of_gain),
    "decay-score-beats-protected-random": ReadmeClaim(
        "Eviction by score is clearly better than random eviction that protects the first and most recent tokens "
        "(our own claim).",
        "perplexity by cache size; needed: 47, 31 and 12 % lower",
        "no such comparison",
        "Condition not met: our threshold was out of reach, as even the full cache is only 26, 12 and 4 % lower.",
        _perplexity_of_gain),
    "tokenformer-growth-beats-continuing": ReadmeClaim(
        "For equal FLOPs, growing a Tokenformer beats training it further (our own claim).",
        "perplexity after short, medium and long training (5, 20, 39 M tokens); needed: lower",
        "no such comparison",
        "By the long stage alone. Weak control: the model trained further is never better than a model of its size "
        "without a stage."),
}  # fmt: skip
"""The claims of docs/results.md. README has those with a `brief`."""
KEY = {
    "✔": "the 95 % interval (in brackets) excludes zero (a ratio: one), and the mean reaches the "
    "[needed](docs/results.md#main-findings) value, mostly a quarter of the published effect; where a row says "
    "*interval*, the whole interval must reach it",
    "✘": "the whole interval misses what is needed",
    "?": "neither",
    "○": "our runs do not meet a condition of a fair test",
    "†": "the verdict was different; then a criterion, its reference, the statistics or the runs changed",
}
"""Meaning of the signs in the table of README."""
COUNT_WORDS = {
    "agrees": "✔",
    "contradicts": "✘",
    "cannot tell": "?",
    CONDITION_NOT_MET: "○",
    NOT_MEASURED: "not measured",
    "holds": "hold",
    "fails": "fail",
}
"""Signs and words after a number of claims, in the order of README."""
README_ORDER = ("agrees", "holds", "contradicts", "fails", "cannot_tell", "not_tested")


def readme_findings(by_scale: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the block of README: a short row for each claim of README_CLAIMS that has a `brief`, the key of the signs,
    and the number of all claims that have each verdict. `by_scale` has the verdicts by scale.
    """
    lines = [
        "| claim | published; needed for ✔ (our choice) | ours | verdict | main objection |",
        "| --- | --- | --- | --- | --- |",
    ]
    for verdict, line in _in_order(by_scale):
        if line.brief:
            result = line.result.format(_numbers_text(verdict, line))
            word = _verdict_words(verdict, former_as_sign=True)
            row = f"| {line.brief} | {line.paper} | {result} | {word} | {line.short_objection} |"
            lines.append(row.replace("\n", "<br>"))
    lines += ["", *(f"- {sign} {meaning}" for sign, meaning in KEY.items())]
    return "\n".join([*lines, "", *_count_lines(best_verdicts(by_scale))])


def _count_lines(evaluated: Sequence[Verdict]) -> list[str]:
    """Return a sentence for each kind of claim, with the number of claims by verdict.

    The kinds are the papers' claims about trained models, other claims about trained models, and exact claims.
    """
    exact = [verdict for verdict in evaluated if verdict.claim.kind == "exact"]
    measured = [verdict for verdict in evaluated if verdict.claim.kind == "measured"]
    papers = [verdict for verdict in measured if verdict.claim.origin == "paper"]
    others = [verdict for verdict in measured if verdict.claim.origin != "paper"]
    return [
        f"Of the papers' {len(papers)} claims about trained models: {_counts(papers)}.",
        f"Of {len(others)} such [claims of others or our own](docs/verdicts.md): {_counts(others)}.",
        f"Of {len(exact)} exact claims (arithmetic): {_counts(exact)} ([which](docs/verdicts.md)).",
    ]


def _counts(evaluated: Sequence[Verdict]) -> str:
    """Return the number of claims with each verdict: "9 ✔, 1 ✘"."""
    numbers = Counter(outcome_text(verdict.outcome, verdict.items) for verdict in evaluated)
    return ", ".join(f"{numbers[verdict]} {words}" for verdict, words in COUNT_WORDS.items() if numbers[verdict])


def findings_table(by_scale: Mapping[str, Sequence[Verdict]]) -> str:
    """Return the block of docs/results.md: a table of README_CLAIMS with criteria and objections."""
    rows = [
        {
            "verdict": _verdict_words(verdict),
            "claim, and what decides it": f"**{line.claim}**\n{line.number}",
            "ours": _numbers_text(verdict, line),
            "published": line.published,
            "main objection": line.objection,
        }
        for verdict, line in _in_order(by_scale)
    ]
    return compact_markdown_table(DataFrame(rows))


def _in_order(by_scale: Mapping[str, Sequence[Verdict]]) -> list[tuple[Verdict, ReadmeClaim]]:
    """Return the claims of README_CLAIMS with their verdicts, in the order of README_ORDER."""
    by_id = {verdict.claim.id: verdict for verdict in best_verdicts(by_scale)}
    names = sorted(README_CLAIMS, key=lambda name: README_ORDER.index(by_id[name].outcome))
    return [(by_id[name], README_CLAIMS[name]) for name in names]


def _verdict_words(verdict: Verdict, *, former_as_sign: bool = False) -> str:
    """Return the sign and the word of a verdict, then † and the word or the sign of the earlier verdict if it was
    different.
    """
    words = f"{SIGNS[verdict.outcome]} {outcome_text(verdict.outcome, verdict.items).partition(':')[0]}"
    former = read_claims().former_outcome(verdict.claim, verdict.outcome)
    if not former:
        return words
    if former_as_sign:
        return f"{words} †\n(was {SIGNS[former]})"
    former_word = CONDITION_NOT_MET.partition(":")[0] if former == "not_tested" else outcome_text(former, [])
    return f"{words} †\n(before: *{former_word}*)"


def _numbers_text(verdict: Verdict, line: ReadmeClaim) -> str:
    """Return our numbers of a claim: one per item that decides it."""
    every_item = verdict.claim.criterion.combine == "tested"
    items = [item for item in verdict.items if item.quantities and (every_item or item.outcome == verdict.outcome)]
    return "\n".join(f"{item_name(item)}: " * (len(items) > 1) + number_text(item, line) for item in items)


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
