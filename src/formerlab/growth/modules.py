"""`formerlab.grow`: copy a model and add parameter tokens to the copy."""

import copy
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from numbers import Integral, Real
from typing import Any, TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from formerlab.errors import UserError
from formerlab.growth.stage import AnyModelSpec, Growth, InitialKeys, TauRule, grown_spec, pattentions, with_tau
from formerlab.layers.pattention import PattentionLayer
from formerlab.models.decoder import DecoderModel
from formerlab.models.vision import VisionTransformerModel
from formerlab.seeding import mixed_seed

AnyModule = TypeVar("AnyModule", bound=nn.Module)
LAYER_PATHS = {"projection": "blocks.*.attention.*", "feedforward": "blocks.*.feedforward"}
"""Paths of the layers in a decoder or vision transformer, by field of the spec."""


def grow(
    model: AnyModule,
    factor: int | float | None = None,
    init: InitialKeys = "zero",
    tau: TauRule = "keep",
    *,
    tokens: dict[str, int] | None = None,
    seed: int = 0,
) -> AnyModule:
    """Return a copy of a model with more parameter tokens.

    By default the copy computes the same function, except with the scores exp_l1 and softmax. The token count of every
    Pattention is multiplied by `factor` (default 2) and rounded. Alternatively, `tokens` gives counts by type of layer
    ({"projection": 1024, "feedforward": 4096}) for a decoder or vision transformer, or by path of a Pattention
    ({"encoder.0.up": 256}) for a user's module; other layers keep their counts. A translator, and a model of this
    package inside another module, grow only by `factor`.

    Old keys and values become the leading rows. New values are sampled from the distribution of initial values, seeded
    with `seed` and the name of the layer. New keys are sampled with init = "random" and zero with init = "zero".
    tau = "keep" keeps tau; tau = "sqrt" sets it to the square root of the new token count.

    Raises UserError for a model without Pattention, Pattention layers whose weights are tied to each other or
    reparametrized (torch.nn.utils parametrize and prune), models wrapped by DDP, FSDP or DeepSpeed, unknown layer
    names, unknown values of `init` and `tau`, `factor` given with `tokens`, a lower token count, and a factor above 1
    that adds no token.
    """
    for key, value, options in (("init", init, get_args(InitialKeys)), ("tau", tau, get_args(TauRule))):
        if value not in options:
            raise UserError(f"cannot grow with {key}={value!r}; use {' or '.join(options)}")
    _check_not_wrapped(model)
    growth, factor = Growth(keys=init, tau=tau), _checked_factor(model, factor, tokens)
    if type(model) not in (DecoderModel, VisionTransformerModel):
        return _grow_user_module(model, factor, growth, tokens, seed)
    spec: Any = model.spec
    child = grown_spec(spec, _with_tokens(spec, factor, tokens), growth)
    if tokens is not None:
        kinds = {name: kind for name in _layers(model) for kind in tokens if fnmatchcase(name, LAYER_PATHS[kind])}
        tokens = {name: tokens[kind] for name, kind in kinds.items()}
    grown: Any = _grow_layers(model, factor, growth, tokens, seed)
    grown.spec = child
    return cast(AnyModule, grown)


WRAPPERS = {
    "DistributedDataParallel": "its hooks belong to the old weights; grow model.module and wrap the result",
    "FullyShardedDataParallel": "its weights are sharded; grow the model before it is wrapped",
    "FSDPModule": "its weights are sharded; grow the model before fully_shard",
    "DeepSpeedEngine": "its optimizer refers to the old weights; grow the model before deepspeed.initialize",
}
"""Classes that keep references to the old weights, each with the problem and its remedy."""


def _check_not_wrapped(model: nn.Module) -> None:
    for module in model.modules():
        for name in (cls.__name__ for cls in type(module).__mro__):
            if name in WRAPPERS:
                raise UserError(f"cannot grow a {name}: {WRAPPERS[name]}")


def _checked_factor(model: nn.Module, factor: int | float | None, tokens: Any) -> int | float:
    """Return the factor (default 2). Raises UserError for a factor that is not a finite number of at least 1, for
    invalid `tokens`, and if both arguments are given.
    """
    if tokens is not None and factor is not None:
        raise UserError(f"cannot grow by factor={factor} to tokens={tokens}; give one of them")
    factor = 2 if factor is None else factor
    if not (isinstance(factor, Real) and 1 <= factor < math.inf):
        problem = "use a finite number of at least 1, because growth never removes tokens"
        raise UserError(f"cannot grow by factor={factor}: {problem}")
    if not isinstance(tokens, Mapping | None):
        names = (
            list(pattentions(model.spec))
            if isinstance(getattr(model, "spec", None), AnyModelSpec)
            else list(_layers(model))
        )
        raise UserError(
            f"cannot grow to tokens={tokens!r}; name the layers, tokens={{{next(iter(names), 'name')!r}: ...}}"
        )
    for name, count in (tokens or {}).items():
        if not isinstance(count, Integral) or isinstance(count, bool):
            raise UserError(f"cannot grow {name} to {count!r} tokens; write a whole number")
    return factor


def _grow_user_module(
    model: AnyModule, factor: int | float, growth: Growth, tokens: dict[str, int] | None, seed: int
) -> AnyModule:
    """Grow a user's module; models of this package inside it grow with their specs."""
    kind = type(model).__name__
    if hasattr(getattr(model, "config", None), "spec"):
        raise UserError(f"cannot grow a {kind}: its config also stores the sizes; grow its decoder instead")
    specs = {name: getattr(module, "spec", None) for name, module in model.named_modules()}
    inner_models = {name: spec for name, spec in specs.items() if isinstance(spec, AnyModelSpec) and pattentions(spec)}
    for name in tokens or ():
        if any(not path or name.startswith(f"{path}.") for path in inner_models):
            raise UserError(f"cannot grow {name} alone: it belongs to a model whose spec stores its size; use factor")
    grown = _grow_layers(model, factor, growth, tokens, seed)
    for name, spec in inner_models.items() if tokens is None else ():
        submodule: Any = grown.get_submodule(name)
        submodule.spec = with_tau(spec, _with_tokens(spec, factor), growth.tau)
    return grown


def _grow_layers(
    model: AnyModule, factor: int | float, growth: Growth, tokens: dict[str, int] | None, seed: int
) -> AnyModule:
    """Return a copy of a module with grown Pattention layers; `tokens` maps the paths of layers to counts."""
    if not (layers := _layers(model)):
        kind = type(model).__name__
        raise UserError(f"cannot grow a {kind}: it has no Pattention layer")
    _check_layers(layers, tokens)
    grown = copy.deepcopy(model)
    grown.zero_grad()  # deepcopy also copies the gradients
    for name, layer in layers.items():
        old = len(layer.keys)
        new = round(old * factor) if tokens is None else int(tokens.get(name, old))
        if new < old:
            raise UserError(
                f"cannot grow {name} from {old} tokens to {new}: growth never removes tokens; raise the count"
            )
        if tokens is None and new == old and factor > 1:
            raise UserError(f"cannot grow {name} by factor={factor}: the count stays {old}; use a larger factor")
        _extend(cast(PattentionLayer, grown.get_submodule(name)), new, growth, mixed_seed(seed, name))
    return grown


def _layers(model: nn.Module) -> dict[str, PattentionLayer]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, PattentionLayer)}


def _check_layers(layers: dict[str, PattentionLayer], tokens: dict[str, int] | None) -> None:
    """Raise UserError for unknown names, and for layers whose keys or values are tied or reparametrized."""
    if unknown := sorted((tokens or {}).keys() - layers.keys()):
        names = ", ".join(layers)
        raise UserError(f"cannot grow {', '.join(unknown)}: the Pattention layers of this module are {names}")
    owners: dict[nn.Parameter, str] = {}
    for name, layer in layers.items():
        for weight_name in ("keys", "values"):
            weight = layer._parameters.get(weight_name)
            if weight is None or type(weight.data) is not Tensor:
                problem = f"its {weight_name} are reparametrized or sharded; grow the plain layer first"
                raise UserError(f"cannot grow {name}: {problem}")
            if weight in owners:
                raise UserError(f"cannot grow {name}: its {weight_name} are tied to {owners[weight]}; untie them first")
            owners[weight] = name


@torch.no_grad()
def _extend(layer: PattentionLayer, tokens: int, growth: Growth, seed: int) -> None:
    """Add parameter tokens to a layer in place."""
    old, d_in = layer.keys.shape
    spec = layer.spec.model_copy(update={"tokens": tokens, "tau": layer.tau if growth.tau == "keep" else None})
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # as `initialise` does
        initial = spec.build(d_in, layer.values.shape[1], layers=layer.layers)
    if growth.keys == "zero":
        initial.keys[old:] = 0.0
    for name, new_weight in initial.named_parameters():
        old_weight = layer.get_parameter(name)
        rows = torch.cat([old_weight.detach(), new_weight.detach()[old:].to(old_weight)])
        setattr(layer, name, nn.Parameter(rows, requires_grad=old_weight.requires_grad))
    layer.spec, layer.tau = spec, spec.scale


def _with_tokens(spec: AnyModelSpec, factor: int | float, tokens: dict[str, int] | None = None) -> Any:
    """Return the spec with new token counts; raise UserError for a name in `tokens` that is not a Pattention field."""
    layers = pattentions(spec)
    if unknown := sorted((tokens or {}).keys() - layers.keys()):
        names = ", ".join(layers) or "none"
        raise UserError(f"cannot grow {', '.join(unknown)}: the Pattention layers of this model are {names}")
    grown = {}
    for name, layer in layers.items():
        count = round(layer.tokens * factor) if tokens is None else int(tokens.get(name, layer.tokens))
        grown[name] = layer.model_copy(update={"tokens": count, "tau": None})
    return spec.model_copy(update=grown)
