"""What all sources on the Hugging Face hub share, through the `datasets` library and its cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from formerlab.data.dataset import DataSource
from formerlab.data.manifest import file_hashes
from formerlab.errors import UserError, reason
from formerlab.file_search import files_below


class HubSource(DataSource):
    """A data set of the hub, or a folder that `datasets.load_dataset` understands.

    Without network (HF_HUB_OFFLINE=1) it is read from the cache, where an earlier run left it.
    """

    outside_recipe: ClassVar[set[str]] = {"licence", "streaming", "files"}

    name: str
    """Name on the hub, `owner/name`, or a folder."""
    subset: str | None = None
    """Configuration of the data set, where it has several."""
    revision: str | None = None
    """Commit, tag or branch; name a commit for content that can never change."""
    train: str = "train"
    """The data set's split to train on."""
    valid: str | None = None
    """Its split for validation; null takes items from `train` by a hash."""
    test: str | None = None
    """Its split for the test; null takes items from `train` by a hash."""
    licence: str = "as stated on the data set's page"
    """The licence of the content, for the manifest."""

    def contents(self, cache: Path | None = None) -> list[Any]:
        """Return name and revision, and what tells of local files; the hub is not asked."""
        return [self.name, self.subset, self.revision, *self.stamps(cache)]

    def stamps(self, cache: Path | None) -> list[Any]:
        """Return the names and hashes of the files of a folder; nothing for a data set of the hub."""
        if not Path(self.name).is_dir():
            return []
        known = file_hashes([Path(path) for path, _ in files_below(self.name)], cache)
        return [[[path.relative_to(self.name).as_posix(), digest] for path, digest in known.items()]]

    def rows(self, split: str, **options: Any) -> Any:
        """Return a split of theirs as `datasets` does, with its `options`. Raises UserError in one line."""
        import datasets

        try:
            return datasets.load_dataset(self.name, self.subset, revision=self.revision, split=split, **options)
        except Exception as error:  # the libraries below raise errors of many families
            raise self.failed(split, error) from None

    def failed(self, split: str, error: Exception) -> UserError:
        """Return the message for an error while a split is opened or read."""
        import datasets

        offline = datasets.config.HF_HUB_OFFLINE
        remedy = "offline mode is on, so run this once where there is network" if offline else "check the name"
        return UserError(f"hub {self.name}, split '{split}': {reason(error)}; {remedy}")

    def values(self, split: str, column: str, **options: Any) -> Iterator[Any]:
        """Yield the values of one column of a split. Raises UserError where it is missing or cannot be read."""
        rows = self.rows(split, **options)
        try:
            names = rows.column_names or list(next(iter(rows), {}))
            if column in names:
                for batch in rows.select_columns([column]).iter(1000):
                    yield from batch[column]
                return
        except Exception as error:
            raise self.failed(split, error) from None
        raise UserError(f"hub {self.name}: no column '{column}' among {', '.join(names)}; set source.column")
