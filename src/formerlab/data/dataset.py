"""What every kind of data set answers, and every source of one."""

import hashlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from formerlab.data.file_hashes import file_hashes
from formerlab.data.splitting import SPLITS, Shares, Split
from formerlab.data.text.released_tokenizer import ReleasedTokenizer
from formerlab.data.text.tokenizer import TokenizerFile
from formerlab.errors import UserError
from formerlab.files import sha256
from formerlab.released import WEIGHTS, ReleasedModel
from formerlab.spec import Spec, fingerprint


class DataSpec(Spec, ABC):
    """Where data come from and what becomes of them, until a task loads them.

    Its module has `prepare(name, data, out, *, code_hash, processes)`, which has `manifest.prepared` write everything.
    """

    outside_recipe: ClassVar[dict[str, Any]] = {"source": True, "tokenizer": {"path", "source"}}
    """Settings that `recipe` leaves out: places, and the source, which has a recipe of its own."""
    source: Any
    valid_share: float
    test_share: float

    @property
    def shares(self) -> Shares:
        """How items are divided where the source does not say."""
        return Shares(self.valid_share, self.test_share)

    def search(self) -> None:
        """Raise UserError for named files that are not there, and for splits that their names alone leave empty."""
        self.source.search()

    def recipe(self) -> dict[str, Any]:
        """Return what shapes the data, without the places they lie at."""
        return {**self.model_dump(mode="json", exclude=self.outside_recipe), "source": self.source.recipe()}

    @abstractmethod
    def known(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of a run that follow from these data and the keys of its task, where the run is silent."""


class DataSource(Spec, ABC):
    """Where the items of a data set come from: documents, sentence pairs, images.

    A source may have fields `train`, `valid` and `test` that say which items those are; what it does not say is taken
    from `train`, by a hash.
    """

    outside_recipe: ClassVar[set[str]] = {"licence"}
    """Settings that `recipe` leaves out, such as places."""

    @abstractmethod
    def state(self, cache: Path | None = None) -> str | None:
        """Return 16 hexadecimal digits that change when the content would; None where the source cannot be seen now.

        Reads no network. `cache` names a file that remembers the hashes of unchanged files.
        """

    def search(self) -> None:
        """Raise UserError where a name or pattern of files has none; what is not in files is not looked up."""

    def recipe(self) -> dict[str, object]:
        """Return the settings that shape the content."""
        return self.model_dump(mode="json", exclude=self.outside_recipe)

    def divided(self) -> tuple[Split, ...]:
        """Return the splits that are made from `train`, itself among them."""
        return tuple(split for split in SPLITS if split == "train" or not getattr(self, split, None))

    def licence_notice(self) -> str:
        """Return the licence of the content, as its owner or the config states it."""
        return str(getattr(self, "licence", "not stated"))

    def versions(self) -> dict[str, str]:
        """Return the versions of packages whose own content is read."""
        return {}


def source_fingerprint(data: DataSpec, cache: Path | None = None) -> str | None:
    """Return 16 hexadecimal digits that change when source or tokenizer file do; None where they cannot be seen now.

    Needs no network. Files are told by their contents and their names below their common folder: touching them or
    moving them together changes nothing. `cache` names a file that saves reading unchanged files again; the data
    stage keeps its own in `file_hashes.json`.
    """
    state: str | None = data.source.state(cache)
    tokenizer = getattr(data, "tokenizer", None)
    if state is not None and isinstance(tokenizer, ReleasedTokenizer) and tokenizer.source is not None:
        known = files_state(tokenizer.source, cache and cache.with_name(f".{tokenizer.model}.json"), weights=False)
        return known and fingerprint([state, known])
    if state is None or not isinstance(tokenizer, TokenizerFile):
        return state
    return fingerprint([state, sha256(tokenizer.place)]) if tokenizer.place.is_file() else None


def files_state(model: ReleasedModel, cache: Path | None = None, *, weights: bool = True) -> str | None:
    """Return 64 hexadecimal digits that change when the files of a released model do; None where they are not here.

    They are the SHA-256 of the file where there is one. Without `weights` files that hold nothing else are left out.
    `cache` names a file that saves reading unchanged files again.
    """
    try:
        files = [path for path in model.files() if weights or path.suffix not in WEIGHTS or path.suffix == ".gguf"]
        hashes = file_hashes(files, cache)
    except (UserError, OSError):
        return None
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    named = "".join(f"{path.name} {digest}\n" for path, digest in sorted(hashes.items()))
    return hashlib.sha256(named.encode()).hexdigest()
