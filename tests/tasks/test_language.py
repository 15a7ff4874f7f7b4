"""Language modelling: deterministic batches, windows inside the stream, and the loss by its definition."""

import math

import numpy as np
import pytest
import torch
from fixtures.rows import held_out_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from formerlab.errors import UserError
from formerlab.models import Decoder
from formerlab.tasks import LanguageModeling
from formerlab.tasks.task import Shard
from formerlab.tasks.window_losses import window_documents, window_losses

MODEL = Decoder(vocabulary=40, layers=2, width=8, heads=2, context=6, embedding_std=0.5)
TASK = LanguageModeling(context=6, batch=4, valid_windows=5)
STREAM = np.arange(40, dtype=np.uint16)  # token i of the stream has the value i


@settings(max_examples=20)
@given(seed=st.integers(0, 2**63), step=st.integers(0, 2**40))
def test_a_batch_depends_only_on_seed_and_step(seed, step):
    first = TASK.train_batch(STREAM, seed, step)
    TASK.train_batch(STREAM, seed, step + 1)
    np.random.default_rng().random()
    assert torch.equal(first, TASK.train_batch(STREAM, seed, step))
    assert torch.equal(first, TASK.model_copy(update={"accumulate": 2}).train_batch(STREAM, seed, step))


def test_training_reads_only_the_stretch(tmp_path, monkeypatch):
    monkeypatch.setattr("formerlab.tasks.language.load_stream", lambda folder, split: STREAM)
    tasks = [TASK.model_copy(update={"stretch": stretch}) for stretch in ((0.0, 0.3), (0.3, 0.8), (0.8, 1.0))]
    assert [task.load(tmp_path, "train").tolist() for task in tasks] == [
        list(range(12)), list(range(12, 32)), list(range(32, 40))
    ]  # fmt: skip
    assert all(len(task.load(tmp_path, split)) == 40 for task in tasks for split in ("valid", "test"))


@pytest.mark.parametrize("stretch", [(0.5, 0.5), (0.8, 0.2), (0.0, 1.1), (-0.1, 1.0), (0.5,)])
def test_an_empty_stretch_is_refused(stretch):
    with pytest.raises(ValidationError, match="stretch"):
        LanguageModeling(stretch=stretch)


@pytest.mark.parametrize("draw", [lambda s: TASK.train_batch(s, 0, 0), TASK.valid_batches], ids=["train", "valid"])
@pytest.mark.parametrize("tokens", [0, 1, 6])
def test_a_short_stream_is_refused_with_both_lengths(draw, tokens):
    with pytest.raises(UserError, match=rf"context=6 needs 7 tokens, but the stream has {tokens}: lower task.context"):
        draw(STREAM[:tokens])


@given(windows=st.integers(1, 60), tokens=st.integers(7, 40), batch=st.sampled_from([(4, 1), (4, 2), (1, 1)]))
def test_validation_windows_are_fixed_and_evenly_spaced(windows, tokens, batch):
    task = LanguageModeling(context=6, batch=batch[0], accumulate=batch[1], valid_windows=windows)
    batches = task.valid_batches(STREAM[:tokens])
    assert all(len(micro_batch) == batch[0] // batch[1] for micro_batch in batches[:-1])
    starts = torch.cat(batches)[:, 0].tolist()
    assert starts == sorted(set(starts))
    assert len(starts) == min(windows, tokens - 6)
    assert starts[0] == 0
    assert len(starts) == 1 or starts[-1] == tokens - 7


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6), context=st.integers(1, 9))
def test_a_window_belongs_to_the_document_of_its_middle_prediction(lengths, context):
    documents = np.repeat(np.arange(len(lengths)), lengths)
    stream = np.where(np.append(np.diff(documents), 1), 0, 7).astype(np.uint16)  # each document ends with 0
    if len(stream) < 2:
        return
    predicted = [documents[1:][first : first + context] for first in range(0, len(stream) - 1, context)]
    middles = [numbers[(len(numbers) - 1) // 2] for numbers in predicted]
    assert window_documents(stream, context, end_of_text=0).tolist() == middles


def test_the_interface_of_tasks_matches_the_windows_of_the_stream(tmp_path, monkeypatch):
    """The methods that all tasks share agree with the windows of the stream."""
    model, spec = MODEL.build(1), MODEL
    halves = TASK.model_copy(update={"accumulate": 2})
    batch = TASK.train_batch(STREAM, 3, 5)
    assert torch.equal(torch.cat(halves.step_batches(STREAM, 3, 5)), batch)
    assert halves.measure(model, batch) == (batch[:, 1:].numel(), TASK.losses(model, batch)[0].item())
    assert TASK.step_counts(spec, STREAM, 3, 7) == (batch[:, 1:].numel(), 3 * len(batch) * spec.flops(TASK.context))
    monkeypatch.setattr("formerlab.tasks.language.load_stream", lambda folder, split: STREAM)
    monkeypatch.setattr("formerlab.tasks.language.read_manifest", lambda folder: {"tokenizer": {"end_of_text": 16}})
    rows = held_out_rows(TASK, model, tmp_path)
    assert [row[:3] for row in rows] == [row[:3] for row in window_losses(model, STREAM, TASK.context)]
    assert [row[3] for row in rows] == [0, 0, 0, 1, 1, 1, 1]  # the third window predicts 13 to 18
    guessed = TASK.guessed_rows(spec, TASK.held_out(tmp_path))
    assert [(*row[:2], row[3]) for row in guessed] == [(*row[:2], row[3]) for row in rows]
    assert {row[2] for row in guessed} == {math.log(spec.vocabulary)}


def test_padding_micro_batches_repeat_another_micro_batch():
    shard = Shard(1, 2)
    (repeated,), (first,) = (TASK.step_batches(STREAM, 0, 3, shard=item) for item in (shard, Shard(0, 2)))
    assert torch.equal(repeated, first)
    assert shard.micro_batches(1) == [1], "index 1 marks padding, because the step has one micro-batch"
