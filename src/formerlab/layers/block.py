"""A block of the decoder and the vision transformer, and an estimate of its saved activations."""

from collections.abc import Callable
from typing import Any

from torch import nn

from formerlab.layers.attention import Attend, Attention
from formerlab.layers.depth.identity import Stream
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.position import PositionEncoding
from formerlab.layers.projection import FeedForward, Projection
from formerlab.layers.shapes import Start

Add = Callable[[int, Stream, Stream], Stream]
"""A residual addition: (sub-layer index, x, update) -> residual stream; see `Mixer.add`."""


def residual(index: int, x: Stream, update: Stream) -> Stream:
    """Return x + update, the plain residual connection (arXiv:1512.03385, eq. 1)."""
    return x + update


class Block(nn.Module):
    """h = x + attention(norm(x)); y = h + feedforward(norm(h)): pre-norm (arXiv:2002.04745, Figure 1b).

    A depth mixer may replace the residual addition `add`.
    """

    def __init__(self, spec: Any, dropout: nn.Module) -> None:
        """Build the block of a model with this spec; `dropout` is applied to the output of both sub-layers."""
        super().__init__()
        width = spec.width
        self.attention_norm, self.feedforward_norm = spec.norm.build(width), spec.norm.build(width)
        self.attention = Attention(spec)
        self.feedforward = spec.feedforward.build(width, width, layers=spec.layers, residual=True)
        self.dropout = dropout

    def forward(
        self, x: Stream, position: PositionEncoding, attend: Attend, layer: int, start: Start, add: Add = residual
    ) -> Stream:
        """Apply the block to tokens at positions start, start + 1, ..."""
        update = self.dropout(self.attention(self.attention_norm(x), position, attend, layer, start))
        h = add(2 * layer + 1, x, update)
        return add(2 * layer + 2, h, self.dropout(self.feedforward(self.feedforward_norm(h))))


def inner_elements(width: int, feedforward: FeedForward) -> int:
    """Estimate the saved elements per token in a feed-forward network: one per parameter token, or, in an MLP, two per
    hidden unit (three with swiglu).
    """
    units = feedforward.flops(width, width) // (4 * width)
    return units if feedforward.kind == "pattention" else 2 * units


def activation_elements(width: int, projection: Projection, feedforward: FeedForward, depth: DepthMixer) -> int:
    """Estimate the elements that one block saves per token for the backward pass.

    The estimate is eleven vectors of the model's width (inputs of norms and projections, queries, keys, values, the
    output of attention), `inner_elements`, one element per parameter token of the projections, and `saved_elements` of
    the depth mixer. For a compiled plain block in bfloat16 this gives 38 bytes per channel; we measured 38.4.
    """
    inner = inner_elements(width, feedforward)
    if projection.kind == "pattention":
        inner += 4 * projection.tokens
    return 11 * width + inner + depth.saved_elements(width)
