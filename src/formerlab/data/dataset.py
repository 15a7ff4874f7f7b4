"""The interfaces of data sets and of their sources, and the stage that prepares them."""

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
from formerlab.data.splitting import SPLITS, Shares, Split
from formerlab.errors import UserError
from formerlab.files import NoRoom, write_record
from formerlab.spec import Spec, fingerprint


class DataSource(Spec, ABC):
    """Where items come from: documents, sentence pairs, images. Fields `train`, `valid` and `test` may name those of a
    split; a split without such a field is taken from `train`, by a hash.
    """

    outside_recipe: ClassVar[set[str]] = {"licence"}
    """Settings that `recipe` leaves out, such as paths."""

    def contents(self, cache: Path | None = None) -> Any:
        """Return plain values that change with the content; here the versions of packages.

        Reads no network. `cache` names a file that remembers the hashes of unchanged files. Raises UserError for a name
        or pattern without files, OSError for what cannot be read.
        """
        return self.versions()

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of the content; None where the source is not here now."""
        try:
            return fingerprint(self.contents(cache))
        except (UserError, OSError):
            return None

    def recipe(self) -> dict[str, object]:
        """Return the settings that decide the content."""
        return self.model_dump(mode="json", exclude=self.outside_recipe)

    def divided(self) -> tuple[Split, ...]:
        """Return the splits that are made from `train`, itself among them."""
        return tuple(split for split in SPLITS if split == "train" or not getattr(self, split, None))

    def licence_notice(self) -> str:
        """Return the licence of the content, as its owner or the config states it."""
        return str(getattr(self, "licence", "not stated"))

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages whose files are read as content."""
        return {}


class DataSpec(Spec, ABC):
    """The source of data and their preparation, up to the files that a task loads."""

    outside_recipe: ClassVar[dict[str, Any]] = {"source": True, "tokenizer": {"path", "source"}}
    """Settings that `recipe` leaves out: paths, and the source, which has its own recipe."""
    packages: ClassVar[tuple[str, ...]]
    """Packages whose version may change what is written."""
    source: Any
    valid_share: float
    test_share: float

    @property
    def shares(self) -> Shares:
        """How items are divided where the source does not say."""
        return Shares(self.valid_share, self.test_share)

    def recipe(self) -> dict[str, Any]:
        """Return the settings that decide the data; paths are left out."""
        return {**self.model_dump(mode="json", exclude=self.outside_recipe), "source": self.source.recipe()}

    @abstractmethod
    def known(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return defaults for keys of a run that follow from these data and from the keys of its task."""

    @abstractmethod
    def write(self, out: Path) -> dict[str, Any]:
        """Write all files but the manifest below `out`; return the manifest's entries on them.

        That is `fingerprint` of them all, `splits`, and `notes` on what limits left out. Before the first file is
        written, the old manifest is removed. Raises UserError naming the file, column or setting that is wrong.
        """

    def lent(self, out: Path) -> dict[str, Any]:
        """Return what the manifest says because another data set, whose folder lies beside `out`, says it."""
        return {}


def prepare(name: str, data: DataSpec, out: Path, *, code_hash: str = "") -> None:
    """Write everything that a task reads of a data set below `out`, last the manifest, which marks finished data.
    Nothing is done where a manifest has the same settings, source and code, and its files are whole. A source that
    is not here now counts as unchanged. Raises UserError naming the data set and what is wrong; half-written files are
    removed.
    """
    seen = {"recipe": fingerprint(data.recipe()), "code_hash": code_hash}
    if (source := source_fingerprint(data, out / FILE_HASHES)) is not None:
        seen["source_fingerprint"] = source
    with suppress(UserError):
        if read_manifest(out).items() >= (seen | data.lent(out)).items():
            verify(out, anew=True)
            print(f"{out}: already prepared", file=sys.stderr)
            return
    try:
        content = data.write(out)
    except NoRoom:
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
        **seen,
        **content,
        "licence": data.source.licence_notice(),
        "questions": content.get("questions", []),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions | data.source.versions(),
    }
    write_record(out / MANIFEST, manifest)


def source_fingerprint(data: DataSpec, cache: Path | None = None) -> str | None:
    """Return 16 hexadecimal digits that change with source or tokenizer file; None where these are not here now.

    Files are told by their contents and their names below their common folder: touching them or moving them together
    changes nothing. `cache` names a file that saves reading unchanged files again.
    """
    state: str | None = data.source.state(cache)
    of_tokenizer = getattr(getattr(data, "tokenizer", None), "state", None)
    if state is None or of_tokenizer is None:  # a learned or borrowed tokenizer has no files of its own
        return state
    known = of_tokenizer(cache)
    return known and fingerprint([state, known])
