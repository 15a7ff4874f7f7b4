"""Generate text with a decoder and a KV cache."""

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor

from formerlab.cache import KVCache
from formerlab.cache.static import StaticStep, is_static
from formerlab.data.text.tokenizer import END_OF_TEXT
from formerlab.errors import UserError
from formerlab.files import is_utf8
from formerlab.layers.attention import Attend
from formerlab.models.decoder import DecoderModel
from formerlab.tasks.scoring import check_finite, evaluating

log = logging.getLogger(__name__)

INCOMPLETE = "\ufffd"
"""The replacement character, which the tokenizer returns for an incomplete sequence of bytes."""


def generate(
    model: DecoderModel,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int = 64,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    attend: Attend | None = None,
    end_of_text: int | None = None,
    stream: Callable[[str], None] = lambda text: None,
    warn: Callable[[str], None] = log.warning,
) -> str:
    """Continue `prompt` by at most `tokens` tokens and return the new text.

    Generation stops at the token that ends the document, or when the model's context is full. `warn` is called with a
    message if a full context allows fewer than `tokens` tokens.

    `temperature` 0 takes the most probable token; `top_k` samples from the k most probable tokens. `attend` is an empty
    cache, such as a `PrunedCache` (default: a full cache). `end_of_text` is the id of the token that ends a document
    (default: the id of `<|endoftext|>`). `stream` is called with each new piece of text.
    Raises UserError for invalid options, if the prompt is not UTF-8 or is longer than the model's context, and if a
    logit is NaN or +inf.
    """
    _check_options(tokens, temperature, top_k, seed)
    check_text("prompt", prompt)
    end = end_of_text_id(tokenizer) if end_of_text is None else end_of_text
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids or [end]
    if len(ids) > (context := model.spec.context):
        raise UserError(f"the prompt has {len(ids)} tokens, but the model's context is {context}; shorten the prompt")
    room = context - len(ids) + 1  # the last token is not fed back, so it needs no position
    new, streamed = list[int](), ""
    prompt_length = len(tokenizer.decode(ids))  # new tokens are decoded after the prompt, to keep a leading space
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "seed": seed, "attend": attend}
    for token in sample(model, ids, tokens=min(tokens, room), **options):
        if token == end:
            break
        new.append(token)
        text = tokenizer.decode(ids + new)[prompt_length:]
        if not text.endswith(INCOMPLETE):
            stream(text[len(streamed) :])
            streamed = text
    if len(new) == room < tokens:
        warn(f"stopped after {room} of {tokens} tokens, at the end of the model's context of {context}")
    text = tokenizer.decode(ids + new)[prompt_length:]
    stream(text[len(streamed) :])
    return text


def _check_options(tokens: int, temperature: float, top_k: int | None, seed: int) -> None:
    for name, value, least in (("tokens", tokens, 0), ("temperature", temperature, 0), ("top_k", top_k, 1)):
        if value is not None and not least <= value < math.inf:
            raise UserError(f"{name}={value}: give a finite number of at least {least}")
    if not -(2**63) <= seed < 2**64:
        raise UserError(f"seed={seed}: torch accepts seeds of 64 bits; give a number from -2**63 to 2**64 - 1")


def check_text(name: str, text: str) -> None:
    """Raise UserError if `text` is not valid UTF-8, for example from a terminal with another encoding."""
    if not is_utf8(text):
        raise UserError(f"{name}: {text!r} is not UTF-8; set the terminal to UTF-8")


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Return the id of `<|endoftext|>`. Raises UserError if the tokenizer does not have this token."""
    token: int | None = tokenizer.token_to_id(END_OF_TEXT)
    if token is None:
        raise UserError(f"the tokenizer has no token {END_OF_TEXT}; give end_of_text, the id that ends a document")
    return token


def sample(
    model: DecoderModel,
    prompt: list[int],
    *,
    tokens: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    attend: Attend | None = None,
) -> Iterator[int]:
    """Yield `tokens` token ids after `prompt`. Raises UserError if a logit is NaN or +inf."""
    attend = KVCache() if attend is None else attend
    device = model.embedding.device
    generator = torch.Generator().manual_seed(seed)
    inputs, start, step = torch.tensor([prompt]).to(device, non_blocking=True), 0, None
    for count in range(tokens):
        with evaluating(model):
            if step is None and device.type == "cuda" and isinstance(model, DecoderModel) and is_static(attend):
                step = StaticStep(model, attend, tokens - count)
            logits = model(inputs, attend=attend, start=start, last=1)[0, -1] if step is None else step(inputs)[0]
            token = sample_token(logits.float(), temperature, top_k, generator)
        start += inputs.shape[1]
        if (number := int(token)) < 0:
            check_finite(logits)
        yield number
        inputs = token.view(1, 1)


def sample_token(
    logits: Float[Tensor, " vocabulary"], temperature: float, top_k: int | None, generator: torch.Generator
) -> Int[Tensor, ""]:
    """Sample a token id from softmax(logits / temperature), restricted to the `top_k` largest logits if it is given.

    With temperature 0, returns the token with the largest logit. Returns -1 if a logit is NaN or +inf, or if all are
    -inf. The sample is the argmax of probability / exponential noise, as in `torch.multinomial` on a CPU. The noise is
    sampled on the CPU, so a seed gives the same noise on every device.
    """
    if temperature == 0:
        token = logits.argmax()
    else:
        values, ids = logits.topk(min(top_k or len(logits), len(logits)))
        # Subtract the largest logit, so that a temperature close to zero does not overflow.
        probabilities = ((values - values[0]).double() / temperature).softmax(dim=0).float()
        noise = torch.empty(len(ids)).exponential_(generator=generator).to(ids.device, non_blocking=True)
        token = ids.gather(0, (probabilities / noise).argmax(0, keepdim=True))[0]
    return token.where(logits.max().isfinite(), -1)  # the maximum is NaN if any logit is; single logits may be -inf
