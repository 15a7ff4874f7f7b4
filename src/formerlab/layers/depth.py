"""DepthMixer: what a block reads of the outputs of all earlier blocks."""

from typing import Annotated

from pydantic import Field

from formerlab.layers.attention_residuals import AttentionResiduals
from formerlab.layers.connect_to_last import ConnectToLast
from formerlab.layers.dwa import DepthWeightedAverage
from formerlab.layers.gains import SkipsWithGains
from formerlab.layers.identity import Identity
from formerlab.layers.last_k import LastK
from formerlab.layers.mudd import DynamicDense
from formerlab.layers.random_sparse import RandomSparse
from formerlab.layers.softmax_average import SoftmaxAverage

DepthMixer = Annotated[
    Identity
    | DepthWeightedAverage
    | SoftmaxAverage
    | LastK
    | ConnectToLast
    | RandomSparse
    | SkipsWithGains
    | AttentionResiduals
    | DynamicDense,
    Field(discriminator="kind"),
]
