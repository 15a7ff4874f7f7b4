"""What blocks keep for the backward pass, in closed form."""

from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.projection import FeedForward, Projection


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
    return 11 * width + inner + depth.kept(width)
