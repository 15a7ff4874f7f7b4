"""Growth: a trained Tokenformer with more parameter tokens (arXiv:2410.23168, section 3.3)."""

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from formerlab.errors import UserError
from formerlab.layers.pattention import Pattention, PattentionLayer
from formerlab.models.decoder import Decoder, DecoderModel
from formerlab.spec import Spec

InitialKeys = Literal["random", "zero"]
TauRule = Literal["sqrt", "keep"]

FREE_KEYS = frozenset({"tokens", "tau", "init", "std", "scale_residual", "embedding_std"})
"""Keys in which a child's spec may differ: what growth decides, and what only draws initial values."""


class Growth(Spec):
    """K <- [K_old; K_new], V <- [V_old; V_new] on the token axis of every Pattention (arXiv:2410.23168, section 3.3).

    The defaults are those of the paper's scaling results (section 4.1). With keys = zero and tau = keep the grown model
    computes the same function (Appendix B), except with the score exp_l1, since exp(0) = 1. With tau = sqrt it does
    not, whatever the keys. New values are always random: with K_new = V_new = 0 both gradients stay zero for ever.
    """

    keys: InitialKeys = "random"
    """New keys: drawn as at the start of training, or zero."""
    tau: TauRule = "sqrt"
    """tau: sqrt of the new token count, or kept at the parent's value, also over a chain of growths."""
    optimizer: Literal["fresh", "carry"] = "fresh"
    """AdamW's moments: none, or the parent's, with zeros for the new rows (`grow_optimizer_state`)."""


def grow(
    model: DecoderModel,
    factor: int | float = 2,
    init: InitialKeys = "zero",
    tau: TauRule = "keep",
    *,
    tokens: dict[str, int] | None = None,
    seed: int = 0,
) -> DecoderModel:
    """Return a grown copy of a model, by default one that computes the same function.

    Every Pattention's token count is multiplied by `factor` and rounded; `tokens` names counts instead, per kind of
    layer ({"projection": 1024, "feedforward": 4096}), and what it leaves out keeps its count. See `grow_into` for what
    becomes of the weights. Raises UserError for a model without Pattention, unknown names and fewer tokens.
    """
    counts = _multiplied(model.spec, factor) if tokens is None else tokens
    growth = Growth(keys=init, tau=tau)
    child = grown_spec(model.spec, _with_tokens(model.spec, counts), growth)
    return grow_into(model.state_dict(), model.spec, child, growth, seed).train(model.training)


def grown_spec(parent: Decoder, child: Decoder, growth: Growth) -> Decoder:
    """Return the spec of the child that grows from the parent: the wanted one, with the tau that `growth` asks for.

    Raises UserError where the wanted spec differs from the parent's in more than token counts and initial values, has
    fewer tokens, or names another tau.
    """
    for key, old, new in _differences(parent.plain(), child.plain()):
        raise UserError(
            f"cannot grow {key}={old} into {key}={new}: growth only adds Pattention tokens; make them equal"
        )
    grown = {}
    for name, new in _pattentions(child).items():
        old = _pattentions(parent)[name]
        if new.tokens < old.tokens:
            raise UserError(
                f"cannot grow {name}.tokens={old.tokens} into {new.tokens}: growth never removes tokens; "
                f"ask for at least {old.tokens}"
            )
        tau = old.scale if growth.tau == "keep" else None
        if new.tau not in (None, tau):
            raise UserError(
                f"cannot grow {name} with tau={new.tau}: the rule tau={growth.tau} gives "
                f"{'the square root of the token count' if tau is None else tau}; leave tau out of the grown model"
            )
        grown[name] = new.model_copy(update={"tau": tau})
    if not grown:
        raise UserError(f"cannot grow a model without Pattention: {_kinds(parent)}; use pattention for one of them")
    return child.model_copy(update=grown)


def grow_into(
    parent_state: dict[str, Tensor], parent: Decoder, child: Decoder, growth: Growth, seed: int
) -> DecoderModel:
    """Return the child's model, started from the parent's weights; it takes their dtype and device.

    Old keys and values become the leading rows; all other weights are copied. New rows are what `child.build(seed)`
    draws, so they follow the initial distribution of the grown layer (values 1/sqrt(tokens) with the new count under
    init = fan_in), except that keys = zero sets the new keys to zero. Raises UserError as `grown_spec` does, and where
    the weights are not those of the parent's spec.
    """
    child = grown_spec(parent, child, growth)
    _check_weights(parent_state, parent)
    model = child.build(seed).to(parent_state["embedding"])
    for name, weight in model.state_dict().items():
        weight[: len(parent_state[name])] = parent_state[name]
    if growth.keys == "zero":
        for name, layer in model.named_modules():
            if isinstance(layer, PattentionLayer):
                layer.keys.detach()[len(parent_state[f"{name}.keys"]) :] = 0.0
    return model


def grow_optimizer_state(parent_state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a parent's AdamW state dict, its moments extended by zero rows, for `optimizer.load_state_dict`.

    `optimizer` is the child's, over the same parameters in the same groups; its learning rates and other settings stay
    its own. The step count is one number per tensor and is kept, so the old rows go on as if nothing had happened,
    while the first update of a new entry is lr (1 - beta1) / sqrt(1 - beta2) in size, and not lr.
    Raises UserError where the two do not have the same groups.
    """
    groups = optimizer.state_dict()["param_groups"]
    old_sizes = [len(group["params"]) for group in parent_state["param_groups"]]
    sizes = [len(group["params"]) for group in groups]
    if sizes != old_sizes:
        raise UserError(f"cannot grow an optimizer state with {old_sizes} parameters per group into one with {sizes}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: {name: _extended(value, parameters[index]) for name, value in moments.items()}
        for index, moments in parent_state["state"].items()
    }
    return {"state": state, "param_groups": groups}


def _extended(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.ndim == 0:
        return value.clone()  # the optimizer counts steps in place, and loading keeps the tensor
    extended = torch.zeros(parameter.shape, dtype=value.dtype, device=value.device)
    extended[: len(value)] = value
    return extended


def _check_weights(state: dict[str, Tensor], spec: Decoder) -> None:
    """Refuse weights that another spec made; the expected shapes come from a model without storage."""
    with torch.device("meta"):
        expected = {name: tuple(weight.shape) for name, weight in DecoderModel(spec).state_dict().items()}
    shapes = {name: tuple(weight.shape) for name, weight in state.items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if expected.get(name) != shapes.get(name):
            raise UserError(
                f"cannot grow weights that are not the parent's: {name} has shape {shapes.get(name)}, "
                f"its spec says {expected.get(name)}"
            )


def _pattentions(spec: Decoder) -> dict[str, Pattention]:
    parts = {name: getattr(spec, name) for name in type(spec).model_fields}
    return {name: part for name, part in parts.items() if isinstance(part, Pattention)}


def _kinds(spec: Decoder) -> str:
    return f"projection.kind={spec.projection.kind}, feedforward.kind={spec.feedforward.kind}"


def _multiplied(spec: Decoder, factor: int | float) -> dict[str, int]:
    if not 1 <= factor < math.inf:
        raise UserError(f"cannot grow by factor={factor}: growth never removes tokens; use a factor of at least 1")
    return {name: round(part.tokens * factor) for name, part in _pattentions(spec).items()}


def _with_tokens(spec: Decoder, tokens: dict[str, int]) -> Decoder:
    parts = _pattentions(spec)
    if unknown := sorted(tokens.keys() - parts.keys()):
        raise UserError(
            f"cannot grow {', '.join(unknown)}: the Pattentions of this model are {', '.join(parts) or 'none'}"
        )
    grown = {
        name: part.model_copy(update={"tokens": tokens.get(name, part.tokens), "tau": None})
        for name, part in parts.items()
    }
    return spec.model_copy(update=grown)


def _differences(old: dict[str, Any], new: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, old value, new value) where two plain specs differ in a key that growth may not change."""
    for key in {**old, **new}:
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            yield from _differences(old[key], new[key], f"{place}{key}.")
        elif key not in FREE_KEYS and old.get(key) != new.get(key):
            yield f"{place}{key}", old.get(key), new.get(key)
