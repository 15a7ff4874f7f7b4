"""Layers of a Transformer.

The file of a layer contains its spec with the formula. It also contains the module, unless several specs share one.
"""

from formerlab.layers.attention import Attend as Attend
from formerlab.layers.attention import causal_attention as causal_attention
from formerlab.layers.depth.attention_residuals import AttentionResiduals as AttentionResiduals
from formerlab.layers.depth.connect_to_last import ConnectToLast as ConnectToLast
from formerlab.layers.depth.dwa import DepthWeightedAverage as DepthWeightedAverage
from formerlab.layers.depth.dynamic_hyper_connections import DynamicHyperConnections as DynamicHyperConnections
from formerlab.layers.depth.gains import SkipsWithGains as SkipsWithGains
from formerlab.layers.depth.hyper_connections import StaticHyperConnections as StaticHyperConnections
from formerlab.layers.depth.identity import Identity as Identity
from formerlab.layers.depth.identity import Mixer as Mixer
from formerlab.layers.depth.last_k import LastK as LastK
from formerlab.layers.depth.manifold_hyper_connections import ManifoldHyperConnections as ManifoldHyperConnections
from formerlab.layers.depth.mudd import DynamicDense as DynamicDense
from formerlab.layers.depth.random_sparse import RandomSparse as RandomSparse
from formerlab.layers.depth.softmax_average import SoftmaxAverage as SoftmaxAverage
from formerlab.layers.depth.union import DepthMixer as DepthMixer
from formerlab.layers.initialization import initialise as initialise
from formerlab.layers.linear import Linear as Linear
from formerlab.layers.mlp import Mlp as Mlp
from formerlab.layers.norm import LayerNorm as LayerNorm
from formerlab.layers.norm import Norm as Norm
from formerlab.layers.norm import RMSNorm as RMSNorm
from formerlab.layers.pattention import Pattention as Pattention
from formerlab.layers.position import Learned as Learned
from formerlab.layers.position import NoPosition as NoPosition
from formerlab.layers.position import Position as Position
from formerlab.layers.position import Rotary as Rotary
from formerlab.layers.position import Sinusoidal as Sinusoidal
from formerlab.layers.projection import FeedForward as FeedForward
from formerlab.layers.projection import Projection as Projection
