"""What happens to training images before the model sees them; every draw is a function of (seed, step, position)."""

import functools
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from PIL.Image import Image, new
from pydantic import Field
from torch import Tensor

from formerlab.data.images.store import ImageSet, cut
from formerlab.spec import AnyCount, Spec
from formerlab.torchvision_shim import ensure_torchvision_imports

NUMBER = r"\d+(\.\d+)?"
POLICY = (
    rf"^(rand(-((m|mmax|inc)\d+|n[1-9]|(p|mstd){NUMBER}|t(weights|3aw?)))*|"
    rf"augmix(-((m|d|b)\d+|w[1-9]|a([1-9]\d*(\.\d+)?|0\.0*[1-9]\d*)|mstd{NUMBER}))*|(original|originalr|v0|v0r|3a)(-mstd{NUMBER})?)$"
)
"""The policies that timm reads without an error and as they are written."""
Probability = Annotated[float, Field(ge=0, le=1)]
Bytes = NDArray[np.uint8]
Pictures = Float[Tensor, "count channels rows columns"]


class Shift(Spec):
    """A shift by a few pixels and a flip, as is usual for small images; for images kept as pixels.

    It is made for all images of a step at once and needs no worker processes.
    """

    kind: Literal["shift"] = "shift"
    pixels: AnyCount = 4
    """Largest shift in both directions; what enters is black."""
    flip: bool = True
    """Mirror half of the images; not for digits."""


class TimmAugmentation(Spec):
    """timm's training transform; the defaults are those of MAE's supervised baseline (arXiv:2111.06377, Table 11)."""

    kind: Literal["timm"] = "timm"
    smallest_crop: Probability = 0.08
    """Smallest share of the image's area that a random crop covers."""
    flip: Probability = 0.5
    """Share of the images that are mirrored."""
    policy: Annotated[str, Field(pattern=POLICY)] | None = "rand-m9-mstd0.5-inc1"
    """RandAugment in timm's notation: magnitude 9, its standard deviation 0.5, increasing severity."""
    erase: Probability = 0.25
    """Share of the images in which a rectangle becomes noise (arXiv:1708.04896)."""
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    """How crops are resized."""


Augmentation = Annotated[Shift | TimmAugmentation, Field(discriminator="kind")]


class Drawn(NamedTuple):
    """Training images as drawn one by one; a device finishes them together."""

    pixels: UInt8[Tensor, "count channels side side"]
    boxes: Int[Tensor, "count 4"]
    """Top, left, bottom and right of the erased rectangle of each; zeros without one."""
    noise: Float[Tensor, " noise"]
    """The noise in it, image after image, channel after channel."""


def nothing_erased(pixels: Bytes) -> Drawn:
    """Return images `count rows columns channels` without erased rectangles."""
    return Drawn(channels_first(pixels), torch.zeros(len(pixels), 4, dtype=torch.int64), torch.empty(0))


def drawn_by_timm(
    augmentation: TimmAugmentation, images: ImageSet, indices: NDArray[np.int64], seeds: Sequence[int], look: "Look"
) -> Drawn:
    """Return images, each drawn by its seed, by timm's transform in two: before it normalises, and its eraser.

    Normalising draws nothing.
    """
    ensure_torchvision_imports()
    from timm.data.random_erasing import RandomErasing
    from timm.data.transforms import MaybePILToTensor, MaybeToTensor
    from torchvision.transforms import Compose

    steps = timm_transform(augmentation, look.side, look.mean, look.std).transforms
    end = next(index for index, step in enumerate(steps) if isinstance(step, MaybeToTensor))
    change = Compose([*steps[:end], MaybePILToTensor()])
    eraser = next((step for step in steps[end:] if isinstance(step, RandomErasing)), None)
    pixels, boxes, noise = [], [], []
    with own_randomness() as reseed:
        for index, seed in zip(indices, seeds, strict=True):
            reseed(seed)
            pixels.append(change(images.image(int(index))))
            canvas = torch.full((len(look.mean), look.side, look.side), math.nan)  # records what the eraser draws
            inside = ~(canvas if eraser is None else eraser(canvas))[0].isnan()
            rows, columns = (inside.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
            box = [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1] if rows else [0, 0, 0, 0]
            boxes.append(box)
            noise.append(canvas[:, box[0] : box[2], box[1] : box[3]].flatten())
    return Drawn(torch.stack(pixels), torch.tensor(boxes), torch.cat(noise))


def erased(images: Pictures, boxes: Int[Tensor, "count 4"], noise: Float[Tensor, " noise"]) -> Pictures:
    """Put the noise into the boxes, in the memory of the images and without waiting for their device."""
    if len(noise) == 0:
        return images
    top, left, bottom, right = (edge[:, None, None] for edge in boxes.unbind(1))
    row, column = (torch.arange(size, device=images.device) for size in images.shape[2:])
    inside = (row[:, None] >= top) & (row[:, None] < bottom) & (column >= left) & (column < right)
    return images.masked_scatter_(inside[:, None], noise)


class Look(Spec):
    """How images look to a model."""

    side: int
    """Side, pixels."""
    mean: tuple[float, ...]
    """Subtracted, per channel on a scale from 0 to 1."""
    std: tuple[float, ...]
    """Divided by."""
    crop: float = 1.0
    """Side over the shorter side to which held-out images are resized before their centre is cut."""

    def normalised(self, pixels: UInt8[Tensor, "count channels rows columns"]) -> Pictures:
        """Return bytes as floats, where they are."""
        mean, std = _constants(self.mean, self.std, pixels.device)
        return pixels.float().div_(255).sub_(mean).div_(std)


@functools.lru_cache(maxsize=8)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    there = [torch.tensor(numbers).view(1, -1, 1, 1).to(device, non_blocking=True) for numbers in (mean, std)]
    return there[0], there[1]


def channels_first(pixels: Bytes) -> UInt8[Tensor, "count channels rows columns"]:
    """Return images `count rows columns channels` as models read them."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def whole(images: ImageSet, indices: NDArray[np.int64], look: Look) -> Bytes:
    """Return held-out images: as stored, or the centre of their resized files."""
    if images.whole and images.form["side"] == look.side and look.crop == 1:
        return images.pixels(indices)
    return np.stack([cut(images.image(int(index)), look.side, look.crop) for index in indices])


def shifted(pixels: Bytes, augmentation: Shift, chosen: NDArray[np.int64], count: int, seed: int) -> Bytes:
    """Return the images at the positions `chosen` of a step of `count`, each moved and mirrored."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    by, (_, height, width, _) = augmentation.pixels, pixels.shape
    offsets = generator.integers(0, 2 * by, size=(2, count), endpoint=True)
    down, right, mirrored = np.vstack((offsets, generator.integers(0, 2, size=count)))[:, chosen, None]
    rows, columns = down + np.arange(height), right + np.arange(width)
    if augmentation.flip:
        columns = np.where(mirrored == 1, columns[:, ::-1], columns)
    padded = np.pad(pixels, ((0, 0), (by, by), (by, by), (0, 0)))
    moved: Bytes = padded[np.arange(len(chosen))[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved


@contextmanager
def own_randomness() -> Iterator[Any]:
    """Yield a function that seeds the three generators timm and torchvision draw from; restore them afterwards."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002

    def reseed(seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)

    try:
        yield reseed
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


@functools.cache
def timm_transform(augmentation: TimmAugmentation, side: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Any:
    """Return timm's function from an image to a normalised tensor."""
    ensure_torchvision_imports()
    from timm.data.auto_augment import posterize
    from timm.data.transforms_factory import create_transform

    transform = create_transform(
        (len(mean), side, side),
        is_training=True,
        scale=(augmentation.smallest_crop, 1.0),
        hflip=augmentation.flip,
        color_jitter=0.0,
        auto_augment=augmentation.policy,
        interpolation=augmentation.interpolation,
        mean=mean,
        std=std,
        re_prob=augmentation.erase,
        re_mode="pixel",
    )
    for step in transform.transforms:
        for operation in itertools.chain(getattr(step, "ops", ()), *getattr(step, "policy", ())):
            if operation.aug_fn is posterize:
                operation.aug_fn = posterized
    return transform


def posterized(image: Image, bits: int, **_: Any) -> Image:
    """Keep the first `bits` of every channel. Zero bits, which timm asks for at full magnitude, are a black image.

    Pillow refuses zero bits; its versions before that returned black.
    """
    from timm.data.auto_augment import posterize

    return posterize(image, bits) if bits > 0 else new(image.mode, image.size)
