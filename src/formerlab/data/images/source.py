"""Sources of images: folders of image files, the Hugging Face hub, and local files that `datasets` reads."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from formerlab.data.dataset import DataSource
from formerlab.data.hub import HubSource
from formerlab.data.images.gallery import LabelledImage, OpenedImages
from formerlab.data.splitting import SPLITS, Split
from formerlab.errors import UserError, some
from formerlab.file_search import expanded, files_below

ENDINGS = (
    *(".apng", ".avif", ".avifs", ".bmp", ".dib", ".gif", ".icns", ".ico", ".j2c", ".j2k", ".jfif", ".jp2", ".jpc"),
    ".jpe",
    *(".jpeg", ".jpf", ".jpg", ".jpx", ".pbm", ".pcx", ".pfm", ".pgm", ".png", ".pnm", ".ppm", ".psd", ".qoi", ".rgb"),
    *(".sgi", ".tga", ".tif", ".tiff", ".webp"),
)
"""File endings that Pillow reads."""


class ImageFolders(DataSource):
    """A folder per split that contains a folder per class; image files may be in subfolders of a class.

    `~` and `$NAME` are expanded, and relative paths start at the working directory.
    """

    kind: Literal["folders"] = "folders"
    train: str
    """Folder of the training images."""
    valid: str | None = None
    """Folder of the validation images; null takes images from `train` by a hash of their names."""
    test: str | None = None
    """Folder of the test images; null takes images from `train` by a hash of their names."""
    licence: str = "not stated"
    """The licence of the images, for the manifest."""

    def contents(self, cache: Path | None = None) -> list[Any]:
        """Return names and sizes of all image files.

        Their contents are not read, because there may be millions of files, so a change that leaves all sizes unchanged
        is not detected.
        """
        return [[split, *file] for split in self._given_splits() for file in self._files(split)]

    def open(self) -> OpenedImages:
        """Return the files of all splits. Raises UserError for a missing folder or a class without training images."""
        files = {split: [name for name, _ in self._files(split)] for split in self._given_splits()}
        classes = tuple(sorted({name.partition("/")[0] for name in files["train"]}))
        numbers, splits = {name: number for number, name in enumerate(classes)}, dict[Split, Iterable[LabelledImage]]()
        for split, names in files.items():
            root = expanded(getattr(self, split))
            for name in names:
                if (label := name.partition("/")[0]) not in numbers:
                    problem = f"{root / name}: no class {label!r} among the training images"
                    raise UserError(f"{problem}; remove it or add the class")
            splits[split] = [LabelledImage(name, numbers[name.partition("/")[0]], root / name) for name in names]
        return OpenedImages(classes, splits, tuple(filter(None, map(self._left_out, files))))

    def recipe(self) -> dict[str, object]:
        return {"kind": self.kind, "named": self._given_splits()}

    def _given_splits(self) -> list[Split]:
        return [split for split in SPLITS if getattr(self, split)]

    def _files(self, split: Split) -> list[tuple[str, int]]:
        """Return every image as (name below the split's folder, size in bytes), sorted."""
        images = sorted(file for file in self._all_files(split) if _is_image(file[0]))
        if not images:
            root = expanded(getattr(self, split))
            raise UserError(f"source.{split}: {root} has no images in class folders; choose another folder")
        return images

    def _left_out(self, split: Split) -> str | None:
        """Return a note on the files of a split's folder that are not images of a class, or None."""
        names = [name for name, _ in self._all_files(split) if not _is_image(name)]
        endings = Counter(Path(name).suffix.lower() or "no ending" if "/" in name else "in no class" for name in names)
        counts = some([f"{ending} {count}" for ending, count in endings.most_common()])
        left_out = f"{split}: {len(names)} files are not read as images ({counts}); remove or convert them"
        return left_out if names else None

    def _all_files(self, split: Split) -> Iterator[tuple[str, int]]:
        """Yield every file as (name below the split's folder, size in bytes)."""
        root = expanded(getattr(self, split))
        if not root.is_dir():
            raise UserError(f"source.{split}: {root} is not a folder; choose a folder with a folder per class")
        for hidden in root.glob(".*/"):
            raise UserError(f"source.{split}: {hidden}: a hidden folder cannot be a class; remove it")
        start = len(os.path.join(root, ""))
        yield from ((path[start:], status.st_size) for path, status in files_below(str(root)))


def _is_image(name: str) -> bool:
    return "/" in name and name.lower().endswith(ENDINGS)  # a file outside all class folders has no class


class ImageHub(HubSource):
    """A data set of the hub, or a folder of Parquet or WebDataset files that `datasets` reads like a data set
    of the hub.
    """

    kind: Literal["hub"] = "hub"
    image: str = "image"
    """Column of the images; for WebDataset, the file ending, such as `jpg`."""
    label: str = "label"
    """Column of the class, a number from 0 or a name; for WebDataset, often `cls`."""
    streaming: bool = False
    """Whether to read over the network without a copy on disk."""

    def stamps(self, cache: Path | None) -> list[Any]:
        """Return the names and sizes of the files of a folder; their contents are not read, as for ImageFolders."""
        below = files_below(self.name) if Path(self.name).is_dir() else ()
        return [[(Path(path).name, status.st_size) for path, status in below]]

    def open(self) -> OpenedImages:
        """Open the data set. Raises UserError if the data set, a split or a column is missing."""
        self._check_class_names()
        rows = {split: self._load_split(name) for split in SPLITS if (name := getattr(self, split)) is not None}
        names = getattr(rows["train"].features[self.label], "names", None)
        distinct = {row[self.label] for row in rows["train"].select_columns([self.label])} if names is None else set()
        # A missing label is None, or NaN if pandas wrote the file.
        labels = names or sorted(label for label in distinct if label is not None and label == label)
        classes = tuple(map(str, labels))
        read = re.findall(r"\w+", f"{self.train} {self.valid} {self.test}")
        unread = sorted(set(rows["train"].info.splits or ()).difference(read))
        notes = (f"not read: split {some(unread)} of {self.name}; set source.valid or source.test",) if unread else ()
        return OpenedImages(classes, {split: self._images(rows[split], classes) for split in rows}, notes)

    def _check_class_names(self) -> None:
        """Raise UserError if files of a folder number their classes differently; `datasets` uses the first list."""
        from datasets import Features
        from pyarrow import parquet

        path_by_classes: dict[str, Path] = {}
        below = files_below(self.name) if Path(self.name).is_dir() else ()
        for path in (Path(name) for name, _ in below):
            if path.suffix == ".parquet":
                with suppress(Exception):  # `datasets` reports unreadable files
                    feature = Features.from_arrow_schema(parquet.read_schema(path)).get(self.label)
                    if names := getattr(feature, "names", None):
                        path_by_classes.setdefault(", ".join(names), path)
        if len(path_by_classes) > 1:
            (classes, path), (other_classes, other_path) = list(path_by_classes.items())[:2]
            problem = f"classes {classes[:60]} in {path}, but {other_classes[:60]} in {other_path}"
            raise UserError(f"source.label: {problem}; write all files with one list of classes")

    def _load_split(self, split: str) -> Any:
        """Return the rows of a split with undecoded images. Raises UserError for a missing or unusable column."""
        import datasets

        rows = self.rows(split, streaming=self.streaming)
        for key in ("image", "label"):
            if (column := getattr(self, key)) not in (rows.features or {}):
                columns = ", ".join(rows.features or {})
                raise UserError(f"source.{key}: {self.name!r} has no column {column!r}; it has {columns}")
        if not isinstance(rows.features[self.label], datasets.Value | datasets.ClassLabel):
            kind = type(rows.features[self.label]).__name__
            problem = f"column {self.label!r} has type {kind}, not one class per image"
            raise UserError(f"source.label: {problem}; choose a column with a number or a name")
        if isinstance(rows.features[self.image], datasets.Image):
            rows = rows.cast_column(self.image, datasets.Image(decode=False))
        return rows

    def _images(self, rows: Any, classes: tuple[str, ...]) -> Iterator[LabelledImage]:
        numbers = {name: number for number, name in enumerate(classes)}
        has_class_names = getattr(rows.features[self.label], "names", None) is not None
        for index, row in enumerate(rows):
            image, label = row[self.image], row[self.label]
            number = label if has_class_names or label is None else numbers.get(str(label))
            if number is None or not 0 <= number < len(classes):
                problem = f"image {index} has label {label!r}, which no training image has"
                remedy = "remove it, or set source.label to another column"
                raise UserError(f"source {self.name!r}: {problem}; {remedy}")
            content = image["bytes"] if isinstance(image, dict) else image
            if content is None:  # decoding reports an image without bytes and path
                content = Path(image["path"]) if image and image["path"] else b""
            yield LabelledImage(f"image {index}", int(number), content)
