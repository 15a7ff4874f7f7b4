"""Embedded text: the documentation or code of Python and of installed packages."""

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

from formerlab.data.splitting import SPLITS, Digests, Split, SplitFractions, digest
from formerlab.data.text.docstrings import Module, read_code, read_module
from formerlab.data.text.documents import Corpus, Shard, TextSource
from formerlab.errors import UserError

Content = Literal["docstrings", "code"]

ModuleFile = tuple[str, Path]
"""A module's dotted name and its source file."""

PACKAGES = ("numpy", "scipy", "pandas", "scikit-learn", "matplotlib", "networkx", "sympy", "torch", "transformers")

REPEATABLE_CHARACTERS = 40
"""Paragraphs with fewer characters, such as the heading "Returns", may be repeated in the text."""

_SKIPPED = {"test", "tests", "idle_test", "_vendor", "_vendored", "externals", "site-packages", "dist-packages"}


class Embedded(TextSource):
    """Text of the standard library and of installed packages.

    A document is a module: its signatures and docstrings, or its code without docstrings and comments. A hash of a
    module's name determines its split and its position in the reading order.
    """

    kind: Literal["embedded"] = "embedded"
    packages: tuple[Annotated[str, Field(min_length=1)], ...] = PACKAGES
    """Distributions to read; packages that are not installed are skipped."""
    standard_library: bool = True
    """Whether to also read the standard library."""
    content: Content = "docstrings"
    """Text to read from a module: its docstrings or its code."""

    def versions(self) -> dict[str, str]:
        python = {"python": platform.python_version()} if self.standard_library else {}
        return python | {name: package.version for name, package in self._installed().items()}

    def licence_notice(self) -> str:
        python = [f"Python {platform.python_version()}: PSF-2.0"] if self.standard_library else []
        packages = [f"{name} {package.version}: {_licence(package)}" for name, package in self._installed().items()]
        return f"{self.content}, each under the licence of its package: " + "; ".join(python + packages)

    def open(self, fractions: SplitFractions) -> Corpus:
        """Return one shard per split. Modules stay in memory after they are read, about 34 MB for all modules."""
        files = self.module_files()
        seen = Digests()

        def modules(split: Split) -> Iterator[Module]:
            chosen = [file for file in files if fractions.split(digest(file[0]), SPLITS) == split]
            return tee(read_modules(chosen, seen, self.content), 1)[0]  # each copy starts at the first module

        read = {split: modules(split) for split in SPLITS}

        def documents(split: Split) -> Iterator[str]:
            # Read all test modules first, because the questions use all of them and paragraphs must not repeat.
            if split != "test":
                deque(copy(read["test"]), maxlen=0)
            return (module.render() for module in copy(read[split]))

        order: tuple[Split, ...] = ("test", "valid", "train")
        shards = [Shard(f"embedded {split} modules", (split,), partial(documents, split)) for split in order]
        return Corpus(shards, copy(read["test"]))

    def module_files(self) -> list[ModuleFile]:
        """Return all modules, in the order of the hashes of their names."""
        root = Path(sysconfig.get_path("stdlib"))
        files: list[tuple[PurePath, Path]] = []
        if self.standard_library:
            files += [(path.relative_to(root), path) for path in root.rglob("*.py")]
        for package in self._installed().values():
            files += [(file, Path(str(file.locate()))) for file in package.files or () if file.suffix == ".py"]
        modules = {_dotted(name): path for name, path in files if _is_included(name) and path.is_file()}
        if not modules:
            raise UserError(f"embedded: no package of {', '.join(self.packages)} is installed; choose others")
        return sorted(modules.items(), key=lambda module: (digest(module[0]), module[0]))

    def _installed(self) -> dict[str, metadata.Distribution]:
        distributions = {name: list(metadata.distributions(name=name)) for name in self.packages}
        return {name: versions[0] for name, versions in distributions.items() if versions}


def read_modules(files: list[ModuleFile], seen: Digests, content: Content = "docstrings") -> Iterator[Module]:
    """Yield the modules with repeated paragraphs removed; modules with no paragraphs left are skipped.

    `seen` contains the hashes of all paragraphs so far; new hashes are added.
    """
    read = read_code if content == "code" else read_module
    for name, path in files:
        gc.disable()  # syntax trees have no reference cycles, and garbage collection takes a third of the time
        try:
            module = read(name, path.read_bytes())
        finally:
            gc.enable()
        unrepeated = module.filtered(lambda text: len(text) < REPEATABLE_CHARACTERS or seen.add(digest(text)))
        if unrepeated.entries:
            yield unrepeated


def _is_included(path: PurePath) -> bool:
    if ".." in path.parts or _SKIPPED.intersection(path.parts):
        return False
    return not (path.stem.startswith("test_") or path.stem in ("conftest", "setup"))


def _dotted(path: PurePath) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _licence(package: metadata.Distribution) -> str:
    fields: Any = package.metadata
    classified = [line.split(" :: ")[-1] for line in fields.get_all("Classifier", ()) if line.startswith("License")]
    licence = fields.get("License-Expression") or ", ".join(classified) or fields.get("License") or ""
    return str((licence.strip() or "not stated").splitlines()[0])
