"""Images through the `datasets` library: the hub, Parquet files, WebDataset archives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from formerlab.data.images.source import Gallery, ImageSource, Picture
from formerlab.data.origin import rule_of
from formerlab.data.text.hub_splits import named_splits
from formerlab.data.text.shards import SPLITS, Shares
from formerlab.errors import UserError
from formerlab.spec import fingerprint


class ImageHub(ImageSource):
    """A data set of the hub, or files that `datasets.load_dataset` reads: `parquet` and `webdataset` with `files`.

    Without network (HF_HUB_OFFLINE=1) a data set of the hub is read from the cache, where an earlier run left it.
    """

    kind: Literal["hub"] = "hub"
    name: str
    """Name on the hub, `owner/name`, or the kind of files: parquet, webdataset."""
    files: dict[str, tuple[str, ...]] = {}
    """Files by split (train, validation, ...), as paths or globs; empty for a data set of the hub."""
    subset: str | None = None
    """Configuration of the data set, where it has several."""
    revision: str | None = None
    """Commit, tag or branch; name a commit for images that can never change."""
    train: str = "train"
    """The data set's split to train on."""
    valid: str | None = None
    """Its split for validation; without one, images are taken from `train` by a hash of their numbers."""
    test: str | None = None
    """Its split for the test; without one, images are taken from `train` by a hash of their numbers."""
    image: str = "image"
    """The column that holds the image (in a WebDataset the file ending, such as `jpg`)."""
    label: str = "label"
    """The column that holds the class as a number from 0, or a name (in a WebDataset often `cls`)."""
    streaming: bool = False
    """Whether to read over the network without keeping a copy."""
    licence: str = "as stated on the data set's page"
    """The licence of the images, for the manifest."""

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of name, revision and the files' names and sizes; the hub is not looked up."""
        stamps = [(path.name, path.stat().st_size) for path in self._paths()]
        return fingerprint([self.name, self.subset, self.revision, stamps])

    def open(self) -> Gallery:
        """Open the data set. Raises UserError where it, a split or a column is missing."""
        named = {"train": self.train} | {s: t for s in ("valid", "test") if (t := getattr(self, s)) is not None}
        rows = {split: self._rows(theirs) for split, theirs in named.items()}
        classes = self._classes(rows["train"])
        return Gallery(classes, {split: self._pictures(rows[split], classes) for split in SPLITS if split in rows})

    def recipe(self) -> dict[str, object]:
        """Return all settings but the files, the licence and the way it is read."""
        return self.model_dump(mode="json", exclude={"files", "licence", "streaming"})

    def split_rule(self, shares: Shares) -> str:
        """Say how images are divided."""
        return rule_of(named_splits(self), shares, "by image: BLAKE2b of its name")

    def licence_notice(self) -> str:
        """Return the licence that the config states."""
        return self.licence

    def _paths(self) -> list[Path]:
        patterns = [Path(pattern).expanduser() for group in self.files.values() for pattern in group]
        return [path for pattern in patterns for path in sorted(Path(pattern.anchor or ".").glob(_relative(pattern)))]

    def _rows(self, split: str) -> Any:
        import datasets

        files = {name: [str(Path(path).expanduser()) for path in group] for name, group in self.files.items()}
        try:
            rows = datasets.load_dataset(
                self.name,
                self.subset,
                data_files=files or None,
                revision=self.revision,
                split=split,
                streaming=self.streaming,
            )
        except Exception as error:  # the library raises whatever its readers raise
            reason = (str(error) or type(error).__name__).partition("\n")[0]
            raise UserError(f"data: source {self.name!r}, split {split!r}: {reason}") from None
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
        labels = sorted({row[self.label] for row in rows.select_columns([self.label])})
        return tuple(map(str, labels))

    def _pictures(self, rows: Any, classes: tuple[str, ...]) -> Iterator[Picture]:
        numbers = {name: number for number, name in enumerate(classes)}
        named = getattr(rows.features[self.label], "names", None) is not None
        for index, row in enumerate(rows):
            image, label = row[self.image], row[self.label]
            content = image["bytes"] if isinstance(image, dict) else image
            if content is None:
                content = Path(image["path"])
            number = int(label) if named else numbers.get(str(label), -1)
            if not 0 <= number < len(classes):
                raise UserError(
                    f"data: source {self.name!r}: image {index} has label {label!r}, of which training has none"
                )
            yield Picture(f"image {index}", number, content)


def _relative(pattern: Path) -> str:
    return str(pattern.relative_to(pattern.anchor)) if pattern.anchor else str(pattern)
