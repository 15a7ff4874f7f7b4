"""Batches of images: any step's batch from (data, seed, step) alone, made ahead of time by worker processes."""

import functools
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from formerlab.data.images.store import ImageSet
from formerlab.progress import short
from formerlab.seeding import mixed_seed
from formerlab.tasks.augmentation import Augmentation, Look, TimmAugmentation, augmented, image_seeds, whole

REPORT_AFTER = 50
"""Batches after which the loader's speed is reported, once."""
LIMIT = 0.2
"""Share of the time spent waiting from which the loader counts as the limit."""


@dataclass(frozen=True)
class ImageBatch:
    """Images with the classes to predict: numbers, or after mixing a weight for each class."""

    images: Tensor
    targets: Tensor

    def to(self, device: torch.device) -> "ImageBatch":
        """Return the batch on a device."""
        return ImageBatch(self.images.to(device, non_blocking=True), self.targets.to(device, non_blocking=True))

    def chunk(self, parts: int) -> list["ImageBatch"]:
        """Return equal parts."""
        return [ImageBatch(*pair) for pair in zip(self.images.chunk(parts), self.targets.chunk(parts), strict=True)]


@functools.lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Return the order of an epoch over `count` images, in which each stands once."""
    return np.random.Generator(np.random.Philox(key=mixed_seed(seed, "epoch", epoch))).permutation(count)


def step_indices(seed: int, step: int, batch: int, count: int) -> NDArray[np.int64]:
    """Return the images of a step: the next `batch` of an endless row of epochs."""
    places = np.arange(step * batch, (step + 1) * batch)
    epochs = places // count
    return np.concatenate(
        [order(seed, int(epoch), count)[places[epochs == epoch] % count] for epoch in np.unique(epochs)]
    )


class TrainingImages:
    """The training split as a row of batches.

    What needs decoding or drawing image by image is done ahead by as many processes as the job has threads; with one
    thread, or for whole images, it is done in this process. The result is the same.
    """

    def __init__(self, images: ImageSet, augmentation: Augmentation | None, look: Look, batch: int) -> None:
        self.images, self.augmentation, self.look, self.batch = images, augmentation, look, batch
        needs_workers = isinstance(augmentation, TimmAugmentation) or not images.whole
        self.workers = torch.get_num_threads() if needs_workers and torch.get_num_threads() > 1 else 0
        self._ahead: Iterator[Tensor] | None = None
        self._next: tuple[int, int] | None = None
        self._meter = Meter(self.workers, batch)

    def __len__(self) -> int:
        return len(self.images)

    def batch_of(self, seed: int, step: int) -> ImageBatch:
        """Return the batch of a step, not yet mixed."""
        with self._meter:
            indices = step_indices(seed, step, self.batch, len(self.images))
            targets = torch.from_numpy(self.images.labels[indices])
            if not self.workers:
                return ImageBatch(self.part(seed, step, 0, self.batch), targets)
            if self._next != (seed, step):
                self._ahead = self._from(seed, step)
            self._next = (seed, step + 1)
            assert self._ahead is not None
            return ImageBatch(torch.cat([next(self._ahead) for _ in range(self.workers)]), targets)

    def part(self, seed: int, step: int, first: int, end: int) -> Tensor:
        """Return the images at positions first, ..., end - 1 of a step's batch."""
        indices = step_indices(seed, step, self.batch, len(self.images))[first:end]
        return augmented(
            self.augmentation, self.images, indices, image_seeds(seed, step, self.batch)[first:end], self.look
        )

    def _from(self, seed: int, step: int) -> Iterator[Tensor]:
        """Return the parts of all batches from a step on, in order, as the workers make them."""
        bounds = np.linspace(0, self.batch, self.workers + 1).astype(int).tolist()
        parts = Parts(self.images, self.augmentation, self.look, self.batch)
        keys = Keys(seed, step, list(itertools.pairwise(bounds)))
        loader = DataLoader(
            parts, batch_size=None, sampler=keys, num_workers=self.workers, multiprocessing_context="spawn"
        )
        return iter(loader)


class Keys(Sampler[tuple[int, int, int, int]]):
    """(seed, step, first, end) of every part of every batch from a step on, for ever."""

    def __init__(self, seed: int, step: int, bounds: list[tuple[int, int]]) -> None:
        self.seed, self.step, self.bounds = seed, step, bounds

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        step = self.step
        while True:
            yield from ((self.seed, step, first, end) for first, end in self.bounds)
            step += 1


class Parts(Dataset[Tensor]):
    """What a worker process makes of a key."""

    def __init__(self, images: ImageSet, augmentation: Augmentation | None, look: Look, batch: int) -> None:
        self.given = images, augmentation, look, batch
        self._training: TrainingImages | None = None

    def __getitem__(self, key: tuple[int, int, int, int]) -> Tensor:
        if self._training is None:
            self._training = TrainingImages(*self.given)
        return self._training.part(*key)


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
        said = f"images from {by}: {speed} images/s, {share:.0%} of the time spent waiting for them"
        if share < LIMIT:
            return said
        return f"warning: the loader, not the model, is the limit: {said}; give the job more threads or keep pixels"


def held_out_batches(images: ImageSet, indices: NDArray[np.int64], look: Look, batch: int) -> Iterator[ImageBatch]:
    """Yield images as they are tested on, in order."""
    for first in range(0, len(indices), batch):
        chosen = indices[first : first + batch]
        yield ImageBatch(look.normalised(whole(images, chosen, look)), torch.from_numpy(images.labels[chosen]))
