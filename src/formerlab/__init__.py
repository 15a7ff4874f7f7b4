"""formerlab: four papers that rethink the Transformer, reproduced on one harness.

This module is the public API. Its names are imported on first use, so `import formerlab` does not load torch.
`import formerlab.integrations.timm` and `.huggingface` register the models with timm and transformers.
"""

TYPE_CHECKING = False  # type checkers know this name
if TYPE_CHECKING:
    from formerlab.growth.modules import grow
    from formerlab.integrations.huggingface.pruning import prune
    from formerlab.layers.depth.dwa import DepthWeightedAverage
    from formerlab.layers.pattention import Pattention
    from formerlab.models.published import create_model, list_models
    from formerlab.training.load import load

__version__ = "0.1.0"

__all__ = ["DepthWeightedAverage", "Pattention", "create_model", "grow", "list_models", "load", "prune"]

_MODULES = {
    "DepthWeightedAverage": "formerlab.layers.depth.dwa",
    "Pattention": "formerlab.layers.pattention",
    "create_model": "formerlab.models.published",
    "grow": "formerlab.growth.modules",
    "list_models": "formerlab.models.published",
    "load": "formerlab.training.load",
    "prune": "formerlab.integrations.huggingface.pruning",
}


def __getattr__(name: str) -> object:
    """Import a name of the public API on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        from formerlab.errors import missing_package

        raise ImportError(f"formerlab.{name} {missing_package(error)}") from error


def __dir__() -> list[str]:
    """Return the public names and the attributes of the module."""
    return sorted({*globals(), *__all__})
