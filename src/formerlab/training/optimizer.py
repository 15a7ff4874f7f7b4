"""Optimizers and their parameter groups."""

import inspect
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from formerlab.errors import UserError
from formerlab.spec import AnyCount, Epsilon, Spec


class FusedAdamW(torch.optim.AdamW):
    """torch's AdamW without the decorators of its methods, which import the compiler."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class MuonAndAdamW(FusedAdamW):
    """torch's Muon for the parameter groups with a momentum, and AdamW for all other groups."""

    muon: torch.optim.Optimizer

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a state without AdamW's method, which expects AdamW's state for all parameters."""
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all weights, unless `found_inf` is 1."""
        groups, found_inf = self.param_groups, cast(Tensor | None, getattr(self, "found_inf", None))
        self.muon.state, self.muon.param_groups = self.state, [group for group in groups if "momentum" in group]
        weights = [weight for group in self.muon.param_groups for weight in group["params"]]
        saved = [weight.clone() for weight in weights] if found_inf is not None else []
        inspect.unwrap(type(self.muon).step)(self.muon)
        if found_inf is not None:
            for weight, old in zip(weights, saved, strict=True):
                weight.copy_(torch.where(found_inf > 0, old, weight))
        self.param_groups = [group for group in groups if "momentum" not in group]
        _ADAMW_STEP(self)
        self.param_groups = groups


_ADAMW_STEP = inspect.unwrap(torch.optim.AdamW.step)

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


class Muon(AdamW):
    """W <- W - lr (0.2 sqrt(max(d_in, d_out)) O + decay W) for matrices of blocks, with the orthogonalised momentum O
    of torch.optim.Muon, and AdamW for all other parameters (arXiv:2502.16982, section 2.2).

    The factor 0.2 sqrt(max(d_in, d_out)) gives the updates of Muon and AdamW about the same RMS, so that both use the
    same learning rate and weight decay.
    """

    kind: Literal["muon"] = "muon"  # type: ignore[assignment]
    momentum: Beta = 0.95
    """Decay of the momentum."""

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        """Return the optimizer, with Muon for the matrices of blocks. Raises UserError for torch before 2.9."""
        if not hasattr(torch.optim, "Muon"):
            raise UserError(f"optimizer.kind: muon needs torch 2.9 or newer, this is {torch.__version__}; use adamw")
        blocks = ("blocks.", "encoder.", "decoder.")
        in_blocks = {parameter for name, parameter in model.named_parameters() if name.startswith(blocks)}
        groups = self.groups(model)
        matrices = groups[0]["params"]
        groups[0]["params"] = [matrix for matrix in matrices if matrix not in in_blocks]
        muon = torch.optim.Muon(
            [matrix for matrix in matrices if matrix in in_blocks],
            self.lr,
            self.weight_decay,
            momentum=self.momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        optimizer = MuonAndAdamW([*groups, muon.param_groups[0] | {"lr_factor": 1.0}], **self._settings)
        optimizer.muon = muon
        return optimizer


Optimizer = Annotated[AdamW | LayerwiseAdamW | Muon, Field(discriminator="kind")]
