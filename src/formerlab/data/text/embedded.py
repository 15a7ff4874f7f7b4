"""Embedded text: the documentation of Python and of the scientific packages that are installed anyway."""

import gc
import platform
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator
from email.message import Message
from functools import partial
from importlib import metadata
from pathlib import Path, PurePath
from typing import Annotated, Literal, cast

from pydantic import Field

from formerlab.data.splitting import SPLITS, Replay, Seen, Shard, Shares, Split, digest
from formerlab.data.text.docstrings import Module, read_code, read_module
from formerlab.data.text.source import Corpus, TextSource
from formerlab.data.workers import Workers
from formerlab.errors import UserError
from formerlab.spec import fingerprint

Content = Literal["docstrings", "code"]

Located = tuple[str, Path]
"""A module's dotted name and its source file."""

PACKAGES = ("numpy", "scipy", "pandas", "scikit-learn", "matplotlib", "networkx", "sympy", "torch", "transformers")

REPEATABLE_CHARACTERS = 40
"""Shorter paragraphs (a heading, "Returns") may recur; a longer one is kept only where it comes first."""

MODULES_A_TASK = 16

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
    """What is read of a module: its docstrings, or its code."""

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of the versions of what is read: they decide the text."""
        return fingerprint(self.versions())

    def versions(self) -> dict[str, str]:
        """Return the versions of Python and of the packages read."""
        python = {"python": platform.python_version()} if self.standard_library else {}
        return python | {name: package.version for name, package in self._installed().items()}

    def licence_notice(self) -> str:
        """Return the licences as the installed packages state them."""
        python = [f"Python {platform.python_version()}: PSF-2.0"] if self.standard_library else []
        packages = [f"{name} {found.version}: {_licence(found)}" for name, found in self._installed().items()]
        return f"{self.content}, each under the licence of its package: " + "; ".join(python + packages)

    def open(self, shares: Shares, workers: Workers) -> Corpus:
        """Return one shard per split; a module once read is kept in memory, for all of them are about 34 MB."""
        located = self.located()
        seen = Seen()

        def modules(split: Split) -> Replay[Module]:
            chosen = [module for module in located if shares.split(digest(module[0]), SPLITS) == split]
            return Replay(read_modules(chosen, seen, workers, self.content))

        test, valid, train = modules("test"), modules("valid"), modules("train")
        shards = [
            Shard("embedded test modules", ("test",), lambda: _documents(test)),
            # All test modules are read before others, even where the test stream is short: questions are made of them.
            Shard("embedded valid modules", ("valid",), lambda: _documents(valid, after=test)),
            Shard("embedded train modules", ("train",), lambda: _documents(train, after=test)),
        ]
        return Corpus(shards, test)

    def located(self) -> list[Located]:
        """Return all modules, shuffled by their names."""
        found = dict(_standard_library()) if self.standard_library else {}
        for package in self._installed().values():
            found.update(_modules_of(package))
        if not found:
            raise UserError(f"embedded: none of the packages {', '.join(self.packages)} is installed; name others")
        return sorted(found.items(), key=lambda module: (digest(module[0]), module[0]))

    def _installed(self) -> dict[str, metadata.Distribution]:
        return {name: found for name in self.packages if (found := _distribution(name))}


def read_modules(
    located: list[Located], seen: Seen, workers: Workers, content: Content = "docstrings"
) -> Iterator[Module]:
    """Yield the modules that document anything, without the longer paragraphs that came before."""
    tasks = (located[start : start + MODULES_A_TASK] for start in range(0, len(located), MODULES_A_TASK))
    for modules in workers.map(partial(_read, content), tasks):
        for module in modules:
            fresh = module.filtered(lambda text: len(text) < REPEATABLE_CHARACTERS or seen.add(digest(text)))
            if fresh.entries:
                yield fresh


def _documents(modules: Iterable[Module], after: Iterable[Module] = ()) -> Iterator[str]:
    """Yield the modules as texts once those of `after` are all read, so that none of their paragraphs is repeated."""
    deque(after, maxlen=0)
    yield from (module.render() for module in modules)


def _read(content: Content, located: list[Located]) -> list[Module]:
    read = read_code if content == "code" else read_module
    gc.disable()  # syntax trees have no cycles, and looking for them takes a third of the time
    try:
        return [read(name, path.read_bytes()) for name, path in located]
    finally:
        gc.enable()


def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _standard_library() -> Iterator[Located]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in root.rglob("*.py"):
        if _wanted(path.relative_to(root)):
            yield _dotted(path.relative_to(root)), path


def _modules_of(package: metadata.Distribution) -> Iterator[Located]:
    for file in package.files or ():
        path = Path(str(file.locate()))
        if file.suffix == ".py" and _wanted(file) and path.is_file():
            yield _dotted(file), path


def _wanted(path: PurePath) -> bool:
    if ".." in path.parts or _SKIPPED.intersection(path.parts):
        return False
    return not (path.stem.startswith("test_") or path.stem in ("conftest", "setup"))


def _dotted(path: PurePath) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _licence(package: metadata.Distribution) -> str:
    stated = cast("Message[str, str]", package.metadata)
    if expression := stated.get("License-Expression"):
        return expression
    classified = [line.split(" :: ")[-1] for line in stated.get_all("Classifier", ()) if line.startswith("License")]
    return ", ".join(classified) or stated.get("License", "not stated").strip().splitlines()[0]
