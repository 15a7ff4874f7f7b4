"""formerlab: four papers that rethink the Transformer, on one reproducible harness.

What people use in code of their own stands here and is imported when it is asked for: `import formerlab` loads neither
torch nor anything else. `import formerlab.integrations.timm` and `.huggingface` make our models known to these.
"""

TYPE_CHECKING = False  # as type checkers read it; importing typing takes longer than all else here
if TYPE_CHECKING:
    from formerlab.growth.modules import grow
    from formerlab.integrations.huggingface.pruning import prune
    from formerlab.layers.depth.dwa import DepthWeightedAverage
    from formerlab.layers.pattention import Pattention
    from formerlab.models.published import create_model, list_models
    from formerlab.training.load import load

__version__ = "0.1.0"

__all__ = ["DepthWeightedAverage", "Pattention", "create_model", "grow", "list_models", "load", "prune"]

_HOMES = {
    "DepthWeightedAverage": "formerlab.layers.depth.dwa",
    "Pattention": "formerlab.layers.pattention",
    "create_model": "formerlab.models.published",
    "grow": "formerlab.growth.modules",
    "list_models": "formerlab.models.published",
    "load": "formerlab.training.load",
    "prune": "formerlab.integrations.huggingface.pruning",
}


def __getattr__(name: str) -> object:
    """Return a name of the public face, imported now."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from formerlab.errors import missing_package

        raise ImportError(f"formerlab.{name} {missing_package(error)}") from error


def __dir__() -> list[str]:
    """Return the public names beside what every module has."""
    return sorted({*globals(), *__all__})
