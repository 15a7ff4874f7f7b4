"""The translator: equality with torch's encoder-decoder, masks, depth mixers, costs."""

import pytest
import torch
from torch import nn
from variation import counted_flops, counted_params, perturb

from formerlab.layers import DepthWeightedAverage, Learned, Linear, Pattention, Rotary
from formerlab.models import Translator

SMALL = Translator(vocabulary=40, layers=2, width=16, heads=2, context=24, dropout=0.0)

VARIANTS = {
    "post": {},
    "pre": {"order": "pre"},
    "learned": {"position": Learned()},
    "rotary": {"position": Rotary()},
    "untied": {"tied": False},
    "unequal heads": {"d_key": 3, "d_value": 5},
    "biased": {"projection": Linear(bias=True)},
    "pattention": {"projection": Pattention(tokens=8), "feedforward": Pattention(tokens=24)},
    "dwa": {"depth": DepthWeightedAverage()},
    "relu dropout": {"relu_dropout": 0.1, "attention_dropout": 0.1},
}


def small(**changes):
    return Translator.model_validate(
        SMALL.model_dump() | {k: getattr(v, "plain", lambda v=v: v)() for k, v in changes.items()}
    )


def sentences(seed=0, source=(7, 4), target=(5, 6)):
    """Return sources with padding, the mask that is False at padding, and targets."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 40, (2, max(source)), generator=generator)
    real = torch.arange(max(source)) < torch.tensor(source)[:, None]
    return tokens.masked_fill(~real, 0), real, torch.randint(1, 40, (2, max(target)), generator=generator)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_closed_forms_match_the_built_model(changes):
    spec = small(**changes)
    model = spec.build(0)
    assert spec.params() == counted_params(model)
    source, target = (torch.ones(1, length, dtype=torch.long) for length in (7, 5))
    assert spec.flops(7, 5) == counted_flops(model.eval(), source, source.bool(), target)["Global"]


def test_residual_projections_start_smaller_in_deeper_stacks():
    block = small(initial="parts").build().encoder[0]
    assert block.attention.output.std == block.feedforward.outer.std == 0.02 / 2


def as_torch(model, spec):
    """Return torch's encoder-decoder with the weights of our model."""
    reference = nn.Transformer(
        *(spec.width, spec.heads, spec.layers, spec.layers, 4 * spec.width),
        dropout=0.0,
        batch_first=True,
        norm_first=spec.order == "pre",
    ).eval()
    if spec.order == "post":  # the post-norm model of the paper has no additional final norm
        reference.encoder.norm = reference.decoder.norm = None
    for ours, layer in zip(model.encoder, reference.encoder.layers, strict=True):
        copy_attention(ours.attention, layer.self_attn)
        copy_feedforward(ours.feedforward, layer)
        copy_norms((ours.attention_connection, ours.feedforward_connection), (layer.norm1, layer.norm2))
    for ours, layer in zip(model.decoder, reference.decoder.layers, strict=True):
        copy_attention(ours.attention, layer.self_attn)
        copy_attention(ours.cross, layer.multihead_attn)
        copy_feedforward(ours.feedforward, layer)
        connections = (ours.attention_connection, ours.cross_connection, ours.feedforward_connection)
        copy_norms(connections, (layer.norm1, layer.norm2, layer.norm3))
    return reference


def copy_attention(ours, torch_layer):
    stacked = torch.cat([ours.query.weight, ours.key.weight, ours.value.weight])
    torch_layer.load_state_dict(
        {
            "in_proj_weight": stacked,
            "in_proj_bias": torch.zeros(len(stacked)),
            "out_proj.weight": ours.output.weight,
            "out_proj.bias": torch.zeros(len(ours.output.weight)),
        }
    )


def copy_feedforward(ours, torch_layer):
    torch_layer.linear1.load_state_dict(ours.inner.state_dict())
    torch_layer.linear2.load_state_dict(ours.outer.state_dict())


def copy_norms(ours, torch_norms):
    for connection, norm in zip(ours, torch_norms, strict=True):
        norm.load_state_dict({"weight": connection.norm.gain, "bias": connection.norm.bias})


@pytest.mark.parametrize("order", ["post", "pre"])
def test_the_model_matches_torch_transformer(order):
    """Equal weights give equal outputs for padded sentences, with norms and biases away from initial values."""
    spec = small(order=order)
    model = perturb(spec.build(1).eval())
    with torch.no_grad():
        source, real, target = sentences()
        reference = as_torch(model, spec)

        def embedded(tokens, position):
            return position.embed(model.embedding[tokens] * spec.width**0.5, 0)

        out = reference(
            embedded(source, model.source_position),
            embedded(target, model.target_position),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
            src_key_padding_mask=~real,
            memory_key_padding_mask=~real,
            tgt_is_causal=True,
        )
        if order == "pre":
            # like torch's final norms, ours have gain 1 and bias 0
            for norm in (model.encoder_norm, model.decoder_norm):
                norm.load_state_dict({"gain": torch.ones(spec.width), "bias": torch.zeros(spec.width)})
        torch.testing.assert_close(model(source, real, target), out @ model.embedding.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_padding_and_later_tokens_do_not_change_logits(changes):
    model = small(**changes).build(2).eval()
    source, real, target = sentences()
    with torch.no_grad():
        full = model(source, real, target)
        alone = model(source[1:, :4], real[1:, :4], target[1:])
        torch.testing.assert_close(full[1:], alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(full[:, :3], model(source, real, target[:, :3]), rtol=1e-4, atol=1e-5)
        changed = source.masked_fill(~real, 7)
        assert torch.equal(full, model(changed, real, target))
        assert not torch.allclose(full[0], model(source.flip(0), real.flip(0), target)[0])
