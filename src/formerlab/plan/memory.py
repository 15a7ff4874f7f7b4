"""What a training run holds in memory, in closed form, what no run can be, and the processes and threads it takes."""

from math import ceil
from typing import NamedTuple

from formerlab.data.dataset import DataSpec
from formerlab.errors import UserError
from formerlab.models import Model
from formerlab.models.vision import VisionTransformer
from formerlab.plan.hardware import Hardware
from formerlab.plan.schema import Scale, StudyScale
from formerlab.tasks import Classification
from formerlab.tasks.augmentation import TimmAugmentation
from formerlab.training.batches import AHEAD
from formerlab.training.processes import unsplittable
from formerlab.training.run import Run

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
MOST_BYTES = 10**13
"""Of weights, and of what a processor keeps of one part of a step: ten terabytes, more than anyone has trained with."""
MOST_FLOPS = 1e28
"""Of a run: twenty times the largest training known in 2025 (about 5e26)."""


def too_large(run: Run) -> tuple[str, str] | None:
    """Return the key of a run that makes it larger than anything can be, and why; None where it is not."""
    weights = BYTES_WEIGHT * run.model.params()
    kept = BYTES_WEIGHT * run.task.part_tokens * activation_elements(run)
    most = f"more than {MOST_BYTES / 1e12:g} TB"
    if weights > MOST_BYTES:
        return "model", f"its weights take {weights / 1e12:.3g} TB, {most}; make it smaller"
    if kept > MOST_BYTES:
        return "task", f"a part of a step keeps {kept / 1e12:.3g} TB for the backward pass, {most}; make it smaller"
    if run.flops > MOST_FLOPS:
        return "steps", f"training takes {run.flops:.3g} FLOPs, more than {MOST_FLOPS:g}; make fewer or smaller steps"
    return None


def memory_bytes(run: Run, hardware: Hardware, shards: int = 1) -> int:
    """Return the peak on a processor that trains: state and activations of a part, and what surrounds them.

    With several shards the state is split over as many processors, but for what is whole while it is used.
    """
    bytes_activation = BYTES_WEIGHT // 2 if run.precision == "bfloat16" else BYTES_WEIGHT
    activations = run.task.part_tokens * activation_elements(run) * bytes_activation
    state = run.model.params() * STATE_ELEMENTS * BYTES_WEIGHT
    if run.precision == "bfloat16" and shards == 1:
        state += run.model.params() * BYTES_WEIGHT // 2  # the copies that products read, forward and backward
    if shards > 1:
        state = state // shards + whole_elements(run.model) * BYTES_WEIGHT
    return int(hardware.memory_base_mb * 2**20 + hardware.memory_factor * (state + activations))


def activation_elements(run: Run) -> int:
    """Return an estimate of the numbers that a run keeps per token (or image) of a part for the backward pass.

    Where blocks are computed again, they are those of one block and the inputs of all, a tenth of what a block keeps
    at most (models/activation_memory.py).
    """
    elements = run.model.activation_elements()
    if not run.checkpoint_activations:
        return elements
    logits = 2 * getattr(run.model, "vocabulary", 0)
    blocks = elements - logits
    return logits + blocks // run.model.layers + blocks // 10


def whole_elements(model: Model) -> int:
    """Return the weights and gradients that each processor holds whole at a time: embedding, head, some blocks."""
    inside = model.params(embedding=False)
    return 2 * (model.params() - inside + GATHERED * inside // max(1, getattr(model, "layers", 1)))


class Processes(NamedTuple):
    """The processes of one run."""

    gpus: int
    """How many; on a CPU, processes instead of GPUs."""
    nodes: int
    """Machines that they are on, as many on each."""
    sharded: bool
    """Whether they split the run's tensors."""

    @property
    def shards(self) -> int:
        """Return into how many parts the tensors are split."""
        return self.gpus if self.sharded else 1


def processes_of(run: Run, scale: Scale, hardware: Hardware, own: int | None = None) -> Processes:
    """Return the processes of a run: where it does not fit on one of several, its tensors are split.

    `own` is the number that the run itself names. Raises UserError where those processes cannot share the parts of its
    steps, or its tensors.
    """
    at_scale = scale.studies.get(run.study, StudyScale())
    gpus, nodes = _shared_out(run, at_scale.gpus or scale.gpus, at_scale.nodes or scale.nodes, own)
    wanted = scale.sharded if at_scale.sharded is None else at_scale.sharded
    reason = unsplittable(run)
    if wanted and reason:
        raise UserError(f"{run.id}: sharded=true, but {reason} needs whole tensors; leave sharded out for its study")
    if wanted is None:
        wanted = reason is None and not fits(run, hardware)
    return Processes(gpus, nodes, wanted and gpus > 1)


def _shared_out(run: Run, most: int, nodes: int, own: int | None) -> tuple[int, int]:
    """Return how many GPUs train a run, and on how many machines.

    A number that the run names must do. Of `most` as many are taken as its parts can be shared out to evenly, on all
    `nodes` machines where that is possible, else on one.
    """
    parts: int = getattr(run.task, "accumulate", most)
    if own is None:
        even = [(gpus, nodes) for gpus in range(nodes, most + 1, nodes) if parts % gpus == 0]
        return even[-1] if even else (max(gpus for gpus in range(1, most + 1) if parts % gpus == 0), 1)
    if parts % own:
        raise UserError(
            f"{run.id}: gpus={own} cannot share out task.accumulate={parts} parts of a step evenly; "
            "make task.accumulate a multiple of gpus"
        )
    if own % nodes:
        raise UserError(f"{run.id}: gpus={own} are not spread evenly over nodes={nodes}; make gpus a multiple of it")
    return own, nodes


def fits(run: Run, hardware: Hardware, shards: int = 1) -> bool:
    """Say whether a run fits on a processor, or on as many as it is split over."""
    return memory_bytes(run, hardware, shards) <= hardware.memory_gb * 1e9


def crowded(runs: list[Run], hardware: Hardware) -> dict[str, int | None]:
    """Return the runs that are too large for one processor, with the power of two of processors that hold one together.

    Where 64 do not, that is null.
    """
    needed = {}
    for run in runs:
        powers = (2**power for power in range(7 if unsplittable(run) is None else 1))
        needed[f"{run.study}/{run.name}"] = next((shards for shards in powers if fits(run, hardware, shards)), None)
    return {run: shards for run, shards in needed.items() if shards != 1}


class Loader(NamedTuple):
    """What each process of a run needs for its data."""

    threads: int
    loader_bytes: int
    """Host memory of worker processes and batches."""


def loader_of(
    run: Run, data: DataSpec, hours: float, processes: Processes, *, threads: int, may_have_more: bool
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
        per_s = run.tokens / (3600 * hours) / processes.gpus
        threads = max(threads, ceil(per_s / IMAGES_PER_S[storage]))
    if threads == 1:
        return Loader(threads, 0)
    pixels = run.model.image**2 * run.model.channels
    images = STEPS_HELD * WITH_NOISE * run.task.batch / processes.gpus + run.task.valid_images
    return Loader(threads, threads * WORKER_BYTES + int(images * pixels))
