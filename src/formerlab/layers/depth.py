"""DepthMixer: what a block reads of the outputs of all earlier blocks."""

from typing import Annotated

from pydantic import Field

from formerlab.layers.dwa import DepthWeightedAverage
from formerlab.layers.identity import Identity

DepthMixer = Annotated[Identity | DepthWeightedAverage, Field(discriminator="kind")]
