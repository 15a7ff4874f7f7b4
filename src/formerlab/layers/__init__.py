"""The parts of a Transformer, one idea per file: a spec with its formula, and the module that it builds.

A module draws its initial values when it is built, from torch's generator, and again by `reset_parameters()`.
"""

from formerlab.layers.attention_residuals import AttentionResiduals
from formerlab.layers.connect_to_last import ConnectToLast
from formerlab.layers.depth import DepthMixer
from formerlab.layers.dwa import DepthWeightedAverage
from formerlab.layers.feedforward import FeedForward
from formerlab.layers.gains import SkipsWithGains
from formerlab.layers.identity import Identity
from formerlab.layers.initial import initialise
from formerlab.layers.last_k import LastK
from formerlab.layers.linear import Linear
from formerlab.layers.mlp import Mlp
from formerlab.layers.mudd import DynamicDense
from formerlab.layers.norm import LayerNorm, Norm, RMSNorm
from formerlab.layers.pattention import Pattention
from formerlab.layers.position import Learned, NoPosition, Position, Rotary
from formerlab.layers.projection import Projection
from formerlab.layers.random_sparse import RandomSparse
from formerlab.layers.sinusoidal import Sinusoidal
from formerlab.layers.softmax_average import SoftmaxAverage

__all__ = [
    "AttentionResiduals",
    "ConnectToLast",
    "DepthMixer",
    "DepthWeightedAverage",
    "DynamicDense",
    "FeedForward",
    "Identity",
    "LastK",
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
    "RandomSparse",
    "Rotary",
    "Sinusoidal",
    "SkipsWithGains",
    "SoftmaxAverage",
    "initialise",
]
