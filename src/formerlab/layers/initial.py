"""Initial values that depend on the seed and a parameter's place, and on nothing else.

Every module that owns parameters has `reset(generator)`. Its generator is made from the run's seed and the module's
qualified name, so two models that share a part (with and without a depth mixer, say) start with the same values there,
which is what makes paired comparisons by seed meaningful.
"""

import torch
from torch import nn

from formerlab.seeding import mixed_seed


def initialise(model: nn.Module, seed: int) -> None:
    """Draw all initial values of a model, reproducibly."""
    for name, module in model.named_modules():
        reset = getattr(module, "reset", None)
        if callable(reset):
            generator = torch.Generator().manual_seed(mixed_seed(seed, name))
            with torch.no_grad():
                reset(generator)
