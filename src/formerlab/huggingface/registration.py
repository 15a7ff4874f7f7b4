"""Our classes made known to transformers' Auto classes, when these are imported and not before.

transformers offers no entry points: a model type is known once somebody has called `register`, which needs transformers
and torch. `import formerlab` must not pay for that. So it leaves a note with Python's import system: when the module
that holds transformers' table of configs or of models is imported, by whomever, ours are added behind it. Where these
modules were imported earlier, they are added at once. Importing this module is what leaves the note.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `import formerlab` pays for what is imported here
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MODEL_TYPE = "formerlab"


def register_config() -> None:
    """Let `AutoConfig` read our config.json."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from formerlab.huggingface.configuration import FormerlabConfig

    CONFIG_MAPPING.register(MODEL_TYPE, FormerlabConfig, exist_ok=True)


def register_model() -> None:
    """Let `AutoModelForCausalLM` build our models."""
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    from formerlab.huggingface.configuration import FormerlabConfig
    from formerlab.huggingface.modeling import FormerlabForCausalLM

    AutoModelForCausalLM.register(FormerlabConfig, FormerlabForCausalLM, exist_ok=True)


WAITING: dict[str, Callable[[], None]] = {
    "transformers.models.auto.configuration_auto": register_config,
    "transformers.models.auto.modeling_auto": register_model,
}
"""What to do after which module was imported."""


def register_when_imported() -> None:
    """Register our classes as soon as transformers' Auto classes are there; imports neither transformers nor torch."""
    for name, register in WAITING.items():
        if name in sys.modules:
            _try(register)
    if not any(isinstance(finder, _Note) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Note())


class _Note:
    """Finds nothing itself; of the modules waited for it has the found loader call `register` afterwards."""

    def find_spec(self, fullname: str, path: Any, target: "ModuleType | None" = None) -> "ModuleSpec | None":
        """Return the spec that the other finders find, where the module is one waited for."""
        if fullname not in WAITING:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, WAITING[fullname])  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """Another loader, and something to do after it."""

    def __init__(self, loader: "Loader", register: Callable[[], None]) -> None:
        self.loader, self.register = loader, register

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """Create the module as the other loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        """Run the module, then register."""
        self.loader.exec_module(module)
        if module.__spec__ is not None:  # leave no trace: whoever asks for the module's loader means the real one
            module.__spec__.loader = module.__loader__ = self.loader
        _try(self.register)


def _try(register: Callable[[], None]) -> None:
    """Register; whatever fails here must not fail somebody's import of transformers."""
    try:
        register()
    except Exception as error:  # another release of transformers, a broken torch
        import logging

        logging.getLogger(__name__).warning("formerlab's models are not known to transformers: %s", error)


register_when_imported()
