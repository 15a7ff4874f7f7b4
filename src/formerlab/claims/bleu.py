"""Corpus BLEU from the statistics of sentences, so that it can be computed again on every resample."""

import numpy as np
from jaxtyping import Float

ORDERS = range(1, 5)
STATISTICS = (
    *(f"{kind}_{order}" for kind in ("correct", "total") for order in ORDERS),
    "length",
    "reference_length",
)
"""Columns of bleu.csv that a sentence contributes."""


def corpus_bleu(means: Float[np.ndarray, "*shape statistics"]) -> Float[np.ndarray, "*shape"]:
    """Return BLEU, 0 to 100, from sums or means of the statistics over sentences, without smoothing."""
    correct, total = means[..., :4], means[..., 4:8]
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.log(correct / total).mean(axis=-1)
        brevity = np.minimum(0.0, 1 - means[..., 9] / means[..., 8])
    return np.asarray(100 * np.exp(precision + brevity))
