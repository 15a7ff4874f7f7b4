"""The optimizer and its parameter groups."""

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import nn

from formerlab.spec import Spec

Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class AdamW(Spec):
    """Adam with decoupled weight decay (arXiv:1711.05101, algorithm 2), fused where torch has it."""

    kind: Literal["adamw"] = "adamw"
    lr: PositiveFloat = 6.0e-4
    """Peak learning rate, which the schedule multiplies."""
    beta1: Beta = 0.9
    """Decay of the first moment."""
    beta2: Beta = 0.95
    """Decay of the second moment."""
    eps: PositiveFloat = 1.0e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled decay of matrices; vectors (gains, biases) are not decayed."""
    decay_mixing: bool = True
    """Decay the mixing weights of depth mixers as well, as the official code of DenseFormer does."""
    clip: NonNegativeFloat = 1.0
    """Largest gradient norm; 0 turns clipping off."""

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        """Return the optimizer over the model's parameters in two groups: decayed and not."""
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, parameter in model.named_parameters():
            mixing = name.startswith("mixer.")
            groups[self.decay_mixing if mixing else parameter.ndim >= 2].append(parameter)
        return torch.optim.AdamW(
            [
                {"params": groups[True], "weight_decay": self.weight_decay},
                {"params": groups[False], "weight_decay": 0.0},
            ],
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            fused=True,
        )


Optimizer = AdamW
