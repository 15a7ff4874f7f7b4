"""The loop: pure in (run, step), so that stopping and going on leaves no trace."""

import copy
import math

import numpy as np
import pytest
import torch
from small_runs import MODEL, RUN, TOKENFORMER, VOCABULARY, small

from formerlab.errors import StoppedEarly
from formerlab.layers import DepthWeightedAverage
from formerlab.tasks import LanguageModeling
from formerlab.training import loop
from formerlab.training import state as states
from formerlab.training.checkpoint import load_checkpoint, save_checkpoint
from formerlab.training.loop import Hooks, train
from formerlab.training.optimizer import AdamW
from formerlab.training.schedule import Constant, OneCycle
from formerlab.training.state import State

RANDOM = np.random.default_rng(5)
TRAIN, VALID = (RANDOM.integers(0, VOCABULARY, size).astype(np.uint16) for size in (2000, 200))
BELONGS = {"spec": "this"}


def start(run):
    model = run.model.build(run.seed)
    return State(model, run.optimizer.build(model))


def go(run, state, *, save=lambda state: None, stop=lambda: None, checkpoint_seconds=math.inf):
    return train(run, state, TRAIN, VALID, Hooks(save, stop, checkpoint_seconds))


def done(run):
    state = start(run)
    assert go(run, state) is None
    return state


def same(one, other):
    """Say whether two states have the same bits, times aside."""
    tensors = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    rows = all(one.rows[name] == other.rows[name] for name in ("train", "eval"))
    return rows and one.step == other.step and all(torch.equal(a, b) for a, b in tensors)


KINDS = {
    "plain": RUN,
    "dropout": small(model=MODEL.model_copy(update={"dropout": 0.2})),
    "bfloat16": small(precision="bfloat16"),
    "accumulate": small(task=LanguageModeling(context=8, batch=4, accumulate=2, valid_windows=6)),
    "tokenformer": small(model=TOKENFORMER),
    "denseformer": small(model=MODEL.model_copy(update={"depth": DepthWeightedAverage()}), schedule=OneCycle()),
    "late mixing": small(
        model=MODEL.model_copy(update={"depth": DepthWeightedAverage()}),
        optimizer=AdamW(lr=0.01, mixing_start_step=7, mixing_lr_factor=3.0),
    ),
}


@pytest.mark.parametrize("run", KINDS.values(), ids=KINDS)
def test_training_twice_gives_the_same_bits(run):
    first = done(run)
    torch.manual_seed(12345)  # whatever happened in the process before
    assert same(first, done(run))


@pytest.mark.parametrize("run", KINDS.values(), ids=KINDS)
def test_where_numbers_are_read_late_the_bits_are_the_same(run, monkeypatch):
    """As on a GPU: the optimizer decides there whether it takes a step."""
    at_once = done(run)
    monkeypatch.setattr(states, "waiting_is_free", lambda device: False)
    assert same(at_once, done(run))


@pytest.mark.parametrize("run", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("steps", [(0,), (1,), (5, 5, 11), tuple(range(12))], ids=str)
def test_stopped_and_resumed_gives_the_same_bits(run, steps, tmp_path):
    """Every resumption is a new state, as a new process has it, that knows no more than the file."""
    path = tmp_path / "last.pt"
    for stop_at in steps:
        state = start(run)
        if path.exists():
            state.restore(load_checkpoint(path, BELONGS))

        def save(state):
            save_checkpoint(path, state.dump(), BELONGS)

        with pytest.raises(StoppedEarly, match=rf"step {stop_at} of 12 \(told to\); run again"):
            go(run, state, save=save, stop=lambda s=state, at=stop_at: "told to" if s.step == at else None)
    state = start(run)
    state.restore(load_checkpoint(path, BELONGS))
    go(run, state)
    assert same(state, done(run))


def test_a_checkpoint_is_saved_after_every_step_if_asked_and_each_one_is_enough():
    saved = []
    whole = start(RUN)
    go(RUN, whole, save=lambda state: saved.append(copy.deepcopy(state.dump())), checkpoint_seconds=0)
    assert [content["step"] for content in saved] == list(range(1, 13))
    for content in saved:
        state = start(RUN)
        state.restore(content)
        go(RUN, state)
        assert same(state, whole)


def test_slow_checkpoints_take_little_of_the_time(monkeypatch):
    """On a clock on which a look takes a second and a save 100: saving every minute would take half of the time."""
    clock, saving = [0.0], []

    def look():
        clock[0] += 1
        return clock[0]

    def save(state):
        saving.append(state.step)
        clock[0] += 100

    monkeypatch.setattr(loop.time, "monotonic", look)
    run = small(steps=5000, log_every=5000, evaluate_every=5000)
    state = start(run)
    go(run, state, save=save, checkpoint_seconds=60)
    assert len(saving) >= 2
    assert 100 * len(saving) <= 0.05 * clock[0]


def test_seeds_differ():
    assert not same(done(RUN), done(small(seed=4)))


def test_dropout_differs_from_step_to_step(monkeypatch):
    """With the learning rate out of play and one batch for ever, only dropout can change the loss."""
    still = small(model=MODEL.model_copy(update={"dropout": 0.5}), optimizer=AdamW(lr=1e-12), log_every=1)
    batch = RUN.task.train_batch(TRAIN, 0, 0)
    monkeypatch.setattr(LanguageModeling, "train_batch", lambda *_: batch)
    losses = [row[2] for row in done(still).rows["train"]]
    assert len(set(losses)) == len(losses) == 12
    without = [row[2] for row in done(small(optimizer=AdamW(lr=1e-12), log_every=1)).rows["train"]]
    assert len(set(without)) == 1


def test_a_run_without_a_validation_stream_trains(monkeypatch):
    monkeypatch.setattr(LanguageModeling, "valid_batches", lambda *_: [])
    assert done(RUN).rows["eval"] == []


def test_rows_stand_at_the_steps_asked_for():
    state = done(RUN)  # 12 steps, a row every 3, evaluated every 5
    assert [row[0] for row in state.rows["train"]] == [1, 3, 6, 9, 12]
    assert [row[0] for row in state.rows["timing"]] == [1, 3, 6, 9, 12]
    assert [row[:4] for row in state.rows["eval"]] == [
        [step, "valid", batch, tokens] for step in (0, 5, 10, 12) for batch, tokens in ((0, 32), (1, 16))
    ]
    assert [row[1] for row in state.rows["train"]] == [step * 4 * 8 for step in (1, 3, 6, 9, 12)]
    assert [row[3] for row in state.rows["train"]] == [0.01 * RUN.schedule.factor(s, 12) for s in (0, 2, 5, 8, 11)]


def test_a_row_of_training_is_the_loss_and_gradient_norm_before_the_step():
    run = small(steps=1)
    model, windows = run.model.build(run.seed), run.task.train_batch(TRAIN, run.seed, 0)
    loss = run.task.loss(model, windows)
    loss.backward()
    norm = math.sqrt(sum(parameter.grad.double().square().sum().item() for parameter in model.parameters()))
    ((_, _, found_loss, _, found_norm),) = done(run).rows["train"]
    assert (found_loss, found_norm) == (loss.item(), pytest.approx(norm, rel=1e-5))


def test_a_row_of_validation_is_the_loss_of_the_fixed_windows_without_dropout():
    run = KINDS["dropout"]
    state = done(run)
    model = state.model.eval()
    last = [row[4] for row in state.rows["eval"] if row[0] == 12]
    with torch.no_grad():
        assert last == [run.task.loss(model, batch).item() for batch in run.task.valid_batches(VALID)]


def test_one_step_is_the_optimizers_on_the_clipped_gradient():
    run = small(steps=1, optimizer=AdamW(lr=0.01, clip=0.25, eps=0.1), schedule=Constant())
    model = run.model.build(run.seed)
    optimizer = run.optimizer.build(model)
    run.task.loss(model, run.task.train_batch(TRAIN, run.seed, 0)).backward()
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert norm > 0.25
    for parameter in model.parameters():
        parameter.grad *= 0.25 / norm
    optimizer.step()
    for expected, found in zip(model.parameters(), done(run).model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_accumulation_halves_the_parts_and_changes_nothing_but_rounding(monkeypatch):
    whole, loss, sizes = done(RUN), LanguageModeling.loss, set()

    def loss_and_note(task, model, windows):
        sizes.add(len(windows))
        return loss(task, model, windows)

    monkeypatch.setattr(LanguageModeling, "loss", loss_and_note)
    parts = done(KINDS["accumulate"])
    assert sizes == {2}
    losses = [[row[2] for row in state.rows["train"]] for state in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_bfloat16_computes_in_another_precision_but_keeps_float32_weights():
    state = done(KINDS["bfloat16"])
    assert not same(state, done(RUN))
    assert {weight.dtype for weight in state.model.state_dict().values()} == {torch.float32}
    assert state.rows["train"][-1][2] == pytest.approx(done(RUN).rows["train"][-1][2], rel=0.05)


def test_a_model_learns_a_stream_that_repeats():
    stream = np.tile(np.arange(8, dtype=np.uint16), 50)
    run = small(steps=60, optimizer=AdamW(lr=0.02), evaluate_every=60)
    state = start(run)
    train(run, state, stream, stream, Hooks(lambda state: None, lambda: None))
    losses = {step: [row[4] for row in state.rows["eval"] if row[0] == step] for step in (0, 60)}
    assert max(losses[60]) < 0.1 < 2 < min(losses[0])


class Compiled(torch.nn.Module):
    """Takes the place of what torch.compile makes, which needs a minute and a C++ compiler."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.calls = 0

    def forward(self, *tokens, **targets):
        self.calls += 1
        return self.model(*tokens, **targets)


def test_compile_trains_and_evaluates_the_compiled_model_and_saves_the_plain_one(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(Compiled(model)) or compiled[0])
    assert same(done(small(compile=True)), done(RUN))
    assert [model.calls for model in compiled] == [12 + 4 * 2]  # steps, and two batches at each of four evaluations


def test_until_the_mixing_weights_start_a_run_is_the_plain_one_to_the_bit():
    """Not even the clipped norm knows of them."""
    mixed = MODEL.model_copy(update={"depth": DepthWeightedAverage()})
    waiting = done(small(model=mixed, optimizer=AdamW(lr=0.01, mixing_start_step=12)))
    plain = done(small()).model.state_dict()
    state = waiting.model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in plain.items())
    assert {weight for _, _, weight in waiting.model.mixer.weights()} == {0.0, 1.0}
    assert waiting.rows["train"] == done(small()).rows["train"]


def test_mixing_weights_move_from_their_first_step_on():
    model = MODEL.model_copy(update={"depth": DepthWeightedAverage()})
    spec = small(model=model, optimizer=AdamW(lr=0.01, mixing_start_step=11), schedule=Constant())
    state = done(spec)
    moved = [abs(weight - (i == j)) for i, j, weight in state.model.mixer.weights()]
    # One step of Adam is lr in size, and the decay of a one adds lr x 0.1.
    assert all(0.005 < distance < 0.0115 for distance in moved)
