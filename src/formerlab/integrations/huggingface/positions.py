"""How a model of transformers tells positions to its keys, found out by asking it."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from formerlab.layers.attention import KeyHeads
from formerlab.layers.position import PositionEncoding

STATIC = ("default", "linear", "llama3")
"""Kinds of rotation whose angles do not depend on the length of the text."""

Keys = Mapping[int, KeyHeads]
"""Keys by layer."""


class BorrowedRotation(PositionEncoding):
    """The rotation of a model's own rotary module (arXiv:2104.09864, eq. 34)."""

    def __init__(self, rotary: nn.Module, interleaved: bool) -> None:
        """Rotate channels (2i, 2i + 1) where `interleaved`, else (i, i + r/2)."""
        super().__init__()
        self.rotary, self.interleaved = rotary, interleaved

    def rotate(
        self, x: Float[Tensor, "batch heads time d_head"], start: int
    ) -> Float[Tensor, "batch heads time d_head"]:
        """Rotate the first channels of every head, as many as the module has angles for."""
        places = torch.arange(start, start + x.shape[2], device=x.device)[None]
        cosine, sine = self.rotary(x, places)
        rotated, rest = x[..., : cosine.shape[-1]], x[..., cosine.shape[-1] :]
        if self.interleaved:
            across = torch.stack((-rotated[..., 1::2], rotated[..., 0::2]), dim=-1).flatten(-2)
        else:
            across = torch.cat((-rotated.chunk(2, dim=-1)[1], rotated.chunk(2, dim=-1)[0]), dim=-1)
        return torch.cat((rotated * cosine[:, None] + across * sine[:, None], rest), dim=-1)


class FixedPositions(PositionEncoding):
    """Positions that are part of the keys and cannot be told apart from them: what embeddings of positions lead to."""

    def embed(self, x: Float[Tensor, "batch time width"], start: int) -> Float[Tensor, "batch time width"]:
        """Refuse: the model adds its positions by itself."""
        raise NotImplementedError("the model embeds its positions by itself")


def find_positions(model: nn.Module, first: Keys, later: Keys, distance: int) -> PositionEncoding:
    """Return how the model's keys depend on positions, given those of one token at 0 and alone at `distance`.

    A rotation is believed only where it turns the keys of all layers from one into the other.
    """
    if all(torch.equal(first[layer], later[layer]) for layer in first):
        return PositionEncoding()
    for module in model.modules():
        if hasattr(module, "inv_freq") and getattr(module, "rope_type", "default") in STATIC:
            for rotation in (BorrowedRotation(module, interleaved) for interleaved in (False, True)):
                if all(_close(rotation.rotate(first[layer], distance), later[layer]) for layer in first):
                    return rotation
    return FixedPositions()


def _close(a: Tensor, b: Tensor) -> bool:
    largest = b.abs().max().clamp_min(1e-6)
    return bool((a - b).abs().max() <= tolerance(b.dtype) * largest)


def tolerance(dtype: torch.dtype) -> float:
    """Return how far two ways to compute the same may be apart, relative to the largest value."""
    return {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2}.get(dtype, 1e-1)
