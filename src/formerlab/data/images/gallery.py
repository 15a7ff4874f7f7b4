"""Labelled images of an opened source, and the digits that scikit-learn ships."""

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from formerlab.data.dataset import DataSource
from formerlab.data.images.store import Pixels
from formerlab.data.splitting import Split


class Picture(NamedTuple):
    """One labelled image, not yet decoded."""

    name: str
    """Its name within the source, for messages and for dividing by a hash."""
    label: int
    """Index of its class."""
    content: Path | bytes | Pixels
    """A file, an encoded file's bytes, or pixels."""


class Gallery(NamedTuple):
    """A source opened for reading; what is missing or unreadable is named by a UserError, then or while it is read."""

    classes: tuple[str, ...]
    """Names of the classes, by label."""
    splits: dict[Split, Iterable[Picture]]
    """The pictures of each split that the source has; the others are taken from `train`."""
    notes: tuple[str, ...] = ()
    """What the source has and does not give."""


class Digits(DataSource):
    """1797 images of 8 x 8 pixels in 17 grey levels: the test part of the UCI data set Optical Recognition of
    Handwritten Digits (E. Alpaydin, 1998), as scikit-learn ships it.
    """

    kind: Literal["digits"] = "digits"

    def contents(self, cache: Path | None = None) -> str:
        """Return the name: the images have not changed in any release of scikit-learn."""
        return "scikit-learn digits"

    def open(self) -> Gallery:
        """Return all images as training images; 16, the darkest ink, becomes 255."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        pixels = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
        digits = enumerate(zip(labels.tolist(), pixels, strict=True))
        return Gallery(tuple("0123456789"), {"train": [Picture(f"digit {index}", *digit) for index, digit in digits]})

    def licence_notice(self) -> str:
        return "CC BY 4.0 (UCI Machine Learning Repository), shipped with scikit-learn (BSD 3-Clause)"

    def versions(self) -> dict[str, str]:
        return {"scikit-learn": version("scikit-learn")}
