"""Handwritten digits that come with scikit-learn: real images without a download."""

from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from formerlab.data.images.source import Gallery, ImageSource, Picture
from formerlab.spec import fingerprint


class Digits(ImageSource):
    """1797 images of 8 x 8 pixels in 17 grey levels: the test part of the UCI data set Optical Recognition of
    Handwritten Digits (E. Alpaydin, 1998), as scikit-learn ships it.
    """

    division: ClassVar[str] = "by image: BLAKE2b of its number"

    kind: Literal["digits"] = "digits"

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of the name: the images have not changed in any release of scikit-learn."""
        return fingerprint("scikit-learn digits")

    def open(self) -> Gallery:
        """Return all images as training images; 16, the darkest ink, becomes 255."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        pixels = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
        pictures = [
            Picture(f"digit {index}", int(label), image)
            for index, (image, label) in enumerate(zip(pixels, labels, strict=True))
        ]
        return Gallery(tuple("0123456789"), {"train": pictures})

    def licence_notice(self) -> str:
        """Return the licence."""
        return "CC BY 4.0 (UCI Machine Learning Repository), shipped with scikit-learn (BSD 3-Clause)"

    def versions(self) -> dict[str, str]:
        """Return the version of scikit-learn."""
        return {"scikit-learn": version("scikit-learn")}
