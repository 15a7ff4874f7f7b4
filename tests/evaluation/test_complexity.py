"""Table 1: paths are as long as published; that counts grow with its exponents is an exact claim."""

import math

import pytest

from formerlab.evaluation.timing.complexity import LAYERS, Complexity, longest_path, rows_of
from formerlab.results.stages import TABLES

SPEC = Complexity(lengths=(32, 64, 128), widths=(16, 32, 64), neighbourhood=16, repeats=1)


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
