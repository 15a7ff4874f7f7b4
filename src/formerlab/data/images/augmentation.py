"""Augmentation and normalisation of images."""

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

from formerlab.data.images.store import ImageSet, centre_crop
from formerlab.spec import AnyCount, Spec
from formerlab.torchvision_shim import ensure_torchvision_imports

NUMBER = r"\d+(\.\d+)?"
POLICY = (
    rf"^(rand(-((m|mmax|inc)\d+|n[1-9]|(p|mstd){NUMBER}|t(weights|3aw?)))*|"
    rf"augmix(-((m|d|b)\d+|w[1-9]|a([1-9]\d*(\.\d+)?|0\.0*[1-9]\d*)|mstd{NUMBER}))*|(original|originalr|v0|v0r|3a)(-mstd{NUMBER})?)$"
)
"""Matches the policies that timm parses completely, because timm ignores unknown words of a policy."""
Probability = Annotated[float, Field(ge=0, le=1)]
PixelArray = NDArray[np.uint8]
ImageTensor = Float[Tensor, "count channels rows columns"]


class Shift(Spec):
    """A random shift by a few pixels and a random flip, for small images that are stored as pixels.

    The shift is vectorised over a micro-batch and needs no worker processes.
    """

    kind: Literal["shift"] = "shift"
    pixels: AnyCount = 4
    """Maximum shift in each direction, in pixels; the border is filled with black."""
    flip: bool = True
    """Mirror half of the images."""


class TimmAugmentation(Spec):
    """timm's training transform; the defaults are from MAE's supervised baseline (arXiv:2111.06377, Table 11)."""

    kind: Literal["timm"] = "timm"
    smallest_crop: Probability = 0.08
    """Smallest fraction of the image's area that a random crop covers."""
    flip: Probability = 0.5
    """Probability that an image is mirrored."""
    policy: Annotated[str, Field(pattern=POLICY)] | None = "rand-m9-mstd0.5-inc1"
    """RandAugment, AugMix or AutoAugment policy in timm's notation, or null."""
    erase: Probability = 0.25
    """Probability that a rectangle of an image is replaced by noise (arXiv:1708.04896)."""
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    """Interpolation for resizing crops."""


Augmentation = Annotated[Shift | TimmAugmentation, Field(discriminator="kind")]


class AugmentedImages(NamedTuple):
    """Augmented images before normalisation and random erasing, which follow on the device."""

    pixels: UInt8[Tensor, "count channels side side"]
    boxes: Int[Tensor, "count 4"]
    """Top, left, bottom and right of the erased rectangle of each image; zeros if nothing is erased."""
    noise: Float[Tensor, " noise"]
    """Noise of all rectangles, flattened in the order image, channel, row, column."""


def without_erasing(pixels: PixelArray) -> AugmentedImages:
    """Return images of shape (count, rows, columns, channels) as AugmentedImages without erased rectangles."""
    return AugmentedImages(channels_first(pixels), torch.zeros(len(pixels), 4, dtype=torch.int64), torch.empty(0))


def augment_by_timm(
    augmentation: TimmAugmentation,
    images: ImageSet,
    indices: NDArray[np.int64],
    seeds: Sequence[int],
    preprocessing: "Preprocessing",
) -> AugmentedImages:
    """Return images augmented by timm's transform, with one seed per image.

    The steps of the transform before normalisation give the pixels, and its random eraser gives boxes and noise.
    """
    ensure_torchvision_imports()
    from timm.data.random_erasing import RandomErasing
    from timm.data.transforms import MaybePILToTensor, MaybeToTensor
    from torchvision.transforms import Compose

    steps = timm_transform(augmentation, preprocessing.side, preprocessing.mean, preprocessing.std).transforms
    end = next(index for index, step in enumerate(steps) if isinstance(step, MaybeToTensor))
    augment = Compose([*steps[:end], MaybePILToTensor()])
    eraser = next((step for step in steps[end:] if isinstance(step, RandomErasing)), None)
    pixels, boxes, noise = [], [], []
    with isolated_randomness() as reseed:
        for index, seed in zip(indices, seeds, strict=True):
            reseed(seed)
            pixels.append(augment(images.image(int(index))))
            # The eraser fills a box of this NaN canvas with noise; the entries that are not NaN give the box.
            canvas = torch.full((len(preprocessing.mean), preprocessing.side, preprocessing.side), math.nan)
            inside = ~(canvas if eraser is None else eraser(canvas))[0].isnan()
            rows, columns = (inside.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
            box = [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1] if rows else [0, 0, 0, 0]
            boxes.append(box)
            noise.append(canvas[:, box[0] : box[2], box[1] : box[3]].flatten())
    return AugmentedImages(torch.stack(pixels), torch.tensor(boxes), torch.cat(noise))


def erase(images: ImageTensor, boxes: Int[Tensor, "count 4"], noise: Float[Tensor, " noise"]) -> ImageTensor:
    """Write the noise into the boxes of the images, in place and without synchronising with the device."""
    if len(noise) == 0:
        return images
    top, left, bottom, right = (edge[:, None, None] for edge in boxes.unbind(1))
    row, column = (torch.arange(size, device=images.device) for size in images.shape[2:])
    inside = (row[:, None] >= top) & (row[:, None] < bottom) & (column >= left) & (column < right)
    return images.masked_scatter_(inside[:, None], noise)


class Preprocessing(Spec):
    """Size, crop and normalisation of the images that a model sees."""

    side: int
    """Side of the square images, pixels."""
    mean: tuple[float, ...]
    """Mean to subtract, per channel on a scale from 0 to 1."""
    std: tuple[float, ...]
    """Standard deviation to divide by, per channel on a scale from 0 to 1."""
    crop: float = 1.0
    """`side` divided by the shorter side of a held-out image after resizing, before its centre is cropped."""

    def normalised(self, pixels: UInt8[Tensor, "count channels rows columns"]) -> ImageTensor:
        """Return normalised float32 images on the device of the pixels."""
        mean, std = _constants(self.mean, self.std, pixels.device)
        return pixels.float().div_(255).sub_(mean).div_(std)


@functools.lru_cache(maxsize=8)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    constants = [torch.tensor(values).view(1, -1, 1, 1).to(device, non_blocking=True) for values in (mean, std)]
    return constants[0], constants[1]


def channels_first(pixels: PixelArray) -> UInt8[Tensor, "count channels rows columns"]:
    """Return images of shape (count, rows, columns, channels) as a tensor (count, channels, rows, columns)."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def held_out_pixels(images: ImageSet, indices: NDArray[np.int64], preprocessing: Preprocessing) -> PixelArray:
    """Return images without augmentation, (count, side, side, channels): stored pixels, or resized centre crops."""
    if images.stores_pixels and images.layout["side"] == preprocessing.side and preprocessing.crop == 1:
        return images.pixels(indices)
    return np.stack(
        [centre_crop(images.image(int(index)), preprocessing.side, preprocessing.crop) for index in indices]
    )


def shifted(
    pixels: PixelArray, augmentation: Shift, positions: NDArray[np.int64], step_images: int, seed: int
) -> PixelArray:
    """Shift and mirror images (count, rows, columns, channels) at random.

    `positions` are their positions in a step of `step_images` images.
    """
    generator = np.random.Generator(np.random.Philox(key=seed))
    margin, (_, height, width, _) = augmentation.pixels, pixels.shape
    offsets = generator.integers(0, 2 * margin, size=(2, step_images), endpoint=True)
    down, right, mirrored = np.vstack((offsets, generator.integers(0, 2, size=step_images)))[:, positions, None]
    rows, columns = down + np.arange(height), right + np.arange(width)
    if augmentation.flip:
        columns = np.where(mirrored == 1, columns[:, ::-1], columns)
    padded = np.pad(pixels, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    images: PixelArray = padded[np.arange(len(positions))[:, None, None], rows[:, :, None], columns[:, None, :]]
    return images


@contextmanager
def isolated_randomness() -> Iterator[Any]:
    """Yield a function that seeds the generators of random, NumPy and torch, and restore their states at the end."""
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
    """Return timm's training transform, from a PIL image to a normalised tensor."""
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
    """Keep the `bits` highest bits of every channel; return a black image for zero bits.

    timm uses zero bits at full magnitude, for which newer versions of Pillow raise an error.
    """
    from timm.data.auto_augment import posterize

    if bits <= 0:
        return new(image.mode, image.size)
    result: Image = posterize(image, bits)  # type: ignore[no-untyped-call]
    return result
