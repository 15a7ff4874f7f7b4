"""A run continues where its ancestors stopped reading; run.json lists the data usage of the chain."""

import numpy as np
import pytest
import torch
from small_runs import MODEL, small, train_run

from formerlab.data import BytePairs, Files, TextData, load_stream, prepare
from formerlab.tasks import LanguageModeling
from formerlab.tasks.task import DataPosition
from formerlab.training.record import data_usages

DROPPING = MODEL.model_copy(update={"dropout": 0.1})


@pytest.fixture(scope="module")
def other(data, tmp_path_factory):
    """Return a second data set."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "lines.txt").write_text("\n".join(f"line {number} of another text" for number in range(90)))
    source = Files(paths=(str(folder / "lines.txt"),), documents="line")
    spec = TextData(source=source, tokenizer=BytePairs(vocabulary=257), valid_share=0.1, test_share=0.1)
    prepare("other", spec, folder / "data")
    return folder / "data"


@pytest.fixture
def train_batches(monkeypatch):
    """Return a list that records every training batch with its dropout seed."""
    batches, loss = [], LanguageModeling.losses

    def loss_and_note(task, model, windows):
        if model.training:
            batches.append((windows.tolist(), torch.initial_seed()))
        return loss(task, model, windows)

    monkeypatch.setattr(LanguageModeling, "losses", loss_and_note)
    return batches


def expected_windows(data, task, steps):
    """Return the windows of some steps of an uninterrupted run."""
    stream = load_stream(data, "train")
    return [task.train_batch(stream, 3, step).tolist() for step in steps]


def run(name, parent=None, **changes):
    return small(name=name, init=parent, **{"model": DROPPING, "steps": 4, **changes})


def test_a_chain_of_runs_reads_the_data_of_one_long_run(data, tmp_path, train_batches):
    """Continued runs read the next windows, with new dropout seeds."""
    for name, parent in (("a", None), ("b", "a"), ("c", "b")):
        train_run(run(name, parent), data, tmp_path / name, parent and tmp_path / parent)
    assert [windows for windows, _ in train_batches] == expected_windows(data, run("a").task, range(12))
    assert len({dropout for _, dropout in train_batches}) == 12


def test_larger_batches_repeat_no_windows_of_the_ancestors(data, tmp_path, train_batches):
    train_run(run("a"), data, tmp_path / "a")
    task = LanguageModeling(context=4, batch=8, valid_windows=6)
    train_run(run("b", "a", task=task), data, tmp_path / "b", tmp_path / "a")
    assert [windows for windows, _ in train_batches][4:] == expected_windows(data, task, range(4, 8))


def test_a_run_continues_the_first_data_set_after_a_run_on_a_second(data, other, tmp_path, train_batches):
    train_run(run("a"), data, tmp_path / "a")
    train_run(run("b", "a", data="other", steps=3), other, tmp_path / "b", tmp_path / "a")
    record = train_run(run("c", "b", steps=2), data, tmp_path / "c", tmp_path / "b")
    task = run("a").task
    expected = (
        expected_windows(data, task, range(4))
        + expected_windows(other, task, range(3))
        + expected_windows(data, task, range(4, 6))
    )
    assert [windows for windows, _ in train_batches] == expected
    assert len({dropout for _, dropout in train_batches}) == 9
    first, second, third = data_usages(record)
    assert [usage.run for usage in (first, second, third)] == [f"study/{name}/seed3" for name in "abc"]
    assert first.end == third.start.model_copy(update={"chain_steps": 4})
    assert second.start == DataPosition(chain_steps=4)
    assert third.end == DataPosition(chain_steps=9, steps=6, position=6, step_tokens=32)
    assert (third.tokens, third.tokens_cumulative) == (2 * 32, 6 * 32)
    stream = load_stream(data, "train")
    assert third.epochs == pytest.approx(2 * 32 / (len(stream) - 1))
    assert third.epochs_cumulative == pytest.approx(3 * third.epochs)
    assert second.epochs_cumulative == second.epochs == pytest.approx(3 * 32 / (len(load_stream(other, "train")) - 1))


def test_a_child_can_read_a_different_stretch_from_its_parent(data, tmp_path, train_batches):
    first, last = (run("a").task.model_copy(update={"stretch": stretch}) for stretch in ((0.0, 0.8), (0.8, 1.0)))
    train_run(run("a", task=first, steps=30), data, tmp_path / "a")
    record = train_run(run("b", "a", task=last, steps=5), data, tmp_path / "b", tmp_path / "a")
    stream = np.asarray(load_stream(data, "train"), dtype=np.int64)
    border = round(0.8 * len(stream))
    allowed = {False: windows_of(stream[:border]), True: windows_of(stream[border:])}
    assert all(
        tuple(window) in allowed[step >= 30] for step, (windows, _) in enumerate(train_batches) for window in windows
    )
    usage = data_usages(record)[-1]
    assert (usage.stretch, usage.start.steps) == ((0.8, 1.0), 30)
    assert usage.epochs_cumulative == usage.epochs == pytest.approx(5 * 32 / (len(stream) - border - 1))
    assert usage.tokens_cumulative == 35 * 32


def windows_of(stream):
    return {tuple(stream[start : start + 9].tolist()) for start in range(len(stream) - 8)}
