"""Sentence pairs from the Hugging Face hub, through the `datasets` library and its cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from formerlab.data.origin import rule_of
from formerlab.data.pairs.source import Pair, PairSource, divided
from formerlab.data.text.hub_splits import named_splits, reading
from formerlab.data.text.shards import SPLITS, Shares, Split
from formerlab.errors import UserError
from formerlab.spec import fingerprint


class HubPairs(PairSource):
    """A translation data set of the hub, whose rows hold a mapping of language to sentence, such as wmt/wmt14."""

    kind: Literal["hub"] = "hub"
    name: str
    """Name on the hub, `owner/name`, or a folder."""
    source: str
    """Language to translate from."""
    target: str
    """Language to translate into."""
    subset: str | None = None
    """Configuration of the data set, such as de-en."""
    revision: str | None = None
    """Commit, tag or branch; name a commit for text that can never change."""
    train: str = "train"
    """The data set's split to train on."""
    valid: str | None = "validation"
    """Its split for validation; null takes pairs from `train` by a hash."""
    test: str | None = "test"
    """Its split for the test; null takes pairs from `train` by a hash."""
    column: str = "translation"
    """The column that holds the pair."""
    licence: str = "as stated on the data set's page"
    """The licence of the text, for the manifest."""

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of name and revision: what the hub holds is not looked up."""
        return fingerprint([self.name, self.subset, self.revision])

    def recipe(self) -> dict[str, object]:
        """Return all settings but the licence."""
        return self.model_dump(mode="json", exclude={"licence"})

    def split_rule(self, shares: Shares) -> str:
        """Say how pairs are divided."""
        return rule_of(named_splits(self), shares, "by a hash of the source sentence")

    def licence_notice(self) -> str:
        """Return the licence that the config states."""
        return self.licence

    def pairs(self, split: Split, shares: Shares) -> Iterator[Pair]:
        """Yield the pairs of a split."""
        candidates = tuple(name for name in SPLITS if name == "train" or getattr(self, name) is None)
        if split not in candidates:
            return self._rows(getattr(self, split))
        return divided(self._rows(self.train), split, candidates, shares)

    def _rows(self, split: str) -> Iterator[Pair]:
        import datasets

        with reading(self.name, split):
            rows = datasets.load_dataset(self.name, self.subset, revision=self.revision, split=split)
        for row in rows:
            try:
                pair = row[self.column]
                yield pair[self.source], pair[self.target]
            except (KeyError, TypeError):
                raise UserError(
                    f"hub {self.name}: a row has no {self.column}.{self.source} and {self.column}.{self.target} but "
                    f"{', '.join(row)}; set source.column, source.source or source.target"
                ) from None
