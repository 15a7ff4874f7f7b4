"""Averages over a random pattern of earlier outputs."""

from typing import Annotated, Literal

from pydantic import Field

from formerlab.layers.depth.dwa import Averages
from formerlab.seeding import mixed_seed
from formerlab.spec import Seed


class RandomSparse(Averages):
    """Y_i = alpha_ii X_i + sum of alpha_ij X_j over random j < i (a control for DenseFormer's patterns; not in
    arXiv:2402.02622).

    With L blocks there are L (L + 1) / 2 connections from an earlier output to a block. A fraction `density` of them,
    rounded, is sampled without replacement; a block without connections is not mixed. The pattern depends only on
    `density`, `seed` and L, not on the training seed. DenseFormer 4x5 has density 0.045 at 48 blocks (53 of 1176).
    """

    kind: Literal["random_sparse"] = "random_sparse"
    density: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    """Fraction of the possible connections to earlier outputs."""
    seed: Seed = 0
    """Seed of the pattern."""

    def sources_by_block(self, layers: int) -> dict[int, list[int]]:
        pairs = [(i, j) for i in range(1, layers + 1) for j in range(i)]
        shuffled = sorted(pairs, key=lambda pair: mixed_seed(self.seed, *pair))
        pattern = sorted(shuffled[: round(self.density * len(pairs))])
        return {i: [*(j for q, j in pattern if q == i), i] for i in sorted({i for i, _ in pattern})}
