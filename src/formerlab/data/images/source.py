"""Where images come from: the digits of scikit-learn, files in folders, the hub and files that `datasets` reads."""

import glob
import os
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from formerlab.data.dataset import DataSource
from formerlab.data.hub import HubSource
from formerlab.data.images.store import Pixels
from formerlab.data.splitting import SPLITS, Split
from formerlab.errors import UserError
from formerlab.file_search import expanded, files_below, files_named

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


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


class ImageFolders(DataSource):
    """A folder per split with a folder per class, below which files may lie at any depth. Classes are numbered in the
    order of their names. `~`, `$NAME` and paths relative to the working directory are understood.
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

    def contents(self, cache: Path | None = None) -> list[Any]:
        """Return names and sizes of all files.

        The files' contents are not read for it: there may be millions. An image that is replaced by another of the
        same size in bytes is seen when the data are prepared anew.
        """
        return [[split, *file] for split in self._named() for file in self._files(split)]

    def open(self) -> Gallery:
        """Return the files of all splits. Raises UserError for a missing folder or a class that `train` has not."""
        files = {split: [name for name, _ in self._files(split)] for split in self._named()}
        classes = tuple(sorted({name.partition("/")[0] for name in files["train"]}))
        numbers, splits = {name: number for number, name in enumerate(classes)}, dict[Split, Iterable[Picture]]()
        for split, names in files.items():
            root = expanded(getattr(self, split))
            for name in names:
                if (label := name.partition("/")[0]) not in numbers:
                    where = f"{root / name}: no class {label!r} among the training images"
                    raise UserError(f"{where}; remove it or add the class")
            splits[split] = [Picture(name, numbers[name.partition("/")[0]], root / name) for name in names]
        return Gallery(classes, splits)

    def recipe(self) -> dict[str, object]:
        """Return which splits are named; paths and licence do not decide the content."""
        return {"kind": self.kind, "named": self._named()}

    def _named(self) -> list[Split]:
        return [split for split in SPLITS if getattr(self, split)]

    def _files(self, split: Split) -> list[tuple[str, int]]:
        """Return name below the split's folder and size of every image, sorted."""
        root = expanded(getattr(self, split))
        if not root.is_dir():
            raise UserError(f"source.{split}: {root} is no folder; name one with a folder per class")
        for hidden in root.glob(".*/"):
            raise UserError(f"source.{split}: {hidden}: a hidden folder is no class; remove it")
        start = len(os.path.join(root, ""))
        below = ((path[start:], status.st_size) for path, status in files_below(str(root)))
        # What lies at the top has no class.
        found = sorted((name, size) for name, size in below if "/" in name and name.lower().endswith(ENDINGS))
        if not found:
            raise UserError(f"source.{split}: {root} holds no images in folders; name one with a folder per class")
        return found


class ImageHub(HubSource):
    """A data set of the hub, or files that `datasets.load_dataset` reads: `parquet` and `webdataset` with `files`."""

    kind: Literal["hub"] = "hub"
    name: str
    """Name on the hub, `owner/name`, or the kind of files: parquet, webdataset."""
    files: dict[str, tuple[str, ...]] = {}
    """Files by split (train, validation, ...), as paths or globs; empty for a data set of the hub."""
    image: str = "image"
    """The column that holds the image (in a WebDataset the file ending, such as `jpg`)."""
    label: str = "label"
    """The column that holds the class as a number from 0, or a name (in a WebDataset often `cls`)."""
    streaming: bool = False
    """Whether to read over the network without a copy on disk."""

    def stamps(self, cache: Path | None) -> list[Any]:
        """Return the names and sizes of local files, whose contents are not read, as in a folder of images."""
        below = files_below(self.name) if Path(self.name).is_dir() else ()
        sizes = [(Path(path).name, status.st_size) for path, status in below]
        return [sizes + [(path.name, path.stat().st_size) for group in self._files().values() for path in group]]

    def open(self) -> Gallery:
        """Open the data set. Raises UserError where it, a split or a column is missing."""
        rows = {split: self._checked(theirs) for split in SPLITS if (theirs := getattr(self, split)) is not None}
        named = getattr(rows["train"].features[self.label], "names", None)
        given = {row[self.label] for row in rows["train"].select_columns([self.label])} if named is None else set()
        # A missing label is None or, as pandas writes a missing number, NaN.
        labels = named or sorted(label for label in given if label is not None and label == label)
        classes = tuple(map(str, labels))
        return Gallery(classes, {split: self._pictures(found, classes) for split, found in rows.items()})

    def _files(self) -> dict[str, list[Path]]:
        return {
            name: [path for pattern in group for path in files_named((pattern,), f"source.files.{name}")]
            for name, group in self.files.items()
        }

    def _checked(self, split: str) -> Any:
        import datasets

        # `datasets` takes every name for a pattern.
        files = {name: [glob.escape(str(path)) for path in group] for name, group in self._files().items()}
        rows = self.rows(split, data_files=files or None, streaming=self.streaming)
        for key in ("image", "label"):
            if (column := getattr(self, key)) not in (rows.features or {}):
                has = ", ".join(rows.features or {})
                raise UserError(f"source.{key}: {self.name!r} has no column {column!r}; it has {has}")
        if isinstance(rows.features[self.image], datasets.Image):
            rows = rows.cast_column(self.image, datasets.Image(decode=False))
        return rows

    def _pictures(self, rows: Any, classes: tuple[str, ...]) -> Iterator[Picture]:
        numbers = {name: number for number, name in enumerate(classes)}
        named = getattr(rows.features[self.label], "names", None) is not None
        for index, row in enumerate(rows):
            image, label = row[self.image], row[self.label]
            number = label if named or label is None else numbers.get(str(label))
            if number is None or not 0 <= number < len(classes):
                raise UserError(
                    f"source {self.name!r}: image {index} has label {label!r}, of which training has none; "
                    "remove it, or name another column as source.label"
                )
            content = image["bytes"] if isinstance(image, dict) else image
            if content is None:  # without a path too it is no image, as decoding will say
                content = Path(image["path"]) if image and image["path"] else b""
            yield Picture(f"image {index}", int(number), content)
