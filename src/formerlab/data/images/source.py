"""Where images come from: what every source answers, the digits of scikit-learn, and files in folders."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from formerlab.data.dataset import DataSource
from formerlab.data.splitting import SPLITS, Split
from formerlab.errors import UserError
from formerlab.file_search import expanded, files_below
from formerlab.spec import fingerprint

ENDINGS = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"))

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


class Digits(ImageSource):
    """1797 images of 8 x 8 pixels in 17 grey levels: the test part of the UCI data set Optical Recognition of
    Handwritten Digits (E. Alpaydin, 1998), as scikit-learn ships it.
    """

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


class ImageFolders(ImageSource):
    """A folder per split with a folder per class; files may lie at any depth below the class.

    Classes are numbered in the order of their names. `~`, `$NAME` and paths relative to the
    working directory are understood.
    """

    kind: Literal["folders"] = "folders"
    train: str
    """Folder of the training images."""
    valid: str | None = None
    """Folder of the validation images; without one, images are taken from `train` by a hash of their names."""
    test: str | None = None
    """Folder of the test images; without one, images are taken from `train` by a hash of their names."""
    licence: str = "not stated"
    """The licence of the images, for the manifest."""

    @model_validator(mode="before")
    @classmethod
    def _by_split(cls, tree: Any) -> Any:
        for key in ("path", "paths") if isinstance(tree, dict) else ():
            if key in tree:
                raise ValueError(f"images have no {key!r}; write train: <a folder with a folder per class>")
        return tree

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of names and sizes of all files; None where a folder is missing.

        The files' contents are not read for it: there may be millions. An image that is replaced by another of the
        same size in bytes is seen when the data are prepared anew.
        """
        try:
            found = {split: self._files(split) for split in SPLITS if getattr(self, split)}
            return fingerprint([[split, name, size] for split, files in found.items() for name, size in files])
        except (UserError, OSError):
            return None

    def search(self) -> None:
        """Raise UserError for a missing folder or one without images."""
        for split in SPLITS:
            if getattr(self, split):
                self._files(split)

    def open(self) -> Gallery:
        """Return the files of all splits. Raises UserError for a missing folder or a class that `train` has not."""
        named: list[Split] = [split for split in SPLITS if getattr(self, split)]
        files = {split: [name for name, _ in self._files(split)] for split in named}
        classes = tuple(sorted({name.partition("/")[0] for name in files["train"]}))
        return Gallery(classes, {split: list(self._pictures(split, files[split], classes)) for split in named})

    def recipe(self) -> dict[str, object]:
        """Return which splits are named; the places and the licence change nothing."""
        return {"kind": self.kind, "named": [split for split in SPLITS if getattr(self, split)]}

    def _files(self, split: str) -> list[tuple[str, int]]:
        """Return name below the split's folder and size of every image, sorted."""
        root = expanded(getattr(self, split))
        if not root.is_dir():
            raise UserError(f"data: source.{split}: {root} is no folder; name one with a folder per class")
        hidden = [folder.name for folder in root.glob(".*/")]
        if hidden:
            raise UserError(f"data: source.{split}: {root / hidden[0]}: a hidden folder is no class; remove it")
        start = len(os.path.join(root, ""))
        below = ((path[start:], status.st_size) for path, status in files_below(str(root)))
        # What lies at the top has no class.
        found = sorted((name, size) for name, size in below if "/" in name and _ending(name) in ENDINGS)
        if not found:
            raise UserError(
                f"data: source.{split}: {root} holds no images in folders; name one with a folder per class"
            )
        return found

    def _pictures(self, split: str, names: list[str], classes: tuple[str, ...]) -> Iterator[Picture]:
        root, numbers = expanded(getattr(self, split)), {name: number for number, name in enumerate(classes)}
        for name in names:
            label = name.partition("/")[0]
            if label not in numbers:
                raise UserError(
                    f"{root / name}: no class {label!r} among the training images; remove it or add the class"
                )
            yield Picture(name, numbers[label], root / name)


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()
