"""Batches of images: that of any step from (data, seed, position) alone, made ahead of time by worker processes."""

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
    Drawn,
    Look,
    Shift,
    TimmAugmentation,
    drawn_by_timm,
    erased,
    nothing_erased,
    shifted,
    whole,
)
from formerlab.data.images.mixing import Mix
from formerlab.data.images.store import ImageSet
from formerlab.errors import StoppedEarly, UserError, reason
from formerlab.seeding import mixed_seed

Positions = NDArray[np.int64]
"""Positions in the batch of a step."""
Key = tuple[int, int, int, Positions]
"""Seed, number of the batch's random changes, position of the batch in the row of epochs, positions in the batch."""
ENDING = {signal.SIGTERM, signal.SIGINT}
"""Signals that end a process."""
AHEAD = 2
"""Pieces that each worker process makes ahead of time."""
SHARED_MEMORY = Path("/dev/shm")
LOOK = 10.0
"""Seconds after which the wait for worker processes asks whether to stop."""
PATIENCE = 600.0
"""Seconds without a piece of a batch after which the worker processes are taken to be broken."""
REMEDY = "give it more (docker run --shm-size=8g), raise task.accumulate, or on a CPU set threads: 1"


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
        self.stop: Callable[[], str | None] | None = None
        """Returns the reason to stop waiting for worker processes, if there is one."""
        self._ahead: Iterator[Drawn] | None = None
        self._next: tuple[int, int, int, bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Drop what another process cannot take."""
        return vars(self) | {"stop": None}

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
        self._next = None  # until all parts are here: a wait that is given up leaves no part to the next call
        made = []
        for part in parts:
            pieces = [self._piece() for _ in self._pieces(part)]
            made.append(Drawn(*map(torch.cat, zip(*pieces, strict=True))))
        self._next = (seed, draw + 1, place + self.batch, asked)
        return made

    def _piece(self) -> Drawn:
        """Return the next piece of the workers.

        Raises StoppedEarly if a worker ended, or if no piece comes and there is a reason to stop; UserError if no piece
        comes for a long time.
        """
        assert self._ahead is not None
        began = time.monotonic()
        while time.monotonic() < began + PATIENCE:
            try:
                return next(self._ahead)
            except (RuntimeError, OSError, EOFError) as error:
                if str(error).startswith("Caught "):  # in the work of a worker, which goes on
                    raise
                if "DataLoader timed out" not in str(error):
                    raise StoppedEarly(f"a worker process ended, is memory too small? {reason(error)}") from None
            if self.stop is not None and (asked := self.stop()) is not None:
                raise StoppedEarly(asked)
        what = f"no image came from {self.workers} worker processes for {PATIENCE:.0f} s"
        raise UserError(f"{what}: look at the disk of the images and at {SHARED_MEMORY}; {REMEDY}")

    def _check_shared_memory(self, parts: list[Positions]) -> None:
        """Raise UserError if shared memory, by which images come from the workers, is too small for them."""
        pixels = len(self.look.mean) * self.look.side**2
        noise = 4 * pixels // 3 if isinstance(self.augmentation, TimmAugmentation) and self.augmentation.erase else 0
        size = max(len(piece) for part in parts for piece in self._pieces(part)) * (pixels + noise)
        needed = (AHEAD + 1) * self.workers * size  # the pieces of a whole part are here while others are made ahead
        with suppress(OSError):
            if (free := shutil.disk_usage(SHARED_MEMORY).free) < needed:
                what = f"{SHARED_MEMORY} has {free / 1e6:.1f} MB free, {self.workers} worker processes"
                raise UserError(f"{what} need {needed / 1e6:.1f} MB for images; {REMEDY}")

    def _pieces(self, part: Positions) -> list[Positions]:
        """Return what the workers make of a part: a piece each, or an image each where there are fewer images."""
        return np.array_split(part, min(self.workers, len(part)))

    def _from(self, seed: int, draw: int, place: int, parts: list[Positions]) -> Iterator[Drawn]:
        """Return the parts of all batches from one on, in order and each in pieces, as the workers make them."""
        pieces = [piece for part in parts for piece in self._pieces(part)]
        keys = ((seed, draw + k, place + k * self.batch, piece) for k in itertools.count() for piece in pieces)
        self._ahead = None  # the workers before end; another process could not take them either
        self._check_shared_memory(parts)
        how: dict[str, Any] = {"multiprocessing_context": "spawn", "worker_init_fn": _end_for_parent}
        how |= {"generator": torch.Generator()}  # it draws a seed, which would shift the dropout of this step
        how |= {"timeout": LOOK, "prefetch_factor": AHEAD}
        loader: Any = DataLoader(self, batch_size=None, sampler=keys, num_workers=self.workers, **how)
        resource_tracker.ensure_running()  # else the first worker starts it, which unblocks signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # every thread of a worker inherits it
        at_end_of_worker = signal.getsignal(signal.SIGCHLD)
        try:
            return iter(loader)
        finally:
            if current_thread() is main_thread():  # torch's handler would raise an error in the middle of a step
                signal.signal(signal.SIGCHLD, at_end_of_worker)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_waiting(data: Any, stop: Callable[[], str | None]) -> None:
    """Let a wait for worker processes end when `stop` returns a reason; other data have none."""
    if isinstance(data, TrainingImages):
        data.stop = stop


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
