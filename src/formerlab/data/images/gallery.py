"""Labelled images of an opened source, and the digits that scikit-learn ships."""

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from formerlab.data.dataset import DataSource
from formerlab.data.images.store import Pixels
from formerlab.data.splitting import Split


class LabelledImage(NamedTuple):
    """A labelled image before decoding."""

    name: str
    """Name within the source; its hash assigns a split."""
    label: int
    """Index of the class."""
    content: Path | bytes | Pixels
    """Path or content of an image file, or pixels."""


class OpenedImages(NamedTuple):
    """An opened source; iterating over a split raises UserError for an image without a valid class."""

    classes: tuple[str, ...]
    """Names of the classes, in the order of the labels."""
    splits: dict[Split, Iterable[LabelledImage]]
    """The images of each split that the source names."""
    notes: tuple[str, ...] = ()
    """Notes on unused files or splits of the source."""


class Digits(DataSource):
    """The digits of scikit-learn: 1797 images of 8 x 8 pixels in 17 grey levels, the test split of the UCI data set
    Optical Recognition of Handwritten Digits (E. Alpaydin, 1998).
    """

    kind: Literal["digits"] = "digits"

    def contents(self, cache: Path | None = None) -> str:
        return "scikit-learn digits"  # all releases contain the same images

    def open(self) -> OpenedImages:
        """Return all images as training images, scaled from 0..16 to 0..255."""
        from sklearn.datasets import load_digits

        values, labels = load_digits(return_X_y=True)
        pixels = np.rint(values.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
        digits = enumerate(zip(labels.tolist(), pixels, strict=True))
        images = [LabelledImage(f"digit {index}", *digit) for index, digit in digits]
        return OpenedImages(tuple("0123456789"), {"train": images})

    def licence_notice(self) -> str:
        return "CC BY 4.0 (UCI Machine Learning Repository), shipped with scikit-learn (BSD 3-Clause)"

    def versions(self) -> dict[str, str]:
        return {"scikit-learn": version("scikit-learn")}
