"""The parts of a Transformer, one idea per file: a spec with its formula, and the module that it builds.

A module draws its initial values when it is built, from torch's generator, and again by `reset_parameters()`.
"""

from formerlab.layers.attention import Attend, causal_attention
from formerlab.layers.depth.attention_residuals import AttentionResiduals
from formerlab.layers.depth.connect_to_last import ConnectToLast
from formerlab.layers.depth.dwa import DepthWeightedAverage
from formerlab.layers.depth.dynamic_hyper_connections import DynamicHyperConnections
from formerlab.layers.depth.gains import SkipsWithGains
from formerlab.layers.depth.hyper_connections import StaticHyperConnections
from formerlab.layers.depth.identity import Identity, Mixer
from formerlab.layers.depth.last_k import LastK
from formerlab.layers.depth.manifold_hyper_connections import ManifoldHyperConnections
from formerlab.layers.depth.mudd import DynamicDense
from formerlab.layers.depth.random_sparse import RandomSparse
from formerlab.layers.depth.softmax_average import SoftmaxAverage
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.feedforward import FeedForward
from formerlab.layers.initial import initialise
from formerlab.layers.linear import Linear
from formerlab.layers.mlp import Mlp
from formerlab.layers.norm import LayerNorm, Norm, RMSNorm
from formerlab.layers.pattention import Pattention
from formerlab.layers.position import Learned, NoPosition, Position, Rotary, Sinusoidal
from formerlab.layers.projection import Projection

__all__ = [
    "Attend",
    "AttentionResiduals",
    "ConnectToLast",
    "DepthMixer",
    "DepthWeightedAverage",
    "DynamicDense",
    "DynamicHyperConnections",
    "FeedForward",
    "Identity",
    "LastK",
    "LayerNorm",
    "Learned",
    "Linear",
    "ManifoldHyperConnections",
    "Mixer",
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
    "StaticHyperConnections",
    "causal_attention",
    "initialise",
]
