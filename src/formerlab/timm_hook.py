"""Make this package's image models known to timm, without importing timm or torch now.

`import formerlab` calls `register_on_import`. The first `import timm` afterwards (or before) also runs
`models/timm_registry.py`, so `timm.create_model("tokenformer_base_patch16_224")`, `timm.list_models` and every script
that asks timm for a model by name find them.
"""

from formerlab.after_import import after_import

REGISTRY = "formerlab.models.timm_registry"


def register_on_import() -> None:
    """Register the models when timm is imported: now, where it is already."""
    after_import("timm", _register, before=_prepare)


def _prepare() -> None:
    from formerlab.torchvision_shim import ensure_torchvision_imports

    ensure_torchvision_imports()


def _register() -> None:
    import importlib

    importlib.import_module(REGISTRY)
