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
    """Name within the source, for messages and for the hash that assigns a split."""
    label: int
    """Index of the class."""
    content: Path | bytes | Pixels
    """Path of an image file, content of an image file, or pixels."""


class Gallery(NamedTuple):
    """An opened source; iterating over a split raises UserError for an image without a valid class."""

    classes: tuple[str, ...]
    """Names of the classes, in the order of the labels."""
    splits: dict[Split, Iterable[Picture]]
    """The pictures of each split that the source names; all other splits are taken from `train`."""
    notes: tuple[str, ...] = ()
    """Notes on unused files or splits of the source."""


class Digits(DataSource):
    """1797 images of 8 x 8 pixels in 17 grey levels, shipped with scikit-learn: the test split of the UCI data set
    Optical Recognition of Handwritten Digits (E. Alpaydin, 1998).
    """

    kind: Literal["digits"] = "digits"

    def contents(self, cache: Path | None = None) -> str:
        """Return the name of the data set, because all releases of scikit-learn contain the same images."""
        return "scikit-learn digits"

    def open(self) -> Gallery:
        """Return all images as training images, scaled from 0..16 to 0..255."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        pixels = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
        digits = enumerate(zip(labels.tolist(), pixels, strict=True))
        return Gallery(tuple("0123456789"), {"train": [Picture(f"digit {index}", *digit) for index, digit in digits]})

    def licence_notice(self) -> str:
        return "CC BY 4.0 (UCI Machine Learning Repository), shipped with scikit-learn (BSD 3-Clause)"

    def versions(self) -> dict[str, str]:
        return {"scikit-learn": version("scikit-learn")}
