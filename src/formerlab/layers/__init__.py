"""The parts of a Transformer, one idea per file: a spec with its formula, and the module that it builds."""

from formerlab.layers.depth import DepthMixer
from formerlab.layers.dwa import DepthWeightedAverage
from formerlab.layers.feedforward import FeedForward
from formerlab.layers.identity import Identity
from formerlab.layers.linear import Linear
from formerlab.layers.mlp import Mlp
from formerlab.layers.norm import LayerNorm, Norm, RMSNorm
from formerlab.layers.pattention import Pattention
from formerlab.layers.position import Learned, NoPosition, Position, Rotary
from formerlab.layers.projection import Projection

__all__ = [
    "DepthMixer",
    "DepthWeightedAverage",
    "FeedForward",
    "Identity",
    "LayerNorm",
    "Learned",
    "Linear",
    "Mlp",
    "NoPosition",
    "Norm",
    "Pattention",
    "Position",
    "Projection",
    "RMSNorm",
    "Rotary",
]
