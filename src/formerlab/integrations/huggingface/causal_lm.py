"""Wrap transformers models in the interface of `DecoderModel`, so that a caller can pass an attention function.

transformers calls attention functions that are registered by name. A mask function must be registered under the same
name; without a mask, some models attend to later tokens.
"""

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from formerlab.cache.policies.policy import UnknownRotation
from formerlab.errors import UserError
from formerlab.layers.attention import Attend, causal_attention
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads, Start, Stream
from formerlab.released import sizes_of
from formerlab.tasks.scoring import check_finite

ATTENTION_NAME = "formerlab"
"""Name of the attention implementation for `set_attn_implementation`."""
UNSUPPORTED_ARGUMENTS = ("softcap", "position_bias", "s_aux", "sinks", "cu_seq_lens_q", "cu_seq_lens_k")
"""Arguments of transformers' attention functions that an attention function of type `Attend` does not support."""
STATIC_ROPE_TYPES = ("default", "linear", "llama3")
"""Types of RoPE whose angles do not depend on the sequence length."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest allowed difference of two computations, relative to the largest value, by dtype."""
PROBE_TOKENS = 16
"""Largest number of tokens in a test call."""
PROBE_DISTANCE = 5
"""Distance in positions between the two keys that `find_positions` compares."""

_current: ContextVar[Attend | None] = ContextVar("attend", default=None)


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Compute the attention of all wrapped models with `attend` inside the block."""
    token = _current.set(attend)
    try:
        yield
    finally:
        _current.reset(token)


def current_attend() -> Attend | None:
    """Return the attention function of the innermost `attending` block, or None outside of such a block."""
    return _current.get()


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Return the output of the current attention function for one layer, shape (batch, time, heads, d_head).

    `query` is (batch, heads, time, d_head); `key` and `value` are (batch, key-value heads, time, d_head). Outside an
    `attending` block, the function computes transformers' `sdpa` attention with its mask. An `Attend` always divides by
    sqrt(d_head), so the queries are rescaled for models with another scaling, such as OPT. Raises UserError for
    UNSUPPORTED_ARGUMENTS.
    """
    attend, scaling = _current.get(), options.get("scaling")
    if attend is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0], None
    for name in UNSUPPORTED_ARGUMENTS:
        if options.get(name) is not None:
            raise UserError(f"{type(module).__name__}: cache policies do not support attention with {name}")
    factor = 1.0 if scaling is None else scaling * math.sqrt(query.shape[-1])
    query = query if math.isclose(factor, 1.0, rel_tol=1e-12) else query * factor
    layer: int = module.layer_idx  # type: ignore[assignment]
    return attend(layer, query, key, value).transpose(1, 2).contiguous(), None


def attention_mask(*arguments: Any, **options: Any) -> Tensor | None:
    """Return the mask of `sdpa`, or None inside an `attending` block, because its attention function masks keys."""
    return None if _current.get() is not None else sdpa_mask(*arguments, **options)


AttentionInterface.register(ATTENTION_NAME, attention)
AttentionMaskInterface.register(ATTENTION_NAME, attention_mask)


class WrappedRotation(PositionEncoding):
    """The rotation of a wrapped model's rotary module (arXiv:2104.09864, eq. 34)."""

    def __init__(self, rotary: nn.Module, interleaved: bool) -> None:
        """Rotate pairs of channels (2i, 2i + 1) if `interleaved`, otherwise (i, i + r/2), for r rotated channels."""
        super().__init__()
        self.rotary, self.interleaved = rotary, interleaved

    def rotate(self, x: Heads, start: Start) -> Heads:
        """Rotate the first r channels of every head; the rotary module determines r."""
        cosine, sine = self.rotary(x, start + torch.arange(x.shape[2], device=x.device)[None])
        rotated, unrotated = x[..., : cosine.shape[-1]], x[..., cosine.shape[-1] :]
        if self.interleaved:
            quarter_turn = torch.stack((-rotated[..., 1::2], rotated[..., 0::2]), dim=-1).flatten(-2)
        else:
            quarter_turn = torch.cat((-rotated.chunk(2, dim=-1)[1], rotated.chunk(2, dim=-1)[0]), dim=-1)
        return torch.cat((rotated * cosine[:, None] + quarter_turn * sine[:, None], unrotated), dim=-1)


class FixedPositions(PositionEncoding):
    """Positions that cannot be separated from the keys, such as position embeddings."""

    def embed(self, x: Stream, start: Start) -> Stream:
        raise NotImplementedError("the wrapped model embeds positions itself")


def find_positions(
    model: nn.Module, first_keys: list[KeyHeads], later_keys: list[KeyHeads], distance: int
) -> PositionEncoding:
    """Return the position encoding of a model, inferred from the keys of its layers.

    `first_keys` and `later_keys` are the keys of the same token at positions 0 and `distance`, one tensor per layer.
    Returns `PositionEncoding` if they are equal, `WrappedRotation` if the rotation of a rotary module maps `first_keys`
    to `later_keys` in all layers, `UnknownRotation` if the model rotates keys in another way, and otherwise
    `FixedPositions`.
    """
    if all(map(torch.equal, first_keys, later_keys)):
        return PositionEncoding()
    for module in model.modules():
        if hasattr(module, "inv_freq") and getattr(module, "rope_type", "default") in STATIC_ROPE_TYPES:
            position = torch.zeros(1, 1, dtype=torch.long, device=first_keys[0].device)
            if not isinstance(module(first_keys[0], position), tuple):
                continue  # the module returns complex angles for some of the channels (DeepSeek V2)
            pairs = list(zip(first_keys, later_keys, strict=True))
            nearest = min(  # in half precision both rotations may be within the tolerance
                (WrappedRotation(module, interleaved) for interleaved in (False, True)),
                key=lambda rope: sum((rope.rotate(key, distance) - later).abs().sum().item() for key, later in pairs),
            )
            if all(_close(nearest.rotate(key, distance), later) for key, later in pairs):
                return nearest
    rotates = any(name.endswith("inv_freq") for name, _ in model.named_buffers())
    return UnknownRotation() if rotates else FixedPositions()


def _close(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal within TOLERANCE of the dtype of `b`."""
    return bool((a - b).abs().max() <= TOLERANCE[b.dtype] * b.abs().max().clamp_min(1e-6))


class CausalLM(nn.Module):
    """Wrapper of a causal language model of transformers: `model(tokens, attend=..., start=...)`.

    The model must use transformers' attention interface. An attention function such as `KVCache`, `PrunedCache` or
    `Simulation` replaces transformers' cache. Tokens keep their positions in the text when earlier tokens are evicted.

    The constructor sets the model to evaluation mode and to the attention implementation `formerlab`, and tests it:
    each layer must call the attention function exactly once, and with causal attention the logits must equal the logits
    of the model's own implementation. It raises UserError for a model that fails.
    """

    def __init__(self, model: Any, context: int | None = None) -> None:
        """Wrap a model; `context` is the longest sequence in tokens (default: max_position_embeddings)."""
        super().__init__()
        self.name, config = type(model).__name__, model.config.get_text_config(decoder=True)
        max_positions = getattr(config, "max_position_embeddings", None)
        length: int | None = max_positions if context is None else context
        if context is not None and max_positions is not None and context > max_positions:
            raise UserError(f"{self.name}: context {context} exceeds the model's {max_positions} positions")
        self.spec = sizes_of(model, PROBE_TOKENS).model_copy(update={"context": length or PROBE_TOKENS})
        self._check_windows(config)
        offloaded = any(hasattr(module, "_hf_hook") for module in model.modules())  # accelerate loads the weights
        if not offloaded and any(weight.is_meta for weight in model.parameters()):
            raise UserError(f"{self.name}: its weights are on the meta device; load them first")
        self.model = model.eval()
        self._has_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._check_attention()
        if length is None:  # checked last, because a context does not help if another check fails
            raise UserError(f"{self.name}: the config gives no max_position_embeddings; give a context")
        first_keys, later_keys = (self._probe(1, min(start, length - 1))[0] for start in (0, PROBE_DISTANCE))
        self.position = find_positions(model, list(first_keys.values()), list(later_keys.values()), PROBE_DISTANCE)

    @property
    def embedding(self) -> Tensor:
        """The embedding matrix; input tokens must be on its device."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        *,
        attend: Attend = causal_attention,
        start: int = 0,
        last: int | None = None,
    ) -> Float[Tensor, "batch queries vocabulary"]:
        """Return next-token logits; `tokens` have positions start, start + 1, ...

        `last` restricts the logits to the last `last` tokens. Raises ValueError for a sequence that exceeds the
        context.
        """
        end = start + tokens.shape[1]
        if end > self.spec.context:
            raise ValueError(f"{end} tokens exceed the model's context of {self.spec.context}")
        positions = torch.arange(start, end, device=tokens.device).expand(len(tokens), -1)
        options = {"logits_to_keep": last} if last is not None and self._has_logits_to_keep else {}
        with attending(attend):
            logits: Tensor = self.model(input_ids=tokens, position_ids=positions, use_cache=False, **options).logits
        return logits if last is None else logits[:, -last:]

    @torch.no_grad()
    def _probe(self, count: int, start: int = 0) -> tuple[dict[int, KeyHeads], int, Tensor]:
        """Run `count` test tokens; return the keys by layer, the number of attention calls, and the logits."""
        keys: dict[int, KeyHeads] = {}
        calls: list[int] = []

        def record_keys(layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
            calls.append(layer)
            keys[layer] = k
            return causal_attention(layer, q, k, v)

        logits = self(self._tokens(count), attend=record_keys, start=start)
        return dict(sorted(keys.items())), len(calls), logits

    def _tokens(self, count: int) -> Int[Tensor, "batch time"]:
        """Return up to `count` random test tokens, limited by the context."""
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.spec.vocabulary, (1, PROBE_TOKENS), generator=generator)
        tokens = tokens[:, : min(count, self.spec.context)]
        # The embedding of an offloaded model is on the meta device; hooks of accelerate move its inputs.
        return tokens if self.embedding.is_meta else tokens.to(self.embedding.device)

    @torch.no_grad()
    def _check_attention(self) -> None:
        """Set the attention implementation. Raises UserError unless every layer calls it and the logits stay equal."""
        tokens = self._tokens(PROBE_TOKENS)
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        try:
            expected = self.model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        except TypeError:
            raise UserError(f"{self.name}: does not accept position_ids, which pruning needs") from None
        try:
            check_finite(expected)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None
        try:
            self.model.set_attn_implementation(ATTENTION_NAME)
        except ValueError:
            raise UserError(f"{self.name}: does not use transformers' attention interface") from None
        keys, calls, logits = self._probe(PROBE_TOKENS)
        if not (list(keys) == list(range(self.spec.layers)) and calls == len(keys)):
            used = f"{len(keys)} of {self.spec.layers} layers use transformers' attention interface"
            raise UserError(f"{self.name}: {used}, with {calls} calls in total; every layer must call it once")
        if not _close(logits, expected):
            raise UserError(f"{self.name}: its attention differs from softmax(q k^T) v, so it cannot be pruned")

    def _check_windows(self, config: Any) -> None:
        """Raise UserError for a layer of an unsupported type, and if the context exceeds the sliding window."""
        kinds = set(getattr(config, "layer_types", None) or ())
        if unsupported := ", ".join(sorted(kinds - {"full_attention", "sliding_attention"})):
            raise UserError(f"{self.name}: cache policies do not support its layers of type {unsupported}")
        window = getattr(config, "sliding_window", None)
        has_window = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
        if has_window and window is not None and self.spec.context > window:
            remedy = f"give a context of at most {window}"
            raise UserError(f"{self.name}: its layers have a sliding window of {window} tokens; {remedy}")
