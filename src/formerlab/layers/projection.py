"""Unions of the specs of projections (queries, keys, values, attention output) and of feed-forward networks."""

from typing import Annotated

from pydantic import Field

from formerlab.layers.linear import Linear
from formerlab.layers.mlp import Mlp
from formerlab.layers.pattention import Pattention

Projection = Annotated[Linear | Pattention, Field(discriminator="kind")]
FeedForward = Annotated[Mlp | Pattention, Field(discriminator="kind")]
