"""Translation: deterministic batches, every pair once per epoch, losses by definition, averages of snapshots."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from formerlab.data.pairs.streams import PairStream
from formerlab.errors import StoppedEarly
from formerlab.models import Translator
from formerlab.tasks import Translation
from formerlab.tasks.task import START
from formerlab.tasks.translation import NO_TARGET, sentence_batch, smoothed_loss
from formerlab.training.loop import Hooks, train
from formerlab.training.run import Run
from formerlab.training.state import State

MODEL = Translator(vocabulary=30, layers=1, width=8, heads=2, context=40, dropout=0.1)
TASK = Translation(tokens=40, valid_pairs=7)


def stream(pairs=60, seed=0):
    """Return sentence pairs with 1 to 12 tokens on each side; token 0 ends a sentence."""
    random = np.random.default_rng(seed)
    sentences = [[*random.integers(1, 30, random.integers(1, 13)), 0] for _ in range(2 * pairs)]
    return PairStream(np.concatenate(sentences).astype(np.uint16), 0)


DATA = stream()


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**63), epoch=st.integers(0, 3))
def test_an_epoch_contains_every_pair_once(seed, epoch):
    batches = stream().epoch(40, seed, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(60))
    for numbers in batches:
        longest = max(DATA.source_lengths[numbers].max(), DATA.target_lengths[numbers].max())
        assert len(numbers) * longest <= 40
    assert len(batches) == len(DATA.batches(40))


def test_batches_depend_only_on_the_step():
    size = len(DATA.batches(40))
    steps = [0, 1, size - 1, size, 3 * size + 2]
    fresh = [TASK.step_batches(stream(), 5, step)[0] for step in steps]
    used = stream()
    for step, batch in sorted(zip(steps, fresh, strict=True), key=lambda item: -item[0]):
        (again,) = TASK.step_batches(used, 5, step)
        assert torch.equal(again.source, batch.source)
        assert torch.equal(again.target_out, batch.target_out)
    assert not torch.equal(TASK.step_batches(used, 6, 0)[0].source, fresh[0].source)


def test_the_counts_of_a_step_match_its_batch():
    size = len(DATA.batches(40))
    start = TASK.position_after(DATA, START, 2)
    for step, begins in ((0, START), (size + 3, START), (3, start)):
        (batch,) = TASK.step_batches(DATA, 5, step, begins)
        sources, targets = batch.source_mask.sum(1).tolist(), (batch.target_out != NO_TARGET).sum(1).tolist()
        flops = 3 * sum(MODEL.flops(s, t) for s, t in zip(sources, targets, strict=True))
        assert TASK.step_counts(MODEL, DATA, 5, step, begins) == (batch.tokens, flops)
    assert TASK.epoch_tokens(DATA) == sum(TASK.step_counts(MODEL, DATA, 5, step)[0] for step in range(size))


def test_a_run_continues_at_the_end_of_its_ancestors():
    size = len(DATA.batches(40))
    start = TASK.position_after(DATA, TASK.position_after(DATA, START, size - 2), 5)
    assert (start.steps, start.position) == (size + 3, size + 3)
    for step in (0, size - 1):
        again, expected = TASK.step_batches(DATA, 5, step, start)[0], TASK.step_batches(DATA, 5, size + 3 + step)[0]
        assert torch.equal(again.source, expected.source)


@pytest.mark.parametrize(("epochs", "more", "begins"), [(1, 0, 1), (2, 3, 3)])
def test_a_run_with_another_batch_size_starts_a_new_epoch(epochs, more, begins):
    """Another batch size groups pairs differently, so the remaining part of an epoch is not defined."""
    start, larger = TASK.position_after(DATA, START, epochs * len(DATA.batches(40)) + more), Translation(tokens=70)
    size = len(DATA.batches(70))
    assert size != len(DATA.batches(40))
    batches = [larger.step_batches(DATA, 5, step, start)[0] for step in range(size)]
    assert torch.equal(batches[0].source, larger.step_batches(DATA, 5, begins * size)[0].source)
    assert sum(batch.tokens for batch in batches) == TASK.epoch_tokens(DATA)
    assert larger.position_after(DATA, start, 2).position == begins * size + 2


def test_a_batch_contains_sources_and_shifted_targets():
    batch = sentence_batch(DATA, [3, 8])
    for row, pair in enumerate((3, 8)):
        source, target = DATA.sentence(pair, 0), DATA.sentence(pair, 1)
        assert batch.source[row][batch.source_mask[row]].tolist() == source.tolist()
        out = batch.target_out[row]
        assert out[out != NO_TARGET].tolist() == target.tolist()
        assert batch.target_in[row, : len(target)].tolist() == [0, *target[:-1].tolist()]
    assert batch.tokens == batch.loss_divisor == DATA.target_lengths[[3, 8]].sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_the_smoothed_loss_equals_its_definition(smoothing):
    logits, targets = torch.randn(5, 9, dtype=torch.float64), torch.tensor([0, 8, NO_TARGET, 3, 3])
    log_probs, real = torch.log_softmax(logits, dim=-1), targets != NO_TARGET
    for mass, smoothing_mass in (("vocabulary", smoothing / 9), ("others", smoothing / 8)):
        target_distribution = torch.full((5, 9), smoothing_mass, dtype=torch.float64)
        right = 1 - smoothing + (smoothing_mass if mass == "vocabulary" else 0.0)
        target_distribution[real.nonzero()[:, 0], targets[real]] = right
        assert target_distribution[real].sum(1).tolist() == pytest.approx([1.0] * 4)
        expected = -(target_distribution * log_probs)[real].sum()
        torch.testing.assert_close(smoothed_loss(logits, targets, smoothing, mass), expected)


def run(**changes):
    task = Translation(tokens=40, valid_pairs=5, **changes)
    return Run(study="s", name="r", model=MODEL, task=task, steps=9, log_every=1, evaluate_every=9)


def train_steps(run, stop_at=None, content=None):
    model = run.model.build(run.seed)
    state = State(model, run.optimizer.build(model))
    if content is not None:
        state.restore(content)
    snapshots = {}

    def stop():
        snapshots[state.step] = {name: weight.clone() for name, weight in model.state_dict().items()}
        return "told to" if state.step == stop_at else None

    with contextlib.suppress(StoppedEarly):
        train(run, state, stream(), stream(5, 1), Hooks(lambda _: None, stop))
    return state, snapshots


def test_averaged_weights_are_the_mean_of_the_snapshots_also_after_a_resume():
    plain, snapshots = train_steps(run())
    averaged, _ = train_steps(run(average_last=3, average_every=2))
    snapshots = [snapshots[5], snapshots[7], plain.model.state_dict()]
    for name, weight in averaged.model.state_dict().items():
        mean = torch.stack([snapshot[name].double() for snapshot in snapshots]).mean(0).float()
        torch.testing.assert_close(weight, mean, rtol=1e-6, atol=1e-7)
    stopped, _ = train_steps(run(average_last=3, average_every=2), stop_at=6)
    resumed, _ = train_steps(run(average_last=3, average_every=2), content=stopped.dump())
    for name, weight in averaged.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name])
    assert averaged.rows["train"] == resumed.rows["train"]
    assert averaged.rows["eval"] == plain.rows["eval"]


def test_a_task_that_does_not_fit_the_model_is_refused():
    with pytest.raises(ValueError, match=r"task.kind=language_modeling trains model.kind=decoder, not translator"):
        Run(study="s", name="r", model=MODEL)
