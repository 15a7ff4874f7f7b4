"""Parameter counts and costs of the published models."""

import pytest
import torch

from formerlab.layers import DepthWeightedAverage, LayerNorm, Pattention
from formerlab.models import Decoder
from formerlab.models.decoder import DecoderModel

PLAIN = LayerNorm(gain=False, bias=False)

# name: layers, width, attention tokens, feed-forward tokens, heads; non-embedding and total in millions (2410.23168,
# Table 9 and the formula N = 2 L d (n_q + n_k + n_v + n_o + n_ffn) with V = 50304)
TOKENFORMERS = {
    "LM-150M": (12, 768, 768, 3072, 12, 113.2, 151.9),
    "LM-450M": (24, 1024, 1024, 4096, 16, 402.7, 454.2),
    "LM-900M": (32, 1280, 1280, 5120, 16, 838.9, 903.2),
    "LM-1.5B": (40, 1536, 1536, 6144, 16, 1509.9, 1587.2),
    "Scale-124M": (12, 768, 576, 2304, 12, 84.9, 123.6),
    "Scale-354M": (12, 768, 2140, 8560, 12, 315.6, 354.2),
    "Scale-757M": (12, 768, 4850, 19400, 12, 715.2, 753.8),
    "Scale-1.4B": (12, 768, 8620, 34480, 12, 1271.1, 1309.7),
}


def tokenformer(layers, width, attention, feedforward, heads):
    return Decoder(
        layers=layers,
        width=width,
        heads=heads,
        norm=PLAIN,
        final_norm=PLAIN,
        projection=Pattention(tokens=attention),
        feedforward=Pattention(tokens=feedforward),
    )


@pytest.mark.parametrize("name", TOKENFORMERS)
def test_tokenformers_of_table_9(name):
    *sizes, non_embedding, total = TOKENFORMERS[name]
    layers, width, attention, feedforward, _ = sizes
    spec = tokenformer(*sizes)
    assert spec.params(embedding=False) == 2 * layers * width * (4 * attention + feedforward)
    assert spec.params() == spec.params(embedding=False) + 50304 * width
    assert round(spec.params(embedding=False) / 1e6, 1) == non_embedding
    assert round(spec.params() / 1e6, 1) == total


def test_at_equal_sizes_a_tokenformer_has_a_third_more_than_a_transformer():
    """16 L d^2 against 12 L d^2 (2410.23168, Table 3)."""
    transformer = Decoder(norm=PLAIN, final_norm=PLAIN)
    assert transformer.params(embedding=False) == 12 * 12 * 768**2
    assert tokenformer(12, 768, 768, 3072, 12).params(embedding=False) == 16 * 12 * 768**2


@pytest.mark.parametrize("name", TOKENFORMERS)
def test_costs_are_those_of_table_3(name):
    """2 N T + 4 L d T^2, and 2 V d per token for the logits (2410.23168, Table 3)."""
    *sizes, _, _ = TOKENFORMERS[name]
    spec, time = tokenformer(*sizes), 1024
    assert spec.flops(time, head=False) == 2 * spec.params(embedding=False) * time + 4 * sizes[0] * sizes[1] * time**2
    assert spec.flops(time) - spec.flops(time, head=False) == 2 * 50304 * sizes[1] * time


@pytest.mark.parametrize(("width", "published"), [(768, 3.69), (1416, 6.80), (2104, 10.10)])
def test_token_token_costs_of_table_8(width, published):
    """In units of 10^4 T^2 (2410.23168, Table 8 prints one digit less, cut and not rounded)."""
    spec = Decoder(width=width, heads=width // 4)
    assert round(spec.attention_flops(1024) / 1024**2 / 1e4, 2) == published


# blocks, dilation x period or none, parameters in millions (2402.02622, Table 1), d = 768
DENSEFORMERS = [
    (48, None, 378.45),
    (48, (1, 1), 378.45),
    (48, (4, 1), 378.45),
    (48, (4, 5), 378.45),
    (64, None, 491.72),
    (72, None, 548.35),
    (72, (1, 1), 548.36),
    (72, (4, 1), 548.35),
    (72, (4, 5), 548.35),
    (84, None, 633.31),
    (90, None, 675.78),
]


def denseformer(layers, pattern):
    norm = LayerNorm(bias=False)
    spec = Decoder(layers=layers, norm=norm, final_norm=norm)
    if pattern is None:
        return spec
    return spec.model_copy(update={"depth": DepthWeightedAverage(dilation=pattern[0], period=pattern[1])})


@pytest.mark.parametrize(("layers", "pattern", "millions"), DENSEFORMERS)
def test_denseformers_of_table_1(layers, pattern, millions):
    assert round(denseformer(layers, pattern).params() / 1e6, 2) == millions


@pytest.mark.parametrize(
    "spec", [denseformer(48, (4, 5)), tokenformer(12, 768, 2140, 8560, 12)], ids=["dense", "token"]
)
def test_a_published_model_built_without_storage_has_its_parameters(spec):
    with torch.device("meta"):
        model = DecoderModel(spec)
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.params()
