"""Table 1: counted multiply-adds grow with the published exponents, and paths are as long as published."""

import math

import numpy as np
import pytest

from formerlab.evaluation.timing.complexity import (
    LAYERS,
    Complexity,
    longest_path,
    multiply_adds,
    rows_of,
)
from formerlab.layers.position import sinusoids
from formerlab.report.tables.transformer import THEORY
from formerlab.results.stages import TABLES

SPEC = Complexity(lengths=(32, 64, 128), widths=(16, 32, 64), neighbourhood=16, repeats=1)


@pytest.mark.parametrize("name", LAYERS)
def test_counts_grow_with_the_exponents_of_the_table(name):
    by_length = [math.log(multiply_adds(name, n, 16, SPEC)) for n in SPEC.lengths]
    by_width = [math.log(multiply_adds(name, 32, d, SPEC)) for d in SPEC.widths]
    for counts, sizes, exponent in (
        (by_length, SPEC.lengths, THEORY[name][0]),
        (by_width, SPEC.widths, THEORY[name][1]),
    ):
        assert np.polyfit(np.log(sizes), counts, 1)[0] == pytest.approx(exponent, abs=0.02)


@pytest.mark.parametrize("n", [2, 9, 10, 64, 100, 1000])
@pytest.mark.parametrize("name", LAYERS)
def test_the_longest_path_is_that_of_the_table(name, n):
    published = {
        "self_attention": 1,
        "recurrent": n - 1,
        "convolution": math.ceil(math.log(n, SPEC.kernel) - 1e-9),
        "restricted": math.ceil((n - 1) / SPEC.neighbourhood),
    }
    assert longest_path(name, n, SPEC) == published[name]


def test_a_row_for_every_layer_and_size():
    rows = list(rows_of(Complexity(lengths=(32, 64), widths=(8, 16), repeats=1)))
    names = TABLES["complexity.csv"].names
    assert len(rows) == 4 * 4
    assert all(row[names.index("time_s")] > 0 and row[names.index("memory_bytes")] > 0 for row in rows)


def test_moving_by_k_is_one_rotation_of_the_encoding():
    """PE(p + k) = M_k PE(p) with the same block-diagonal M_k for all p (arXiv:1706.03762, section 3.5)."""
    encoding, width = sinusoids(200, 64).numpy(), 64
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    for k in (1, 7, 64):
        sine, cosine = np.sin(k * frequencies), np.cos(k * frequencies)
        even, odd = encoding[:-k, 0::2], encoding[:-k, 1::2]
        assert np.abs(encoding[k:, 0::2] - (even * cosine + odd * sine)).max() < 1e-9
        assert np.abs(encoding[k:, 1::2] - (odd * cosine - even * sine)).max() < 1e-9
