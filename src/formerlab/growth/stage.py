"""Grow a trained model by parameter tokens or, as a baseline, in width."""

from collections.abc import Iterator
from typing import Any, Literal, TypeVar

from pydantic import Field, model_validator
from torch import Tensor

from formerlab.errors import UserError
from formerlab.growth.optimizer import OldTokens
from formerlab.growth.width import WidthMethod, check_width, widen
from formerlab.layers.pattention import Pattention, PattentionLayer
from formerlab.models.decoder import Decoder, DecoderModel
from formerlab.models.translator import Translator
from formerlab.models.vision import VisionTransformer, VisionTransformerModel
from formerlab.spec import Spec

Growable = Decoder | VisionTransformer
"""Specs of models that a growth stage can grow."""
SomeSpec = TypeVar("SomeSpec", bound=Spec)
GrowableModel = DecoderModel | VisionTransformerModel
AnyModelSpec = Growable | Translator
"""Specs of all models. A growth stage of a plan cannot grow a translator; `formerlab.grow` can."""

InitialKeys = Literal["random", "zero"]
TauRule = Literal["sqrt", "keep"]

INITIALISATION_KEYS = frozenset({"init", "std", "scale_residual", "embedding_std"})
TOKEN_KEYS = INITIALISATION_KEYS | {"tokens", "tau"}
"""Keys that may differ between parent and child with method = tokens."""
WIDTH_KEYS = INITIALISATION_KEYS | {"width", "heads", "hidden"}
"""Keys that may differ between parent and child with the other methods."""


class Growth(Spec):
    """K <- [K_old; K_new], V <- [V_old; V_new] on the token axis of every Pattention (arXiv:2410.23168, section 3.3).

    The defaults are the settings of the paper's scaling results (section 4.1). With keys = zero and tau = keep, the
    grown model computes the same function (Appendix B), except with the scores exp_l1 and softmax (exp(0) = 1). With
    keys = zero and tau = sqrt, the function is the same only with the score gelu, which has no tau. New rows of V are
    always random, because with K_new = V_new = 0 both gradients stay zero.

    The other methods grow Transformers in width; see `growth/width.py`.
    """

    method: Literal["tokens"] | WidthMethod = "tokens"
    """tokens: add parameter tokens to Pattention. net2net_pad, net2net, hypercloning: add channels, heads and hidden
    units to a model with linear projections and an MLP."""
    keys: InitialKeys = "random"
    """New keys: sampled from the distribution of initial values, or zero."""
    tau: TauRule = "sqrt"
    """sqrt: the square root of the new token count. keep: the parent's value."""
    optimizer: Literal["fresh", "carry"] = "fresh"
    """AdamW's moments: zero, or carried over with zeros for the new rows (`grow_optimizer_state`)."""
    old_tokens: OldTokens = "train"
    """How old rows of keys and values are trained: train, freeze, or a fraction of the learning rate."""
    noise: float = Field(default=0.0, ge=0.0, le=10.0)
    """Noise on copied weights (net2net, hypercloning): standard deviation relative to the root mean square of the new
    matrix, before the mean over copies is subtracted."""

    @model_validator(mode="after")
    def _check(self) -> "Growth":
        unused = {"noise"} if self.method == "tokens" else {"keys", "tau", "optimizer", "old_tokens"}
        for name in sorted(unused | {"noise"} if self.method == "net2net_pad" else unused):
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(f"{name}={value} has no effect with method={self.method}; leave it out")
        return self


def growable(spec: Spec) -> Growable:
    """Return the spec if its model can grow; raise UserError otherwise."""
    if not isinstance(spec, Decoder | VisionTransformer):
        raise UserError("growth: only decoders and vision transformers can grow; leave growth out")
    return spec


def grown_spec(parent: Spec, child: Spec, growth: Growth) -> Growable:
    """Return the child's spec with tau set by `growth`.

    Raises UserError for a model that cannot grow by the method, for specs that differ in a key other than `TOKEN_KEYS`
    or `WIDTH_KEYS`, and for the errors of `with_tau` (method = tokens) or `check_width` (the other methods).
    """
    parent, child = growable(parent), growable(child)
    ignored = TOKEN_KEYS if growth.method == "tokens" else WIDTH_KEYS
    rule = "growth only adds Pattention tokens" if growth.method == "tokens" else f"{growth.method} only adds width"
    for key, old, new in _differences(parent.to_dict(), child.to_dict(), ignored):
        raise UserError(f"cannot grow {key}={old} into {key}={new}: {rule}; make them equal")
    if growth.method == "tokens":
        grown: Growable = with_tau(parent, child, growth.tau)
        return grown
    if not isinstance(parent, Decoder) or not isinstance(child, Decoder):
        raise UserError(f"cannot grow {child.kind} by method={growth.method}: only decoders grow in width; use tokens")
    check_width(parent, child, growth.method)
    return child


def continued_spec(parent: SomeSpec, child: SomeSpec) -> SomeSpec:
    """Return the parent's spec, for continued training without growth.

    Raises UserError if the specs differ in keys other than tau and the initialisation settings.
    """
    for key, old, new in _differences(parent.to_dict(), child.to_dict(), INITIALISATION_KEYS | {"tau"}):
        raise UserError(
            f"cannot continue training: {key} is {old} in the parent and {new} in this run; make them equal, or set "
            "growth"
        )
    return parent


def with_tau(parent: AnyModelSpec, child: AnyModelSpec, rule: TauRule) -> Any:
    """Return the child's spec with tau set by `rule`.

    Raises UserError if the child sets another tau, has fewer tokens than the parent, or has no Pattention.
    """
    grown = {}
    for name, new in pattentions(child).items():
        old = pattentions(parent)[name]
        if new.tokens < old.tokens:
            raise UserError(
                f"cannot grow {name}.tokens={old.tokens} into {new.tokens}: growth never removes tokens; "
                f"use at least {old.tokens}"
            )
        tau = old.scale if rule == "keep" else None
        if new.tau not in (None, tau):
            value = "the square root of the token count" if tau is None else tau
            raise UserError(f"cannot grow {name} with tau={new.tau}: the rule tau={rule} gives {value}; leave tau out")
        grown[name] = new.model_copy(update={"tau": tau})
    if not grown:
        kinds = f"projection.kind={parent.projection.kind}, feedforward.kind={parent.feedforward.kind}"
        raise UserError(f"cannot grow a model without Pattention: {kinds}; use pattention for one of them")
    return child.model_copy(update=grown)


def grow_into(parent_state: dict[str, Tensor], parent: Spec, child: Spec, growth: Growth, seed: int) -> GrowableModel:
    """Return the child's model with the parent's weights, in their dtype and on their device.

    With method = tokens, old keys and values become the leading rows, all other weights are copied, and new rows have
    the values of `child.build(seed)`; keys = zero sets the new keys to zero. See `growth/width.py` for the other
    methods. Raises the errors of `grown_spec`.
    """
    model = grown_spec(parent, child, growth).build(seed).to(next(iter(parent_state.values())))
    if isinstance(model, DecoderModel) and isinstance(parent, Decoder) and growth.method != "tokens":
        widen(model, parent_state, parent, growth.method, growth.noise, seed)
        return model
    for name, weight in model.state_dict().items():
        weight[: len(parent_state[name])] = parent_state[name]
    if growth.keys == "zero":
        for name, layer in model.named_modules():
            if isinstance(layer, PattentionLayer):
                layer.keys.detach()[len(parent_state[f"{name}.keys"]) :] = 0.0
    return model


def pattentions(spec: AnyModelSpec) -> dict[str, Pattention]:
    """Return the Pattention specs in a model's spec, by field name."""
    fields = {name: getattr(spec, name) for name in type(spec).model_fields}
    return {name: field for name, field in fields.items() if isinstance(field, Pattention)}


def _differences(
    old: dict[str, Any], new: dict[str, Any], ignored: frozenset[str], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, old value, new value) for every difference between two specs, except in `ignored` keys."""
    for key in {**old, **new}:
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            yield from _differences(old[key], new[key], ignored, f"{prefix}{key}.")
        elif key not in ignored and old.get(key) != new.get(key):
            yield f"{prefix}{key}", old.get(key), new.get(key)
