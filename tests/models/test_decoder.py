"""Properties of every decoder, and the meaning of its options."""

import itertools

import pytest
import torch
from pydantic import ValidationError
from variation import counted_flops, counted_params, defaults, label, perturb, settings

from formerlab.cache import Decay, KVCache, PrunedCache
from formerlab.layers import (
    DepthMixer,
    DepthWeightedAverage,
    FeedForward,
    LayerNorm,
    Learned,
    Norm,
    Pattention,
    Position,
    Projection,
    RMSNorm,
    Rotary,
)
from formerlab.layers.attention import causal_attention
from formerlab.layers.depth.dwa import Averages
from formerlab.layers.depth.hyper_connections import HyperConnections
from formerlab.models import Decoder

TIME = 6
TINY = Decoder(vocabulary=11, layers=3, width=8, heads=2, context=8)


def tiny(**changes):
    """Return the tiny decoder with some fields changed."""
    return Decoder.model_validate({**dict(TINY), **changes})


UNIONS_BY_FIELD = {
    "projection": Projection,
    "feedforward": FeedForward,
    "depth": DepthMixer,
    "position": Position,
    "norm": Norm,
}


def combinations():
    """Yield decoders that cover every pair of variants of two fields, selected greedily."""
    choices, covered_pairs = [defaults(union) for union in UNIONS_BY_FIELD.values()], set()
    for minimum in range(len(UNIONS_BY_FIELD) * (len(UNIONS_BY_FIELD) - 1) // 2, 0, -1):
        for variants in itertools.product(*choices):
            new_pairs = set(itertools.combinations(enumerate(variants), 2)) - covered_pairs
            if len(new_pairs) >= minimum:
                covered_pairs |= new_pairs
                yield tiny(**dict(zip(UNIONS_BY_FIELD, variants, strict=True)))


def single_options():
    """Yield a tiny decoder for every variant and option of every field."""
    for name, union in UNIONS_BY_FIELD.items():
        for variant in settings(union):
            yield tiny(**{name: variant})
    yield tiny(projection=Pattention(tokens=5), feedforward=Pattention(tokens=7), depth=DepthWeightedAverage(period=2))
    yield tiny(tied=False)
    yield tiny(logit_scale="inverse_sqrt_width", embedding_std=1.0)
    yield tiny(final_norm=LayerNorm(gain=False, bias=False))


OPTIONS = list(dict.fromkeys(single_options()))
COMBINATIONS = list(dict.fromkeys([*combinations(), *OPTIONS]))


def name(spec):
    variants = "-".join(label(getattr(spec, field)) for field in UNIONS_BY_FIELD)
    return variants + ("" if spec.tied else "-untied")


every_combination = pytest.mark.parametrize("spec", COMBINATIONS, ids=name)
every_option = pytest.mark.parametrize("spec", OPTIONS, ids=name)


@every_combination
def test_no_token_sees_a_later_token(spec):
    """Only token s reads row s of the embedding. Position t sees token s if its logits have a gradient for row s."""
    model = perturb(spec.model_copy(update={"tied": False}).build(0))
    tokens = torch.arange(TIME)[None]
    logits = model(tokens)
    assert logits.shape == (1, TIME, 11)
    for t in range(TIME):
        (gradient,) = torch.autograd.grad(logits[0, t].square().sum(), model.embedding, retain_graph=True)
        sees = gradient.ne(0).any(dim=1)
        assert sees.tolist() == [s <= t for s in range(11)]


@pytest.mark.usefixtures("unchecked_shapes")
@every_option
def test_closed_forms_match_pytorch_counts(spec):
    model = spec.build()
    assert counted_params(model) == spec.params()
    outside = [model.embedding, *model.position.parameters(), *([] if model.head is None else [model.head])]
    assert counted_params(model) - sum(parameter.numel() for parameter in outside) == spec.params(embedding=False)
    counts = counted_flops(model, torch.zeros(2, TIME, dtype=torch.long))
    assert counts["Global"] == 2 * spec.flops(TIME)
    if isinstance(spec.depth, HyperConnections):
        return  # their products are inside the blocks
    in_blocks = sum(count for module, count in counts.items() if module.removeprefix("DecoderModel.blocks.").isdigit())
    between_blocks = TIME * spec.depth.matmul_flops(spec.layers, spec.width)
    assert in_blocks == 2 * (spec.flops(TIME, head=False) - between_blocks)


@pytest.mark.parametrize(
    ("field", "variant"),
    [(field, variant) for field, union in UNIONS_BY_FIELD.items() for variant in settings(union)],
    ids=label,
)
def test_shared_modules_start_with_equal_values(field, variant):
    """For comparisons that are paired by seed, modules that two models share start with equal values."""
    plain, changed = tiny().build(7).state_dict(), tiny(**{field: variant}).build(7).state_dict()
    differs = {"projection": "attention.", "feedforward": "feedforward.", "norm": "norm.", "depth": "mixer."}
    shared = [name for name in plain.keys() & changed.keys() if differs.get(field, "position.") not in name]
    assert "embedding" in shared
    assert all(torch.equal(plain[name], changed[name]) for name in shared)


AVERAGES_WITH_PERIOD_2 = DepthWeightedAverage(period=2)
ONE_PER_MODULE = {type(mixer.build(2, 8)): mixer for mixer in [*defaults(DepthMixer), AVERAGES_WITH_PERIOD_2]}
"""One mixer for every module class.

With a period of 2, block 1 has no average and block 2 has one. LastK, ConnectToLast and RandomSparse have the same
module.
"""


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("depth", ONE_PER_MODULE.values(), ids=label)
def test_a_decoder_compiles_to_one_graph(depth):
    """The released DenseFormer code breaks the graph, because the compiler cannot see the shape of its history.

    To save time, the compiler traces the backward pass only for averages over depth, the mixers of DenseFormer.
    """
    model = tiny(layers=2, depth=depth, projection=Pattention(tokens=5)).build()
    tokens = torch.randint(11, (2, TIME))
    torch.compiler.reset()  # reset: torch compiles the same code at most eight times
    backend = "aot_eager" if isinstance(depth, Averages) else "eager"
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    parameters = list(model.parameters())
    gradients, expected = (torch.autograd.grad(run(tokens).square().sum(), parameters) for run in (compiled, model))
    torch.testing.assert_close(gradients, expected)


@pytest.mark.parametrize("spec", [tiny(), tiny(tied=False), tiny(logit_scale="inverse_sqrt_width")], ids=str)
def test_last_and_targets_match_the_full_logits(spec):
    model = perturb(spec.build(0))
    tokens, targets = (torch.randint(spec.vocabulary, (2, TIME)) for _ in range(2))
    logits = model(tokens)
    torch.testing.assert_close(model(tokens, last=2), logits[:, -2:])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model(tokens, targets=targets), expected)


def test_mixed_outputs_are_inputs_of_the_next_block_and_the_final_norm():
    """The reference computes Y_i from the block outputs X_j by the definition (arXiv:2402.02622, section 3)."""
    spec = tiny(layers=4, depth=DepthWeightedAverage(dilation=2, period=2), position=Learned())
    model = perturb(spec.build(0))
    tokens = torch.randint(11, (2, TIME))
    y = model.embedding[tokens] + model.position.rows[:TIME]
    raw = [y]
    for i, block in enumerate(model.blocks, start=1):
        y = block(y, model.position, causal_attention, i - 1, 0)
        raw.append(y)
        if i % 2 == 0:
            y = sum(alpha * x for alpha, x in zip(model.mixer.alphas[str(i)], raw[::2], strict=True))
    torch.testing.assert_close(model(tokens), model.final_norm(y) @ model.embedding.T)


def test_sequences_beyond_the_context_are_refused():
    model = tiny().build()
    with pytest.raises(ValueError, match="9 tokens exceed the model's context of 8"):
        model(torch.zeros(1, 9, dtype=torch.long))
    with pytest.raises(ValueError, match="9 tokens exceed the model's context of 8"):
        model(torch.zeros(1, 2, dtype=torch.long), start=7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 3}, "heads=3 does not divide width=8"),
        ({"heads": 8}, "rotary positions need at least 2 rotated channels per head: width=8, heads=8"),
        ({"heads": 4, "key_heads": 3}, "key_heads=3 does not divide heads=4"),
        ({"position": Rotary(fraction=0.25)}, r"position\.fraction=0\.25"),
    ],
)
def test_invalid_specs_are_refused_with_a_remedy(wrong, message):
    with pytest.raises(ValidationError, match=message):
        tiny(**wrong)


GROUPED = tiny(heads=4, key_heads=2, query_key_norm=RMSNorm())


def test_grouped_query_attention_repeats_keys_and_values():
    model = perturb(GROUPED.build(0))
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


@pytest.mark.parametrize("spec", [GROUPED, *(tiny(position=position) for position in settings(Position))], ids=label)
def test_token_by_token_decoding_matches_one_pass(spec):
    model, tokens = perturb(spec.build(0)).eval(), torch.randint(11, (2, TIME))
    for cache in (KVCache(), PrunedCache(Decay(), 1.0, length=TIME)):
        parts = [model(tokens[:, i : i + 1], attend=cache, start=i) for i in range(TIME)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens))


def test_unset_new_fields_are_not_written():
    assert not {"key_heads", "query_key_norm"} & tiny().to_dict().keys()
    assert tiny().fingerprint() == "32b4acf61b0e1550"
