"""Base class of sources on the Hugging Face hub, read with the `datasets` library and its cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from formerlab.data.dataset import DataSource
from formerlab.data.manifest import file_hashes
from formerlab.errors import UserError, reason
from formerlab.file_search import files_below


class HubSource(DataSource):
    """A data set of the hub, or a folder that `datasets.load_dataset` can read.

    Offline (HF_HUB_OFFLINE=1) it is read from the cache.
    """

    outside_recipe: ClassVar[set[str]] = {"licence", "streaming"}

    name: str
    """Name on the hub, `owner/name`, or a folder."""
    subset: str | None = None
    """Configuration of the data set, if it has several."""
    revision: str | None = None
    """Commit, tag or branch. The content of a tag or branch may change."""
    train: str = "train"
    """Training split of the data set."""
    valid: str | None = None
    """Validation split of the data set; null takes items from `train` by a hash."""
    test: str | None = None
    """Test split of the data set; null takes items from `train` by a hash."""
    licence: str = "as stated on the data set's page"
    """The licence of the content, for the manifest."""

    def contents(self, cache: Path | None = None) -> list[Any]:
        """Return name, subset, revision and `stamps`, without access to the hub."""
        return [self.name, self.subset, self.revision, *self.stamps(cache)]

    def stamps(self, cache: Path | None) -> list[Any]:
        """Return the names and hashes of the files of a folder, or an empty list for a data set of the hub."""
        if not Path(self.name).is_dir():
            return []
        hashes = file_hashes([Path(path) for path, _ in files_below(self.name)], cache)
        return [[[path.relative_to(self.name).as_posix(), digest] for path, digest in hashes.items()]]

    def rows(self, split: str, **options: Any) -> Any:
        """Return a split from `datasets.load_dataset` with these options. Raises UserError if it cannot be loaded."""
        import datasets

        try:
            return datasets.load_dataset(self.name, self.subset, revision=self.revision, split=split, **options)
        except Exception as error:  # the libraries raise many unrelated exception types
            raise self.load_error(split, error) from None

    def load_error(self, split: str, error: Exception) -> UserError:
        """Return the UserError for an exception that was raised while a split was opened or read."""
        import datasets

        offline = datasets.config.HF_HUB_OFFLINE
        remedy = "offline mode is on, so run this once with network access" if offline else "check the name"
        return UserError(f"hub {self.name}, split '{split}': {reason(error)}; {remedy}")

    def values(self, split: str, column: str, **options: Any) -> Iterator[Any]:
        """Yield the values of one column of a split. Raises UserError if the column is missing or cannot be read."""
        rows = self.rows(split, **options)
        try:
            names = rows.column_names or list(next(iter(rows), {}))
            if column in names:
                for batch in rows.select_columns([column]).iter(1000):
                    yield from batch[column]
                return
        except Exception as error:
            raise self.load_error(split, error) from None
        raise UserError(f"hub {self.name}: no column '{column}' among {', '.join(names)}; set source.column")
