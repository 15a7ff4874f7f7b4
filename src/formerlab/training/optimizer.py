"""The optimizer and its parameter groups."""

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
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
    mixing_lr_factor: PositiveFloat = 1.0
    """Learning rate of the depth mixer's weights, as a multiple of that of all others; 1 in the code of DenseFormer."""
    mixing_start_step: NonNegativeInt = 0
    """Steps that the depth mixer's weights wait at their initial values before they are trained (arXiv:2402.02622,
    Table 5): no gradient, no moments, no decay, no part in the clipped norm."""
    clip: NonNegativeFloat = 1.0
    """Largest gradient norm; 0 turns clipping off."""

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        """Return the optimizer over the model's parameters in three groups: decayed, not decayed, mixing weights."""
        matrices: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        mixing: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            group = matrices if parameter.ndim >= 2 else vectors
            (mixing if name.startswith("mixer.") else group).append(parameter)
        mixing_decay = self.weight_decay if self.decay_mixing else 0.0
        return torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": self.weight_decay, "lr_factor": 1.0},
                {"params": vectors, "weight_decay": 0.0, "lr_factor": 1.0},
                {"params": mixing, "weight_decay": mixing_decay, "lr_factor": self.mixing_lr_factor},
            ],
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            fused=True,
        )

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, factor: float) -> None:
        """Set the learning rates of a step (0-based), and whether the mixing weights take part in it.

        `factor` is what the schedule says. Pure in the step, so a resumed run needs no other state.
        """
        for group in optimizer.param_groups:
            group["lr"] = self.lr * factor * group["lr_factor"]
        for name, parameter in model.named_parameters():
            if name.startswith("mixer."):
                parameter.requires_grad_(step >= self.mixing_start_step)


Optimizer = AdamW
