"""Optimizers and their parameter groups."""

import inspect
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from formerlab.spec import AnyCount, Epsilon, Spec


class FusedAdamW(torch.optim.AdamW):
    """torch's AdamW without the decorators of its methods, which import the compiler."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class AdamW(Spec):
    """Adam with decoupled weight decay (arXiv:1711.05101, algorithm 2), torch's fused implementation."""

    kind: Literal["adamw"] = "adamw"
    lr: Annotated[float, Field(ge=1e-12, le=10.0)] = 6.0e-4
    """Peak learning rate; the schedule multiplies it by a factor."""
    beta1: Beta = 0.9
    """Decay of the first moment."""
    beta2: Beta = 0.95
    """Decay of the second moment."""
    eps: Epsilon = 1.0e-8
    """Term added to the square root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0.0, le=10.0)] = 0.1
    """Decoupled weight decay of matrices; vectors (gains, biases) are exempt."""
    decay_mixing: bool = True
    """Apply weight decay to the mixing weights of depth mixers, as DenseFormer's official code does. Mixing weights
    that the mixer's paper excludes never have weight decay."""
    mixing_lr_factor: Annotated[float, Field(gt=0.0, le=1000.0)] = 1.0
    """Factor of the learning rate of the mixing weights. DenseFormer's official code uses 1."""
    mixing_start_step: AnyCount = 0
    """First step that trains the mixing weights (arXiv:2402.02622, Table 5). In earlier steps they are frozen and do
    not enter the gradient norm."""
    clip: Annotated[float, Field(ge=0.0, le=1e6)] = 1.0
    """Maximum gradient norm; 0 disables clipping."""

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        return FusedAdamW(self.groups(model), **self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        return {"lr": self.lr, "betas": (self.beta1, self.beta2), "eps": self.eps, "fused": True}

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return the parameter groups: with weight decay, without weight decay, mixing weights, and mixing weights that
        never have weight decay.
        """
        matrices, vectors, mixing, mixing_without_decay = (list[nn.Parameter]() for _ in range(4))
        exempt = self.exempt(model)
        for name, parameter in model.named_parameters():
            if name.startswith("mixer."):
                group = mixing_without_decay if name in exempt else mixing
            else:
                group = vectors if parameter.ndim < 2 or name in exempt else matrices
            group.append(parameter)
        factor, decay = self.mixing_lr_factor, self.weight_decay
        rows = [(matrices, decay, 1.0), (vectors, 0.0, 1.0), (mixing, decay * self.decay_mixing, factor)]
        rows += [(mixing_without_decay, 0.0, factor)] if mixing_without_decay else []
        return [{"params": group, "weight_decay": decay, "lr_factor": factor} for group, decay, factor in rows]

    def exempt(self, model: nn.Module) -> set[str]:
        """Return the names of the parameters that the mixer excludes from weight decay."""
        names: set[str] = getattr(getattr(model, "mixer", None), "no_weight_decay", set)()
        return {f"mixer.{name}" for name in names}

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, factor: float) -> None:
        """Set the learning rates of step `step` (from 0), and whether it trains the mixing weights.

        `factor` is the factor of the schedule.
        """
        for group in optimizer.param_groups:
            group["lr"] = self.lr * factor * group["lr_factor"]
        if isinstance(mixer := getattr(model, "mixer", None), nn.Module):
            mixer.requires_grad_(step >= self.mixing_start_step)


class LayerwiseAdamW(AdamW):
    """AdamW for image models, without weight decay of class token and positions (arXiv:2111.06377, official code)."""

    kind: Literal["adamw_layerwise"] = "adamw_layerwise"  # type: ignore[assignment]
    layer_decay: float = Field(default=1.0, ge=1.0, le=1.0)
    """Always 1: layer-wise learning-rate decay is not supported. Records of finished runs contain this key."""

    def exempt(self, model: nn.Module) -> set[str]:
        names: set[str] = model.no_weight_decay()  # type: ignore[operator]
        return names


Optimizer = Annotated[AdamW | LayerwiseAdamW, Field(discriminator="kind")]
