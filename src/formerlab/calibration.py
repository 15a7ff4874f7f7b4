"""Calibration of classifiers."""

import numpy as np
from numpy.typing import ArrayLike

BINS = 15


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> float:
    """Return the mean of |accuracy - confidence| over bins of equal width (arXiv:1706.04599, eq. 3).

    Bins are weighted by their number of predictions and include their upper end. Both arguments have one value per
    prediction: the probability of the predicted class, and whether it is correct.
    """
    confidences, hits = np.asarray(confidence, dtype=float), np.asarray(correct, dtype=float)
    places = np.clip(np.ceil(confidences * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(places, weights=hits - confidences, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidences))
