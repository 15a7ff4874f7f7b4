"""Projection: what maps a token's vector to queries, keys, values and back."""

from typing import Annotated

from pydantic import Field

from formerlab.layers.linear import Linear
from formerlab.layers.pattention import Pattention

Projection = Annotated[Linear | Pattention, Field(discriminator="kind")]
