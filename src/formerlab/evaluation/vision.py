"""Evaluate a finished image model on any prepared images."""

import sys
import time
from pathlib import Path
from typing import cast

import numpy as np
import torch

from formerlab.calibration import expected_calibration_error
from formerlab.data.images.batches import held_out_batches
from formerlab.data.images.store import load_images
from formerlab.errors import UserError
from formerlab.models.vision import VisionTransformer
from formerlab.progress import Progress
from formerlab.results.write import write_rows
from formerlab.tasks import Classification
from formerlab.tasks.classification import Prediction, predictions
from formerlab.training.load import data_of, load_model


def classify(
    folder: Path, data: Path, *, split: str = "test", batch: int = 64, device: str = "cpu", out: Path | None = None
) -> str:
    """Evaluate the model of a run's folder on a split of prepared images; return loss and accuracies, one per line.

    Pixels are normalised with the statistics of the run's training data if they exist, otherwise of `data`.
    Images of another size are resized as in preparation. With `out`, one row per image is written in the format of
    test.csv. Raises UserError if the run is no classifier, or if the images have other channels or classes.
    """
    if batch < 1:
        raise UserError(f"batch={batch}: give at least 1")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: torch finds no GPU on this machine; leave it out")
    images = load_images(data, split)
    model, run = load_model(folder, "vision_transformer")
    task, spec = cast(Classification, run.task), cast(VisionTransformer, run.model)
    for key, value in (("channels", images.form["channels"]), ("classes", len(images.classes))):
        if value != getattr(spec, key):
            trained = f"{folder} was trained with {key}={getattr(spec, key)}"
            raise UserError(f"{images.folder}: images have {key}={value}, but {trained}; prepare matching images")
    if spec.image != (side := images.form["side"]):
        print(f"{folder}: images of {side} x {side} pixels are resized to {spec.image} x {spec.image}", file=sys.stderr)
    training_data = data_of(folder, run)
    normalised_by = load_images(training_data, "train") if (training_data / "manifest.json").is_file() else images
    preprocessing = task.preprocessing(normalised_by, task.crop).model_copy(update={"side": spec.image})
    rows: list[Prediction] = []
    model, began = model.to(device), time.perf_counter()
    with torch.no_grad(), Progress(len(images), f"classify {folder}", unit="image") as progress:
        for image_batch in held_out_batches(images, np.arange(len(images)), preprocessing, batch):
            on_device = image_batch.to(torch.device(device))
            rows += predictions(model(on_device.images), on_device.targets)
            progress.update(len(rows))
    speed = len(rows) / (time.perf_counter() - began)
    if out is not None:
        write_rows(out, Classification.test_columns, [(index, 1, *row) for index, row in enumerate(rows)])
    correct = [row.rank == 0 for row in rows]
    lines = {
        "images": f"{len(rows)}",
        "top-1": f"{np.mean(correct):.4f}",
        "top-5": f"{np.mean([row.rank < 5 for row in rows]):.4f}",
        "loss (nats)": f"{np.mean([row.loss_nats for row in rows]):.4f}",
        "calibration error": f"{expected_calibration_error([row.confidence for row in rows], correct):.4f}",
        "images/s": f"{speed:.1f}",
    }
    return "\n".join(f"{name:18}{value}" for name, value in lines.items())
