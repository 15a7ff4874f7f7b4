"""What every kind of data set answers, every source of one, and the stage that prepares them all."""

import platform
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from formerlab import __version__
from formerlab.data.file_hashes import FILE_HASHES
from formerlab.data.manifest import MANIFEST, SCHEMA, read_manifest
from formerlab.data.splitting import SPLITS, Shares, Split
from formerlab.errors import UserError
from formerlab.files import NoRoom, write_json
from formerlab.spec import Spec, fingerprint


class DataSource(Spec, ABC):
    """Where the items of a data set come from: documents, sentence pairs, images.

    A source may have fields `train`, `valid` and `test` that say which items those are; what it does not say is taken
    from `train`, by a hash.
    """

    outside_recipe: ClassVar[set[str]] = {"licence"}
    """Settings that `recipe` leaves out, such as paths."""

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


class DataSpec(Spec, ABC):
    """Where data come from and what becomes of them, until a task loads them."""

    outside_recipe: ClassVar[dict[str, Any]] = {"source": True, "tokenizer": {"path", "source"}}
    """Settings that `recipe` leaves out: paths, and the source, which has a recipe of its own."""
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
        """Return what shapes the data, without the paths they lie at."""
        return {**self.model_dump(mode="json", exclude=self.outside_recipe), "source": self.source.recipe()}

    @abstractmethod
    def known(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of a run that follow from these data and the keys of its task, where the run is silent."""

    @abstractmethod
    def write(self, out: Path, processes: int | None) -> dict[str, Any]:
        """Write all files but the manifest below `out`; return what it says of them.

        That is `fingerprint` of them all, `splits`, and `notes` on what limits left out. Before the first file is
        written, the old manifest is removed. Raises UserError naming the file, column or setting that is wrong.
        """

    @abstractmethod
    def check_loads(self, out: Path, manifest: dict[str, Any]) -> None:
        """Raise UserError where a file that the manifest names cannot be loaded."""


def prepare(name: str, data: DataSpec, out: Path, *, code_hash: str = "", processes: int | None = None) -> None:
    """Write everything that a task reads of a data set below `out`, last the manifest, which stands for finished data.

    Nothing is done where a manifest says the same settings, source and code, and its files can be loaded. A source that
    cannot be seen now counts as unchanged. `processes` defaults to one per core; the result does not depend on it.
    Raises UserError naming the data set and what is wrong; what is half written is removed.
    """
    seen = {"recipe": fingerprint(data.recipe()), "code_hash": code_hash}
    if (source := source_fingerprint(data, out / FILE_HASHES)) is not None:
        seen["source_fingerprint"] = source
    with suppress(UserError):
        manifest = read_manifest(out)
        if manifest.items() >= seen.items():
            data.check_loads(out, manifest)
            print(f"{out}: already prepared", file=sys.stderr)
            return
    try:
        content = data.write(out, processes)
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
    write_json(out / MANIFEST, manifest)


def source_fingerprint(data: DataSpec, cache: Path | None = None) -> str | None:
    """Return 16 hexadecimal digits that change when source or tokenizer file do; None where they cannot be seen now.

    Needs no network. Files are told by their contents and their names below their common folder: touching them or
    moving them together changes nothing. `cache` names a file that saves reading unchanged files again; the data
    stage has its own in `file_hashes.json`.
    """
    state: str | None = data.source.state(cache)
    of_tokenizer = getattr(getattr(data, "tokenizer", None), "state", None)
    if state is None or of_tokenizer is None:  # what is learned or borrowed has no files of its own
        return state
    known = of_tokenizer(cache)
    return known and fingerprint([state, known])
