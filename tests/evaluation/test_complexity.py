"""Table 1 of the Transformer: the formula for the longest path gives the path length in the dependency graph.

The exact claim transformer-complexity-table1 tests the operation counts.
"""

import numpy as np
import pytest

from formerlab.evaluation.timing.complexity import LAYERS, Complexity, complexity_rows, longest_path
from formerlab.results.stages import TABLES

SPEC = Complexity(lengths=(32, 64, 128), widths=(16, 32, 64), neighbourhood=16, repeats=1)


@pytest.mark.parametrize("n", [2, 9, 10, 64, 100])
@pytest.mark.parametrize("name", LAYERS)
def test_the_path_length_formula_matches_the_dependency_graph(name, n):
    """Follow the layers until every output depends on every input (or every earlier input)."""
    distance = np.arange(n) - np.arange(n)[:, None]
    steps = {
        "self_attention": lambda layer: abs(distance) < n,
        "recurrent": lambda layer: (distance == 0) | (distance == 1),
        "convolution": lambda layer: np.isin(distance, SPEC.kernel**layer * np.arange(SPEC.kernel)),
        "restricted": lambda layer: abs(distance) <= SPEC.neighbourhood,
    }
    reachable = distance >= 0 if name in ("recurrent", "convolution") else np.ones((n, n), dtype=bool)
    reached, layers = np.eye(n), 0
    while not (reached > 0)[reachable].all():
        reached, layers = np.sign(reached @ steps[name](layers)), layers + 1
    assert longest_path(name, n, SPEC) == layers


def test_a_row_for_every_layer_and_size():
    rows = list(complexity_rows(Complexity(lengths=(32, 64), widths=(8, 16), repeats=1)))
    names = TABLES["complexity.csv"].names
    assert len(rows) == 4 * 4
    assert all(row[names.index("time_s")] > 0 and row[names.index("memory_bytes")] > 0 for row in rows)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kernel": 1}, "odd number"),
        ({"kernel": 4}, "odd number"),
        ({"lengths": (64, 100)}, "does not divide lengths=.100"),
    ],
)
def test_invalid_kernel_and_length_sizes_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        Complexity(**changed)
