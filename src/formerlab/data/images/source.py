"""What every source of images answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from formerlab.data.dataset import DataSource
from formerlab.data.splitting import Split

Pixels = NDArray[np.uint8]
"""An image: rows, columns, channels."""


@dataclass(frozen=True)
class Picture:
    """One labelled image, not yet decoded."""

    name: str
    """Its name within the source, for messages and for dividing by a hash."""
    label: int
    """Index of its class."""
    content: Path | bytes | Pixels
    """A file, an encoded file's bytes, or pixels."""


@dataclass(frozen=True)
class Gallery:
    """A source opened for reading."""

    classes: tuple[str, ...]
    """Names of the classes, by label."""
    splits: dict[Split, Iterable[Picture]]
    """The pictures of each split that the source has; the others are taken from `train`."""


class ImageSource(DataSource, ABC):
    """Where images come from."""

    @abstractmethod
    def open(self) -> Gallery:
        """Open the source. Raises UserError, now or while reading, naming what is missing or unreadable."""
