"""A causal language model of transformers behind the interface of our own decoders, its attention being our `attend`.

transformers lets an attention function be registered by name. It must be registered together with a function that makes
its masks: without one the mask arrives as None, and a model that relies on it is silently not causal.
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
from formerlab.layers.shapes import Heads, KeyHeads, Stream
from formerlab.released import sizes_of
from formerlab.tasks.scoring import check_finite

NAME = "formerlab"
"""What `set_attn_implementation` calls our function."""
FOREIGN = ("softcap", "position_bias", "s_aux", "sinks", "cu_seq_lens_q", "cu_seq_lens_k")
"""Arguments that change attention in ways that an `attend` cannot follow."""
STATIC = ("default", "linear", "llama3")
"""Kinds of rotation whose angles do not depend on the length of the text."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""How far two ways to compute the same may be apart, relative to the largest value."""
PROBE = 16
"""Tokens with which a model is tried out, at most."""
DISTANCE = 5
"""Positions between the two keys that are compared."""

_current: ContextVar[Attend | None] = ContextVar("attend", default=None)


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Let all attention of models with our implementation go through `attend`."""
    token = _current.set(attend)
    try:
        yield
    finally:
        _current.reset(token)


def current_attend() -> Attend | None:
    """Return the `attend` of the innermost `attending`, if any."""
    return _current.get()


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, None]:
    """Return the current `attend`'s output for one layer, as (batch, time, heads, d_head). Without one, as in a plain
    call of the model, it is that of `sdpa` with its mask. Queries may come scaled (OPT),
    or with another factor than 1/sqrt(d_head); what an `attend` gets is to be divided by sqrt(d_head).
    """
    attend, scaling = _current.get(), others.get("scaling")
    if attend is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)[0], None
    for name in FOREIGN:
        if others.get(name) is not None:
            raise UserError(f"{type(module).__name__}: attention with {name} cannot run under a cache policy")
    factor = 1.0 if scaling is None else scaling * math.sqrt(query.shape[-1])
    query = query if math.isclose(factor, 1.0, rel_tol=1e-12) else query * factor
    layer: int = module.layer_idx  # type: ignore[assignment]
    return attend(layer, query, key, value).transpose(1, 2).contiguous(), None


def masks(*arguments: Any, **options: Any) -> Tensor | None:
    """Return the masks of `sdpa`, and none where an `attend` says what each query sees."""
    return None if _current.get() is not None else sdpa_mask(*arguments, **options)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, masks)


class BorrowedRotation(PositionEncoding):
    """The rotation of a model's own rotary module (arXiv:2104.09864, eq. 34)."""

    def __init__(self, rotary: nn.Module, interleaved: bool) -> None:
        """Rotate channels (2i, 2i + 1) where `interleaved`, else (i, i + r/2)."""
        super().__init__()
        self.rotary, self.interleaved = rotary, interleaved

    def rotate(self, x: Heads, start: int) -> Heads:
        """Rotate the first channels of every head, as many as the module has angles for."""
        cosine, sine = self.rotary(x, torch.arange(start, start + x.shape[2], device=x.device)[None])
        rotated, rest = x[..., : cosine.shape[-1]], x[..., cosine.shape[-1] :]
        if self.interleaved:
            across = torch.stack((-rotated[..., 1::2], rotated[..., 0::2]), dim=-1).flatten(-2)
        else:
            across = torch.cat((-rotated.chunk(2, dim=-1)[1], rotated.chunk(2, dim=-1)[0]), dim=-1)
        return torch.cat((rotated * cosine[:, None] + across * sine[:, None], rest), dim=-1)


class FixedPositions(PositionEncoding):
    """Positions that are part of the keys and cannot be separated from them, as with embedded positions."""

    def embed(self, x: Stream, start: int) -> Stream:
        """Refuse: the model adds its positions by itself."""
        raise NotImplementedError("the model embeds its positions by itself")


def find_positions(model: nn.Module, first: list[KeyHeads], later: list[KeyHeads], distance: int) -> PositionEncoding:
    """Return how the keys of a model's layers depend on positions, given those of a token at 0 and at `distance`.

    A rotation is known only where it turns the keys of all layers from one into the other.
    """
    if all(map(torch.equal, first, later)):
        return PositionEncoding()
    for module in model.modules():
        if hasattr(module, "inv_freq") and getattr(module, "rope_type", "default") in STATIC:
            if not isinstance(module(first[0], torch.zeros(1, 1, dtype=torch.long, device=first[0].device)), tuple):
                continue  # complex angles, of a part of the channels (DeepSeek V2)
            keys = list(zip(first, later, strict=True))
            nearest = min(  # in half precision both may be close
                (BorrowedRotation(module, interleaved) for interleaved in (False, True)),
                key=lambda one: sum((one.rotate(key, distance) - there).abs().sum().item() for key, there in keys),
            )
            if all(_close(nearest.rotate(key, distance), there) for key, there in keys):
                return nearest
    rotates = any(name.endswith("inv_freq") for name, _ in model.named_buffers())
    return UnknownRotation() if rotates else FixedPositions()


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= TOLERANCE[b.dtype] * b.abs().max().clamp_min(1e-6))


class CausalLM(nn.Module):
    """Any causal model whose attention goes through transformers' interface: `model(tokens, attend=..., start=...)`.

    transformers' own cache is not used: an `attend` such as `KVCache`, `PrunedCache` or `Simulation` keeps keys and
    values, and tokens are always told their positions in the text, evicted ones counted.

    The model is tried out once: each layer must call our attention exactly once, and under causal attention its logits
    must be those of its own implementation. So what an `attend` would get wrong is refused, not computed.
    """

    def __init__(self, model: Any, context: int | None = None) -> None:
        """Wrap a model; `context` is the longest sequence (default: what its config says)."""
        super().__init__()
        self.name, config = type(model).__name__, model.config.get_text_config(decoder=True)
        longest = getattr(config, "max_position_embeddings", None)
        length: int | None = longest if context is None else context
        if context is not None and longest is not None and context > longest:
            raise UserError(f"{self.name}: context {context} exceeds the model's {longest} positions")
        self.spec = sizes_of(model, PROBE).model_copy(update={"context": length or PROBE})
        self._check_windows(config)
        offloaded = any(
            hasattr(module, "_hf_hook") for module in model.modules()
        )  # to where accelerate fetches it from
        if not offloaded and any(weight.is_meta for weight in model.parameters()):
            raise UserError(f"{self.name}: has no weights, only shapes (device meta); load them first")
        self.model = model.eval()
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._check()
        if length is None:  # checked last: a context does not help models that are refused above
            raise UserError(f"{self.name}: the config gives no max_position_embeddings; give a context")
        first, later = (self._probe(1, min(start, length - 1))[0] for start in (0, DISTANCE))
        self.position = find_positions(model, list(first.values()), list(later.values()), DISTANCE)

    @property
    def embedding(self) -> Tensor:
        """The embedding matrix, which says where inputs belong."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        *,
        attend: Attend = causal_attention,
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
        kept = {"logits_to_keep": last} if last is not None and self._keeps_logits else {}
        with attending(attend):
            logits: Tensor = self.model(input_ids=tokens, position_ids=places, use_cache=False, **kept).logits
        return logits if last is None else logits[:, -last:]

    @torch.no_grad()
    def _probe(self, count: int, start: int = 0) -> tuple[dict[int, KeyHeads], int, Tensor]:
        """Return the keys of every layer, how often a layer attended, and the logits, of a few tokens."""
        keys: dict[int, KeyHeads] = {}
        calls: list[int] = []

        def noted(layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
            calls.append(layer)
            keys[layer] = k
            return causal_attention(layer, q, k, v)

        logits = self(self._tokens(count), attend=noted, start=start)
        return dict(sorted(keys.items())), len(calls), logits

    def _tokens(self, count: int) -> Int[Tensor, "batch time"]:
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.spec.vocabulary, (1, PROBE), generator=generator)[
            :, : min(count, self.spec.context)
        ]
        return tokens if self.embedding.is_meta else tokens.to(self.embedding.device)  # offloaded: its hooks move them

    @torch.no_grad()
    def _check(self) -> None:
        """Let the model attend through us; refuse one whose layers do not, or whose attention is more than ours."""
        tokens = self._tokens(PROBE)
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        try:
            own = self.model(input_ids=tokens, position_ids=places, use_cache=False).logits
        except TypeError:
            raise UserError(f"{self.name}: takes no position_ids, so tokens cannot be told theirs") from None
        try:
            check_finite(own)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None
        try:
            self.model.set_attn_implementation(NAME)
        except ValueError:
            raise UserError(f"{self.name}: its attention does not go through transformers' interface") from None
        keys, calls, ours = self._probe(PROBE)
        if not (list(keys) == list(range(self.spec.layers)) and calls == len(keys)):
            raise UserError(
                f"{self.name}: of its {self.spec.layers} layers {len(keys)} go through transformers' attention "
                f"interface, {calls} times in all; every layer must, once"
            )
        if not _close(ours, own):
            raise UserError(f"{self.name}: its attention is more than softmax(q k^T) v; it cannot be pruned")

    def _check_windows(self, config: Any) -> None:
        """Refuse layers that see only a window of the text, where sequences can be longer than it."""
        kinds = set(getattr(config, "layer_types", None) or ())
        if kinds - {"full_attention", "sliding_attention"}:
            names = ", ".join(sorted(kinds - {"full_attention"}))
            raise UserError(f"{self.name}: has layers of {names}, which cannot run under a cache policy")
        window = getattr(config, "sliding_window", None)
        used = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
        if used and window is not None and self.spec.context > window:
            remedy = f"give a context of at most {window}"
            raise UserError(f"{self.name}: its layers see a window of {window} tokens; {remedy}")
