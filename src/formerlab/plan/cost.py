"""Costs of runs and plans in closed form, before anything is built: work and sizes, and from them time and memory."""

from math import ceil
from typing import Any

from formerlab.data.dataset import DataSpec
from formerlab.data.images.augmentation import TimmAugmentation
from formerlab.errors import UserError
from formerlab.layers.linear_cross_entropy import LARGEST
from formerlab.models import Decoder, Model
from formerlab.models.vision import VisionTransformer
from formerlab.plan.hardware import Hardware
from formerlab.plan.schema import Scale
from formerlab.tasks import Classification, LanguageModeling
from formerlab.tasks.task import TRAINING_PASSES
from formerlab.training.any_run import AnyRun, Pretrained, ReleasedRun
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
CPUS_PER_GPU = 12
"""CPU threads that a run asks for at most for each of its GPUs to make images: nodes have 12 to 16 of them."""
WORKER_BYTES = 450 * 2**20
"""Of a process that has imported torch and timm."""
STEPS_HELD = AHEAD + 4
"""Steps whose images are held: made ahead, trained on, and one being made, which is in pieces, whole and pinned."""
WITH_NOISE = 1.2
"""Bytes of a made image over those of its pixels: erased rectangles bring noise along, in float32."""
LOGIT_BYTES = 12
"""Bytes that a logit of a translator takes at the peak: its log-probability and its gradient in float32, and twice the
logit itself in bfloat16 or once in float32."""
CHECKPOINT_ELEMENTS = 3 * 3
"""Float32 numbers per parameter on disk: weight and two moments in the last checkpoint, its forerunner, the next."""
BYTES_PER_TOKEN = 3
"""Bytes of text per token, roughly, where only bytes are known."""
SHARING = 0.9
"""Speed of several GPUs over their number times that of one: the rest is the summing of gradients. Stated."""
STREAMED = 0.8
"""Share of the memory's bandwidth that a sum over many tensors reaches. Stated."""

Cost = dict[str, Any]


def memory_bytes(run: Run, hardware: Hardware, shards: int = 1) -> int:
    """Return the peak on a processor that trains: state and activations of a part, and what surrounds them.

    With several shards the state is split over as many processors; some tensors are whole while they are used.
    """
    model = run.model
    elements = model.activation_elements()  # per token, or image, of a part
    if run.checkpoint_activations:  # those of one block, and the inputs of all: at most a tenth of what a block keeps
        elements = elements // model.layers + elements // 10
    state = model.params() * STATE_ELEMENTS * BYTES_WEIGHT
    if run.precision == "bfloat16" and shards == 1:
        state += model.params() * BYTES_WEIGHT // 2  # the copies that products read, forward and backward
    if shards > 1:  # weights and gradients of embedding, head and some blocks are whole
        inside = model.params(embedding=False)
        whole = model.params() - inside + GATHERED * inside // max(1, getattr(model, "layers", 1))
        state = state // shards + 2 * whole * BYTES_WEIGHT
    activations = run.task.micro_batch_tokens * elements * _bytes_activation(run) + logits_bytes(run)
    return int(hardware.memory_base_mb * 2**20 + hardware.memory_factor * (state + activations))


def logits_bytes(run: Run) -> int:
    """Return the memory of the logits of a part and of their softmax.

    A compiled decoder has all logits once, in their own type; otherwise its loss makes slices of them, eight bytes a
    logit (`linear_cross_entropy`). A translator has all of them, with their log-probabilities and gradients in float32.
    """
    logits = run.task.micro_batch_tokens * getattr(run.model, "vocabulary", 0)
    if not isinstance(run.model, Decoder):
        return LOGIT_BYTES * logits
    return logits * _bytes_activation(run) if run.compile else 2 * BYTES_WEIGHT * min(logits, LARGEST)


def _bytes_activation(run: Run) -> int:
    return BYTES_WEIGHT // 2 if run.precision == "bfloat16" else BYTES_WEIGHT


def processes_of(run: Run, scale: Scale, hardware: Hardware, own: int | None, *, carried: bool) -> dict[str, Any]:
    """Return `gpus`, `nodes` and `sharded` of a run: the number of its processes, on how many machines, tensors split.

    Where the run has no number of its `own`, as many of the scale's GPUs are taken as its parts can be shared out to
    evenly, on all machines where that is possible, else on one. Tensors of a run that does not fit on one of several
    are split. Another run may go on with its optimizer (`carried`). Raises UserError where parts or machines do not
    share evenly, or tensors cannot be split.
    """
    nodes, parts = scale.nodes, getattr(run.task, "accumulate", scale.gpus)
    gpus = own or max((gpus for gpus in range(nodes, scale.gpus + 1, nodes) if parts % gpus == 0), default=0)
    if gpus == 0:
        gpus, nodes = max(gpus for gpus in range(1, scale.gpus + 1) if parts % gpus == 0), 1
    if parts % gpus or gpus % nodes:
        evenly = f"share out task.accumulate={parts} parts evenly on nodes={nodes}"
        raise UserError(f"{run.id}: gpus={own} cannot {evenly}; give a divisor of the parts, a multiple of the nodes")
    sharded, reason = scale.sharded, unsplittable(run, carried=carried)
    if sharded and reason:
        raise UserError(f"{run.id}: scale.sharded=true, but {reason} needs whole tensors; leave sharded out")
    if sharded is None:
        sharded = reason is None and memory_bytes(run, hardware) > hardware.memory_gb * 1e9
    return {"gpus": gpus, "nodes": nodes, "sharded": sharded and gpus > 1}


def crowded(runs: list[Run], hardware: Hardware) -> dict[str, int | None]:
    """Return the runs that are too large for one processor, with the power of two of processors that hold one together;
    null where 64 do not.
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
    follows from the predicted time of the run, but not more than `CPUS_PER_GPU`.
    """
    images, each = 0.0, _images_per_s(run, data)
    if each:
        assert isinstance(run.task, Classification)
        assert isinstance(run.model, VisionTransformer)
        if may_have_more:
            threads = max(threads, min(CPUS_PER_GPU, ceil(run.tokens / (3600 * hours) / gpus / each)))
        images = STEPS_HELD * WITH_NOISE * run.task.batch / gpus + run.task.valid_images
        images *= run.model.image**2 * run.model.channels
    return {"threads": threads, "loader_bytes": threads * WORKER_BYTES + int(images) if images and threads > 1 else 0}


def loading_hours(run: Run, data: DataSpec, gpus: int, threads: int) -> float:
    """Return the time in which so many threads for each GPU make the images of a run; 0 for other runs."""
    each = _images_per_s(run, data)
    return run.tokens / (3600 * each * threads * gpus) if each else 0.0


def _images_per_s(run: Run, data: DataSpec) -> float | None:
    """Return the speed of one thread that makes images; None for a run that makes none in threads of its own."""
    storage = getattr(data, "storage", "pixels")
    if not isinstance(run.task, Classification) or not isinstance(run.model, VisionTransformer):
        return None
    plain = storage == "pixels" and not isinstance(run.task.augmentation, TimmAugmentation)
    return None if plain else IMAGES_PER_S[storage]


def run_cost(run: Run, scale: Scale, hardware: Hardware, gpus: int, shards: int) -> Cost:
    """Return parameters, tokens, FLOPs, bytes of memory and disk, and hours of a run on so many processors (`gpus`),
    its tensors split into so many shards.
    """
    parameters = run.model.params()
    return {
        "parameters": parameters,
        "tokens": run.tokens,
        "flops": run.flops,
        "memory_bytes": memory_bytes(run, hardware, shards),
        "disk_bytes": parameters * (1 + CHECKPOINT_ELEMENTS) * BYTES_WEIGHT,
        "hours": hours(run, scale, hardware, gpus),
        "processors": gpus,
    }


def loading_cost(run: ReleasedRun, hardware: Hardware) -> Cost:
    """Return what reading a released model and its loss on held-out text cost, in the form of `run_cost`."""
    parameters, stored = run.model.params(), BYTES_WEIGHT if run.measured_in == "float32" else BYTES_WEIGHT // 2
    memory = int(hardware.memory_base_mb * 2**20) + parameters * stored
    trained = {"parameters": parameters, "tokens": 0, "flops": 0, "memory_bytes": memory, "disk_bytes": 0}
    return trained | {"hours": forward_cost(run, run.tokens, hardware)["hours"]}


def evaluation_tokens(run: Run, scale: Scale) -> int:
    """Return the tokens predicted in validation and in the test after training; 0 where that depends on unseen data."""
    if not isinstance(run.task, LanguageModeling):
        return 0
    times = 1 + ceil(run.steps / run.evaluate_every)
    held_out = getattr(scale.data[run.data], "max_held_out_bytes", None) or 0
    return times * run.task.valid_windows * run.task.context + held_out // BYTES_PER_TOKEN


def hours(run: Run, scale: Scale, hardware: Hardware, count: int = 1) -> float:
    """Return the time of a run on `count` processors: products, what surrounds them, evaluation, and the start.

    With `checkpoint_activations` a step has a second forward pass, here of the whole model and not of its blocks alone.
    """
    rate = scale.flops_per_s or _rate(run, hardware, run.precision)
    trained, evaluated = run.tokens, evaluation_tokens(run, scale)
    around = (blocks(run.model) * hardware.block_us + hardware.part_us) / 1e6
    sharing = count * (SHARING if count > 1 else 1.0)
    parts = trained / sharing + evaluated / TRAINING_PASSES  # every process validates, all training is shared out
    recomputed = (TRAINING_PASSES + 1) / TRAINING_PASSES if run.checkpoint_activations else 1.0
    products = (recomputed * run.flops / sharing + evaluated * run.forward_flops) / rate
    starting = hardware.start_s + (hardware.compile_s * blocks(run.model) if run.compile else 0.0)
    moved = run.model.depth.bytes_moved(run.model.layers, run.model.width) if isinstance(run.model, Decoder) else 0
    mixing = parts * moved / (STREAMED * hardware.memory_gb_per_s * 1e9)
    return (starting + products + mixing + parts / run.task.micro_batch_tokens * around) / 3600


def _rate(run: AnyRun, hardware: Hardware, precision: str) -> float:
    """Return the FLOP/s of the model of a run, by the kind of its projections."""
    kinds = {getattr(getattr(run.model, part, None), "kind", None) for part in ("projection", "feedforward")}
    return hardware.flops_per_s(precision, pattention="pattention" in kinds)


def blocks(model: Model | Pretrained) -> int:
    """Return the number of blocks of a model."""
    return int(getattr(model, "layers", 0))


def forward_cost(run: AnyRun, tokens: int, hardware: Hardware, *, cached: bool = False) -> Cost:
    """Return FLOPs and hours of reading so many tokens, roughly; one by one where a cache policy looks at each."""
    flops, steps = tokens * run.forward_flops, tokens * blocks(run.model) * cached
    seconds = hardware.start_s + flops / _rate(run, hardware, run.measured_in) + steps * hardware.cache_us / 1e6
    return {"tokens": tokens, "flops": flops, "hours": seconds / 3600}


def totals(costs: list[Cost]) -> Cost:
    """Return the sums over runs; hours are those of all processors together, and memory is that of the largest run."""
    summed = {key: sum(cost[key] for cost in costs) for key in ("tokens", "flops", "disk_bytes")}
    summed["hours"] = sum(cost["hours"] * cost.get("processors", 1) for cost in costs)
    return summed | {"runs": len(costs), "memory_bytes": max((cost["memory_bytes"] for cost in costs), default=0)}
