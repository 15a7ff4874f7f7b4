"""The stage `floors`: the losses of baseline models on the held-out examples of a run.

The baselines are n-gram models with Kneser-Ney smoothing for text, and logistic regression on the pixels for images.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from formerlab.data import load_stream
from formerlab.data.images.store import ImageSet, load_images
from formerlab.errors import UserError
from formerlab.evaluation.language.ngram import NGram
from formerlab.evaluation.measurement import MeasuredRun, Measurement
from formerlab.spec import Count
from formerlab.tasks.classification import Classification
from formerlab.tasks.language import LanguageModeling
from formerlab.tasks.window_losses import window_batches, window_count
from formerlab.training.any_run import AnyRun


class Baselines(Measurement):
    """Settings of the baseline models."""

    orders: tuple[Annotated[int, Field(ge=1, le=8)], ...] = (1, 5)
    """Orders n of the n-gram models."""
    tokens: Count = 20_000_000
    """Maximum number of training tokens for the n-gram models, from the start; 20 million tokens need about 1 GB."""
    strengths: tuple[Annotated[float, Field(gt=0.0, le=1e6)], ...] = (1e-4, 1e-3, 1e-2, 1e-1)
    """Inverse regularisation strengths of the linear probe (C of scikit-learn); validation selects the best."""

    def settings_for_run(self, run: AnyRun, *, questions: bool) -> "Baselines | None":
        task = getattr(run, "task", None)  # a released model has no task, and its training data are unknown
        if not isinstance(task, LanguageModeling | Classification):
            kind = getattr(task, "kind", "none")
            raise UserError(f"runs: {run.name!r} has task.kind={kind}; choose runs that were trained on text or images")
        return self


def measure(run: MeasuredRun, settings: Baselines) -> None:
    """Write floors.csv."""
    task = getattr(run.spec, "task", None)
    rows = _ngram_rows(run, task, settings) if isinstance(task, LanguageModeling) else _probe_rows(run, settings)
    run.write("floors.csv", rows)


def _ngram_rows(run: MeasuredRun, task: LanguageModeling, settings: Baselines) -> Iterator[tuple[Any, ...]]:
    train, held_out = task.load(run.data, "train")[: settings.tokens], load_stream(run.data, "test")
    run.notes["tokens"] = len(train)
    vocabulary = int(getattr(run.spec.model, "vocabulary", 0))
    for order in settings.orders:
        model = NGram(train, order, vocabulary)
        name = "unigram" if order == 1 else f"{order}-gram"
        numbers = range(window_count(len(held_out), task.context))
        for windows, tokens in window_batches(held_out, task.context, numbers, 256):
            losses = -model.log_probabilities(tokens.numpy())
            for window, loss in zip(windows, losses.mean(axis=1).tolist(), strict=True):
                yield name, window, losses.shape[1], loss, None


def _probe_rows(run: MeasuredRun, settings: Baselines) -> Iterator[tuple[Any, ...]]:
    from sklearn.linear_model import LogisticRegression

    splits = {split: load_images(run.data, split) for split in ("train", "valid", "test")}
    pixels = {split: _pixels(images) for split, images in splits.items()}
    labels = {split: images.labels for split, images in splits.items()}

    def predict(probe: LogisticRegression, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return log-probabilities of all classes (images, classes) and of the correct class (images)."""
        log_probs = probe.predict_log_proba(pixels[split])
        return log_probs, log_probs[np.arange(len(log_probs)), np.searchsorted(probe.classes_, labels[split])]

    fitted = []
    for strength in settings.strengths:
        probe = LogisticRegression(C=strength, max_iter=200).fit(pixels["train"], labels["train"])
        fitted.append((-float(predict(probe, "valid")[1].mean()), strength, probe))
    valid, strength, probe = min(fitted, key=lambda entry: entry[0])
    run.notes.update(strength=strength, valid_loss_nats=valid)
    log_probs, correct = predict(probe, "test")
    ranks = (log_probs > correct[:, None]).sum(axis=1)
    for window, (loss, rank) in enumerate(zip((-correct).tolist(), ranks.tolist(), strict=True)):
        yield "linear probe", window, 1, loss, rank


def _pixels(images: ImageSet) -> np.ndarray:
    """Return flattened images, normalised per channel with the mean and std of the training split."""
    if not images.stores_pixels:
        raise UserError(f"{images.folder}: images are stored as files; the linear probe needs storage: pixels")
    mean, std = (np.array(moment, dtype=np.float32) for moment in (images.mean, images.std))
    pixels = images.pixels(np.arange(len(images))).astype(np.float32) / 255
    return np.asarray((pixels - mean) / std).reshape(len(images), -1)
