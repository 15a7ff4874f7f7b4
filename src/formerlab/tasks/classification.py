"""Image classification."""

import math
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.data.images.augmentation import Augmentation, Preprocessing, Probability, Shift
from formerlab.data.images.batches import ImageBatch, ImageBytes, TrainingImages, held_out_batches
from formerlab.data.images.mixing import sample_mix
from formerlab.data.images.store import ImageSet, load_images
from formerlab.errors import UserError
from formerlab.seeding import mixed_seed
from formerlab.spec import Count
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.task import SINGLE_PROCESS, START, DataPosition, Measures, Row, Shard, TaskSpec

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet's pixels, per channel on a scale from 0 to 1."""


class Prediction(NamedTuple):
    """A model's prediction for one image."""

    loss_nats: float
    """Negative log-probability of the true class."""
    label: int
    """Index of the true class."""
    prediction: int
    """Index of the most probable class."""
    rank: int
    """Number of other classes that are at least as probable as the true class."""
    confidence: float
    """Probability of the predicted class."""


class Classification(TaskSpec):
    """Minimise the cross-entropy of the class, in nats per image; every epoch has each training image once.

    Fields that count tokens in other tasks count images in this task.
    """

    reads: ClassVar[str] = "images"
    trains: ClassVar[str] = "vision_transformer"
    eval_columns: ClassVar[tuple[str, ...]] = ("tokens", "loss_nats", "top1", "top5")
    test_columns: ClassVar[tuple[str, ...]] = ("window", "tokens", *Prediction._fields)

    kind: Literal["classification"] = "classification"
    batch: Count = 64
    """Number of images per optimizer step, over all micro-batches."""
    valid_images: Count = 1000
    """Number of validation images, evenly spaced, that are evaluated during training."""
    augmentation: Augmentation | None = Shift()
    """Augmentation of the training images, or null."""
    smoothing: Probability = 0.0
    """Weight of the uniform distribution in the target (label smoothing, arXiv:1512.00567, section 7)."""
    mixup: float = Field(default=0.0, ge=0.0, le=100.0)
    """alpha of the Beta distribution for blending two images (mixup, arXiv:1710.09412); 0 disables it."""
    cutmix: float = Field(default=0.0, ge=0.0, le=100.0)
    """alpha of the Beta distribution for pasting a rectangle of another image (cutmix, arXiv:1905.04899); 0 disables
    it. If mixup is also enabled, each step uses one of them."""
    average: float | None = Field(default=None, gt=0, lt=1)
    """Decay per step of an exponential moving average of the weights, which the test uses; null disables it. Validation
    uses the current weights."""
    normalise: Literal["data", "imagenet"] = "data"
    """Mean and standard deviation for normalising pixels: of the training images, or of ImageNet."""
    crop: float = Field(default=1.0, gt=0, le=1)
    """Side of the model's images divided by the shorter side of resized held-out images: 0.875 is 224 of 256."""

    def check(self, model: Any) -> None:
        super().check(model)
        if (self.mixup or self.cutmix) and self.micro_batch_tokens % 2:
            raise ValueError(
                f"task.batch={self.batch} with task.accumulate={self.accumulate} gives micro-batches of "
                f"{self.micro_batch_tokens} images, but mixup and cutmix need pairs; choose an even number"
            )
        if self.normalise == "imagenet" and model.channels != 3:
            raise ValueError(f"task.normalise=imagenet needs colour, but model.channels={model.channels}; use data")

    def load(self, folder: Path, split: str) -> Any:
        images = load_images(folder, split)
        if split != "train":
            return images
        if isinstance(self.augmentation, Shift) and not images.stores_pixels:
            raise UserError("task.augmentation.kind=shift needs images stored as pixels; use timm, or storage: pixels")
        return TrainingImages(images, self.augmentation, self.preprocessing(images, crop=1.0), self.batch)

    def preprocessing(self, images: ImageSet, crop: float) -> Preprocessing:
        """Return the preprocessing of a set of images for this task."""
        mean, std = IMAGENET if self.normalise == "imagenet" else (images.mean, images.std)
        return Preprocessing(side=images.layout["side"], mean=mean, std=std, crop=crop)

    def step_batches(
        self, data: TrainingImages, seed: int, step: int, start: DataPosition = START, shard: Shard = SINGLE_PROCESS
    ) -> list[ImageBytes]:
        """Return the micro-batches of a step, which are normalised and mixed on the device."""
        data_step, mix = start.steps + step, None
        if self.mixup or self.cutmix:
            mix_seed, classes = mixed_seed(seed, data_step, "mix"), len(data.images.classes)
            mix = sample_mix(self.mixup, self.cutmix, self.smoothing, classes, data.preprocessing.side, mix_seed)
            # Images i and batch - 1 - i of a step are mixed, so they must be in the same micro-batch.
            halves = np.arange(self.batch // 2).reshape(self.accumulate, -1)
            positions = np.concatenate((halves, self.batch - 1 - halves[:, ::-1]), axis=1)
        else:
            positions = np.arange(self.batch).reshape(self.accumulate, -1)
        micro_batches = [positions[index] for index in shard.indices(self.accumulate)]
        return data.batches_of(seed, data_step, self._position(data, start, step), micro_batches, mix)

    def valid_batches(self, data: ImageSet) -> list[ImageBytes]:
        count = min(self.valid_images, len(data))
        indices = np.linspace(0, len(data) - 1, count).astype(np.int64)
        return list(held_out_batches(data, indices, self.preprocessing(data, self.crop), self.micro_batch_tokens))

    def losses(self, model: nn.Module, batch: ImageBatch) -> tuple[Tensor, ...]:
        """Return the mean cross-entropy with the smoothed and mixed targets, nats, in float32."""
        logits = model(batch.images).float()
        smoothing = 0.0 if batch.targets.is_floating_point() else self.smoothing  # mixed targets are smoothed already
        return (F.cross_entropy(logits, batch.targets, label_smoothing=smoothing),)

    def measure(self, model: nn.Module, batch: ImageBatch) -> Measures:
        """Return the number of images, their mean loss without smoothing, and the top-1 and top-5 accuracy."""
        losses, _, _, ranks, _ = prediction_fields(model(batch.images), batch.targets).unbind(dim=1)
        top1, top5 = ((ranks < k).double().mean() for k in (1, 5))
        return len(losses), losses.mean(), top1, top5

    def test_groups(self, data: ImageSet) -> list[NDArray[np.int64]]:
        return np.split(np.arange(len(data)), range(self.micro_batch_tokens, len(data), self.micro_batch_tokens))

    def test_rows(self, model: Any, data: ImageSet, group: NDArray[np.int64]) -> list[Row]:
        (batch,) = held_out_batches(data, group, self.preprocessing(data, self.crop), self.micro_batch_tokens)
        on_device = batch.to(next(model.parameters()).device)
        with evaluating(model):
            rows = predictions(model(on_device.images), on_device.targets)
        return [(index, 1, *row) for index, row in zip(group.tolist(), rows, strict=True)]

    def guessed_rows(self, model: Any, data: ImageSet) -> list[Row]:
        """Return the rows of a uniform guess: loss ln(classes), with predictions that cycle through the classes."""
        count, loss = model.classes, math.log(model.classes)
        labels = enumerate(data.labels.tolist())
        return [(index, 1, loss, label, index % count, (label - index) % count, 1 / count) for index, label in labels]

    @property
    def step_tokens(self) -> int:
        return self.batch

    def epoch_tokens(self, data: TrainingImages) -> int:
        return len(data)

    def _position(self, data: TrainingImages, start: DataPosition, step: int) -> int:
        """Return the position in images, so that epochs continue if the batch size changes."""
        return start.position + step * self.batch

    def step_flops(self, model: Any) -> int:
        return self.batch * int(model.flops())

    @property
    def micro_batch_tokens(self) -> int:
        return self.batch // self.accumulate

    def after_step(self, model: nn.Module, step: int, steps: int, averaging: dict[str, Any]) -> None:
        """Set average <- decay average + (1 - decay) weights, as timm's ModelEmaV3 does; the first average is a copy of
        the weights.
        """
        if self.average is None:
            return
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        if "average" not in averaging:
            averaging["average"] = {name: weight.clone() for name, weight in weights.items()}
            return
        # After loading a checkpoint, the average is on the CPU.
        averaging["average"] = {name: averaging["average"][name].to(weight.device) for name, weight in weights.items()}
        torch._foreach_lerp_(list(averaging["average"].values()), list(weights.values()), 1 - self.average)

    def finish(self, model: nn.Module, averaging: dict[str, Any]) -> None:
        if self.average is not None:
            model.load_state_dict(averaging["average"], strict=False)


def predictions(logits: Float[Tensor, " batch classes"], labels: Int[Tensor, " batch"]) -> list[Prediction]:
    """Return a `Prediction` per image."""
    return [
        Prediction(loss, int(label), int(best), int(rank), confidence)
        for loss, label, best, rank, confidence in prediction_fields(logits, labels).tolist()  # one device transfer
    ]


def prediction_fields(
    logits: Float[Tensor, " batch classes"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, "batch columns"]:
    """Return the fields of `Prediction`, one row per image, with softmax in float64."""
    log_probabilities = torch.log_softmax(logits.double(), dim=-1)
    true_class = log_probabilities.gather(1, labels[:, None])
    ranks = (log_probabilities >= true_class).sum(dim=1) - 1
    top = log_probabilities.max(dim=1)
    return torch.stack((-true_class[:, 0], labels, top.indices, ranks, top.values.exp()), dim=1)
