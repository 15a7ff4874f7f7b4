"""The registry of data sets: `Data`, the union of their kinds."""

from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from formerlab.data.dataset import DataSpec
from formerlab.data.images.prepare import ImageData
from formerlab.data.pairs.prepare import ParallelData
from formerlab.data.text.prepare import TextData

Data = Annotated[TextData | ParallelData | ImageData, Field(discriminator="kind")]


def data_spec(plain: dict[str, Any]) -> DataSpec:
    """Return the spec of plain values."""
    spec: DataSpec = TypeAdapter(Data).validate_python(plain)
    return spec
