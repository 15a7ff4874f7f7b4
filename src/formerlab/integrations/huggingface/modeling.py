"""Formerlab decoders as transformers models, with from_pretrained, save_pretrained and generate."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, StaticCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from formerlab.errors import ArgumentError, UserError
from formerlab.integrations.huggingface.causal_lm import current_attend
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads, Start, Stream
from formerlab.models.decoder import Decoder, DecoderModel

MODEL_TYPE = "formerlab"
"""The model_type of formerlab models in config.json."""
CACHE_NAMES = ("cache", "past_key_values")
"""Names of the cache argument of a forward pass: `cache` since transformers 5.24, before that `past_key_values`."""
CACHE_FIELD = next(name for name in CACHE_NAMES if name in {field.name for field in fields(CausalLMOutputWithPast)})
"""Name of the cache in the model output."""


def take_cache(arguments: dict[str, Any]) -> Cache | None:
    """Remove the cache from the arguments of a forward pass; return the cache, or None if no cache is given.

    Raises UserError for several caches, a cache under another name, and an object that is not a transformers cache.
    """
    names = [name for name, value in arguments.items() if isinstance(value, Cache) or name in CACHE_NAMES]
    caches = {name: cache for name in names if (cache := arguments.pop(name)) is not None}
    if len(caches) > 1 or not all(name in CACHE_NAMES and isinstance(cache, Cache) for name, cache in caches.items()):
        cache_names = " and ".join(caches)
        raise UserError(f"{cache_names}: give one cache of transformers, such as a DynamicCache, as {CACHE_FIELD}")
    return next(iter(caches.values()), None)


def check_mask(mask: Tensor, columns: int) -> None:
    """Raise ArgumentError unless an attention mask has the shape (batch, columns)."""
    if mask.shape[1:] != (columns,):
        shape = tuple(mask.shape)
        raise ArgumentError(f"attention_mask of shape {shape}: give a number for each of the {columns} tokens of a row")


def count_padding(mask: Int[Tensor, "batch keys"]) -> list[int]:
    """Return the number of padding tokens on the left of each row; `mask` is 1 for real tokens and 0 for padding.

    Padding on the right does not affect causal attention. Raises UserError for padding between tokens, which occurs if
    text is generated after rows that are padded on the right.
    """
    real = mask.bool()
    segments = real[:, 0] + (real[:, 1:] > real[:, :-1]).sum(1)
    if (segments > 1).any():
        raise UserError("attention_mask: padding between tokens; pad batches on the left (padding_side='left')")
    padding: list[int] = (real.cumsum(1) == 0).sum(1).tolist()
    return padding


PACKING_ARGUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")
"""Arguments with the boundaries of sequences that are packed into one row."""
UNPACK_REMEDY = "give each text its own row, padded on the left, with an attention_mask"


def check_positions(
    position_ids: Int[Tensor, "#batch time"], real: Bool[Tensor, "batch time"], first_positions: list[int] | None = None
) -> None:
    """Raise ArgumentError if the real tokens of a row do not have consecutive positions, as in packed sequences.

    `real` is False for padding. `first_positions` has the required position of the first column of each row; None
    allows any position.
    """
    if position_ids.ndim != 2 or position_ids.shape[1] != real.shape[1] or len(position_ids) not in (1, len(real)):
        raise ArgumentError(f"position_ids of shape {tuple(position_ids.shape)}: give one number per row and token")
    shifts = (position_ids.to(real.device) - torch.arange(real.shape[1], device=real.device)).expand(real.shape)
    expected, fault = shifts.gather(1, real.long().argmax(1, keepdim=True)), "not consecutive within a row"
    if first_positions is not None:
        expected = torch.tensor(first_positions, device=real.device)[:, None]
        fault = "inconsistent with the cache and attention_mask"
    if ((shifts != expected) & real).any():
        raise ArgumentError(f"position_ids: {fault}; {UNPACK_REMEDY}")


class RowPositions(PositionEncoding):
    """A position encoding with a different start for each row; columns before position 0 are padding."""

    def __init__(self, encoding: PositionEncoding, first_positions: list[int]) -> None:
        """Wrap `encoding`; `first_positions` has the position of each row's first column, negative for padding."""
        super().__init__()
        self.encoding, self.first_positions = encoding, first_positions

    def _by_row(self, x: Tensor, axis: int, encode: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Apply `encode` to each row without its padding; `axis` is the axis of positions."""
        rows = []
        for index, first_position in enumerate(self.first_positions):
            row, padding_width = x[index : index + 1], min(max(-first_position, 0), x.shape[axis])
            padding = row.narrow(axis, 0, padding_width)
            tokens = row.narrow(axis, padding_width, x.shape[axis] - padding_width)
            rows.append(torch.cat((padding, encode(tokens, max(first_position, 0))), axis))
        return torch.cat(rows)

    def embed(self, x: Stream, start: Start) -> Stream:
        return self._by_row(x, 1, self.encoding.embed)

    def rotate(self, x: Heads, start: Start) -> Heads:
        return self._by_row(x, 2, self.encoding.rotate)


class FormerlabConfig(PretrainedConfig):  # type: ignore[misc]
    """The config of a decoder: the complete `spec`, and its sizes under the names that transformers uses."""

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = list(CACHE_NAMES)

    def __init__(self, spec: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Build the config from the plain spec of a `Decoder`; sizes in `kwargs` are overridden."""
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
        super().__init__(**(kwargs | sizes))


def attend_in_cache(
    cache: Cache | None, padding: list[int] | None, layer: int, q: Heads, k: KeyHeads, v: KeyHeads
) -> Heads:
    """Store the keys and values in `cache`, if given; return the causal attention over all keys except padding.

    `padding` is the number of padding tokens on the left of each row, or None.
    """
    if cache is not None:
        k, v = cache.update(k, v, layer)
    new, length = q.shape[2], k.shape[2]
    visible: Tensor | None = None
    if padding is not None or new not in (1, length):
        visible = causal_mask = torch.ones(new, length, dtype=torch.bool, device=q.device).tril(length - new)
        if padding is not None:  # a padding token sees itself, so that no softmax is NaN
            first_columns = torch.tensor(padding).to(q.device, non_blocking=True)[:, None, None, None]
            diagonal = torch.eye(length, dtype=torch.bool, device=q.device)[length - new :]
            visible = causal_mask & (torch.arange(length, device=q.device) >= first_columns) | diagonal
    is_causal, gqa = visible is None and new == length, q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=is_causal, enable_gqa=gqa)


class FormerlabForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A `DecoderModel` with the interface of a transformers model.

    Names of weights have the prefix `decoder.`. A tied head is the embedding and is saved once. Batches may be padded
    on the left, as `generate` requires, or on the right.
    """

    IGNORED_ARGUMENTS = ("token_type_ids", "mm_token_type_ids", "cache_position", "num_items_in_batch")
    """Arguments that transformers passes and that have no effect on the logits."""

    config_class = FormerlabConfig
    _supports_sdpa = True
    _no_split_modules = ["Block"]

    def __init__(self, config: FormerlabConfig) -> None:
        super().__init__(config)
        self.decoder = DecoderModel(Decoder.model_validate(config.spec))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module whose weights or buffers were not loaded."""
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding as a module, a view of the decoder's matrix."""
        view: nn.Module = nn.Embedding.from_pretrained(self.decoder.embedding, freeze=False)  # type: ignore[no-untyped-call]
        return view

    def set_input_embeddings(self, value: nn.Module) -> None:
        raise NotImplementedError("the vocabulary of a formerlab model is part of its spec; build another model")

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        attention_mask: Int[Tensor, "batch keys"] | None = None,
        past_key_values: Cache | None = None,
        labels: Int[Tensor, "batch time"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Int[Tensor, " queries"] = 0,
        return_dict: bool | None = None,
        cache: Cache | None = None,
        position_ids: Int[Tensor, "#batch time"] | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return the next-token logits (batch, time, vocabulary), the cache, and with `labels` the mean loss in nats.

        `labels` are the same tokens as `input_ids`; the loss shifts them. `logits_to_keep` restricts the logits to this
        number of last tokens (0: all tokens) or to these indices. `cache` and `past_key_values` are two names of one
        argument. Positions follow from the cache and the mask. With `output_hidden_states`, the output includes the
        input of each block (the first is the embedded tokens) and the output of the final norm, each (batch, time,
        width). Raises UserError for an unsupported cache, for `position_ids` that contradict the cache and the mask
        (packed sequences), and for unsupported arguments.
        """
        cache = take_cache(kwargs | {"cache": cache, "past_key_values": past_key_values})
        self._check_arguments(kwargs, with_loss=labels is not None)
        if isinstance(cache, StaticCache):
            raise UserError(f"{CACHE_FIELD}: this model does not support a StaticCache; give a DynamicCache")
        use_cache = not self.training if use_cache is None else use_cache
        if use_cache and cache is None:
            cache = DynamicCache()
        start = 0 if cache is None else cache.get_seq_length()
        padding = None
        if attention_mask is not None:
            check_mask(attention_mask, start + input_ids.shape[1])
            counts = count_padding(attention_mask)
            padding = counts if any(counts) else None
        first_positions = [start - count for count in padding or [0] * len(input_ids)]
        if position_ids is not None:
            real = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -input_ids.shape[1] :]
            check_positions(position_ids, real.bool(), first_positions)
        attend, model = current_attend(), self.decoder
        attend = partial(attend_in_cache, cache, padding) if attend is None else attend
        if padding is not None:
            model, start = copy.copy(self.decoder), max(*first_positions, 0)
            model._modules = {**self.decoder._modules, "position": RowPositions(self.decoder.position, first_positions)}
        hidden = None
        if self.config.output_hidden_states if output_hidden_states is None else output_hidden_states:
            hidden = list[Stream]()
        count = logits_to_keep if isinstance(logits_to_keep, int) else 0
        last = count or None if labels is None and hidden is None else None
        with self._recording(hidden):
            logits = model(input_ids, attend=attend, start=start, last=last)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        logits = logits[:, -count:] if isinstance(logits_to_keep, int) else logits[:, logits_to_keep]
        states = None if hidden is None else tuple(hidden)
        out = CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=states, **{CACHE_FIELD: cache})
        return out if (self.config.return_dict if return_dict is None else return_dict) else out.to_tuple()

    def _check_arguments(self, kwargs: dict[str, Any], with_loss: bool) -> None:
        """Raise ArgumentError for an unsupported argument. `shift_labels` and `ignore_index` need labels."""
        attentions = kwargs.get("output_attentions", self.config.output_attentions)
        for name, value in (kwargs | {"output_attentions": attentions}).items():
            if name in PACKING_ARGUMENTS and value is not None:
                raise ArgumentError(f"{name}: this model does not support packed sequences; {UNPACK_REMEDY}")
            loss_argument = with_loss and name in ("shift_labels", "ignore_index")
            supported = loss_argument or name in (*CACHE_NAMES, *self.IGNORED_ARGUMENTS)
            if not (supported or value is None or value is False):
                raise ArgumentError(f"{name}: this model does not support this argument; remove it")

    @contextmanager
    def _recording(self, hidden: list[Stream] | None) -> Iterator[None]:
        """Append the input of each block and the output of the final norm to `hidden`, if given."""
        with ExitStack() as hooks:
            if hidden is not None:
                record_input = lambda module, inputs: hidden.append(inputs[0])  # noqa: E731
                record_output = lambda module, inputs, out: hidden.append(out)  # noqa: E731
                for block in self.decoder.blocks:
                    hooks.enter_context(block.register_forward_pre_hook(record_input))
                hooks.enter_context(self.decoder.final_norm.register_forward_hook(record_output))
            yield
