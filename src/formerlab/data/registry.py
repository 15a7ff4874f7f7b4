"""The registry of data sets: `Data`, the union of their kinds, and the stage that they share."""

from importlib import import_module
from pathlib import Path
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


def prepare_data(name: str, data: DataSpec, out: Path, *, code_hash: str, processes: int | None) -> None:
    """Write everything that a task reads of a data set below `out`; do nothing where it is current."""
    import_module(type(data).__module__).prepare(name, data, out, code_hash=code_hash, processes=processes)
