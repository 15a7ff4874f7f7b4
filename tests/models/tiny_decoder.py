"""A decoder small enough for every test."""

import torch

from formerlab.models import Decoder
from formerlab.models.decoder import DecoderModel

TIME = 6
TINY = Decoder(vocabulary=11, layers=3, width=8, heads=2, context=8)


def tiny(**changes: object) -> Decoder:
    """Return the tiny decoder with some fields changed."""
    return Decoder.model_validate({**dict(TINY), **changes})


def perturbed(spec: Decoder, seed: int = 0) -> DecoderModel:
    """Build a model whose values are all non-zero, so that nothing holds just because of the start."""
    model = spec.build(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model
