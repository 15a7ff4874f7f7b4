"""Image models in the training stage: files, resuming, growth."""

import itertools
import math
import os
import signal
import time
from threading import Timer
from types import SimpleNamespace

import pytest
import torch
from fixtures.forked import run_forked
from fixtures.rows import held_out_rows
from small_runs import hashes, interrupt_run, rows, train_run

from formerlab.data import prepare
from formerlab.data.images import ImageData
from formerlab.data.images import batches as image_batches
from formerlab.data.images.augmentation import TimmAugmentation
from formerlab.data.images.batches import TrainingImages
from formerlab.errors import StoppedEarly, UserError
from formerlab.growth.stage import Growth, grown_spec
from formerlab.layers import LayerNorm, Pattention
from formerlab.models.vision import VisionTransformer
from formerlab.tasks import Classification, classification
from formerlab.training.load import load_model
from formerlab.training.optimizer import LayerwiseAdamW
from formerlab.training.run import Run


def tokenformer(attention, feedforward):
    return VisionTransformer(
        image=8,
        channels=1,
        classes=10,
        patch=4,
        layers=2,
        width=16,
        heads=2,
        drop_path=0.2,
        norm=LayerNorm(gain=False, bias=False),
        projection=Pattention(tokens=attention),
        feedforward=Pattention(tokens=feedforward),
    )


RUN = Run(
    study="vision",
    name="run",
    data="digits",
    model=tokenformer(6, 10),
    task=Classification(batch=16, accumulate=2, valid_images=20, average=0.8, augmentation=None, smoothing=0.1),
    optimizer=LayerwiseAdamW(lr=0.01, weight_decay=0.05),
    steps=8,
    log_every=2,
    evaluate_every=4,
)


def changed(**fields):
    return Run.model_validate({**dict(RUN), **fields})


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    out = tmp_path_factory.mktemp("digits")
    prepare("digits", ImageData(keep=0.1), out)
    return out


@pytest.fixture(scope="module")
def finished_run(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished")
    train_run(RUN, digits, out)
    return out


def test_test_rows_come_from_the_averaged_weights(finished_run, digits):
    model, run = load_model(finished_run)
    expected = [dict(zip(run.task.test_columns, row, strict=True)) for row in held_out_rows(run.task, model, digits)]
    for row, expected_row in zip(rows(finished_run, "test"), expected, strict=True):
        assert row == pytest.approx(expected_row, rel=1e-5)
    evaluated = rows(finished_run, "eval")
    assert {row["step"] for row in evaluated} == {0, 4, 8}
    assert all(0 <= row["top1"] <= row["top5"] <= 1 for row in evaluated)
    assert sum(row["tokens"] for row in evaluated if row["step"] == 8) == 20


@pytest.mark.parametrize("augmentation", [None, TimmAugmentation(smallest_crop=0.6)], ids=["plain", "timm"])
def test_a_resumed_vision_run_is_bit_identical(augmentation, digits, tmp_path, monkeypatch):
    mixing = {"augmentation": augmentation, "mixup": 0.8 if augmentation else 0.0}
    run = changed(task=RUN.task.model_copy(update=mixing))
    train_run(run, digits, tmp_path / "uninterrupted")
    interrupt_run(monkeypatch, 3, run, digits, tmp_path / "stopped")
    train_run(run, digits, tmp_path / "stopped")
    assert hashes(tmp_path / "stopped") == hashes(tmp_path / "uninterrupted")


def grown(growth, tokens=(9, 15)):
    model = grown_spec(RUN.model, tokenformer(*tokens), growth)
    return changed(name="grown", model=model, init="run", growth=growth)


def test_growth_with_zero_keys_and_tau_keep_preserves_the_function(finished_run, digits, tmp_path):
    train_run(grown(Growth(keys="zero", tau="keep")), digits, tmp_path, finished_run)
    parent, _ = load_model(finished_run)
    start = [row for row in rows(tmp_path, "eval") if row["step"] == 0]
    task, data = RUN.task, RUN.task.load(digits, "valid")
    expected = [task.measure(parent, batch.to(torch.device("cpu")))[1].item() for batch in task.valid_batches(data)]
    assert [row["loss_nats"] for row in start] == pytest.approx(expected, rel=1e-5)


def test_a_diverged_run_has_the_loss_of_a_uniform_guess(digits, tmp_path):
    huge_rate = LayerwiseAdamW(clip=0.0).model_copy(update={"lr": 1e30})  # larger than the configuration allows
    run = changed(optimizer=huge_rate)
    assert train_run(run, digits, tmp_path)["status"] == "diverged"
    test = rows(tmp_path, "test")
    assert {row["loss_nats"] for row in test} == {math.log(10)}
    assert {row["confidence"] for row in test} == {0.1}


def train_with_a_signal_while_images_are_read(rank, digits, out):
    """Train until all processes of the job get SIGTERM, and then to the end."""
    os.setpgrp()
    job = os.getpid()
    calls, original = itertools.count(1), TrainingImages._from_workers

    def read_images(images, *words):
        if next(calls) == 2:
            sender = os.fork()
            if sender == 0:  # send the signal from a child process, so that it reaches the whole process group
                os.killpg(job, signal.SIGTERM)
                os._exit(0)
            os.waitpid(sender, 0)
            time.sleep(0.2)  # a worker that the signal kills delivers no images
        return original(images, *words)

    with pytest.MonkeyPatch.context() as patch:
        # with two threads, a worker has a BLAS thread, which may receive the signal
        patch.setenv("OMP_NUM_THREADS", "2")
        patch.setattr(TrainingImages, "workers", property(lambda images: 1, lambda images, value: None), raising=False)
        patch.setattr(TrainingImages, "_from_workers", read_images)
        with pytest.raises(StoppedEarly, match=r"stopped after step 2 of 8 \(SIGTERM"):
            train_run(RUN, digits, out)
        train_run(RUN, digits, out)


def test_a_signal_to_a_job_and_its_workers_saves_after_the_step(digits, tmp_path):
    run_forked(1, train_with_a_signal_while_images_are_read, digits, tmp_path / "stopped")
    train_run(RUN, digits, tmp_path / "uninterrupted")
    assert hashes(tmp_path / "stopped") == hashes(tmp_path / "uninterrupted")


class HangingWorker(TrainingImages):
    """Images whose only worker process hangs or ends at step 3."""

    workers = property(lambda images: 1, lambda images, value: None)
    ends = False

    def __getitem__(self, key):
        if key[1] == 2:
            time.sleep(0 if self.ends else 3600)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(key)


class KilledWorker(HangingWorker):
    ends = True


def train_without_images(rank, images, asked_to_stop, error, reason, digits, out):
    """Train with missing images, then to the end with all images."""
    read_ahead = images._from_workers

    def read_and_stop(images, *words):
        if asked_to_stop and words[1] == 2:
            Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return read_ahead(images, *words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classification, "TrainingImages", images)
        patch.setattr(images, "_from_workers", read_and_stop)
        patch.setattr(image_batches, "POLL_SECONDS", 2.0)
        patch.setattr(image_batches, "TIMEOUT_SECONDS", 600.0 if asked_to_stop else 0.1)
        with pytest.raises(error, match=reason):
            train_run(RUN, digits, out)
    train_run(RUN, digits, out)


@pytest.mark.parametrize(
    ("images", "asked_to_stop", "error", "reason"),
    [
        (HangingWorker, True, StoppedEarly, r"stopped after step 2 of 8 \(SIGTERM"),
        (HangingWorker, False, UserError, "no image came from 1 worker processes for .*--shm-size"),
        (KilledWorker, True, StoppedEarly, r"stopped after step [12] of 8 \(a worker process ended"),
    ],
)
def test_missing_images_stop_the_run(images, asked_to_stop, error, reason, digits, tmp_path):
    run_forked(1, train_without_images, images, asked_to_stop, error, reason, digits, tmp_path / "train_without_images")
    train_run(RUN, digits, tmp_path / "uninterrupted")
    assert hashes(tmp_path / "train_without_images") == hashes(tmp_path / "uninterrupted")


def test_insufficient_shared_memory_is_reported_before_workers_start(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(
        TrainingImages, "workers", property(lambda images: 2, lambda images, value: None), raising=False
    )
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    message = r"/dev/shm has 0.0 MB free, but 2 worker processes need .*--shm-size.*threads: 1"
    with pytest.raises(UserError, match=message):
        train_run(RUN, digits, tmp_path)
