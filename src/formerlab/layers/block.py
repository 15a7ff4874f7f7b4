"""One block of a decoder, and an estimate of what blocks keep for the backward pass."""

from collections.abc import Callable
from typing import Any

from torch import nn

from formerlab.layers.attention import Attend, Attention
from formerlab.layers.depth.identity import Stream
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.position import PositionEncoding
from formerlab.layers.projection import FeedForward, Projection

Add = Callable[[int, Stream, Stream], Stream]
"""What stands for the residual addition x + update: (sub-layer, x, update) -> stream; see `Mixer.add`."""


def residual(site: int, x: Stream, update: Stream) -> Stream:
    """Return x + update, the plain residual connection (arXiv:1512.03385, eq. 1)."""
    return x + update


class Block(nn.Module):
    """h = x + attention(norm(x)); y = h + feedforward(norm(h)): pre-norm (arXiv:2002.04745, Figure 1b).

    Both additions are an argument of the call, since a depth mixer may put something else in their place.
    """

    def __init__(self, spec: Any, dropout: nn.Module) -> None:
        """`spec` is that of the model; `dropout` works on both branches, before the addition."""
        super().__init__()
        width = spec.width
        self.attention_norm, self.feedforward_norm = spec.norm.build(width), spec.norm.build(width)
        self.attention = Attention(spec)
        self.feedforward = spec.feedforward.build(width, width, layers=spec.layers, residual=True)
        self.dropout = dropout

    def forward(
        self, x: Stream, position: PositionEncoding, attend: Attend, layer: int, start: int, add: Add = residual
    ) -> Stream:
        """Apply the block to tokens at positions start, start + 1, ...; a depth mixer may stand for the additions."""
        update = self.dropout(self.attention(self.attention_norm(x), position, attend, layer, start))
        h = add(2 * layer + 1, x, update)
        return add(2 * layer + 2, h, self.dropout(self.feedforward(self.feedforward_norm(h))))


def inner_elements(width: int, feedforward: FeedForward) -> int:
    """Return an estimate of the numbers that a feed-forward keeps inside: two per hidden unit, one per parameter token.

    A compiled plain block keeps 38.4 bytes per channel in bfloat16, where these formulas say 38.
    """
    units = feedforward.flops(width, width) // (4 * width)
    return units if feedforward.kind == "pattention" else 2 * units


def activation_elements(width: int, projection: Projection, feedforward: FeedForward, depth: DepthMixer) -> int:
    """Return an estimate of the numbers that one block keeps per token.

    They are about eleven vectors of the model's width (inputs of norms and projections, queries, keys, values,
    attention's output), what its projections keep inside (a number per parameter token, two per hidden unit), and what
    the depth mixer says.
    """
    inner = inner_elements(width, feedforward)
    if projection.kind == "pattention":
        inner += 4 * projection.tokens
    return 11 * width + inner + depth.saved_elements(width)
