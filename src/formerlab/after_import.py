"""Do something when another package is imported, by whomever, without importing it now.

transformers and timm learn of our models by a call that needs them, and torch, loaded. `import formerlab` must not pay
for that, so it leaves a note with Python's import system instead.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # `import formerlab` pays for what is imported here
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class Actions(NamedTuple):
    """What to do around the import of one module."""

    after: Callable[[], None]
    before: Callable[[], None] | None = None


WAITING: dict[str, Actions] = {}
"""Modules waited for."""


def after_import(name: str, after: Callable[[], None], before: Callable[[], None] | None = None) -> None:
    """Call `after` when the module `name` has been imported, at once where it is there, and `before` just before.

    Whatever fails in `after` becomes a warning: it must not fail somebody's import.
    """
    if name in sys.modules:
        _try(name, after)
        return
    WAITING[name] = Actions(after, before)
    if not any(isinstance(finder, _Note) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Note())


class _Note:
    """Finds nothing itself; of the modules waited for it wraps the loader that the other finders find."""

    def find_spec(self, fullname: str, path: Any, target: "ModuleType | None" = None) -> "ModuleSpec | None":
        """Return the spec that the other finders find, where the module is one waited for."""
        if fullname not in WAITING:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, fullname)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """Another loader, and something to do around it."""

    def __init__(self, loader: "Loader", name: str) -> None:
        self.loader, self.name = loader, name

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """Create the module as the other loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        """Run the module between the two actions."""
        actions = WAITING[self.name]
        if actions.before is not None:
            actions.before()
        self.loader.exec_module(module)
        if module.__spec__ is not None:  # leave no trace: whoever asks for the module's loader means the real one
            module.__spec__.loader = module.__loader__ = self.loader
        _try(self.name, actions.after)


def _try(name: str, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:  # another release of the package, a broken torch
        import logging

        logging.getLogger(__name__).warning("formerlab's models are not known to %s: %s", name.split(".")[0], error)
