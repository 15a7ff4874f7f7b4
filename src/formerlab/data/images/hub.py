"""Images through the `datasets` library: the hub, Parquet files, WebDataset archives."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from formerlab.data.hub import HubSource
from formerlab.data.images.source import Gallery, ImageSource, Picture
from formerlab.data.splitting import SPLITS
from formerlab.errors import UserError
from formerlab.file_search import files_named, matches
from formerlab.spec import fingerprint


class ImageHub(HubSource, ImageSource):
    """A data set of the hub, or files that `datasets.load_dataset` reads: `parquet` and `webdataset` with `files`.

    Without network (HF_HUB_OFFLINE=1) a data set of the hub is read from the cache, where an earlier run left it.
    """

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
    """Whether to read over the network without keeping a copy."""

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of name, revision and the files' names and sizes; the hub is not looked up."""
        groups = self._files().values()
        if not all(groups):
            return None
        stamps = [(os.path.basename(path), os.path.getsize(path)) for group in groups for path in group]
        return fingerprint([self.name, self.subset, self.revision, stamps])

    def open(self) -> Gallery:
        """Open the data set. Raises UserError where it, a split or a column is missing."""
        self.search()
        rows = {split: self._checked(theirs) for split in SPLITS if (theirs := getattr(self, split)) is not None}
        classes = self._classes(rows["train"])
        return Gallery(classes, {split: self._pictures(found, classes) for split, found in rows.items()})

    def search(self) -> None:
        """Raise UserError for a pattern that matches no file."""
        for name, group in self.files.items():
            files_named(group, f"source.files.{name}")

    def _files(self) -> dict[str, list[str]]:
        return {name: [path for pattern in group for path in matches(pattern)] for name, group in self.files.items()}

    def _checked(self, split: str) -> Any:
        import datasets

        # `datasets` takes every name for a pattern.
        files = {name: [glob.escape(path) for path in group] for name, group in self._files().items()}
        rows = self.rows(split, data_files=files or None, streaming=self.streaming)
        columns = list(rows.features or {})
        for key in ("image", "label"):
            if getattr(self, key) not in columns:
                found = f"{self.name!r} has no column {getattr(self, key)!r}; it has {', '.join(columns)}"
                raise UserError(f"data: source.{key}: {found}")
        if isinstance(rows.features[self.image], datasets.Image):
            rows = rows.cast_column(self.image, datasets.Image(decode=False))
        return rows

    def _classes(self, rows: Any) -> tuple[str, ...]:
        names = getattr(rows.features[self.label], "names", None)
        if names is not None:
            return tuple(names)
        given = {row[self.label] for row in rows.select_columns([self.label])}
        labels = sorted(label for label in given if not _missing(label))
        return tuple(map(str, labels))

    def _pictures(self, rows: Any, classes: tuple[str, ...]) -> Iterator[Picture]:
        numbers = {name: number for number, name in enumerate(classes)}
        named = getattr(rows.features[self.label], "names", None) is not None
        for index, row in enumerate(rows):
            image, label = row[self.image], row[self.label]
            number = -1 if _missing(label) else int(label) if named else numbers.get(str(label), -1)
            if not 0 <= number < len(classes):
                raise UserError(
                    f"data: source {self.name!r}: image {index} has label {label!r}, of which training has none; "
                    "remove it, or name another column as source.label"
                )
            content = image["bytes"] if isinstance(image, dict) else image
            if content is None:  # without a path either it is no image, which decoding tells
                content = Path(image["path"]) if image and image["path"] else b""
            yield Picture(f"image {index}", number, content)


def _missing(label: object) -> bool:
    return label is None or label != label  # pandas writes a missing number as NaN
