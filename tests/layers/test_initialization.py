"""Layers are initialised when they are built; initial values of models depend on a seed and module names."""

import subprocess
import sys

import pytest
import torch
from variation import defaults, label

from formerlab.layers import DepthWeightedAverage, Norm, Pattention, initialise
from formerlab.layers.initialization import without_values
from formerlab.models import Decoder, Translator, VisionTransformer
from formerlab.seeding import mixed_seed

SMALL = {"layers": 2, "width": 8, "heads": 2}
TOKENS = {"norm": defaults(Norm)[1], "projection": Pattention(tokens=5), "feedforward": Pattention(tokens=7)}
MODELS = [
    Decoder(vocabulary=11, context=6, tied=False, depth=DepthWeightedAverage(), **SMALL),
    Decoder(vocabulary=11, context=6, **SMALL, **TOKENS),
    Translator(vocabulary=11, context=6, order="pre", relu_dropout=0.1, **SMALL),
    VisionTransformer(image=8, patch=4, channels=1, classes=3, **SMALL),
]


def values(module):
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@pytest.mark.parametrize("spec", MODELS, ids=label)
def test_a_model_on_the_meta_device_is_initialised_later(spec):
    with torch.device("meta"):
        model = spec.build(seed=3)
    assert all(value.is_meta for value in values(model).values())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for value in values(model).values():
            value.fill_(torch.nan)
    initialise(model, 3)
    expected = values(spec.build(seed=3))
    assert [*values(model)] == [*expected]
    assert all(torch.equal(value, expected[name]) for name, value in values(model).items())
    initialise(model)
    assert all(value.isfinite().all() for value in values(model).values())


def test_initial_values_depend_on_seed_and_module_name():
    model = MODELS[1].build(seed=9)
    query = model.blocks[1].attention.query
    weights_of = {
        "": [(model.embedding, 0.02)],
        "blocks.1.attention.query": [(query.keys, 8**-0.5), (query.values, 5**-0.5)],
    }
    for name, weights in weights_of.items():
        generator = torch.Generator().manual_seed(mixed_seed(9, name))
        for weight, std in weights:
            assert torch.equal(weight, torch.empty_like(weight).normal_(0.0, std, generator=generator))


def test_the_context_without_values_keeps_shapes_and_imports_no_compiler():
    code = "import sys; from formerlab.layers.initialization import without_values; from formerlab.models import *\n"
    code += "with without_values():\n"
    for spec in MODELS:
        code += f"    {type(spec).__name__}.model_validate_json({spec.model_dump_json()!r}).build()\n"
    code += "assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    for spec in MODELS:
        with without_values():
            empty = spec.build()
        assert all(weight.is_meta for weight in empty.parameters())
        shapes = {name: weight.shape for name, weight in spec.build(0).state_dict().items()}
        assert {name: weight.shape for name, weight in empty.state_dict().items()} == shapes
