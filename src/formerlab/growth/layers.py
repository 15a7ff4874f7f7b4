"""Growth of Pattention layers wherever they stand, in anybody's module."""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from formerlab.errors import UserError
from formerlab.layers.initial import seeded
from formerlab.layers.pattention import PattentionLayer
from formerlab.seeding import mixed_seed

Module = TypeVar("Module", bound=nn.Module)


def grow_layers(
    model: Module, factor: int | float, tokens: dict[str, int] | None, *, zero_keys: bool, keep_tau: bool, seed: int
) -> Module:
    """Return a copy of a module whose Pattention layers have `factor` times the tokens, or as many as `tokens` names.

    A layer is named by its place in the module. Old keys and values become its leading rows; new rows are drawn from
    the seed and the place, as at the start of training, but new keys are zero where `zero_keys` says so. All else is
    copied, and keeps its type, device and whether it is trained.

    Raises UserError for a module without Pattention or that cannot be copied, layers that share weights or whose
    weights are computed from others, unknown names and fewer tokens.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, PattentionLayer)}
    if not layers:
        raise UserError(
            f"cannot grow a {type(model).__name__}: it holds no Pattention layer; grow adds tokens to those"
        )
    if unknown := sorted((tokens or {}).keys() - layers.keys()):
        raise UserError(f"cannot grow {', '.join(unknown)}: the Pattentions of this module are {', '.join(layers)}")
    owners: dict[nn.Parameter, str] = {}
    for name, layer in layers.items():
        _check(name, layer, owners)
    grown = _copied(model)
    for name, layer in layers.items():
        old = len(layer.keys)
        new = round(old * factor) if tokens is None else tokens.get(name, old)
        if new < old:
            raise UserError(f"cannot grow {name} from {old} tokens to {new}: growth never removes any; ask for more")
        part = grown.get_submodule(name)
        assert isinstance(part, PattentionLayer)
        _extend(part, new, zero_keys=zero_keys, keep_tau=keep_tau, seed=mixed_seed(seed, name))
    return grown


def _check(name: str, layer: PattentionLayer, owners: dict[nn.Parameter, str]) -> None:
    """Refuse a layer whose keys or values are not simply its own."""
    for what in ("keys", "values"):
        weight = layer._parameters.get(what)
        if weight is None or type(weight.data) is not Tensor:
            raise UserError(f"cannot grow {name}: its {what} are no plain parameter (parametrised, pruned or sharded)")
        if weight in owners:
            raise UserError(
                f"cannot grow {name}: it shares its {what} with {owners[weight]}; give it weights of its own"
            )
        owners[weight] = name


def _copied(model: Module) -> Module:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"cannot grow a {type(model).__name__}, since it cannot be copied: {reason}") from None


@torch.no_grad()
def _extend(layer: PattentionLayer, tokens: int, *, zero_keys: bool, keep_tau: bool, seed: int) -> None:
    """Add parameter tokens to a layer, in place."""
    old, d_in = layer.keys.shape
    spec = layer.spec.model_copy(update={"tokens": tokens, "tau": layer.tau if keep_tau else None})
    fresh = seeded(lambda: spec.build(d_in, layer.values.shape[1], layers=layer.layers), seed)
    if zero_keys:
        fresh.keys[old:] = 0.0
    for name, drawn in fresh.named_parameters():
        before = layer.get_parameter(name)
        rows = torch.cat([before.detach(), drawn.detach()[old:].to(before)])
        setattr(layer, name, nn.Parameter(rows, requires_grad=before.requires_grad))
    layer.spec, layer.tau = spec, spec.scale
