"""Any image model on prepared images: a finished run, or whatever timm can build."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from formerlab.calibration import expected_calibration_error
from formerlab.data.images.store import ImageSet, load_images
from formerlab.errors import UserError
from formerlab.evaluation.classification import PREDICTIONS, Prediction, predictions
from formerlab.finished import load_model
from formerlab.progress import Progress
from formerlab.rows import write_rows
from formerlab.tasks.augmentation import Look
from formerlab.tasks.image_batches import held_out_batches

COLUMNS = ("window", "tokens", "loss_nats", *PREDICTIONS)
"""Those of a run's test.csv, so that the rows of any model can be compared with those of runs."""


@dataclass(frozen=True)
class Classifier:
    """A model with the form in which it wants its images."""

    model: nn.Module
    look: Look


def finished_classifier(folder: Path, images: ImageSet) -> Classifier:
    """Return the model of a finished run. Raises UserError where it is no classifier."""
    model, run = load_model(folder)
    task: Any = run.task
    if run.task.reads != "images":
        raise UserError(f"{folder}: a {run.model.kind}, but only a model of images can do this; name another run")
    return Classifier(model, task.look(images, task.crop))


def timm_classifier(name: str, images: ImageSet, *, checkpoint: Path | None, pretrained: bool) -> Classifier:
    """Return a model of timm with as many classes as the images have, and timm's own form of images for it.

    Weights come from a file, from the hub (`pretrained`), or are drawn anew. Images that are kept as pixels are shown
    in the size they have. Raises UserError where timm cannot build it.
    """
    import timm
    from timm.data.config import resolve_model_data_config

    known = timm.get_pretrained_cfg(name, allow_unregistered=True)
    fixed = images.whole and known is not None and known.fixed_input_size
    sizes = {"img_size": images.form["side"]} if fixed else {}
    common = {"pretrained": pretrained, "num_classes": len(images.classes), "in_chans": images.form["channels"]}
    try:
        model: nn.Module = timm.create_model(name, checkpoint_path=str(checkpoint or ""), **common, **sizes)
    except (RuntimeError, TypeError, ValueError, OSError) as error:
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        raise UserError(f"timm cannot build {name!r} for these images: {reason}") from None
    config = resolve_model_data_config(model)  # type: ignore[no-untyped-call]
    side, crop = (images.form["side"], 1.0) if images.whole else (config["input_size"][-1], config["crop_pct"])
    channels = images.form["channels"]
    mean, std = (tuple(config[key])[:channels] for key in ("mean", "std"))
    return Classifier(model.eval(), Look(side=side, mean=mean, std=std, crop=crop))


def classify(
    classifier: Classifier, images: ImageSet, *, batch: int, device: str, label: str
) -> tuple[list[Prediction], float]:
    """Return what the model says of every image, and the images per second, loading and decoding included."""
    model = classifier.model.to(device)
    rows: list[Prediction] = []
    began = time.perf_counter()
    with torch.no_grad(), Progress(len(images), label, unit="image") as progress:
        for part in held_out_batches(images, np.arange(len(images)), classifier.look, batch):
            rows += predictions(model(part.images.to(device)), part.targets.to(device))
            progress.update(len(rows))
    return rows, len(rows) / (time.perf_counter() - began)


def summary(rows: Sequence[Prediction], images_per_s: float) -> str:
    """Return the numbers that people ask for, one to a line."""
    right = [row.rank == 0 for row in rows]
    lines = {
        "images": f"{len(rows)}",
        "top-1": f"{np.mean(right):.4f}",
        "top-5": f"{np.mean([row.rank < 5 for row in rows]):.4f}",
        "loss (nats)": f"{np.mean([row.loss_nats for row in rows]):.4f}",
        "calibration error": f"{expected_calibration_error([row.confidence for row in rows], right):.4f}",
        "images/s": f"{images_per_s:.1f}",
    }
    return "\n".join(f"{name:18}{value}" for name, value in lines.items())


def classify_by_name(
    name: str,
    data: Path,
    *,
    split: str = "test",
    checkpoint: Path | None = None,
    pretrained: bool = False,
    batch: int = 64,
    device: str = "cpu",
    out: Path | None = None,
) -> str:
    """Evaluate a run's folder or a model of timm on a split of prepared images; return the summary.

    With `out`, a row per image is written there, in the form of a run's test.csv.
    """
    images = load_images(data, split)
    if (Path(name) / "run.json").exists():
        classifier = finished_classifier(Path(name), images)
    else:
        classifier = timm_classifier(name, images, checkpoint=checkpoint, pretrained=pretrained)
    rows, speed = classify(classifier, images, batch=batch, device=device, label=f"classify {name}")
    if out is not None:
        write_rows(out, COLUMNS, [(index, 1, *row) for index, row in enumerate(rows)])
    return summary(rows, speed)
