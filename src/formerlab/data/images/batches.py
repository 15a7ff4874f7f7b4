"""Batches of images: that of any step from (data, seed, position) alone, made ahead of time by worker processes."""

import functools
import itertools
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from formerlab.data.images.augmentation import (
    Augmentation,
    Drawn,
    Look,
    Pictures,
    Shift,
    TimmAugmentation,
    drawn_by_timm,
    erased,
    nothing_erased,
    own_randomness,
    shifted,
    whole,
)
from formerlab.data.images.store import ImageSet
from formerlab.seeding import mixed_seed
from formerlab.torchvision_shim import ensure_torchvision_imports

Positions = NDArray[np.int64]
"""Positions in the batch of a step."""
Key = tuple[int, int, int, Positions]
"""Seed, number of the batch's random changes, position of the batch in the row of epochs, positions in the batch."""
ENDING = {signal.SIGTERM, signal.SIGINT}
"""Signals that end a process."""


class Mix(NamedTuple):
    """How the images of a part are mixed with those of the part reversed, as timm's Mixup does it."""

    share: float
    """Weight of an image's own class in its target; without a box, also of its own pixels."""
    box: tuple[int, int, int, int] | None
    """First and last (exclusive) rows and columns that come from the other image."""
    smoothing: float
    classes: int

    def __call__(self, images: Pictures, labels: Int[Tensor, " count"]) -> tuple[Pictures, Tensor]:
        """Return mixed images, in their memory, and a weight for each class."""
        from timm.data.mixup import mixup_target

        if self.box is not None:
            first, last, left, right = self.box
            images[:, :, first:last, left:right] = images.flip(0)[:, :, first:last, left:right]
        elif self.share != 1:
            other = images.flip(0).mul_(1 - self.share)
            images.mul_(self.share).add_(other)
        targets: Tensor = mixup_target(labels, self.classes, self.share, self.smoothing)  # type: ignore[no-untyped-call]
        return images, targets


def drawn_mix(mixup: float, cutmix: float, smoothing: float, classes: int, side: int, seed: int) -> Mix:
    """Draw one mix, from what timm's Mixup draws from and in its order."""
    ensure_torchvision_imports()
    from timm.data.mixup import Mixup, cutmix_bbox_and_lam

    with own_randomness() as reseed:
        reseed(seed)
        share, pastes = Mixup(mixup, cutmix)._params_per_batch()  # type: ignore[no-untyped-call]
        box = None
        if pastes and share != 1:
            (first, last, left, right), share = cutmix_bbox_and_lam((side, side), share)  # type: ignore[no-untyped-call]
            box = int(first), int(last), int(left), int(right)
    return Mix(float(share), box, smoothing, classes)


class ImageBatch(NamedTuple):
    """Images with the classes to predict: numbers, or after mixing a weight for each class."""

    images: Tensor
    targets: Tensor


@dataclass(frozen=True)
class ImageBytes:
    """A batch as it travels, a byte a number: it is normalised, erased and mixed on the device that it comes to."""

    drawn: Drawn
    labels: Tensor
    look: Look
    mix: Mix | None = None

    def to(self, device: torch.device, *, non_blocking: bool = False) -> ImageBatch:
        """Return the finished batch on a device."""
        tensors = (*self.drawn, self.labels)
        pixels, boxes, noise, labels = (tensor.to(device, non_blocking=non_blocking) for tensor in tensors)
        images = erased(self.look.normalised(pixels), boxes, noise)
        return ImageBatch(*((images, labels) if self.mix is None else self.mix(images, labels)))

    def pin_memory(self) -> "ImageBytes":
        """Return the same batch where a GPU can copy it from by itself."""
        drawn = Drawn(*(tensor.pin_memory() for tensor in self.drawn))
        return replace(self, drawn=drawn, labels=self.labels.pin_memory())


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Return the order of an epoch over `count` images, in which each stands once."""
    return np.random.Generator(np.random.Philox(key=mixed_seed(seed, "epoch", epoch))).permutation(count)


def image_seeds(seed: int, step: int, positions: Positions) -> list[int]:
    """Return the seeds of the images at some positions of a step."""
    return [mixed_seed(seed, step, int(position)) for position in positions]


def step_indices(seed: int, place: int, batch: int, count: int) -> NDArray[np.int64]:
    """Return the images of a step: the next `batch` of an endless row of epochs, from `place` on."""
    places = np.arange(place, place + batch)
    epochs = places // count
    return np.concatenate(
        [order(seed, int(epoch), count)[places[epochs == epoch] % count] for epoch in np.unique(epochs)]
    )


class TrainingImages(Dataset[Drawn]):
    """The training split as a row of batches.

    What needs decoding or drawing image by image is done ahead by as many processes as the job has threads; with one
    thread on a CPU, or for whole images, it is done in this process. The result is the same.
    """

    def __init__(self, images: ImageSet, augmentation: Augmentation | None, look: Look, batch: int) -> None:
        self.images, self.augmentation, self.look, self.batch = images, augmentation, look, batch
        needs_workers = isinstance(augmentation, TimmAugmentation) or not images.whole
        # Beside a GPU images are drawn in a thread, which would share torch's generator with the main one.
        threads = torch.get_num_threads()
        alone = threads == 1 and not torch.cuda.is_available()
        self.workers = threads if needs_workers and not alone else 0
        self._ahead: Iterator[Drawn] | None = None
        self._next: tuple[int, int, int, bytes] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def batches_of(self, seed: int, draw: int, place: int, parts: list[Positions], mix: Mix | None) -> list[ImageBytes]:
        """Return the images at the positions of each part of the batch that begins at `place`.

        `draw` numbers the batch's random changes.
        """
        indices = step_indices(seed, place, self.batch, len(self.images))
        if not self.workers:
            made = [self[seed, draw, place, part] for part in parts]
        else:
            made = self._made_ahead(seed, draw, place, parts)
        labels = [torch.from_numpy(self.images.labels[indices[part]]) for part in parts]
        return [ImageBytes(*pair, self.look, mix) for pair in zip(made, labels, strict=True)]

    def __getitem__(self, key: Key) -> Drawn:
        """Return images at some positions of a step, not yet normalised; worker processes ask for them too."""
        seed, draw, place, chosen = key
        indices = step_indices(seed, place, self.batch, len(self.images))[chosen]
        if isinstance(self.augmentation, TimmAugmentation):
            return drawn_by_timm(self.augmentation, self.images, indices, image_seeds(seed, draw, chosen), self.look)
        pixels = whole(self.images, indices, self.look)
        if isinstance(self.augmentation, Shift):
            pixels = shifted(pixels, self.augmentation, chosen, self.batch, mixed_seed(seed, draw, 0))
        return nothing_erased(pixels)

    def _made_ahead(self, seed: int, draw: int, place: int, parts: list[Positions]) -> list[Drawn]:
        """Return the parts from the workers, which go on with those of the next steps."""
        asked = np.stack(parts).tobytes()
        if self._next != (seed, draw, place, asked):
            self._ahead = self._from(seed, draw, place, parts)
        self._next = (seed, draw + 1, place + self.batch, asked)
        assert self._ahead is not None
        made = []
        for part in parts:
            pieces = [next(self._ahead) for _ in self._pieces(part)]
            made.append(Drawn(*map(torch.cat, zip(*pieces, strict=True))))
        return made

    def _pieces(self, part: Positions) -> list[Positions]:
        """Return what the workers make of a part: a piece each, or an image each where there are fewer images."""
        return np.array_split(part, min(self.workers, len(part)))

    def _from(self, seed: int, draw: int, place: int, parts: list[Positions]) -> Iterator[Drawn]:
        """Return the parts of all batches from one on, in order and each in pieces, as the workers make them."""
        pieces = [piece for part in parts for piece in self._pieces(part)]
        keys = ((seed, draw + k, place + k * self.batch, piece) for k in itertools.count() for piece in pieces)
        self._ahead = None  # another process could not take it
        how: dict[str, Any] = {"multiprocessing_context": "spawn", "worker_init_fn": _end_for_parent}
        how |= {"generator": torch.Generator()}  # it draws a seed, which would shift the dropout of this step
        loader: Any = DataLoader(self, batch_size=None, sampler=keys, num_workers=self.workers, **how)
        resource_tracker.ensure_running()  # else the first worker starts it, which unblocks signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # every thread of a worker inherits it
        try:
            return iter(loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_for_parent(worker: int) -> None:
    """End when the parent says so, not at a signal to the whole job, whose last step still needs images."""

    def wait() -> None:
        while signal.sigwaitinfo(ENDING).si_pid != os.getppid():
            pass
        os._exit(0)

    Thread(target=wait, daemon=True).start()


def held_out_batches(images: ImageSet, indices: NDArray[np.int64], look: Look, batch: int) -> Iterator[ImageBytes]:
    """Yield images as they are tested on, in order."""
    for first in range(0, len(indices), batch):
        chosen = indices[first : first + batch]
        pixels = nothing_erased(whole(images, chosen, look))
        yield ImageBytes(pixels, torch.from_numpy(images.labels[chosen]), look)
