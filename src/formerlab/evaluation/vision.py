"""A finished image model on other prepared images."""

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
    """Evaluate a run's folder on a split of prepared images; return its loss and accuracies, one to a line.

    Pixels are normalised as those that the run was trained on, where its data lie beside it; images of another size are
    resized as when they are prepared. With `out`, a row per image is written there, in the form of a run's test.csv.
    Raises UserError where it is no classifier, or of other channels or classes.
    """
    if batch < 1:
        raise UserError(f"batch={batch}: give at least 1")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: torch finds no GPU on this machine; leave it out")
    images = load_images(data, split)
    model, run = load_model(folder, "vision_transformer")
    task, spec = cast(Classification, run.task), cast(VisionTransformer, run.model)
    for key, theirs in (("channels", images.form["channels"]), ("classes", len(images.classes))):
        if theirs != getattr(spec, key):
            trained = f"{folder} was trained with {key}={getattr(spec, key)}"
            raise UserError(f"{images.folder}: images of {key}={theirs}, but {trained}; prepare such images")
    if spec.image != (have := images.form["side"]):
        print(f"{folder}: images of {have} x {have} pixels are resized to {spec.image} x {spec.image}", file=sys.stderr)
    own = data_of(folder, run)
    known = load_images(own, "train") if (own / "manifest.json").is_file() else images
    look = task.look(known, task.crop).model_copy(update={"side": spec.image})
    rows: list[Prediction] = []
    model, began = model.to(device), time.perf_counter()
    with torch.no_grad(), Progress(len(images), f"classify {folder}", unit="image") as progress:
        for part in held_out_batches(images, np.arange(len(images)), look, batch):
            ready = part.to(torch.device(device))
            rows += predictions(model(ready.images), ready.targets)
            progress.update(len(rows))
    speed = len(rows) / (time.perf_counter() - began)
    if out is not None:
        write_rows(out, Classification.test_columns, [(index, 1, *row) for index, row in enumerate(rows)])
    right = [row.rank == 0 for row in rows]
    lines = {
        "images": f"{len(rows)}",
        "top-1": f"{np.mean(right):.4f}",
        "top-5": f"{np.mean([row.rank < 5 for row in rows]):.4f}",
        "loss (nats)": f"{np.mean([row.loss_nats for row in rows]):.4f}",
        "calibration error": f"{expected_calibration_error([row.confidence for row in rows], right):.4f}",
        "images/s": f"{speed:.1f}",
    }
    return "\n".join(f"{name:18}{value}" for name, value in lines.items())
