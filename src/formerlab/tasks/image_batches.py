"""Batches of images: any step's batch from (data, seed, place) alone, made ahead of time by worker processes."""

import functools
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from formerlab.data.images.store import ImageSet
from formerlab.progress import short
from formerlab.seeding import mixed_seed
from formerlab.tasks.augmentation import Augmentation, Look, TimmAugmentation, augmented, image_seeds, whole

REPORT_AFTER = 50
"""Batches after which the loader's speed is reported, once."""
Positions = NDArray[np.int64]
"""Places in the batch of a step."""
Key = tuple[int, int, int, Positions]
LIMIT = 0.2
"""Share of the time spent waiting from which the loader counts as the limit."""


@dataclass(frozen=True)
class ImageBatch:
    """Images with the classes to predict: numbers, or after mixing a weight for each class."""

    images: Tensor
    targets: Tensor

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "ImageBatch":
        """Return the batch on a device."""
        images, targets = (tensor.to(device, non_blocking=non_blocking) for tensor in (self.images, self.targets))
        return ImageBatch(images, targets)

    def pin_memory(self) -> "ImageBatch":
        """Return the same batch where a GPU can copy it from by itself."""
        return ImageBatch(self.images.pin_memory(), self.targets.pin_memory())

    def __getitem__(self, places: Any) -> "ImageBatch":
        """Return the images at some places."""
        return ImageBatch(self.images[places], self.targets[places])


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Return the order of an epoch over `count` images, in which each stands once."""
    return np.random.Generator(np.random.Philox(key=mixed_seed(seed, "epoch", epoch))).permutation(count)


def step_indices(seed: int, place: int, batch: int, count: int) -> NDArray[np.int64]:
    """Return the images of a step: the next `batch` of an endless row of epochs, from `place` on."""
    places = np.arange(place, place + batch)
    epochs = places // count
    return np.concatenate(
        [order(seed, int(epoch), count)[places[epochs == epoch] % count] for epoch in np.unique(epochs)]
    )


class TrainingImages(Dataset[Tensor]):
    """The training split as a row of batches.

    What needs decoding or drawing image by image is done ahead by as many processes as the job has threads; with one
    thread, or for whole images, it is done in this process. The result is the same.
    """

    def __init__(self, images: ImageSet, augmentation: Augmentation | None, look: Look, batch: int) -> None:
        self.images, self.augmentation, self.look, self.batch = images, augmentation, look, batch
        needs_workers = isinstance(augmentation, TimmAugmentation) or not images.whole
        self.workers = torch.get_num_threads() if needs_workers and torch.get_num_threads() > 1 else 0
        self.meter = Meter(self.workers, batch)
        """To be entered while training waits for a batch."""
        self._ahead: Iterator[Tensor] | None = None
        self._next: tuple[int, int, int, bytes] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def batch_of(self, seed: int, draw: int, place: int, chosen: Positions) -> ImageBatch:
        """Return the images at the positions `chosen` of the batch that begins at `place`, not yet mixed.

        `draw` numbers the batch's random changes.
        """
        indices = step_indices(seed, place, self.batch, len(self.images))
        targets = torch.from_numpy(self.images.labels[indices[chosen]])
        if not self.workers:
            return ImageBatch(self.made(seed, draw, place, chosen), targets)
        if self._next != (seed, draw, place, chosen.tobytes()):
            self._ahead = self._from(seed, draw, place, chosen)
        self._next = (seed, draw + 1, place + self.batch, chosen.tobytes())
        assert self._ahead is not None
        return ImageBatch(torch.cat([next(self._ahead) for _ in range(self.workers)]), targets)

    def made(self, seed: int, draw: int, place: int, chosen: Positions) -> Tensor:
        """Return the images at some positions of a step's batch."""
        indices = step_indices(seed, place, self.batch, len(self.images))
        return augmented(
            self.augmentation, self.images, indices, image_seeds(seed, draw, self.batch), self.look, chosen
        )

    def __getitem__(self, key: Key) -> Tensor:
        """Return what a worker process makes of a key."""
        return self.made(*key)

    def _from(self, seed: int, draw: int, place: int, chosen: Positions) -> Iterator[Tensor]:
        """Return the chosen images of all batches from one on, in order, as the workers make them."""
        parts = np.array_split(chosen, self.workers)
        keys = ((seed, draw + k, place + k * self.batch, part) for k in itertools.count() for part in parts)
        self._ahead = None  # another process could not take it
        loader: Any = DataLoader(
            self, batch_size=None, sampler=keys, num_workers=self.workers, multiprocessing_context="spawn"
        )
        return iter(loader)


class Meter:
    """Measures how long training waits for images; says so once, and warns where it is the limit."""

    def __init__(self, workers: int, batch: int) -> None:
        self.workers, self.batch = workers, batch
        self.batches, self.waited, self.began = 0, 0.0, time.perf_counter()

    def __enter__(self) -> None:
        self._entered = time.perf_counter()
        if self.batches == 0:
            self.began = self._entered

    def __exit__(self, *error: object) -> None:
        now = time.perf_counter()
        self.waited += now - self._entered
        self.batches += 1
        if self.batches == 1:  # the first batch pays for starting the workers
            self.waited, self.began = 0.0, now
        elif self.batches == REPORT_AFTER:
            print(self.report(now - self.began), file=sys.stderr)

    def report(self, elapsed: float) -> str:
        """Return one line on the speed over `elapsed` seconds, a warning where training waits for images."""
        share = self.waited / elapsed
        speed = short((self.batches - 1) * self.batch / elapsed)
        by = f"{self.workers} worker processes" if self.workers else "the training process"
        text = f"images from {by}: {speed} images/s, {share:.0%} of the time spent waiting for them"
        if share < LIMIT:
            return text
        return f"warning: the loader, not the model, is the limit: {text}; give the job more threads or keep pixels"


def held_out_batches(images: ImageSet, indices: NDArray[np.int64], look: Look, batch: int) -> Iterator[ImageBatch]:
    """Yield images as they are tested on, in order."""
    for first in range(0, len(indices), batch):
        chosen = indices[first : first + batch]
        yield ImageBatch(look.normalised(whole(images, chosen, look)), torch.from_numpy(images.labels[chosen]))
