"""Batches of images, prefetched by worker processes."""

import functools
import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from formerlab.data.images.augmentation import (
    Augmentation,
    AugmentedImages,
    Preprocessing,
    Shift,
    TimmAugmentation,
    augment_by_timm,
    erase,
    held_out_pixels,
    shifted,
    without_erasing,
)
from formerlab.data.images.mixing import Mix
from formerlab.data.images.store import ImageSet
from formerlab.errors import StoppedEarly, UserError, reason
from formerlab.seeding import mixed_seed

Positions = NDArray[np.int64]
"""Positions in the batch of a step."""
Key = tuple[int, int, int, Positions]
"""Seed, step index for the augmentations, start of the batch in the sequence of epochs, positions in the batch."""
END_SIGNALS = {signal.SIGTERM, signal.SIGINT}
PREFETCH = 2
"""Number of chunks that each worker process prefetches."""
SHARED_MEMORY = Path("/dev/shm")
POLL_SECONDS = 10.0
"""Seconds between two checks for a stop request while the main process waits for worker processes."""
TIMEOUT_SECONDS = 600.0
"""Maximum time in seconds that the main process waits for a chunk."""
REMEDY = "give it more (docker run --shm-size=8g), raise task.accumulate, or on a CPU set threads: 1"


class ImageBatch(NamedTuple):
    """Normalised images with targets."""

    images: Tensor
    """Shape (count, channels, side, side), float32."""
    targets: Tensor
    """Class indices (count,), or weights (count, classes) if the batch is mixed."""


@dataclass(frozen=True)
class ImageBytes:
    """A batch of uint8 images; `to` normalises, erases and mixes them on the device."""

    augmented: AugmentedImages
    labels: Tensor
    preprocessing: Preprocessing
    mix: Mix | None = None

    def to(self, device: torch.device, *, non_blocking: bool = False) -> ImageBatch:
        tensors = (*self.augmented, self.labels)
        pixels, boxes, noise, labels = (tensor.to(device, non_blocking=non_blocking) for tensor in tensors)
        images = erase(self.preprocessing.normalised(pixels), boxes, noise)
        return ImageBatch(*((images, labels) if self.mix is None else self.mix(images, labels)))

    def pin_memory(self) -> "ImageBytes":
        augmented = AugmentedImages(*(tensor.pin_memory() for tensor in self.augmented))
        return replace(self, augmented=augmented, labels=self.labels.pin_memory())


@functools.lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Return the permutation of `count` images in an epoch."""
    return np.random.Generator(np.random.Philox(key=mixed_seed(seed, "epoch", epoch))).permutation(count)


def image_seeds(seed: int, step: int, positions: Positions) -> list[int]:
    """Return the augmentation seeds of the images at these positions of a step."""
    return [mixed_seed(seed, step, int(position)) for position in positions]


def step_indices(seed: int, start: int, batch: int, count: int) -> NDArray[np.int64]:
    """Return the indices of the images of a step: `batch` images from position `start` of the sequence of all epochs,
    each a permutation of the images.
    """
    positions = np.arange(start, start + batch)
    epochs = positions // count
    return np.concatenate(
        [epoch_order(seed, int(epoch), count)[positions[epochs == epoch] % count] for epoch in np.unique(epochs)]
    )


class TrainingImages(Dataset[AugmentedImages]):
    """Training batches of a split of images.

    Worker processes, one per thread of the job, prefetch images that need decoding or timm's transform. The main
    process makes the batches if the job has one thread and no GPU, or if it reads stored pixels without timm.
    """

    def __init__(
        self, images: ImageSet, augmentation: Augmentation | None, preprocessing: Preprocessing, batch: int
    ) -> None:
        self.images, self.augmentation, self.preprocessing, self.batch = images, augmentation, preprocessing, batch
        needs_workers = isinstance(augmentation, TimmAugmentation) or not images.stores_pixels
        # With a GPU, workers are used even for one thread: the thread that makes the batches would otherwise share
        # torch's generator with the main thread.
        threads = torch.get_num_threads()
        single_threaded = threads == 1 and not torch.cuda.is_available()
        self.workers = threads if needs_workers and not single_threaded else 0
        self.stop: Callable[[], str | None] | None = None
        """Returns the reason to stop waiting for worker processes, or None."""
        self._results: Iterator[AugmentedImages] | None = None
        self._next_request: tuple[int, int, int, bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Drop `stop`, which cannot be pickled."""
        return vars(self) | {"stop": None}

    def __len__(self) -> int:
        return len(self.images)

    def batches_of(
        self, seed: int, step: int, start: int, micro_batches: list[Positions], mix: Mix | None
    ) -> list[ImageBytes]:
        """Return the micro-batches of the batch that begins at position `start` in the sequence of epochs.

        `micro_batches` contains positions in the batch, and `step` is the step index that seeds the augmentations.
        """
        indices = step_indices(seed, start, self.batch, len(self.images))
        if not self.workers:
            augmented = [self[seed, step, start, micro_batch] for micro_batch in micro_batches]
        else:
            augmented = self._from_workers(seed, step, start, micro_batches)
        labels = [torch.from_numpy(self.images.labels[indices[micro_batch]]) for micro_batch in micro_batches]
        return [ImageBytes(*pair, self.preprocessing, mix) for pair in zip(augmented, labels, strict=True)]

    def __getitem__(self, key: Key) -> AugmentedImages:
        """Return the augmented images at some positions of a step."""
        seed, step, start, positions = key
        indices = step_indices(seed, start, self.batch, len(self.images))[positions]
        if isinstance(self.augmentation, TimmAugmentation):
            return augment_by_timm(
                self.augmentation, self.images, indices, image_seeds(seed, step, positions), self.preprocessing
            )
        pixels = held_out_pixels(self.images, indices, self.preprocessing)
        if isinstance(self.augmentation, Shift):
            pixels = shifted(pixels, self.augmentation, positions, self.batch, mixed_seed(seed, step, 0))
        return without_erasing(pixels)

    def _from_workers(self, seed: int, step: int, start: int, micro_batches: list[Positions]) -> list[AugmentedImages]:
        """Return the micro-batches of a step from the workers, which continue with the next steps."""
        positions = np.stack(micro_batches).tobytes()
        if self._next_request != (seed, step, start, positions):
            self._results = self._start_workers(seed, step, start, micro_batches)
        self._next_request = None  # after an interrupted wait, the next call starts new workers
        augmented = []
        for micro_batch in micro_batches:
            chunks = [self._next_chunk() for _ in self._chunks(micro_batch)]
            augmented.append(AugmentedImages(*map(torch.cat, zip(*chunks, strict=True))))
        self._next_request = (seed, step + 1, start + self.batch, positions)
        return augmented

    def _next_chunk(self) -> AugmentedImages:
        """Return the next chunk of the workers.

        Raises StoppedEarly if a worker ended or if `stop` returns a reason, and UserError after `TIMEOUT_SECONDS`.
        """
        assert self._results is not None
        began = time.monotonic()
        while time.monotonic() < began + TIMEOUT_SECONDS:
            try:
                return next(self._results)
            except (RuntimeError, OSError, EOFError) as error:
                if str(error).startswith("Caught "):  # an exception inside a worker, which keeps running
                    raise
                if "DataLoader timed out" not in str(error):
                    raise StoppedEarly(
                        f"a worker process ended, maybe because memory is too small: {reason(error)}"
                    ) from None
            if self.stop is not None and (stop_reason := self.stop()) is not None:
                raise StoppedEarly(stop_reason)
        problem = f"no image came from {self.workers} worker processes for {TIMEOUT_SECONDS:.0f} s"
        raise UserError(f"{problem}: check the disk of the images and {SHARED_MEMORY}; {REMEDY}")

    def _check_shared_memory(self, micro_batches: list[Positions]) -> None:
        """Raise UserError if shared memory is too small for the chunks that workers prefetch."""
        pixels = len(self.preprocessing.mean) * self.preprocessing.side**2
        noise = 4 * pixels // 3 if isinstance(self.augmentation, TimmAugmentation) and self.augmentation.erase else 0
        images = max(len(chunk) for micro_batch in micro_batches for chunk in self._chunks(micro_batch))
        # The chunks of a micro-batch are in use while the workers prefetch further chunks.
        needed = (PREFETCH + 1) * self.workers * images * (pixels + noise)
        with suppress(OSError):
            if (free := shutil.disk_usage(SHARED_MEMORY).free) < needed:
                problem = f"{SHARED_MEMORY} has {free / 1e6:.1f} MB free, but {self.workers} worker processes"
                raise UserError(f"{problem} need {needed / 1e6:.1f} MB for images; {REMEDY}")

    def _chunks(self, micro_batch: Positions) -> list[Positions]:
        return np.array_split(micro_batch, min(self.workers, len(micro_batch)))

    def _start_workers(
        self, seed: int, step: int, start: int, micro_batches: list[Positions]
    ) -> Iterator[AugmentedImages]:
        """Start the workers; return an iterator over the chunks of this and all following batches."""
        chunks = [chunk for micro_batch in micro_batches for chunk in self._chunks(micro_batch)]
        keys = ((seed, step + k, start + k * self.batch, chunk) for k in itertools.count() for chunk in chunks)
        self._results = None  # ends earlier workers; the iterator cannot be pickled for new workers
        self._check_shared_memory(micro_batches)
        options: dict[str, Any] = {"multiprocessing_context": "spawn", "worker_init_fn": _end_at_parents_signal}
        # DataLoader samples a base seed; a separate generator leaves the global generator unchanged.
        options |= {"generator": torch.Generator(), "timeout": POLL_SECONDS, "prefetch_factor": PREFETCH}
        loader: Any = DataLoader(self, batch_size=None, sampler=keys, num_workers=self.workers, **options)
        resource_tracker.ensure_running()  # otherwise the first worker starts the tracker, which unblocks signals
        signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)  # all threads of a worker inherit the mask
        child_handler = signal.getsignal(signal.SIGCHLD)
        try:
            return iter(loader)
        finally:
            if current_thread() is main_thread():  # torch's handler would raise an error in the middle of a step
                signal.signal(signal.SIGCHLD, child_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)


def stop_waiting(data: Any, stop: Callable[[], str | None]) -> None:
    """Make image data stop waiting for worker processes if `stop` returns a reason."""
    if isinstance(data, TrainingImages):
        data.stop = stop


def _end_at_parents_signal(worker: int) -> None:
    """Exit when the parent process sends a signal; signals of other processes are ignored."""

    def wait() -> None:
        while signal.sigwaitinfo(END_SIGNALS).si_pid != os.getppid():
            pass
        os._exit(0)

    Thread(target=wait, daemon=True).start()


def held_out_batches(
    images: ImageSet, indices: NDArray[np.int64], preprocessing: Preprocessing, batch: int
) -> Iterator[ImageBytes]:
    """Yield batches of images without augmentation, in the order of `indices`."""
    for first in range(0, len(indices), batch):
        in_batch = indices[first : first + batch]
        pixels = without_erasing(held_out_pixels(images, in_batch, preprocessing))
        yield ImageBytes(pixels, torch.from_numpy(images.labels[in_batch]), preprocessing)
