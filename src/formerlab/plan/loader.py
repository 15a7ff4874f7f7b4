"""The threads of a run, in which it decodes images, and the host memory that this takes."""

from math import ceil
from typing import NamedTuple

from formerlab.data.dataset import DataSpec
from formerlab.models.vision import VisionTransformer
from formerlab.plan.cost import Cost
from formerlab.plan.memory import Processes
from formerlab.tasks import Classification
from formerlab.tasks.augmentation import TimmAugmentation
from formerlab.training.batches import AHEAD
from formerlab.training.run import Run

IMAGES_PER_S = {"encoded": 75, "pixels": 1000}
"""Images that a worker makes in a second, by how they are stored: files of ImageNet's size, pixels of small images."""
WORKER_BYTES = 450 * 2**20
"""Of a process that has imported torch and timm."""
STEPS_HELD = AHEAD + 4
"""Steps whose images are held: made ahead, trained on, and one being made, which is in pieces, whole and pinned."""
WITH_NOISE = 1.2
"""Bytes of a made image over those of its pixels: erased rectangles bring noise along, in float32."""


class Loader(NamedTuple):
    """What each process of a run needs for its data."""

    threads: int
    loader_bytes: int
    """Host memory of worker processes and batches."""


def loader_of(
    run: Run, data: DataSpec, cost: Cost, processes: Processes, *, threads: int, may_have_more: bool
) -> Loader:
    """Return the threads of a process: the scale's, or where it `may_have_more` as many as keep up with a GPU.

    How many that are follows from the predicted time of the run.
    """
    storage = getattr(data, "storage", "pixels")
    if not (isinstance(run.task, Classification) and isinstance(run.model, VisionTransformer)):
        return Loader(threads, 0)
    if storage == "pixels" and not isinstance(run.task.augmentation, TimmAugmentation):
        return Loader(threads, 0)
    if may_have_more:
        per_s = run.tokens / (3600 * cost["hours"]) / processes.gpus
        threads = max(threads, ceil(per_s / IMAGES_PER_S[storage]))
    if threads == 1:
        return Loader(threads, 0)
    pixels = run.model.image**2 * run.model.channels
    images = STEPS_HELD * WITH_NOISE * run.task.batch / processes.gpus + run.task.valid_images
    return Loader(threads, threads * WORKER_BYTES + int(images * pixels))
