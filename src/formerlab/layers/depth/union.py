"""DepthMixer: the union of all depth mixers."""

from typing import Annotated

from pydantic import Field

from formerlab.layers.depth.attention_residuals import AttentionResiduals
from formerlab.layers.depth.connect_to_last import ConnectToLast
from formerlab.layers.depth.dwa import DepthWeightedAverage
from formerlab.layers.depth.dynamic_hyper_connections import DynamicHyperConnections
from formerlab.layers.depth.gains import SkipsWithGains
from formerlab.layers.depth.hyper_connections import StaticHyperConnections
from formerlab.layers.depth.identity import Identity
from formerlab.layers.depth.last_k import LastK
from formerlab.layers.depth.manifold_hyper_connections import ManifoldHyperConnections
from formerlab.layers.depth.mudd import DynamicDense
from formerlab.layers.depth.random_sparse import RandomSparse
from formerlab.layers.depth.softmax_average import SoftmaxAverage

DepthMixer = Annotated[
    Identity
    | DepthWeightedAverage
    | SoftmaxAverage
    | LastK
    | ConnectToLast
    | RandomSparse
    | SkipsWithGains
    | AttentionResiduals
    | DynamicDense
    | StaticHyperConnections
    | DynamicHyperConnections
    | ManifoldHyperConnections,
    Field(discriminator="kind"),
]
