"""Exact claims of the original Transformer (arXiv:1706.03762)."""

import numpy as np

from formerlab.layers import Mlp
from formerlab.layers.initial import without_values
from formerlab.layers.position import sinusoids
from formerlab.models.translator import Translator
from formerlab.models.translator_model import TranslatorModel

BASE = Translator()


def _row(hidden: int = 2048, **changes: int) -> Translator:
    feedforward = Mlp(activation="relu", bias=True, hidden=hidden)
    return BASE.model_copy(update={"feedforward": feedforward, **changes})


ROWS = (
    (_row(), 65),
    (_row(layers=2), 36),
    (_row(layers=4), 50),
    (_row(layers=8), 80),
    (_row(width=256), 28),
    (_row(width=1024), 168),
    (_row(hidden=1024), 53),
    (_row(hidden=4096), 90),
    (_row(d_key=16), 58),
    (_row(d_key=32), 60),
    (_row(hidden=4096, width=1024, heads=16), 213),
)
"""The rows of Table 3 with a printed count, and that count in millions; rows of d_k keep d_v = 64."""

VOCABULARIES = range(32_000, 45_001, 50)


def parameter_counts() -> dict[str, float]:
    """Return how many rows agree at the vocabulary size that fits most, and whether counted and closed form agree."""
    worst, best = 0, 0
    for spec, _ in ROWS:
        with without_values():
            counted = sum(weight.numel() for weight in TranslatorModel(spec).parameters())
        worst = max(worst, abs(counted - spec.params()))
    for vocabulary in VOCABULARIES:
        counts = [spec.params(embedding=False) + vocabulary * spec.width for spec, _ in ROWS]
        agree = sum(abs(count / 1e6 - printed) <= 0.5 for count, (_, printed) in zip(counts, ROWS, strict=True))
        best = max(best, agree)
    return {
        "parameters_closed_form_minus_counted": float(worst),
        "rows_within_half_a_million_of_print_at_best_vocabulary": float(best),
    }


def sinusoid_linear_shift() -> dict[str, float]:
    """Return the largest entry of PE(p + k) - M_k PE(p), M_k being rotations by k w_i (section 3.5)."""
    width, positions, shifts = 512, 1024, 64
    table = sinusoids(positions + shifts, width).numpy()
    sines, cosines = table[:, 0::2], table[:, 1::2]
    frequencies = 10_000.0 ** (-np.arange(0, width, 2) / width)
    worst = 0.0
    for k in range(1, shifts + 1):
        turn_sine, turn_cosine = np.sin(k * frequencies), np.cos(k * frequencies)
        now = slice(0, positions)
        then = slice(k, k + positions)
        predicted_sine = turn_cosine * sines[now] + turn_sine * cosines[now]
        predicted_cosine = turn_cosine * cosines[now] - turn_sine * sines[now]
        worst = max(
            worst,
            float(np.abs(sines[then] - predicted_sine).max()),
            float(np.abs(cosines[then] - predicted_cosine).max()),
        )
    return {"sinusoid_linear_shift": worst}
