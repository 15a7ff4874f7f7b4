"""Classification of images."""

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
from formerlab.data.images.mixing import draw_mix
from formerlab.data.images.store import ImageSet, load_images
from formerlab.errors import UserError
from formerlab.seeding import mixed_seed
from formerlab.spec import Count
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.task import SINGLE_PROCESS, START, DataPosition, Measures, Row, Shard, TaskSpec

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet's pixels, as commonly used."""


class Prediction(NamedTuple):
    """What a model says of an image."""

    loss_nats: float
    """Negative log-probability of its class."""
    label: int
    prediction: int
    """The most probable class."""
    rank: int
    """Classes that are more probable than the right one: 0 is right at first, below 5 right in five."""
    confidence: float
    """Probability of the prediction."""


class Classification(TaskSpec):
    """Minimise the cross-entropy of the class, in nats per image; every epoch shows each training image once.

    One image is one prediction, so where other tasks count tokens, this one counts images.
    """

    reads: ClassVar[str] = "images"
    trains: ClassVar[str] = "vision_transformer"
    eval_columns: ClassVar[tuple[str, ...]] = ("tokens", "loss_nats", "top1", "top5")
    test_columns: ClassVar[tuple[str, ...]] = ("window", "tokens", *Prediction._fields)

    kind: Literal["classification"] = "classification"
    batch: Count = 64
    """Images per optimizer step, over all accumulation steps."""
    valid_images: Count = 1000
    """Images of the validation split that are evaluated during training, evenly spread."""
    augmentation: Augmentation | None = Shift()
    """What happens to training images; null leaves them as they are."""
    smoothing: Probability = 0.0
    """Weight of the uniform distribution in the target (label smoothing, arXiv:1512.00567, section 7)."""
    mixup: float = Field(default=0.0, ge=0.0, le=100.0)
    """alpha of the Beta distribution by which two images are blended (arXiv:1710.09412); 0 for none."""
    cutmix: float = Field(default=0.0, ge=0.0, le=100.0)
    """alpha for pasting a rectangle of another image (arXiv:1905.04899); 0 for none. With mixup, a step takes one."""
    average: float | None = Field(default=None, gt=0, lt=1)
    """Decay per step of the moving average of weights that is tested; null tests the last weights. Validation during
    training uses the weights of that step."""
    normalise: Literal["data", "imagenet"] = "data"
    """Mean and deviation that pixels are normalised with: the training images' own, or ImageNet's."""
    crop: float = Field(default=1.0, gt=0, le=1)
    """Side of the model's images over the shorter side to which held-out images are resized: 0.875 is 224 of 256."""

    def check(self, model: Any) -> None:
        super().check(model)
        if (self.mixup or self.cutmix) and self.micro_batch_tokens % 2:
            raise ValueError(
                f"task.batch={self.batch} with task.accumulate={self.accumulate} makes micro-batches of "
                f"{self.micro_batch_tokens} images, but mixup and cutmix pair images in it; make it even"
            )
        if self.normalise == "imagenet" and model.channels != 3:
            raise ValueError(f"task.normalise=imagenet needs colour, but model.channels={model.channels}; use data")

    def load(self, folder: Path, split: str) -> Any:
        images = load_images(folder, split)
        if split != "train":
            return images
        if isinstance(self.augmentation, Shift) and not images.stores_pixels:
            raise UserError("task.augmentation.kind=shift is for images kept as pixels; use timm, or storage: pixels")
        return TrainingImages(images, self.augmentation, self.preprocessing(images, crop=1.0), self.batch)

    def preprocessing(self, images: ImageSet, crop: float) -> Preprocessing:
        """Return how images look to the model."""
        mean, std = IMAGENET if self.normalise == "imagenet" else (images.mean, images.std)
        return Preprocessing(side=images.form["side"], mean=mean, std=std, crop=crop)

    def step_batches(
        self, data: TrainingImages, seed: int, step: int, start: DataPosition = START, shard: Shard = SINGLE_PROCESS
    ) -> list[ImageBytes]:
        """Return the images of a step in equal parts, which are normalised and mixed on their device."""
        draw, mix = start.steps + step, None
        if self.mixup or self.cutmix:
            drawn_by, classes = mixed_seed(seed, draw, "mix"), len(data.images.classes)
            mix = draw_mix(self.mixup, self.cutmix, self.smoothing, classes, data.preprocessing.side, drawn_by)
            # An image is mixed with that at the same position from the end of the step, so a part has both.
            halves = np.arange(self.batch // 2).reshape(self.accumulate, -1)
            positions = np.concatenate((halves, self.batch - 1 - halves[:, ::-1]), axis=1)
        else:
            positions = np.arange(self.batch).reshape(self.accumulate, -1)
        parts = [positions[number] for number in shard.indices(self.accumulate)]
        return data.batches_of(seed, draw, self._position(data, start, step), parts, mix)

    def valid_batches(self, data: ImageSet) -> list[ImageBytes]:
        count = min(self.valid_images, len(data))
        indices = np.linspace(0, len(data) - 1, count).astype(np.int64)
        return list(held_out_batches(data, indices, self.preprocessing(data, self.crop), self.micro_batch_tokens))

    def losses(self, model: nn.Module, batch: ImageBatch) -> tuple[Tensor, ...]:
        """Return the mean cross-entropy with the targets, smoothed and mixed, nats, in float32."""
        logits = model(batch.images).float()
        smoothing = 0.0 if batch.targets.is_floating_point() else self.smoothing  # mixed targets are smoothed already
        return (F.cross_entropy(logits, batch.targets, label_smoothing=smoothing),)

    def measure(self, model: nn.Module, batch: ImageBatch) -> Measures:
        """Return the number of images, their mean loss without smoothing, and the shares right at first and in five."""
        losses, _, _, ranks, _ = prediction_fields(model(batch.images), batch.targets).unbind(dim=1)
        top1, top5 = ((ranks < k).double().mean() for k in (1, 5))
        return len(losses), losses.mean(), top1, top5

    def test_groups(self, data: ImageSet) -> list[NDArray[np.int64]]:
        return np.split(np.arange(len(data)), range(self.micro_batch_tokens, len(data), self.micro_batch_tokens))

    def test_rows(self, model: Any, data: ImageSet, group: NDArray[np.int64]) -> list[Row]:
        (batch,) = held_out_batches(data, group, self.preprocessing(data, self.crop), self.micro_batch_tokens)
        ready = batch.to(next(model.parameters()).device)
        with evaluating(model):
            made = predictions(model(ready.images), ready.targets)
        return [(number, 1, *row) for number, row in zip(group.tolist(), made, strict=True)]

    def guessed_rows(self, model: Any, data: ImageSet) -> list[Row]:
        """Return ln(classes) for every test image, and the classes in turn as predictions."""
        count, loss = model.classes, math.log(model.classes)
        labels = enumerate(data.labels.tolist())
        return [(index, 1, loss, label, index % count, (label - index) % count, 1 / count) for index, label in labels]

    @property
    def step_tokens(self) -> int:
        return self.batch

    def epoch_tokens(self, data: TrainingImages) -> int:
        return len(data)

    def _position(self, data: TrainingImages, start: DataPosition, step: int) -> int:
        """Count images, so that epochs go on where the parent's ended, whatever the batch."""
        return start.position + step * self.batch

    def step_flops(self, model: Any) -> int:
        return self.batch * int(model.flops())

    @property
    def micro_batch_tokens(self) -> int:
        return self.batch // self.accumulate

    def after_step(self, model: nn.Module, step: int, steps: int, averaging: dict[str, Any]) -> None:
        """Set average <- decay average + (1 - decay) weights; at first it is a copy.

        It is timm's ModelEmaV3 on plain tensors, so that a checkpoint holds it like any other state.
        """
        if self.average is None:
            return
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        if "average" not in averaging:
            averaging["average"] = {name: weight.clone() for name, weight in weights.items()}
            return
        # A checkpoint comes back on the CPU.
        averaging["average"] = {name: averaging["average"][name].to(weight.device) for name, weight in weights.items()}
        torch._foreach_lerp_(list(averaging["average"].values()), list(weights.values()), 1 - self.average)

    def finish(self, model: nn.Module, averaging: dict[str, Any]) -> None:
        if self.average is not None:
            model.load_state_dict(averaging["average"], strict=False)


def predictions(logits: Float[Tensor, " batch classes"], labels: Int[Tensor, " batch"]) -> list[Prediction]:
    """Return a row per image."""
    return [
        Prediction(loss, int(label), int(best), int(rank), sure)
        for loss, label, best, rank, sure in prediction_fields(logits, labels).tolist()  # read at once
    ]


def prediction_fields(
    logits: Float[Tensor, " batch classes"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, "batch columns"]:
    """Return the fields of `Prediction` per image; softmax in float64, ties count against the model."""
    log_probabilities = torch.log_softmax(logits.double(), dim=-1)
    right = log_probabilities.gather(1, labels[:, None])
    ranks = (log_probabilities >= right).sum(dim=1) - 1
    top = log_probabilities.max(dim=1)
    return torch.stack((-right[:, 0], labels, top.indices, ranks, top.values.exp()), dim=1)
