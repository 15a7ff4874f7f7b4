"""Interfaces of data sets and sources, and the stage that prepares a data set."""

import platform
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from formerlab import __version__
from formerlab.data.manifest import FILE_HASHES, MANIFEST, SCHEMA, read_manifest, verify
from formerlab.data.splitting import SPLITS, Split, SplitFractions
from formerlab.errors import UserError
from formerlab.files import DiskFull, write_record
from formerlab.spec import Spec, fingerprint


class DataSource(Spec, ABC):
    """A source of items: documents, sentence pairs or images.

    The fields `train`, `valid` and `test` select the items of a split. If `valid` or `test` is missing, a hash assigns
    items of `train` to this split.
    """

    outside_recipe: ClassVar[set[str]] = {"licence"}
    """Settings that `recipe` omits."""

    def contents(self, cache: Path | None = None) -> Any:
        """Return JSON values that change if the content changes, by default the versions of packages.

        This needs no network. `cache` is a file that caches the hashes of files. Raises UserError for a name or pattern
        without files, and OSError for an unreadable file.
        """
        return self.versions()

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of the content, or None if the source is not available."""
        try:
            return fingerprint(self.contents(cache))
        except (UserError, OSError):
            return None

    def recipe(self) -> dict[str, object]:
        """Return the settings that determine the content."""
        return self.model_dump(mode="json", exclude=self.outside_recipe)

    def hashed_splits(self) -> tuple[Split, ...]:
        """Return `train` and the splits that a hash takes from the source's `train` split."""
        return tuple(split for split in SPLITS if split == "train" or not getattr(self, split, None))

    def licence_notice(self) -> str:
        """Return the licence of the content."""
        return str(getattr(self, "licence", "not stated"))

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages whose files are read as content."""
        return {}


class DataSpec(Spec, ABC):
    """The source of a data set and the settings of its preparation."""

    outside_recipe: ClassVar[dict[str, Any]] = {"source": True, "tokenizer": {"path", "source"}}
    """Settings that `recipe` omits: paths, and the source, which has a separate recipe."""
    packages: ClassVar[tuple[str, ...]]
    """Packages whose version may change the written files."""
    source: Any
    valid_share: float
    test_share: float

    @property
    def fractions(self) -> SplitFractions:
        """The fractions of items for validation and test, used if the source does not name these splits."""
        return SplitFractions(self.valid_share, self.test_share)

    def recipe(self) -> dict[str, Any]:
        """Return the settings that determine the data."""
        return {**self.model_dump(mode="json", exclude=self.outside_recipe), "source": self.source.recipe()}

    @abstractmethod
    def run_defaults(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return defaults for keys of a run, derived from this data set and the keys of the run's task."""

    @abstractmethod
    def write(self, out: Path) -> dict[str, Any]:
        """Write all files except the manifest below `out`; return their entries for the manifest.

        The entries include `fingerprint` (of all files whose SHA-256 is in the manifest), `splits` and `notes`. The old
        manifest is removed before the first file is written. Raises UserError with the wrong file, column or setting.
        """

    def borrowed_entries(self, out: Path) -> dict[str, Any]:
        """Return manifest entries that come from another data set, whose folder is next to `out`."""
        return {}


def prepare(name: str, data: DataSpec, out: Path, *, code_hash: str = "") -> None:
    """Write the files of a data set below `out`, and the manifest last.

    Nothing is written if the manifest has the same settings, source and code and all files pass `verify`. A source that
    is not available counts as unchanged. Raises DiskFull, or UserError with the name of the data set; incomplete files
    are removed.
    """
    inputs = {"recipe": fingerprint(data.recipe()), "code_hash": code_hash}
    if (source := source_fingerprint(data, out / FILE_HASHES)) is not None:
        inputs["source_fingerprint"] = source
    with suppress(UserError):
        if read_manifest(out).items() >= (inputs | data.borrowed_entries(out)).items():
            verify(out, ignore_cache=True)
            print(f"{out}: already prepared", file=sys.stderr)
            return
    try:
        content = data.write(out)
    except DiskFull:
        raise
    except UserError as error:
        raise UserError(f"data: {name}: {error}") from None
    for note in content["notes"]:
        print(f"{name}: {note}", file=sys.stderr)
    versions = {"python": platform.python_version(), "formerlab": __version__}
    versions |= {package: version(package) for package in data.packages}
    manifest = {
        "schema": SCHEMA,
        "name": name,
        "spec": data.to_dict(),
        "source_fingerprint": None,
        **inputs,
        **content,
        "licence": data.source.licence_notice(),
        "questions": content.get("questions", []),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions | data.source.versions(),
    }
    write_record(out / MANIFEST, manifest)


def source_fingerprint(data: DataSpec, cache: Path | None = None) -> str | None:
    """Return a hash (16 hexadecimal digits) of source and tokenizer file, or None if they are not available.

    The hash covers the names and contents of text files, the contents of files of sentence pairs, and the names and
    sizes of images. `cache` is a file that caches the hashes of files.
    """
    state: str | None = data.source.state(cache)
    tokenizer_state = getattr(getattr(data, "tokenizer", None), "state", None)
    if state is None or tokenizer_state is None:  # a learned or borrowed tokenizer has no source files
        return state
    tokenizer = tokenizer_state(cache)
    return tokenizer and fingerprint([state, tokenizer])
