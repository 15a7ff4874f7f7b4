"""The memory of a training run in closed form, and the number of its processes and threads."""

from math import ceil
from typing import Any

from formerlab.data.dataset import DataSpec
from formerlab.errors import UserError
from formerlab.models.vision import VisionTransformer
from formerlab.plan.hardware import Hardware
from formerlab.plan.schema import Scale
from formerlab.tasks import Classification
from formerlab.tasks.augmentation import TimmAugmentation
from formerlab.training.processes import unsplittable
from formerlab.training.run import Run
from formerlab.training.step import AHEAD

BYTES_WEIGHT = 4
STATE_ELEMENTS = 4
"""Float32 numbers per parameter in memory: weight, gradient and AdamW's two moments."""
GATHERED = 2
"""Blocks whose weights and gradients are whole at a time where all else is split: one computes, one is on its way."""
IMAGES_PER_S = {"encoded": 75, "pixels": 1000}
"""Images that a worker makes in a second, by how they are stored: files of ImageNet's size, pixels of small images."""
WORKER_BYTES = 450 * 2**20
"""Of a process that has imported torch and timm."""
STEPS_HELD = AHEAD + 4
"""Steps whose images are held: made ahead, trained on, and one being made, which is in pieces, whole and pinned."""
WITH_NOISE = 1.2
"""Bytes of a made image over those of its pixels: erased rectangles bring noise along, in float32."""


def memory_bytes(run: Run, hardware: Hardware, shards: int = 1) -> int:
    """Return the peak on a processor that trains: state and activations of a part, and what surrounds them.

    With several shards the state is split over as many processors; some tensors are whole while they are used.
    """
    model, bytes_activation = run.model, BYTES_WEIGHT // 2 if run.precision == "bfloat16" else BYTES_WEIGHT
    elements = model.activation_elements()  # per token, or image, of a part
    if run.checkpoint_activations:  # those of one block, and the inputs of all: at most a tenth of what a block keeps
        logits = 2 * getattr(model, "vocabulary", 0)
        blocks = elements - logits
        elements = logits + blocks // model.layers + blocks // 10
    state = model.params() * STATE_ELEMENTS * BYTES_WEIGHT
    if run.precision == "bfloat16" and shards == 1:
        state += model.params() * BYTES_WEIGHT // 2  # the copies that products read, forward and backward
    if shards > 1:  # weights and gradients of embedding, head and some blocks are whole
        inside = model.params(embedding=False)
        whole = model.params() - inside + GATHERED * inside // max(1, getattr(model, "layers", 1))
        state = state // shards + 2 * whole * BYTES_WEIGHT
    activations = run.task.part_tokens * elements * bytes_activation
    return int(hardware.memory_base_mb * 2**20 + hardware.memory_factor * (state + activations))


def processes_of(run: Run, scale: Scale, hardware: Hardware, own: int | None = None) -> dict[str, Any]:
    """Return `gpus`, `nodes` and `sharded` of a run: the number of its processes, on how many machines, tensors split.

    Where the run has no number of its `own`, as many of the scale's GPUs are taken as its parts can be shared out to
    evenly, on all machines where that is possible, else on one. Tensors of a run that does not fit on one of several
    are split. Raises UserError where parts or machines do not share evenly, or tensors cannot be split.
    """
    nodes, parts = scale.nodes, getattr(run.task, "accumulate", scale.gpus)
    gpus = own or max((gpus for gpus in range(nodes, scale.gpus + 1, nodes) if parts % gpus == 0), default=0)
    if gpus == 0:
        gpus, nodes = max(gpus for gpus in range(1, scale.gpus + 1) if parts % gpus == 0), 1
    if parts % gpus or gpus % nodes:
        evenly = f"share out task.accumulate={parts} parts evenly on nodes={nodes}"
        raise UserError(f"{run.id}: gpus={own} cannot {evenly}; give a divisor of the parts, a multiple of the nodes")
    sharded, reason = scale.sharded, unsplittable(run)
    if sharded and reason:
        raise UserError(f"{run.id}: scale.sharded=true, but {reason} needs whole tensors; leave sharded out")
    if sharded is None:
        sharded = reason is None and memory_bytes(run, hardware) > hardware.memory_gb * 1e9
    return {"gpus": gpus, "nodes": nodes, "sharded": sharded and gpus > 1}


def crowded(runs: list[Run], hardware: Hardware) -> dict[str, int | None]:
    """Return the runs that are too large for one processor, with the power of two of processors that hold one together.

    Where 64 do not, that is null.
    """
    most, needed = hardware.memory_gb * 1e9, dict[str, int | None]()
    for run in runs:
        powers = [2**power for power in range(7 if unsplittable(run) is None else 1)]
        fitting = (shards for shards in powers if memory_bytes(run, hardware, shards) <= most)
        needed[f"{run.study}/{run.name}"] = next(fitting, None)
    return {run: shards for run, shards in needed.items() if shards != 1}


def loader_of(
    run: Run, data: DataSpec, hours: float, gpus: int, *, threads: int, may_have_more: bool
) -> dict[str, int]:
    """Return `threads` of a process, and as `loader_bytes` the host memory of worker processes and batches.

    Threads are the scale's, or where a run `may_have_more` as many as keep up with one of its `gpus`, whose speed
    follows from the predicted time of the run.
    """
    images, storage = 0.0, getattr(data, "storage", "pixels")
    augmented = isinstance(run.task, Classification) and isinstance(run.task.augmentation, TimmAugmentation)
    if (
        isinstance(run.task, Classification)
        and isinstance(run.model, VisionTransformer)
        and (storage != "pixels" or augmented)
    ):
        if may_have_more:
            threads = max(threads, ceil(run.tokens / (3600 * hours) / gpus / IMAGES_PER_S[storage]))
        images = STEPS_HELD * WITH_NOISE * run.task.batch / gpus + run.task.valid_images
        images *= run.model.image**2 * run.model.channels
    return {"threads": threads, "loader_bytes": threads * WORKER_BYTES + int(images) if images and threads > 1 else 0}
