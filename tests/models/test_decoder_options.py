"""What each option of a decoder means."""

import pytest
import torch
from pydantic import ValidationError
from tiny_decoder import TIME, perturbed, tiny
from variation import label, settings

from formerlab.cache import Decay, KVCache, PrunedCache
from formerlab.layers import DepthWeightedAverage, Learned, Mlp, Position, RMSNorm, Rotary
from formerlab.layers.attention import causal_attention


def test_the_mixed_stream_feeds_the_next_block_and_the_final_norm():
    """Y_i from raw X_j, straight from the definition (arXiv:2402.02622, section 3)."""
    spec = tiny(layers=4, depth=DepthWeightedAverage(dilation=2, period=2), position=Learned())
    model = perturbed(spec)
    tokens = torch.randint(11, (2, TIME))
    y = model.embedding[tokens] + model.position.rows[:TIME]
    raw = [y]
    for i, block in enumerate(model.blocks, start=1):
        y = block(y, model.position, causal_attention, i - 1, 0)
        raw.append(y)
        if i % 2 == 0:
            y = sum(alpha * x for alpha, x in zip(model.mixer.alphas[str(i)], raw[::2], strict=True))
    torch.testing.assert_close(model(tokens), model.final_norm(y) @ model.embedding.T)


@pytest.mark.parametrize("position", settings(Position), ids=label)
def test_later_positions_are_those_of_a_longer_sequence(position):
    """With keys and values of the first tokens supplied by `attend`, the rest continues from `start`."""
    model = perturbed(tiny(position=position))
    tokens = torch.randint(11, (2, TIME))
    kept = {}

    def remember(layer, q, k, v):
        kept[layer] = (k, v)
        return causal_attention(layer, q, k, v)

    def go_on(layer, q, k, v):
        k, v = (torch.cat(pair, dim=2) for pair in zip(kept[layer], (k, v), strict=True))
        mask = torch.ones(TIME, TIME).tril().bool()[4:]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    whole = model(tokens)
    first = model(tokens[:, :4], attend=remember)
    rest = model(tokens[:, 4:], attend=go_on, start=4)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), whole)


def test_the_logit_scale_divides_by_the_root_of_the_width():
    tokens = torch.randint(11, (2, TIME))
    scaled, plain = tiny(logit_scale="inverse_sqrt_width").build(), tiny().build()
    torch.testing.assert_close(scaled(tokens) * 8**0.5, plain(tokens))


def test_more_tokens_than_the_context_are_refused():
    model = tiny().build()
    with pytest.raises(ValueError, match="9 tokens exceed the model's context of 8"):
        model(torch.zeros(1, 9, dtype=torch.long))
    with pytest.raises(ValueError, match="9 tokens exceed the model's context of 8"):
        model(torch.zeros(1, 2, dtype=torch.long), start=7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 3}, "heads=3 does not divide width=8"),
        ({"heads": 8}, "rotary positions need at least 2 channels per head: width=8, heads=8"),
        ({"position": Rotary(fraction=0.25)}, r"position\.fraction=0\.25"),
        ({"hedas": 4}, r"hedas\n.*Extra inputs are not permitted"),
        ({"projection": {"kind": "pattention", "token": 5}}, r"projection\.pattention\.token\n.*Extra inputs"),
        ({"projection": {"kind": "conv"}}, r"'conv' .* expected tags: 'linear', 'pattention'"),
        ({"projection": Mlp()}, r"'mlp' .* expected tags: 'linear', 'pattention'"),
        ({"layers": 0}, r"layers\n.*greater than 0"),
        ({"vocabulary": -1}, r"vocabulary\n.*greater than 0"),
        ({"dropout": 1.0}, r"dropout\n.*less than 1"),
        ({"dropout": -0.1}, r"dropout\n.*greater than or equal to 0"),
        ({"embedding_std": 0.0}, r"embedding_std\n.*greater than 0"),
        ({"logit_scale": "sqrt"}, r"logit_scale\n.*'none' or 'inverse_sqrt_width'"),
    ],
)
def test_a_wrong_spec_is_refused_with_a_useful_text(wrong, message):
    with pytest.raises(ValidationError, match=message):
        tiny(**wrong)


GROUPED = tiny(heads=4, key_heads=2, query_key_norm=RMSNorm())


def test_grouped_heads_are_heads_whose_keys_and_values_are_repeated():
    model = perturbed(GROUPED)
    twin = tiny(heads=4, query_key_norm=RMSNorm()).build()
    state = model.state_dict()
    for name, weight in state.items():
        if name.endswith((".key.weight", ".value.weight")):
            state[name] = weight.unflatten(0, (2, 2)).repeat_interleave(2, dim=0).flatten(0, 1)
    twin.load_state_dict(state)
    tokens = torch.randint(11, (2, TIME))
    torch.testing.assert_close(model(tokens), twin(tokens))
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert (GROUPED.params(), GROUPED.kv_bytes(5)) == (counted, twin.spec.kv_bytes(5) // 2)


def test_grouped_and_normalised_heads_are_cached():
    model, tokens = perturbed(GROUPED).eval(), torch.randint(11, (2, TIME))
    for cache in (KVCache(), PrunedCache(Decay(), 1.0, length=TIME)):
        parts = [model(tokens[:, i : i + 1], attend=cache, start=i) for i in range(TIME)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens))


def test_a_spec_without_later_fields_is_written_as_before_there_were_any():
    assert not {"key_heads", "query_key_norm"} & tiny().to_dict().keys()
    assert tiny().fingerprint() == "32b4acf61b0e1550"
    with pytest.raises(ValidationError, match="key_heads=3 does not divide heads=4"):
        tiny(heads=4, key_heads=3)
