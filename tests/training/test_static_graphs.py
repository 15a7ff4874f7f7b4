"""Compiled training graphs have fixed shapes, also if other batch sizes were compiled earlier."""

import functools

import numpy as np
import pytest
import torch
from small_runs import MODEL, TOKENFORMER, VOCABULARY, small

from formerlab.evaluation.timing.speed import Speed, measure
from formerlab.layers import DepthWeightedAverage
from formerlab.tasks import LanguageModeling
from formerlab.training.loop import Hooks, train
from formerlab.training.state import State

STREAM = np.random.default_rng(5).integers(0, VOCABULARY, 2000).astype(np.uint16)
DWA = MODEL.model_copy(update={"depth": DepthWeightedAverage()})


@pytest.fixture
def graphs(monkeypatch):
    """Return a list that records every compiled graph: (in training, number of symbolic inputs)."""
    compiled = []

    def backend(graph, inputs):
        symbols = sum(isinstance(value, torch.SymInt) for value in inputs)
        compiled.append((torch.is_grad_enabled(), symbols))
        return graph

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    # the stage `speed` raises both limits
    with torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=256):
        yield compiled
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("model", "valid_windows"),
    [(MODEL, 2), (TOKENFORMER, 6), (DWA, 6)],
    ids=["plain, a smaller batch", "pattention, a remainder", "dwa, a remainder"],
)
def test_training_graphs_are_static_after_validation_with_other_batch_sizes(model, valid_windows, graphs):
    task = LanguageModeling(context=8, batch=8, accumulate=2, valid_windows=valid_windows)
    run = small(model=model, task=task, compile=True, steps=3)
    built = run.model.build(run.seed)
    state = State(built, run.optimizer.build(built))
    train(run, state, STREAM, STREAM[:200], Hooks(lambda state: None, lambda: None))
    validations = 2 if valid_windows > 4 else 1
    assert graphs == [(False, 0)] * validations + [(True, 0)]


def test_the_stage_speed_compiles_static_graphs(graphs):
    runs = [
        small(name=name, model=model, task=LanguageModeling(context=8, batch=batch, valid_windows=6), compile=True)
        for name, model, batch in (("plain", MODEL, 4), ("dwa", DWA, 6))
    ]
    settings = Speed(repetitions=5, training_steps=1, forward_sequences=3, decoded_tokens=4)
    measure(runs, settings, torch.device("cpu"))
    assert {symbols for _, symbols in graphs} == {0}
    assert {training for training, _ in graphs} == {False, True}
