"""Our decoders as models of transformers: from_pretrained, save_pretrained, generate."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, StaticCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from formerlab.errors import UserError
from formerlab.integrations.huggingface.attention import current_attend
from formerlab.integrations.huggingface.cache_argument import FIELD, NAMES, take_cache
from formerlab.integrations.huggingface.padding import count_padding, standing_at
from formerlab.layers.attention import Heads, KeyHeads
from formerlab.models.decoder import Decoder, DecoderModel

MODEL_TYPE = "formerlab"
"""What config.json calls our models."""


class FormerlabConfig(PreTrainedConfig):  # type: ignore[misc]
    """The config of a decoder: `spec` says everything; the other sizes repeat it under transformers' names."""

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = list(NAMES)
    has_no_defaults_at_init = False

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

    @property
    def decoder_spec(self) -> Decoder:
        """The spec as a value that builds the model."""
        return Decoder.model_validate(self.spec)


class CacheAttend:
    """An `attend` that keeps keys and values in a cache of transformers, and never sees padding."""

    def __init__(self, cache: Cache | None, padding: list[int] | None) -> None:
        """Keep in `cache`, if any; `padding` counts the tokens of padding in front of each row, if there are any."""
        self.cache, self.padding = cache, padding

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Take in the new keys and values; return softmax(q k^T / sqrt(d_head)) v over all that each query may see."""
        if self.cache is not None:
            k, v = self.cache.update(k, v, layer)
        prompt = self.padding is None and q.shape[2] == k.shape[2]
        mask = None if self.padding is None and q.shape[2] in (1, k.shape[2]) else self._visible(q, k)
        gqa = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=prompt, enable_gqa=gqa)

    def _visible(self, q: Heads, k: KeyHeads) -> Tensor:
        """Return the keys that each query sees; padding sees itself, so that nothing is NaN."""
        new, held = q.shape[2], k.shape[2]
        visible = torch.ones(new, held, dtype=torch.bool, device=q.device).tril(held - new)
        if self.padding is None:
            return visible
        first = torch.tensor(self.padding).to(q.device, non_blocking=True)[:, None, None, None]
        itself = torch.eye(held, dtype=torch.bool, device=q.device)[held - new :]
        return visible & (torch.arange(held, device=q.device) >= first) | itself


class FormerlabForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A `DecoderModel` behind the interface of transformers.

    Weights bear the decoder's own names behind `decoder.`. A tied head is the embedding itself, so it is saved once.
    Batches may be padded on the left, as `generate` wants them, or on the right.
    """

    config_class = FormerlabConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _supports_sdpa = True
    _no_split_modules = ["Block"]

    def __init__(self, config: FormerlabConfig) -> None:
        super().__init__(config)
        self.decoder = DecoderModel(config.decoder_spec)
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

    def get_output_embeddings(self) -> None:
        """There is no module: the head is a matrix of the decoder, or its embedding."""

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
            raise UserError(
                f"{FIELD}: a StaticCache holds room beyond the text, which this model would read; give a DynamicCache"
            )
        use_cache = not self.training if use_cache is None else use_cache
        if use_cache and cache is None:
            cache = DynamicCache()
        start = 0 if cache is None else cache.get_seq_length()
        padding = None if attention_mask is None else count_padding(attention_mask)
        padding = padding if padding and any(padding) else None
        last = logits_to_keep or None if labels is None else None
        logits = self._logits(input_ids, cache, padding, start, last)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **others)
        out = CausalLMOutputWithPast(loss=loss, logits=logits[:, -logits_to_keep:], **{FIELD: cache})
        return out if return_dict is not False else out.to_tuple()

    def _logits(
        self,
        tokens: Int[Tensor, "batch time"],
        cache: Cache | None,
        padding: list[int] | None,
        start: int,
        last: int | None,
    ) -> Float[Tensor, "batch kept vocabulary"]:
        attend = current_attend()
        if attend is None:
            attend = CacheAttend(cache, padding)
        if padding is None:
            logits: Tensor = self.decoder(tokens, attend=attend, start=start, last=last)
            return logits
        first = [start - count for count in padding]
        longest = max(max(first), 0)
        moved: Tensor = standing_at(self.decoder, first)(tokens, attend=attend, start=longest, last=last)
        return moved
