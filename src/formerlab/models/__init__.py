"""The models, and `Model`, the union of their specs."""

from typing import Annotated

from pydantic import Field

from formerlab.models.decoder import Decoder
from formerlab.models.translator import Translator
from formerlab.models.vision import VisionTransformer

Model = Annotated[Decoder | Translator | VisionTransformer, Field(discriminator="kind")]

__all__ = ["Decoder", "Model", "Translator", "VisionTransformer"]
