"""BLEU from counts per sentence, so that BLEU of any set of sentences can be computed from the rows of bleu.csv."""

import re
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float

from formerlab.results.schema import NGRAMS

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

Metric = Literal["sacrebleu", "compound_split", "tokenized_lowercase"]

METRICS: dict[Metric, str] = {
    "sacrebleu": "sacreBLEU, its own tokenisation (13a)",
    "compound_split": "tokenised (13a), hyphenated compounds split, as in the 2017 paper, which used Moses' tokenizer",
    "tokenized_lowercase": "lower-cased and tokenised (13a), as most tutorials report it; not a standard metric",
}
"""Label of each metric. Only sacrebleu is comparable across papers."""

STATISTICS = (*NGRAMS.split(), "length", "reference_length")
"""Counts of a sentence; their sums give the score of a corpus."""
_HYPHEN = re.compile(r"(?<=\S)-(?=\S)")


def statistics(metric: Metric, translation: str, reference: str) -> list[int]:
    """Return the STATISTICS of one sentence: matching n-grams and all n-grams by order, and both lengths in words."""
    score = _scorer(metric).sentence_score(translation, [reference])
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def corpus_bleu(sums: Float[np.ndarray, "*shape statistics"]) -> Float[np.ndarray, "*shape"]:
    """Return BLEU, 0 to 100, from sums of STATISTICS over sentences, as sacreBLEU computes it.

    BLEU is the geometric mean of the precisions of all four orders, times the brevity penalty. An order with T n-grams
    and no match has precision 1 / (2^k T), where k = 1, 2, ... counts the orders without a match, from the lowest
    (smoothing `exp`). A corpus without a match, without n-grams of some order, or without words scores 0.
    """
    correct, total, length, reference = sums[..., :4], sums[..., 4:8], sums[..., 8], sums[..., 9]
    unmatched = np.cumsum(correct == 0, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(correct > 0, correct, 0.5**unmatched) / total
        score = 100 * np.exp(np.log(precision).mean(axis=-1) + np.minimum(0.0, 1 - reference / length))
    return np.asarray(np.where((correct > 0).any(axis=-1) & (total > 0).all(axis=-1) & (length > 0), score, 0.0))


def signature(metric: Metric) -> str:
    """Return the signature of a metric in sacreBLEU's format, which specifies the tokenisation."""
    from sacrebleu import __version__

    if metric == "sacrebleu":
        return f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{__version__}"
    preprocessing = "case:mixed|tok:13a+hyphen-split" if metric == "compound_split" else "case:lc|tok:13a"
    return f"nrefs:1|{preprocessing}|eff:no|smooth:exp|not-sacreBLEU-default|version:{__version__}"


@cache
def _scorer(metric: Metric) -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    # Counts do not depend on `effective_order`, which only silences a warning about single sentences.
    scorer = BLEU(lowercase=metric == "tokenized_lowercase", tokenize="13a", force=True, effective_order=True)
    if metric == "compound_split":
        tokenize = scorer.tokenizer
        scorer.tokenizer = lambda text: _HYPHEN.sub(" ##AT##-##AT## ", tokenize(text))
    return scorer
