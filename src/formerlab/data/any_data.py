"""`Data`: the spec of a data set of any kind. This module does not import torch."""

from typing import Annotated

from pydantic import Field

from formerlab.data.images.prepare import ImageData
from formerlab.data.pairs.prepare import ParallelData
from formerlab.data.text.prepare import TextData

Data = Annotated[TextData | ParallelData | ImageData, Field(discriminator="kind")]
