"""Our decoders as models of transformers: from_pretrained, save_pretrained, generate."""

import copy
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, StaticCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from formerlab.errors import UserError
from formerlab.integrations.huggingface.causal_lm import current_attend
from formerlab.layers.attention import Heads, KeyHeads
from formerlab.layers.position import PositionEncoding, Stream
from formerlab.models.decoder import Decoder, DecoderModel

MODEL_TYPE = "formerlab"
"""The name of our models in config.json."""
NAMES = ("cache", "past_key_values")
"""The argument of a forward pass that is its cache since transformers 5.24, and before."""
FIELD = next(name for name in NAMES if name in {field.name for field in fields(CausalLMOutputWithPast)})
"""Where models return their cache."""


def take_cache(arguments: dict[str, Any]) -> Cache | None:
    """Take the cache out of the arguments of a forward pass and return it."""
    names = [name for name, value in arguments.items() if isinstance(value, Cache) or name in NAMES]
    caches = {name: cache for name in names if (cache := arguments.pop(name)) is not None}
    if len(caches) > 1 or not all(name in NAMES and isinstance(cache, Cache) for name, cache in caches.items()):
        given = " and ".join(caches)
        raise UserError(f"{given}: give one cache of transformers, such as a DynamicCache, as {FIELD}")
    return next(iter(caches.values()), None)


def count_padding(mask: Int[Tensor, "batch keys"]) -> list[int]:
    """Return how many tokens of padding stand in front of each row, given 1 for every real token.

    Padding behind a row's last token is no concern of causal attention. Raises UserError for a mask of another shape,
    and where padding stands between tokens, as it does when text is generated behind rows padded on the right.
    """
    if mask.ndim != 2:
        raise UserError(f"attention_mask of shape {tuple(mask.shape)}: give one number per row and token")
    real = mask.bool()
    stretches = real[:, 0] + (real[:, 1:] > real[:, :-1]).sum(1)
    if (stretches > 1).any():
        raise UserError("attention_mask: padding between tokens; pad batches on the left (padding_side='left')")
    front: list[int] = (real.cumsum(1) == 0).sum(1).tolist()
    return front


class RowPositions(PositionEncoding):
    """A position encoding for rows that begin at positions of their own; whatever lies before position 0 is padding."""

    def __init__(self, encoding: PositionEncoding, first: list[int]) -> None:
        """`first` is the position of each row's first column, negative where that is padding."""
        super().__init__()
        self.encoding, self.first = encoding, first

    def _by_row(self, x: Tensor, axis: int, mark: Callable[[Tensor, int], Tensor]) -> Tensor:
        rows = []
        for row, first in enumerate(self.first):
            own, gap = x[row : row + 1], min(max(-first, 0), x.shape[axis])
            padding, tokens = own.narrow(axis, 0, gap), own.narrow(axis, gap, x.shape[axis] - gap)
            rows.append(torch.cat((padding, mark(tokens, max(first, 0))), axis))
        return torch.cat(rows)

    def embed(self, x: Stream, start: int) -> Stream:
        return self._by_row(x, 1, self.encoding.embed)

    def rotate(self, x: Heads, start: int) -> Heads:
        return self._by_row(x, 2, self.encoding.rotate)


class FormerlabConfig(PretrainedConfig):  # type: ignore[misc]
    """The config of a decoder: `spec` says everything; the other sizes repeat it under transformers' names."""

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = list(NAMES)

    def __init__(self, spec: dict[str, Any] | None = None, **others: Any) -> None:
        """Take a plain spec of a `Decoder` (default: its default); sizes among `others` follow from it."""
        decoder = Decoder.model_validate(spec or {})
        self.spec = decoder.to_dict()
        sizes = {
            "vocab_size": decoder.vocabulary,
            "hidden_size": decoder.width,
            "num_hidden_layers": decoder.layers,
            "num_attention_heads": decoder.heads,
            "num_key_value_heads": decoder.key_heads or decoder.heads,
            "max_position_embeddings": decoder.context,
            "tie_word_embeddings": decoder.tied,
            "is_decoder": True,
        }
        super().__init__(**(others | sizes))


class CacheAttend:
    """An `attend` that keeps keys and values in a cache of transformers, and never sees padding."""

    def __init__(self, cache: Cache | None, padding: list[int] | None) -> None:
        """Keep in `cache`, if any; `padding` counts the tokens of padding in front of each row, if there are any."""
        self.cache, self.padding = cache, padding

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Take in the new keys and values; return softmax(q k^T / sqrt(d_head)) v over all that each query may see."""
        if self.cache is not None:
            k, v = self.cache.update(k, v, layer)
        new, held = q.shape[2], k.shape[2]
        visible: Tensor | None = None
        if self.padding is not None or new not in (1, held):
            visible = past = torch.ones(new, held, dtype=torch.bool, device=q.device).tril(held - new)
            if self.padding is not None:  # which sees itself, so that nothing is NaN
                first = torch.tensor(self.padding).to(q.device, non_blocking=True)[:, None, None, None]
                itself = torch.eye(held, dtype=torch.bool, device=q.device)[held - new :]
                visible = past & (torch.arange(held, device=q.device) >= first) | itself
        causal, gqa = visible is None and new == held, q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=causal, enable_gqa=gqa)


class FormerlabForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A `DecoderModel` behind the interface of transformers.

    Weights bear the decoder's own names behind `decoder.`. A tied head is the embedding itself, so it is saved once.
    Batches may be padded on the left, as `generate` wants them, or on the right.
    """

    config_class = FormerlabConfig
    _supports_sdpa = True
    _no_split_modules = ["Block"]

    def __init__(self, config: FormerlabConfig) -> None:
        super().__init__(config)
        self.decoder = DecoderModel(Decoder.model_validate(config.spec))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Compute what is not saved, and draw what was not loaded; called for modules that lack something."""
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding as a module, a view of the decoder's matrix."""
        view: nn.Module = nn.Embedding.from_pretrained(self.decoder.embedding, freeze=False)  # type: ignore[no-untyped-call]
        return view

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Refuse: the vocabulary is part of the spec."""
        raise NotImplementedError("the vocabulary of a formerlab model is part of its spec; build another model")

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        attention_mask: Int[Tensor, "batch keys"] | None = None,
        past_key_values: Cache | None = None,
        labels: Int[Tensor, "batch time"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        cache: Cache | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return the logits of the token after each, the cache, and with `labels` the mean loss in nats.

        `cache` and `past_key_values` are two names of one argument. Positions follow from the cache and the mask;
        whatever else is given (`position_ids` among it) changes nothing, but another kind of cache is refused.
        """
        cache = take_cache(others | {"cache": cache, "past_key_values": past_key_values})
        if isinstance(cache, StaticCache):
            raise UserError(f"{FIELD}: this model would read a StaticCache beyond the text; give a DynamicCache")
        use_cache = not self.training if use_cache is None else use_cache
        if use_cache and cache is None:
            cache = DynamicCache()
        start = 0 if cache is None else cache.get_seq_length()
        padding = None if attention_mask is None else count_padding(attention_mask)
        padding = padding if padding and any(padding) else None
        attend, model = current_attend(), self.decoder
        attend = CacheAttend(cache, padding) if attend is None else attend
        if padding is not None:
            first = [start - count for count in padding]
            model, start = copy.copy(self.decoder), max(*first, 0)
            model._modules = {**self.decoder._modules, "position": RowPositions(self.decoder.position, first)}
        last = logits_to_keep or None if labels is None else None
        logits = model(input_ids, attend=attend, start=start, last=last)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **others)
        out = CausalLMOutputWithPast(loss=loss, logits=logits[:, -logits_to_keep:], **{FIELD: cache})
        return out if return_dict is not False else out.to_tuple()
