"""Enumerate the variants of a union, so that new variants and options are tested automatically."""

from collections.abc import Iterator
from typing import Literal, get_args, get_origin

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from formerlab.spec import Spec, variants


def defaults(union: object) -> list[Spec]:
    """Return all variants with their defaults."""
    return [variant() for variant in variants(union)]


def settings(union: object) -> list[Spec]:
    """Return all variants with their defaults, and with each other value of each bool or Literal option."""
    return [spec for default in defaults(union) for spec in (default, *_changed(default))]


def _changed(default: Spec) -> Iterator[Spec]:
    for name, field in type(default).model_fields.items():
        choices = (True, False) if field.annotation is bool else ()
        if get_origin(field.annotation) is Literal:
            choices = get_args(field.annotation)
        for choice in choices:
            if choice != getattr(default, name):
                yield type(default)(**{name: choice})


def label(value: object) -> str | None:
    """Return the name of a spec: its kind, and its values that differ from the defaults.

    Return None for other values, so that pytest makes their ids.
    """
    if not isinstance(value, Spec):
        return None
    changes = value.model_dump(exclude_defaults=True)
    return "-".join([str(getattr(value, "kind", "spec")), *(f"{name}={choice}" for name, choice in changes.items())])


def perturb(model: nn.Module, std: float = 0.1, seed: int = 4) -> nn.Module:
    """Add noise to all parameters, so that no test passes only because of initial values; return the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(std * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


def counted_params(module: nn.Module) -> int:
    """Return the number of parameters that PyTorch counts."""
    return sum(parameter.numel() for parameter in module.parameters())


def counted_flops(module: nn.Module, *inputs: torch.Tensor) -> dict[str, int]:
    """Return the FLOPs of matrix products and attention that PyTorch counts per submodule, on the meta device."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.to("meta")(*(tensor.to("meta") for tensor in inputs))
    return {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
