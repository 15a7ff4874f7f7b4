"""Any image model on prepared images: a finished run, or whatever timm can build."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from formerlab.calibration import expected_calibration_error
from formerlab.data.images.store import ImageSet, load_images
from formerlab.errors import UserError
from formerlab.models.vision import VisionTransformer
from formerlab.progress import Progress
from formerlab.results.write import write_rows
from formerlab.tasks import Classification
from formerlab.tasks.augmentation import Look
from formerlab.tasks.classification import Prediction, predictions
from formerlab.tasks.image_batches import held_out_batches
from formerlab.torchvision_shim import ensure_torchvision_imports
from formerlab.training.load import data_of, load_model


@dataclass(frozen=True)
class Classifier:
    """A model with the form in which it wants its images."""

    model: nn.Module
    look: Look


def finished_classifier(folder: Path, images: ImageSet) -> Classifier:
    """Return the model of a finished run; images of another size are resized as when they are prepared.

    Pixels are normalised as those that the run was trained on, where its data lie beside it. Raises UserError where it
    is no classifier, or of other channels or classes.
    """
    model, run = load_model(folder)
    task, spec = cast(Classification, run.task), cast(VisionTransformer, run.model)
    if run.task.reads != "images":
        raise UserError(f"{folder}: a {run.model.kind}, but only a model of images can do this; name another run")
    for key, theirs in (("channels", images.form["channels"]), ("classes", len(images.classes))):
        if theirs != getattr(spec, key):
            raise UserError(
                f"{images.folder}: images of {key}={theirs}, but {folder} was trained with {key}={getattr(spec, key)}; "
                "prepare such images"
            )
    own = data_of(folder, run)
    known = load_images(own, "train") if (own / "manifest.json").is_file() else images
    look = task.look(known, task.crop).model_copy(update={"side": spec.image})
    _tell_resized(str(folder), images, spec.image)
    return Classifier(model, look)


def timm_classifier(name: str, images: ImageSet, *, checkpoint: Path | None, pretrained: bool) -> Classifier:
    """Return a model of timm with as many classes as the images have, and timm's own form of images for it.

    Weights come from a file, from the hub (`pretrained`), or are drawn anew. Images that are kept as pixels are shown
    in the size they have where the model can take it, else in the model's own. Raises UserError where timm cannot
    build it.
    """
    ensure_torchvision_imports()
    import timm
    from timm.data.config import resolve_model_data_config

    known = timm.get_pretrained_cfg(name, allow_unregistered=True)
    side, channels = images.form["side"], images.form["channels"]
    common = {"pretrained": pretrained, "num_classes": len(images.classes), "in_chans": channels}
    fixed = {"img_size": side} if known is not None and known.fixed_input_size else {}
    reason = ""
    for as_they_are in (True, False) if images.whole else (False,):
        try:
            given = common | (fixed if as_they_are else {})
            model: nn.Module = timm.create_model(name, checkpoint_path=str(checkpoint or ""), **given).eval()
            config = resolve_model_data_config(model)  # type: ignore[no-untyped-call]
            shown, crop = (side, 1.0) if as_they_are else (config["input_size"][-1], config["crop_pct"])
            with torch.no_grad():
                model(torch.zeros(1, channels, shown, shown))
        except (RuntimeError, TypeError, ValueError, OSError, AssertionError) as error:
            reason = reason or (str(error) or type(error).__name__).partition("\n")[0]
            continue
        if images.whole:
            _tell_resized(name, images, shown)
        mean, std = (tuple(config[key])[:channels] for key in ("mean", "std"))
        return Classifier(model, Look(side=shown, mean=mean, std=std, crop=crop))
    raise UserError(f"timm cannot build {name!r} for these images: {reason}")


def _tell_resized(name: str, images: ImageSet, side: int) -> None:
    if side != (have := images.form["side"]):
        print(f"{name}: images of {have} x {have} pixels are resized to {side} x {side}", file=sys.stderr)


def classify(
    classifier: Classifier, images: ImageSet, *, batch: int, device: str, label: str
) -> tuple[list[Prediction], float]:
    """Return what the model says of every image, and the images per second, loading and decoding included."""
    model = classifier.model.to(device)
    rows: list[Prediction] = []
    began = time.perf_counter()
    with torch.no_grad(), Progress(len(images), label, unit="image") as progress:
        for part in held_out_batches(images, np.arange(len(images)), classifier.look, batch):
            ready = part.to(torch.device(device))
            rows += predictions(model(ready.images), ready.targets)
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
        write_rows(out, Classification.test_columns, [(index, 1, *row) for index, row in enumerate(rows)])
    return summary(rows, speed)
