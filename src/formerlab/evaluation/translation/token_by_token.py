"""Decoding of tokens that are already known, one at a time: what the timing stages time."""

import torch
from jaxtyping import Int
from torch import Tensor

from formerlab.layers.attention import Attend
from formerlab.models.decoder import DecoderModel


def random_tokens(model: DecoderModel, sequences: int, length: int, seed: int) -> Int[Tensor, "sequences length"]:
    """Return tokens of the model's vocabulary, on its device: speed does not depend on what they are."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.spec.vocabulary, (sequences, length), generator=generator)
    return tokens.to(model.embedding.device)


def take_in(model: DecoderModel, cache: Attend, tokens: Int[Tensor, "sequences time"], start: int = 0) -> None:
    """Give a model the tokens from position `start` on, one by one; the cache holds those in front of them."""
    for now in range(start, tokens.shape[1]):
        model(tokens[:, now : now + 1], attend=cache, start=now)
