"""Embedded text: the documentation of Python and of the scientific packages that are installed anyway."""

import gc
import platform
import sysconfig
from collections import deque
from collections.abc import Iterator
from copy import copy
from functools import partial
from importlib import metadata
from itertools import tee
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import Field

from formerlab.data.splitting import SPLITS, Digests, Shares, Split, digest
from formerlab.data.text.docstrings import Module, read_code, read_module
from formerlab.data.text.documents import Corpus, Shard, TextSource
from formerlab.errors import UserError

Content = Literal["docstrings", "code"]

Located = tuple[str, Path]
"""A module's dotted name and its source file."""

PACKAGES = ("numpy", "scipy", "pandas", "scikit-learn", "matplotlib", "networkx", "sympy", "torch", "transformers")

REPEATABLE_CHARACTERS = 40
"""Shorter paragraphs (a heading, "Returns") may recur; a longer one is kept only where it comes first."""

_SKIPPED = {"test", "tests", "idle_test", "_vendor", "_vendored", "externals", "site-packages", "dist-packages"}


class Embedded(TextSource):
    """The standard library and installed packages: text that needs no download.

    A document is a module: the signature and the docstring of everything it documents, technical English; or its code
    without docstrings and comments, another domain that shares no sentence with the first. Modules are divided by their
    names, and read in an order shuffled by their names, so that any beginning is a fair sample of the whole.
    """

    kind: Literal["embedded"] = "embedded"
    packages: tuple[Annotated[str, Field(min_length=1)], ...] = PACKAGES
    """Distributions to read; one that is not installed is left out, and the manifest names those used."""
    standard_library: bool = True
    """Whether to read the standard library too."""
    content: Content = "docstrings"
    """The part of a module that is read: its docstrings, or its code."""

    def versions(self) -> dict[str, str]:
        python = {"python": platform.python_version()} if self.standard_library else {}
        return python | {name: package.version for name, package in self._installed().items()}

    def licence_notice(self) -> str:
        python = [f"Python {platform.python_version()}: PSF-2.0"] if self.standard_library else []
        packages = [f"{name} {found.version}: {_licence(found)}" for name, found in self._installed().items()]
        return f"{self.content}, each under the licence of its package: " + "; ".join(python + packages)

    def open(self, shares: Shares) -> Corpus:
        """Return one shard per split; a module once read is kept in memory, for all of them are about 34 MB."""
        located = self.located()
        seen = Digests()

        def modules(split: Split) -> Iterator[Module]:
            chosen = [module for module in located if shares.split(digest(module[0]), SPLITS) == split]
            return tee(read_modules(chosen, seen, self.content), 1)[0]  # a copy of it begins anew

        read = {split: modules(split) for split in SPLITS}

        def documents(split: Split) -> Iterator[str]:
            if split != "test":  # questions are made of all test modules, so they come first, however short the stream
                deque(copy(read["test"]), maxlen=0)
            return (module.render() for module in copy(read[split]))

        order: tuple[Split, ...] = ("test", "valid", "train")
        shards = [Shard(f"embedded {split} modules", (split,), partial(documents, split)) for split in order]
        return Corpus(shards, copy(read["test"]))

    def located(self) -> list[Located]:
        """Return all modules, shuffled by their names."""
        root = Path(sysconfig.get_path("stdlib"))
        files: list[tuple[PurePath, Path]] = []
        if self.standard_library:
            files += [(path.relative_to(root), path) for path in root.rglob("*.py")]
        for package in self._installed().values():
            files += [(file, Path(str(file.locate()))) for file in package.files or () if file.suffix == ".py"]
        found = {_dotted(name): path for name, path in files if _wanted(name) and path.is_file()}
        if not found:
            raise UserError(f"embedded: none of the packages {', '.join(self.packages)} is installed; name others")
        return sorted(found.items(), key=lambda module: (digest(module[0]), module[0]))

    def _installed(self) -> dict[str, metadata.Distribution]:
        found = {name: list(metadata.distributions(name=name)) for name in self.packages}
        return {name: versions[0] for name, versions in found.items() if versions}


def read_modules(located: list[Located], seen: Digests, content: Content = "docstrings") -> Iterator[Module]:
    """Yield the modules that document anything, without the longer paragraphs that came before."""
    read = read_code if content == "code" else read_module
    for name, path in located:
        gc.disable()  # syntax trees have no cycles, and looking for them takes a third of the time
        try:
            module = read(name, path.read_bytes())
        finally:
            gc.enable()
        fresh = module.filtered(lambda text: len(text) < REPEATABLE_CHARACTERS or seen.add(digest(text)))
        if fresh.entries:
            yield fresh


def _wanted(path: PurePath) -> bool:
    if ".." in path.parts or _SKIPPED.intersection(path.parts):
        return False
    return not (path.stem.startswith("test_") or path.stem in ("conftest", "setup"))


def _dotted(path: PurePath) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _licence(package: metadata.Distribution) -> str:
    stated: Any = package.metadata
    classified = [line.split(" :: ")[-1] for line in stated.get_all("Classifier", ()) if line.startswith("License")]
    licence = stated.get("License-Expression") or ", ".join(classified) or stated.get("License") or ""
    return str((licence.strip() or "not stated").splitlines()[0])
