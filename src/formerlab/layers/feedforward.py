"""FeedForward: what a block applies to every token by itself."""

from typing import Annotated

from pydantic import Field

from formerlab.layers.mlp import Mlp
from formerlab.layers.pattention import Pattention

FeedForward = Annotated[Mlp | Pattention, Field(discriminator="kind")]
