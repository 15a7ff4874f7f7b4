"""Averages over the last few blocks."""

from typing import Literal

from formerlab.layers.depth.dwa import Averages
from formerlab.spec import Layers


class LastK(Averages):
    """Y_i = sum of alpha_ij X_j over the last K outputs j = i - K + 1 .. i (arXiv:2402.02622, Table 4: Last-K, K = 4).

    The paper does not specify how X_0, the embedded tokens, is counted: the label in its table is "(+X_0)", but the
    sparsity of 84 % at 48 blocks fits other values of `embedding`. The model starts equal to the plain Transformer.
    """

    kind: Literal["last_k"] = "last_k"
    outputs: Layers = 4
    """K: number of outputs in the average."""
    embedding: Literal["always", "window", "never"] = "always"
    """Whether averages include X_0. always: in addition to the last K blocks (234 weights at 48 blocks, sparsity
    80.9 %). window: if X_0 is one of the last K outputs (189 weights, 84.6 %). never: 186 weights, 84.8 %."""

    def sources_by_block(self, layers: int) -> dict[int, list[int]]:
        first = 0 if self.embedding == "window" else 1
        embedding = [0] if self.embedding == "always" else []
        return {i: [*embedding, *range(max(first, i - self.outputs + 1), i + 1)] for i in range(1, layers + 1)}
