"""How far a classifier's confidence is from its accuracy."""

import numpy as np
from numpy.typing import ArrayLike

BINS = 15


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> float:
    """Return the mean distance of accuracy and confidence over bins of equal width (arXiv:1706.04599, eq. 3).

    Each bin counts with its share of the predictions; a bin takes its upper end. Both arguments have one value per
    prediction: the probability of the predicted class, and whether it is right.
    """
    confidences, hits = np.asarray(confidence, dtype=float), np.asarray(correct, dtype=float)
    places = np.clip(np.ceil(confidences * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(places, weights=hits - confidences, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidences))
