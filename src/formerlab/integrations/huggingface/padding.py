"""Padding on the left: rows of a batch that begin with padding tokens."""

import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor

from formerlab.errors import UserError
from formerlab.layers.position import PositionEncoding
from formerlab.models.decoder import DecoderModel


def count_padding(mask: Int[Tensor, "batch keys"]) -> list[int]:
    """Return how many tokens of padding stand in front of each row, given 1 for every real token.

    Padding behind a row's last token is no concern of causal attention. Raises UserError for a mask of another shape,
    and where padding stands between tokens, as it does when text is generated behind rows padded on the right.
    """
    if mask.ndim != 2:
        raise UserError(f"attention_mask of shape {tuple(mask.shape)}: give one number per row and token")
    real = mask.bool()
    stretches = real[:, 0] + (real[:, 1:] > real[:, :-1]).sum(1)
    if (stretches > 1).any():
        raise UserError("attention_mask: padding between tokens; pad batches on the left (padding_side='left')")
    front: list[int] = (real.cumsum(1) == 0).sum(1).tolist()
    return front


class RowPositions(PositionEncoding):
    """A position encoding for rows that begin at positions of their own; whatever lies before position 0 is padding."""

    def __init__(self, encoding: PositionEncoding, first: list[int]) -> None:
        """`first` is the position of each row's first column, negative where that is padding."""
        super().__init__()
        self.encoding, self.first = encoding, first

    def embed(self, x: Float[Tensor, "batch time width"], start: int) -> Float[Tensor, "batch time width"]:
        """Mark embedded tokens, row by row."""
        del start
        rows = [self._embed(x[row : row + 1], first) for row, first in enumerate(self.first)]
        return torch.cat(rows)

    def _embed(self, x: Float[Tensor, "batch time width"], first: int) -> Float[Tensor, "batch time width"]:
        gap = min(max(-first, 0), x.shape[1])
        return torch.cat((x[:, :gap], self.encoding.embed(x[:, gap:], max(first, 0))), dim=1)

    def rotate(
        self, x: Float[Tensor, "batch heads time d_head"], start: int
    ) -> Float[Tensor, "batch heads time d_head"]:
        """Mark queries or keys, row by row."""
        del start
        rows = [self._rotate(x[row : row + 1], first) for row, first in enumerate(self.first)]
        return torch.cat(rows)

    def _rotate(self, x: Float[Tensor, "batch heads time d_head"], first: int) -> Float[Tensor, "..."]:
        gap = min(max(-first, 0), x.shape[2])
        return torch.cat((x[:, :, :gap], self.encoding.rotate(x[:, :, gap:], max(first, 0))), dim=2)


def standing_at(model: DecoderModel, first: list[int]) -> DecoderModel:
    """Return the same model, weights shared, for a batch whose rows begin at the positions `first`."""
    moved = copy.copy(model)
    moved._modules = {**model._modules, "position": RowPositions(model.position, first)}
    return moved
