"""`Data`, the spec of any data set by its `kind`; importing it needs no torch."""

from typing import Annotated

from pydantic import Field

from formerlab.data.images.prepare import ImageData
from formerlab.data.pairs.prepare import ParallelData
from formerlab.data.text.prepare import TextData

Data = Annotated[TextData | ParallelData | ImageData, Field(discriminator="kind")]
