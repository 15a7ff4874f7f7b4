"""Recomputed blocks give equal losses and save fewer activations."""

import numpy as np
import pytest
import torch
from small_runs import MODEL, TOKENFORMER, VOCABULARY, small

from formerlab.layers import AttentionResiduals, DepthWeightedAverage, DynamicHyperConnections
from formerlab.models import Translator, VisionTransformer
from formerlab.tasks import LanguageModeling
from formerlab.training.loop import Hooks, train
from formerlab.training.state import State
from formerlab.training.step import recompute_blocks

STREAM = np.random.default_rng(5).integers(0, VOCABULARY, 2000).astype(np.uint16)
TASK = LanguageModeling(context=8, batch=4, accumulate=2, valid_windows=6)
MODELS = {
    "dropout": MODEL.model_copy(update={"dropout": 0.2}),
    "tokenformer": TOKENFORMER,
    "averages over depth": MODEL.model_copy(update={"depth": DepthWeightedAverage()}),
    "attention residuals": MODEL.model_copy(update={"depth": AttentionResiduals()}),
    "hyper-connections": MODEL.model_copy(update={"depth": DynamicHyperConnections()}),
}


def train_state(run):
    model = run.model.build(run.seed)
    state = State(model, run.optimizer.build(model))
    train(run, state, STREAM, STREAM, Hooks(lambda state: None, lambda: None))
    return state


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_losses_and_weights_are_bit_identical(model):
    plain, again = (train_state(small(model=model, task=TASK, checkpoint_activations=on)) for on in (False, True))
    assert plain.rows["train"] == again.rows["train"]
    assert plain.rows["eval"] == again.rows["eval"]
    weights = zip(plain.model.state_dict().values(), again.model.state_dict().values(), strict=True)
    assert all(torch.equal(weight, other) for weight, other in weights)


def saved_bytes(model, *inputs):
    """Return the bytes of the activations that a forward pass saves, counting each storage once."""
    weights = {weight.untyped_storage().data_ptr() for weight in (*model.parameters(), *model.buffers())}
    saved = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage  # a reference, so that no other storage gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = model(*inputs)
    assert output.requires_grad
    return sum(storage.nbytes() for storage in saved.values())


tokens = torch.randint(VOCABULARY, (2, 8), generator=torch.Generator().manual_seed(0))
STACKS = {
    "decoder": (MODEL.model_copy(update={"layers": 6}), (tokens,)),
    "vision": (VisionTransformer(image=8, patch=2, classes=3, layers=6, width=16, heads=2), (torch.ones(2, 3, 8, 8),)),
    "translator": (
        Translator(vocabulary=VOCABULARY, layers=4, width=16, heads=2, context=8),
        (tokens, torch.ones(2, 8, dtype=torch.bool), tokens),
    ),
}


@pytest.mark.parametrize(("spec", "inputs"), STACKS.values(), ids=STACKS)
def test_fewer_activations_are_saved(spec, inputs):
    model = spec.build(0)
    plain = saved_bytes(model, *inputs)
    recompute_blocks(model)
    assert saved_bytes(model, *inputs) < 0.5 * plain
