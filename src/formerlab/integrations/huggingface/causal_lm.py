"""A causal language model of transformers behind the interface of our own decoders."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from formerlab.errors import UserError
from formerlab.integrations.huggingface.attention import NAME, attending, full_attention, register
from formerlab.layers.attention import Attend, Heads, KeyHeads, causal_attention
from formerlab.layers.position import PositionEncoding

STATIC = ("default", "linear", "llama3")
"""Kinds of rotation whose angles do not depend on the length of the text."""

Keys = Mapping[int, KeyHeads]
"""Keys by layer."""


class BorrowedRotation(PositionEncoding):
    """The rotation of a model's own rotary module (arXiv:2104.09864, eq. 34)."""

    def __init__(self, rotary: nn.Module, interleaved: bool) -> None:
        """Rotate channels (2i, 2i + 1) where `interleaved`, else (i, i + r/2)."""
        super().__init__()
        self.rotary, self.interleaved = rotary, interleaved

    def rotate(
        self, x: Float[Tensor, "batch heads time d_head"], start: int
    ) -> Float[Tensor, "batch heads time d_head"]:
        """Rotate the first channels of every head, as many as the module has angles for."""
        places = torch.arange(start, start + x.shape[2], device=x.device)[None]
        cosine, sine = self.rotary(x, places)
        rotated, rest = x[..., : cosine.shape[-1]], x[..., cosine.shape[-1] :]
        if self.interleaved:
            across = torch.stack((-rotated[..., 1::2], rotated[..., 0::2]), dim=-1).flatten(-2)
        else:
            across = torch.cat((-rotated.chunk(2, dim=-1)[1], rotated.chunk(2, dim=-1)[0]), dim=-1)
        return torch.cat((rotated * cosine[:, None] + across * sine[:, None], rest), dim=-1)


class FixedPositions(PositionEncoding):
    """Positions that are part of the keys and cannot be told apart from them: what embeddings of positions lead to."""

    def embed(self, x: Float[Tensor, "batch time width"], start: int) -> Float[Tensor, "batch time width"]:
        """Refuse: the model adds its positions by itself."""
        raise NotImplementedError("the model embeds its positions by itself")


def find_positions(model: nn.Module, first: Keys, later: Keys, distance: int) -> PositionEncoding:
    """Return how the model's keys depend on positions, given those of one token at 0 and alone at `distance`.

    A rotation is believed only where it turns the keys of all layers from one into the other.
    """
    if all(torch.equal(first[layer], later[layer]) for layer in first):
        return PositionEncoding()
    for module in model.modules():
        if hasattr(module, "inv_freq") and getattr(module, "rope_type", "default") in STATIC:
            key = next(iter(first.values()))
            if not isinstance(module(key, torch.zeros(1, 1, dtype=torch.long, device=key.device)), tuple):
                continue  # complex angles, of a part of the channels (DeepSeek V2)
            for rotation in (BorrowedRotation(module, interleaved) for interleaved in (False, True)):
                if all(_close(rotation.rotate(first[layer], distance), later[layer]) for layer in first):
                    return rotation
    return FixedPositions()


def _close(a: Tensor, b: Tensor) -> bool:
    largest = b.abs().max().clamp_min(1e-6)
    return bool((a - b).abs().max() <= tolerance(b.dtype) * largest)


def tolerance(dtype: torch.dtype) -> float:
    """Return how far two ways to compute the same may be apart, relative to the largest value."""
    return {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2}.get(dtype, 1e-1)


PROBE = 16
"""Tokens with which a model is tried out, at most."""
DISTANCE = 5
"""Positions between the two keys that are compared."""


class Sizes(NamedTuple):
    """What evaluation asks of a model's spec."""

    context: int
    """Longest sequence, in tokens."""
    vocabulary: int
    layers: int


class CausalLM(nn.Module):
    """Any causal model whose attention goes through transformers' interface: `model(tokens, attend=..., start=...)`.

    transformers' own cache is not used: an `attend` such as `KVCache`, `PrunedCache` or `Simulation` keeps keys and
    values, and tokens are always told their positions in the text, evicted ones counted.

    The model is tried out once: each layer must call our attention exactly once, and under full attention its logits
    must be those of its own implementation. So what an `attend` would get wrong is refused, not computed.
    """

    def __init__(self, model: Any, context: int | None = None) -> None:
        """Wrap a model; `context` is the longest sequence (default: what its config says).

        Raises UserError for a model that cannot run under an `attend`.
        """
        super().__init__()
        config = model.config.get_text_config(decoder=True)
        longest = getattr(config, "max_position_embeddings", None)
        length: int | None = longest if context is None else context
        if context is not None and longest is not None and context > longest:
            raise UserError(f"{self._name(model)}: context {context} exceeds the model's {longest} positions")
        self.spec = Sizes(length or PROBE, config.vocab_size, config.num_hidden_layers)
        _check_windows(self._name(model), config, self.spec.context)
        self.model = model.eval()
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        own = self._probe_own()
        register()
        try:
            model.set_attn_implementation(NAME)
        except ValueError:
            raise UserError(f"{self._name(model)}: its attention does not go through transformers' interface") from None
        self._check(own)
        if length is None:  # said last: a context would help none of the models that are refused above
            raise UserError(f"{self._name(model)}: the config gives no max_position_embeddings; give a context")
        first, later = self._keys_at(0), self._keys_at(DISTANCE)
        self.position = find_positions(model, first.keys, later.keys, DISTANCE)

    @staticmethod
    def _name(model: Any) -> str:
        return type(model).__name__

    @property
    def embedding(self) -> Tensor:
        """The embedding matrix, which says where inputs belong."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        *,
        attend: Attend = full_attention,
        start: int = 0,
        last: int | None = None,
    ) -> Float[Tensor, "batch kept vocabulary"]:
        """Return the logits of the token after each; `tokens` stand at positions start, start + 1, ...

        With `last` those after the last so many tokens alone are returned.
        """
        end = start + tokens.shape[1]
        if end > self.spec.context:
            raise ValueError(f"{end} tokens exceed the model's context of {self.spec.context}")
        places = torch.arange(start, end, device=tokens.device).expand(len(tokens), -1)
        with attending(full_attention if attend is causal_attention else attend):
            kept = {"logits_to_keep": last} if last is not None and self._keeps_logits else {}
            logits: Tensor = self.model(input_ids=tokens, position_ids=places, use_cache=False, **kept).logits
        return logits if last is None else logits[:, -last:]

    def _probe_tokens(self) -> Int[Tensor, "batch time"]:
        generator = torch.Generator().manual_seed(0)
        shape = 1, min(PROBE, self.spec.context)
        return torch.randint(self.spec.vocabulary, shape, generator=generator).to(self.embedding.device)

    @torch.no_grad()
    def _probe_own(self) -> Tensor:
        """Return the logits that the model gives by itself."""
        tokens = self._probe_tokens()
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        try:
            logits: Tensor = self.model(input_ids=tokens, position_ids=places, use_cache=False).logits
        except TypeError:
            raise UserError(
                f"{self._name(self.model)}: takes no position_ids, so tokens cannot be told theirs"
            ) from None
        return logits

    @torch.no_grad()
    def _check(self, own: Tensor) -> None:
        calls = _Calls()
        ours = self(self._probe_tokens(), attend=calls)
        if sorted(calls.layers) != list(range(self.spec.layers)):
            raise UserError(
                f"{self._name(self.model)}: of its {self.spec.layers} layers {len(set(calls.layers))} go through "
                f"transformers' attention interface, {len(calls.layers)} times in all; every layer must, once"
            )
        if (ours - own).abs().max() > tolerance(own.dtype) * own.abs().max():
            raise UserError(
                f"{self._name(self.model)}: its attention is more than softmax(q k^T) v; it cannot be pruned"
            )

    @torch.no_grad()
    def _keys_at(self, start: int) -> "_Calls":
        calls = _Calls()
        self(self._probe_tokens()[:, :1], attend=calls, start=min(start, self.spec.context - 1))
        return calls


class _Calls:
    """Full attention that notes which layers asked for it, and their keys."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.keys: dict[int, KeyHeads] = {}

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        self.layers.append(layer)
        self.keys[layer] = k
        return full_attention(layer, q, k, v)


def _check_windows(name: str, config: Any, context: int) -> None:
    """Refuse layers that see only a window of the text, where sequences can be longer than it."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
        raise UserError(f"{name}: has layers of {', '.join(sorted(kinds - {'full_attention'}))}, which keep no keys")
    window = getattr(config, "sliding_window", None)
    used = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    if used and window is not None and context > window:
        raise UserError(f"{name}: its layers see a window of {window} tokens; give a context of at most {window}")
