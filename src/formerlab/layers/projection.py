"""Projection: what maps a token's vector to queries, keys, values and back. FeedForward: what follows in a block."""

from typing import Annotated

from pydantic import Field

from formerlab.layers.linear import Linear
from formerlab.layers.mlp import Mlp
from formerlab.layers.pattention import Pattention

Projection = Annotated[Linear | Pattention, Field(discriminator="kind")]
FeedForward = Annotated[Mlp | Pattention, Field(discriminator="kind")]
"""What a block applies to every token by itself."""
