"""What every source of images answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from formerlab.data.shards import Shares, Split
from formerlab.spec import Spec

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


class ImageSource(Spec, ABC):
    """Where images come from."""

    @abstractmethod
    def state(self) -> str | None:
        """Return 16 hexadecimal digits that change when the images would; None where the source cannot be seen now.

        Reads no network.
        """

    @abstractmethod
    def open(self) -> Gallery:
        """Open the source. Raises UserError, now or while reading, naming what is missing or unreadable."""

    @abstractmethod
    def recipe(self) -> dict[str, object]:
        """Return the settings that shape the images, without the places they lie at."""

    @abstractmethod
    def split_rule(self, shares: Shares) -> str:
        """Say in one sentence how images are divided."""

    @abstractmethod
    def licence_notice(self) -> str:
        """Return the licence of the images, as their owner or the config states it."""

    def versions(self) -> dict[str, str]:
        """Return the versions of packages whose own images are read."""
        return {}


def by_name(splits: dict[str, str | None], shares: Shares) -> str:
    """Say for each held-out split whether the source has it or a hash of the names decides; values say which it is."""
    rules = []
    for split, share in (("test", shares.test), ("valid", shares.valid)):
        theirs = splits.get(split)
        rules.append(f"{split}: {theirs}" if theirs else f"{split} by image: BLAKE2b of its name, {share:g}")
    return "; ".join(rules)
