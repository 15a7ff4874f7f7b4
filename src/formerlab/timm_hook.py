"""Make this package's image models known to timm, without importing timm or torch now.

`import formerlab` calls `register_on_import`. The first `import timm` afterwards (or before) also runs
`models/timm_registry.py`, so `timm.create_model("tokenformer_base_patch16_224")`, `timm.list_models` and every script
that asks timm for a model by name find them. A process that never imports timm pays for one look at a name.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

REGISTRY = "formerlab.models.timm_registry"


def register_on_import() -> None:
    """Register the models when timm is imported: now, where it is already."""
    if "timm" in sys.modules:
        importlib.import_module(REGISTRY)
    elif not any(isinstance(finder, TimmFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TimmFinder())


class TimmFinder(MetaPathFinder):
    """Finds timm, once and where it is, and has the models registered as soon as it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return timm's own spec with one more step behind its loading; nothing for other modules."""
        if fullname != "timm":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("timm")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            from formerlab.torchvision_shim import ensure_torchvision_imports

            ensure_torchvision_imports()
            execute(module)
            importlib.import_module(REGISTRY)

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
