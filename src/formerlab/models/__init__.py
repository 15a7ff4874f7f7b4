"""The models; `Model` is the union that configurations choose from."""

from typing import Annotated

from pydantic import Field

from formerlab.models.decoder import Decoder

Model = Annotated[Decoder, Field()]  # with a second variant: Field(discriminator="kind")

__all__ = ["Decoder", "Model"]
