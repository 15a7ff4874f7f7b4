"""The stage `flow` on models with known results."""

import copy

import numpy as np
import pytest
import torch

from formerlab.evaluation.language.flow import MATRICES, Flow, flow, singular_values
from formerlab.layers import DepthWeightedAverage, Identity, Pattention, SoftmaxAverage
from formerlab.models import Decoder
from formerlab.results.schema import COSINE, PRUNED, SINGULAR
from formerlab.tasks import LanguageModeling

MODEL = Decoder(vocabulary=64, layers=3, width=16, heads=2, context=8, embedding_std=1.0)
STREAM = np.random.default_rng(0).integers(0, 64, 200)
SETTINGS = Flow(windows=6, shares=(0.0, 0.5))


def rows_of_model(model):
    state, mixer = copy.deepcopy(model.state_dict()), model.mixer
    rows = list(flow(model, LanguageModeling(context=8, batch=4), STREAM, SETTINGS))
    assert model.mixer is mixer
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    return {(measure, position): (retained_weights, value) for measure, position, retained_weights, value in rows}


def test_inputs_equal_to_the_embedding_have_cosine_one():
    model = MODEL.model_copy(update={"depth": DepthWeightedAverage()}).build(0)
    with torch.no_grad():
        for alpha in model.mixer.alphas.values():
            alpha.zero_()
            alpha[0] = 2.0
    rows = rows_of_model(model)
    assert [rows[COSINE, i][1] for i in (1, 2, 3)] == pytest.approx([1.0] * 3)


def test_dropping_zero_weights_leaves_the_loss_unchanged():
    model = MODEL.model_copy(update={"depth": DepthWeightedAverage()}).build(0)
    rows = rows_of_model(model)  # 9 weights; three are 1
    assert rows[PRUNED, 0.5] == (5, rows[PRUNED, 0.0][1])
    with torch.no_grad():
        for alpha in model.mixer.alphas.values():
            alpha.fill_(1.0)
    rows = rows_of_model(model)
    assert rows[PRUNED, 0.5][1] != rows[PRUNED, 0.0][1]


@pytest.mark.parametrize("mixer", [Identity(), SoftmaxAverage()], ids=repr)
def test_only_unconstrained_mixing_weights_are_pruned(mixer):
    measures = [measure for measure, _ in rows_of_model(MODEL.model_copy(update={"depth": mixer}).build(0))]
    assert measures.count(COSINE) == 3
    assert PRUNED not in measures
    assert measures.count(f"{SINGULAR}feed-forward up") == 16


def test_singular_values_are_relative_to_the_largest_and_averaged_over_blocks():
    model = MODEL.build(0)
    with torch.no_grad():
        for block, scale in zip(model.blocks, (1.0, 5.0, 9.0), strict=True):
            block.attention.output.weight.copy_(scale * torch.eye(16))
        model.blocks[0].attention.output.weight[3:] = 0  # rank 3 in one of three blocks
    singular = {}
    for matrix, rank, value in singular_values(model):
        singular.setdefault(matrix, []).append((rank, value))
    assert list(singular) == [*MATRICES, "embedding"]
    ranks, values = zip(*singular["attention output"], strict=True)
    assert values == pytest.approx([1.0] * 3 + [2 / 3] * 13)
    assert (ranks[0], ranks[-1], len(ranks)) == (0.0, 1.0, 16)
    expected = np.linalg.svd(model.embedding.detach().numpy(), compute_uv=False)
    assert [value for _, value in singular["embedding"]] == pytest.approx(expected / expected[0], abs=1e-5)
    stacked = np.linalg.svd(np.concatenate([model.blocks[0].attention.query.weight.detach()] * 2), compute_uv=False)
    model.blocks[0].attention.key.weight = model.blocks[0].attention.query.weight
    model.blocks[0].attention.value.weight.data.zero_()
    one_layer = MODEL.model_copy(update={"layers": 1}).build(0)
    one_layer.blocks[0] = model.blocks[0]
    values = [value for matrix, _, value in singular_values(one_layer) if matrix == "query-key-value"]
    assert values == pytest.approx(stacked / stacked[0], abs=1e-5)


def test_projections_without_a_weight_matrix_have_no_singular_values():
    model = MODEL.model_copy(update={"projection": Pattention(tokens=8)}).build(0)
    assert {matrix for matrix, _, _ in singular_values(model)} == {"feed-forward up", "feed-forward down", "embedding"}
