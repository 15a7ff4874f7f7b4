"""Averages over a random pattern of earlier outputs."""

from typing import Annotated, Literal

from pydantic import Field

from formerlab.layers.depth.dwa import Averages
from formerlab.seeding import mixed_seed
from formerlab.spec import Seed


class RandomSparse(Averages):
    """Y_i = alpha_ii X_i + sum of alpha_ij X_j over random j < i: a random pattern beside DenseFormer's chosen
    ones (arXiv:2402.02622 has no such control).

    Of the d (d + 1) / 2 connections from an earlier output j to a block i, round(density d (d + 1) / 2) are kept, drawn
    without replacement; a block that keeps none is not mixed. The pattern depends on seed and depth alone, not on the
    seed of the run. DenseFormer 4x5 keeps 53 of 1176 connections at 48 blocks, a density of 0.045.
    """

    kind: Literal["random_sparse"] = "random_sparse"
    density: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    """Share of the connections to earlier outputs that are kept."""
    seed: Seed = 0
    """Seed of the pattern."""

    def table(self, layers: int) -> dict[int, list[int]]:
        pairs = [(i, j) for i in range(1, layers + 1) for j in range(i)]
        drawn = sorted(pairs, key=lambda pair: mixed_seed(self.seed, *pair))[: round(self.density * len(pairs))]
        kept = sorted(drawn)
        return {i: [*(j for q, j in kept if q == i), i] for i in sorted({i for i, _ in kept})}
