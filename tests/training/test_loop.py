"""The training loop depends only on (run, step), so interruptions do not change results."""

import copy
import math

import numpy as np
import pytest
import torch
from small_runs import MODEL, RUN, VOCABULARY, small
from torch.utils._pytree import tree_flatten

from formerlab.layers import DepthWeightedAverage
from formerlab.tasks import LanguageModeling
from formerlab.training import loop
from formerlab.training import step as stepping
from formerlab.training.loop import Hooks, train
from formerlab.training.optimizer import AdamW
from formerlab.training.schedule import Constant
from formerlab.training.state import State

RANDOM = np.random.default_rng(5)
TRAIN, VALID = (RANDOM.integers(0, VOCABULARY, size).astype(np.uint16) for size in (2000, 200))


def initial_state(run):
    model = run.model.build(run.seed)
    return State(model, run.optimizer.build(model))


def run_steps(run, state, *, save=lambda state: None, stop=lambda: None, checkpoint_seconds=math.inf):
    return train(run, state, TRAIN, VALID, Hooks(save, stop, checkpoint_seconds))


def trained_state(run):
    state = initial_state(run)
    assert run_steps(run, state) is None
    return state


def content_without_times(state):
    content = state.dump()
    rows = {name: rows for name, rows in content["rows"].items() if name != "timing"}
    times = ("started", "training_time_s", "wall_time_s")
    return {name: value for name, value in content.items() if name not in times} | {"rows": rows}


def identical(left, right):
    """Return whether two states have bit-identical checkpoints, except for times."""
    (left, left_structure), (right, right_structure) = (
        tree_flatten(content_without_times(state)) for state in (left, right)
    )
    return left_structure == right_structure and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(left, right, strict=True)
    )


KINDS = {
    "plain": RUN,
    "dropout": small(model=MODEL.model_copy(update={"dropout": 0.2})),
    "accumulate": small(task=LanguageModeling(context=8, batch=4, accumulate=2, valid_windows=6)),
    "late mixing": small(
        model=MODEL.model_copy(update={"depth": DepthWeightedAverage()}),
        optimizer=AdamW(lr=0.01, mixing_start_step=7, mixing_lr_factor=3.0),
    ),
}


@pytest.mark.parametrize("kind", ["plain", "late mixing"])  # test_training_on_a_fake_device.py has more kinds
def test_reading_losses_only_at_logged_steps_changes_no_bits(kind, monkeypatch):
    """On a GPU the optimizer skips non-finite gradients without a synchronisation; here the CPU does the same."""
    at_once = trained_state(KINDS[kind])
    monkeypatch.setattr(stepping, "reads_without_sync", lambda device: False)
    assert identical(at_once, trained_state(KINDS[kind]))


def test_every_checkpoint_resumes_to_the_same_result():
    saved = []
    full = initial_state(RUN)
    run_steps(RUN, full, save=lambda state: saved.append(copy.deepcopy(state.dump())), checkpoint_seconds=0)
    assert [content["step"] for content in saved] == list(range(1, 13))
    for content in saved:
        state = initial_state(RUN)
        state.restore(content)
        run_steps(RUN, state)
        assert identical(state, full)


def test_slow_checkpoints_are_saved_less_often(monkeypatch):
    """Every clock call takes 1 s and every save 100 s. Saving once per minute would take more than half of the time."""
    clock, saving = [0.0], []

    def read_clock():
        clock[0] += 1
        return clock[0]

    def save(state):
        saving.append(state)
        clock[0] += 100

    monkeypatch.setattr(loop.time, "monotonic", read_clock)
    hooks, state = Hooks(save, lambda: None, 60), initial_state(RUN)
    for _ in range(5000):
        hooks.reason_to_stop()
        hooks.write(state)
    assert len(saving) >= 2
    assert 100 * len(saving) <= 0.05 * clock[0]


def test_training_rows_have_the_loss_and_gradient_norm_before_the_step():
    run = small(steps=1)
    model, windows = run.model.build(run.seed), run.task.train_batch(TRAIN, run.seed, 0)
    loss = run.task.losses(model, windows)[0]
    loss.backward()
    norm = math.sqrt(sum(parameter.grad.double().square().sum().item() for parameter in model.parameters()))
    ((_, _, logged_loss, _, logged_norm),) = trained_state(run).rows["train"]
    assert (logged_loss, logged_norm) == (loss.item(), pytest.approx(norm, rel=1e-5))


def test_validation_rows_have_the_loss_of_fixed_windows_without_dropout():
    run = KINDS["dropout"]
    state = trained_state(run)
    model = state.model.eval()
    last = [row[4] for row in state.rows["eval"] if row[0] == 12]
    with torch.no_grad():
        assert last == [run.task.losses(model, batch)[0].item() for batch in run.task.valid_batches(VALID)]


def test_one_step_applies_the_optimizer_to_the_clipped_gradient():
    run = small(steps=1, optimizer=AdamW(lr=0.01, clip=0.25, eps=0.1), schedule=Constant())
    model = run.model.build(run.seed)
    optimizer = run.optimizer.build(model)
    run.task.losses(model, run.task.train_batch(TRAIN, run.seed, 0))[0].backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert norm > 0.25
    for parameter in model.parameters():
        parameter.grad *= 0.25 / norm
    optimizer.step()
    for expected, actual in zip(model.parameters(), trained_state(run).model.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_accumulation_changes_only_rounding(monkeypatch):
    full, loss, sizes = trained_state(RUN), LanguageModeling.losses, set()

    def loss_and_note(task, model, windows):
        sizes.add(len(windows))
        return loss(task, model, windows)

    monkeypatch.setattr(LanguageModeling, "losses", loss_and_note)
    accumulated = trained_state(KINDS["accumulate"])
    assert sizes == {2}
    losses = [[row[2] for row in state.rows["train"]] for state in (full, accumulated)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_compile_runs_the_compiled_model_and_saves_the_plain_model(monkeypatch):
    """torch.compile is replaced, because it needs a minute and a C++ compiler."""
    calls = []

    def compiled(model, dynamic):
        return lambda *tokens, **targets: calls.append(1) or model(*tokens, **targets)

    monkeypatch.setattr(torch, "compile", compiled)
    assert identical(trained_state(small(compile=True)), trained_state(RUN))
    assert len(calls) == 12 + 4 * 2  # steps, and two batches at each of four evaluations


def test_before_mixing_start_step_a_run_is_bit_identical_to_the_plain_run():
    """Before `mixing_start_step`, the mixing weights are not trained and not part of the gradient norm."""
    mixed = MODEL.model_copy(update={"depth": DepthWeightedAverage()})
    waiting = trained_state(small(model=mixed, optimizer=AdamW(lr=0.01, mixing_start_step=12)))
    plain = trained_state(small()).model.state_dict()
    state = waiting.model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in plain.items())
    assert {weight for _, _, weight in waiting.model.mixer.weights()} == {0.0, 1.0}
    assert waiting.rows["train"] == trained_state(small()).rows["train"]
