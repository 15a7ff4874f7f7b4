"""Prefetched and sharded batches equal the batches that a single process samples on demand."""

import threading
import time
from dataclasses import fields, is_dataclass
from itertools import islice

import pytest
import torch
from test_golden_trajectories import IMAGES, PICTURES, RUNS, data_of, run

from formerlab.data.images.augmentation import TimmAugmentation
from formerlab.tasks.task import SINGLE_PROCESS, DataPosition, Shard
from formerlab.training import processes
from formerlab.training.step import AHEAD, batches

MIXED = {"augmentation": TimmAugmentation(policy=None), "mixup": 0.8, "cutmix": 1.0, "accumulate": 4}
CASES = {
    "text": (RUNS["decoder"], {"batch": 12, "accumulate": 6}),
    "sentences": (RUNS["translator"], {"accumulate": 3}),
    "images": (run(IMAGES, PICTURES), {"accumulate": 4}),
    "mixed images": (run(IMAGES, PICTURES), MIXED),
}
START = DataPosition(chain_steps=5, steps=3, position=2)
CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """Return a run with several micro-batches, and its data."""
    run, changes = CASES[request.param]
    run = run.model_copy(update={"task": run.task.model_copy(update=changes)})
    data, _ = data_of(run, tmp_path)
    return run, data


def same(left, right):
    if is_dataclass(left):
        return all(same(getattr(left, field.name), getattr(right, field.name)) for field in fields(left))
    if isinstance(left, tuple):
        return all(map(same, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


@pytest.mark.parametrize("micro_batches", [6, 4, 3, 2, 1])
@pytest.mark.parametrize("processes", [1, 2, 3, 6])
def test_each_micro_batch_has_one_process_and_processes_have_equal_counts(micro_batches, processes):
    numbers_by_process = [Shard(rank, processes).micro_batches(micro_batches) for rank in range(processes)]
    assert len({len(numbers) for numbers in numbers_by_process}) == 1
    assert sorted(number for numbers in numbers_by_process for number in numbers if number < micro_batches) == list(
        range(micro_batches)
    )


def test_a_shard_gets_the_micro_batches_of_its_process(case):
    """Sharded micro-batches are bit-identical to the micro-batches of one process, also with Mixup and CutMix."""
    run, data = case
    for step in range(3):
        count = run.task.micro_batch_count(data, 3, step, START)
        full = run.task.step_batches(data, 3, step, START, SINGLE_PROCESS)
        assert len(full) == count
        for shard in (Shard(0, 2), Shard(1, 2)):
            micro_batches = run.task.step_batches(data, 3, step, START, shard)
            expected = [full[number % count] for number in shard.micro_batches(count)]
            assert all(map(same, micro_batches, expected))
            assert len(micro_batches) == len(expected)


def test_prefetched_batches_are_equal(case, monkeypatch):
    run, data = case
    monkeypatch.setattr(processes, "rank", lambda: 1)
    monkeypatch.setattr(processes, "group_size", lambda: 2)
    # run the two cases one after the other, because the prefetching thread uses the same global random state
    steps = [list(islice(batches(run, data, START, 4, device), 5)) for device in (CPU, META)]
    for (count, on_demand), (prefetched_count, prefetched) in zip(*steps, strict=True):
        assert count == prefetched_count
        assert [number for number, _ in on_demand] == [number for number, _ in prefetched]
        assert all(same(left, right) for (_, left), (_, right) in zip(on_demand, prefetched, strict=True))


def test_a_thread_prefetches_batches_up_to_the_last_step(monkeypatch, tmp_path):
    run = RUNS["decoder"].model_copy(update={"steps": 9})
    data, _ = data_of(run, tmp_path)
    sampled_steps, train_batch = [], type(run.task).train_batch

    def batch_and_note(task, stream, seed, step, *micro_batches):
        sampled_steps.append((step, threading.current_thread().name))
        return train_batch(task, stream, seed, step, *micro_batches)

    monkeypatch.setattr(type(run.task), "train_batch", batch_and_note)
    coming = batches(run, data, DataPosition(), 5, META)
    next(coming)
    while len(sampled_steps) < 1 + AHEAD:
        time.sleep(0.001)
    assert [step for step, _ in sampled_steps] == [5, *range(6, 6 + AHEAD)]
    assert len(list(coming)) == 3
    assert [step for step, _ in sampled_steps] == [5, 6, 7, 8]
    assert {name.rpartition("_")[0] for _, name in sampled_steps} == {"batches"}
