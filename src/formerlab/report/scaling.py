"""Laws of the loss by compute, tokens and parameters.

They are plain power laws, fitted by least squares to logarithms: FLOPs to the runs on the lower envelope,
parameters and tokens together to all runs. Their intervals are Student's t over the points, so they speak of how far
the points lie from the law, not of seeds. An irreducible loss (Hoffmann et al., arXiv:2203.15556, eq. 10) is one more
unknown, which nine points seldom tell from none: beside each law stands the one that would fit best, and the p of the F
test for it.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from pandas import DataFrame
from scipy import special

from formerlab.statistics import CONFIDENCE


def power_law(losses: ArrayLike, x: Mapping[str, ArrayLike]) -> DataFrame:
    """Return loss = exp(constant) * product of x ** exponent, a row per exponent; no row where points are too few.

    `deviation_percent` is the standard deviation of ln loss from the law; `best_offset_nats` the irreducible loss with
    which the points would fit best, and `offset_p` how often so much better a fit happens where there is none.
    """
    found = np.asarray(losses, dtype=float)
    design = np.column_stack([np.ones_like(found), *(np.log(np.asarray(one, dtype=float)) for one in x.values())])
    free = len(found) - design.shape[1]
    if free < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return DataFrame()
    solution, rest = _least_squares(design, np.log(found), np.ones_like(found))
    spread = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * rest / free)
    half = special.stdtrit(free, (1 + CONFIDENCE) / 2) * spread[1:]
    # To first order an error of ln(loss - offset) is one of ln loss times (loss - offset) / loss.
    offsets = np.linspace(0, 0.99, 100) * found.min()
    rests = [_least_squares(design, np.log(found - offset), (found - offset) / found)[1] for offset in offsets]
    best = int(np.argmin(rests))
    better = (rest - rests[best]) / rests[best] * (free - 1) if rests[best] > 0 else np.inf
    p = float(special.fdtrc(1, free - 1, max(0.0, better))) if free > 1 else np.nan
    rows = {"loss_against": [*x], "exponent": solution[1:], "exponent_low": solution[1:] - half}
    rows |= {
        "exponent_high": solution[1:] + half,
        "points": len(found),
        "deviation_percent": 100 * np.sqrt(rest / free),
    }
    return DataFrame(rows | {"best_offset_nats": offsets[best], "offset_p": p})


def _least_squares(
    design: Float[np.ndarray, "points unknowns"], y: Float[np.ndarray, " points"], weight: Float[np.ndarray, " points"]
) -> tuple[Float[np.ndarray, " unknowns"], float]:
    solution, *_ = np.linalg.lstsq(design * weight[:, None], y * weight, rcond=None)
    return solution, float(np.sum((weight * (y - design @ solution)) ** 2))
