"""What blocks keep for the backward pass, in closed form."""

from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.feedforward import FeedForward
from formerlab.layers.projection import Projection


def inner_elements(width: int, feedforward: FeedForward) -> int:
    """Return an estimate of the numbers that a feed-forward keeps inside per token: two per token or hidden unit."""
    return 2 * (feedforward.flops(width, width) // (4 * width))


def activation_elements(width: int, projection: Projection, feedforward: FeedForward, depth: DepthMixer) -> int:
    """Return an estimate of the numbers that one block keeps per token.

    They are about ten vectors of the model's width (inputs of norms and projections, queries, keys, values, attention's
    output), what its projections keep inside (two numbers per parameter token or hidden unit), and what the depth mixer
    says.
    """
    inner = inner_elements(width, feedforward)
    if projection.kind == "pattention":
        inner += 4 * 2 * projection.tokens
    return 10 * width + inner + depth.kept(width)
