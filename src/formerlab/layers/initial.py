"""Initial values that depend on the seed and a parameter's place, and on nothing else.

Every module that owns parameters has `reset(generator)`. Its generator is made from the run's seed and the module's
qualified name, so two models that share a part (with and without a depth mixer, say) start with the same values there,
which is what makes paired comparisons by seed meaningful.
"""

import hashlib

import torch
from torch import nn


def initialise(model: nn.Module, seed: int) -> None:
    """Draw all initial values of a model, reproducibly."""
    for name, module in model.named_modules():
        reset = getattr(module, "reset", None)
        if callable(reset):
            # The CPU's Mersenne Twister looks at the low 32 bits of its seed only, so both must be mixed into these.
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
            with torch.no_grad():
                reset(generator)
