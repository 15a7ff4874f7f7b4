"""The models; `Model` is the union that configurations choose from."""

from typing import Annotated

from pydantic import Field

from formerlab.models.decoder import Decoder
from formerlab.models.translator import Translator

Model = Annotated[Decoder | Translator, Field(discriminator="kind")]

__all__ = ["Decoder", "Model", "Translator"]
