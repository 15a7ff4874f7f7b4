"""Singular values of the weights of a trained decoder (arXiv:2402.02622, Fig 13)."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from formerlab.layers.linear import LinearProjection
from formerlab.models.decoder import DecoderModel

MATRICES = {
    "query-key-value": ("attention.query", "attention.key", "attention.value"),
    "attention output": ("attention.output",),
    "feed-forward up": ("feedforward.inner",),
    "feed-forward down": ("feedforward.outer",),
}
"""Matrices of a block: the modules whose weights, below each other, are one of them."""


class SingularValue(NamedTuple):
    """One singular value, relative to the largest of its matrix; of blocks it is the mean."""

    matrix: str
    rank: float
    """Its place among the singular values: 0 is the largest, 1 the smallest."""
    value: float


def singular_values(model: DecoderModel) -> Iterator[SingularValue]:
    """Yield those of the matrices of the blocks and of the embedding.

    A projection without a weight matrix, such as Pattention, has none.
    """
    blocks = list(model.blocks)
    for name, parts in MATRICES.items():
        modules = [block.get_submodule(part) for block in blocks for part in parts]
        weights = [module.weight for module in modules if isinstance(module, LinearProjection)]
        if len(weights) == len(modules):
            matrices = [torch.cat(weights[first : first + len(parts)]) for first in range(0, len(weights), len(parts))]
            yield from _placed(name, torch.stack([_relative(matrix) for matrix in matrices]).mean(0))
    yield from _placed("embedding", _relative(model.embedding))


def _relative(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, " ranks"]:
    values: Tensor = torch.linalg.svdvals(matrix.detach().double().cpu())
    return values / values[0]


def _placed(name: str, values: Float[Tensor, " ranks"]) -> Iterator[SingularValue]:
    for place, value in enumerate(values.tolist()):
        yield SingularValue(name, place / max(1, len(values) - 1), value)
