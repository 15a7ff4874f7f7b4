"""Estimate FLOPs, sizes, time and memory of runs and plans in closed form."""

from math import ceil
from typing import Any

from formerlab.data.dataset import DataSpec
from formerlab.data.images.augmentation import TimmAugmentation
from formerlab.errors import UserError
from formerlab.layers.linear_cross_entropy import CHUNK_LOGITS
from formerlab.models import Decoder, Model
from formerlab.models.vision import VisionTransformer
from formerlab.plan.hardware import Hardware
from formerlab.plan.schema import Scale
from formerlab.tasks import Classification, LanguageModeling
from formerlab.tasks.task import TRAINING_PASSES
from formerlab.training.any_run import AnyRun, Pretrained, ReleasedRun
from formerlab.training.processes import unsupported_by_sharding
from formerlab.training.run import Run
from formerlab.training.step import AHEAD

BYTES_WEIGHT = 4
STATE_ELEMENTS = 4
"""Float32 values per parameter in memory: weight, gradient and AdamW's two moments."""
UNSHARDED_BLOCKS = 2
"""Number of blocks of a sharded model that are unsharded at a time: the current block and the next one."""
IMAGES_PER_S = {"encoded": 75, "pixels": 1000}
"""Images per second of one worker, by storage: `encoded` for files of ImageNet's size, `pixels` for small images."""
CPUS_PER_GPU = 12
"""Maximum number of CPU threads per GPU for image loading; nodes have 12 to 16 per GPU."""
WORKER_BYTES = 450 * 2**20
"""Memory of a worker process, which imports torch and timm."""
STEPS_IN_MEMORY = AHEAD + 4
"""Number of image batches in host memory: AHEAD prefetched, one in training, three before the copy to pinned memory."""
NOISE_FACTOR = 1.2
"""Bytes of an augmented image, with the float32 noise of random erasing, divided by the bytes of its pixels."""
LOGIT_BYTES = 12
"""Peak bytes per logit of a translator: 8 for the log-probability and its gradient (float32), and 4 for the logit (one
float32 copy or two bfloat16 copies)."""
CHECKPOINT_FILES_ELEMENTS = 3 * 3
"""Float32 values per parameter on disk: weight and two moments in each of three checkpoints (one is being written)."""
BYTES_PER_TOKEN = 3
"""Approximate bytes of text per token, for text whose number of tokens is unknown."""
PARALLEL_EFFICIENCY = 0.9
"""Speed of n GPUs divided by n times the speed of one GPU (assumed)."""
BANDWIDTH_FRACTION = 0.8
"""Fraction of the memory bandwidth that a sum over many tensors reaches (assumed)."""

Cost = dict[str, Any]


def memory_bytes(run: Run, hardware: Hardware, shards: int = 1) -> int:
    """Return the peak memory of a processor in training, in bytes: state, activations of a micro-batch, and overhead.

    `shards` is the number of processors that the state is split over.
    """
    model = run.model
    elements = model.activation_elements()  # per token or image
    if run.checkpoint_activations:  # activations of one block, and inputs of all blocks (at most a tenth of the total)
        elements = elements // model.layers + elements // 10
    state = model.params() * STATE_ELEMENTS * BYTES_WEIGHT
    if run.precision == "bfloat16" and shards == 1:
        state += model.params() * BYTES_WEIGHT // 2  # bfloat16 copies of the weights for matrix products
    if shards > 1:  # weights and gradients of embedding, head and some blocks are unsharded
        inside = model.params(embedding=False)
        gathered = model.params() - inside + UNSHARDED_BLOCKS * inside // max(1, getattr(model, "layers", 1))
        state = state // shards + 2 * gathered * BYTES_WEIGHT
    activations = run.task.micro_batch_tokens * elements * _bytes_activation(run) + logits_bytes(run)
    return int(hardware.memory_base_mb * 2**20 + hardware.memory_factor * (state + activations))


def logits_bytes(run: Run) -> int:
    """Return the memory of the logits of a micro-batch and of their softmax, in bytes.

    A compiled decoder stores all logits once in the precision of the run. Without compilation, `linear_cross_entropy`
    computes chunks of logits with eight bytes per logit. See `LOGIT_BYTES` for a translator.
    """
    logits = run.task.micro_batch_tokens * getattr(run.model, "vocabulary", 0)
    if not isinstance(run.model, Decoder):
        return LOGIT_BYTES * logits
    return logits * _bytes_activation(run) if run.compile else 2 * BYTES_WEIGHT * min(logits, CHUNK_LOGITS)


def _bytes_activation(run: Run) -> int:
    return BYTES_WEIGHT // 2 if run.precision == "bfloat16" else BYTES_WEIGHT


def processes_of(run: Run, scale: Scale, hardware: Hardware, requested: int | None, *, carried: bool) -> dict[str, Any]:
    """Return `gpus`, `nodes` and `sharded`: number of processes and machines of a run, and whether tensors are split.

    `requested` is the number of GPUs in the configuration of the run. If it is None, the run gets the largest number of
    the scale's GPUs that divides its micro-batches evenly, on all machines if possible, otherwise on one. If
    `scale.sharded` is None, tensors are split if the run supports sharding and does not fit on one GPU. `carried` means
    that another run continues with the optimizer state of this run. Raises UserError if the GPUs do not divide the
    micro-batches evenly, if the machines do not divide the GPUs evenly, if the run would use only one of several GPUs
    of the scale, or if tensors cannot be split.
    """
    nodes, micro_batches = scale.nodes, getattr(run.task, "accumulate", scale.gpus)
    fitting = [gpus for gpus in range(nodes, scale.gpus + 1, nodes) if micro_batches % gpus == 0]
    gpus = requested or max(fitting, default=0)
    if gpus == 0:
        gpus, nodes = max(gpus for gpus in range(1, scale.gpus + 1) if micro_batches % gpus == 0), 1
    nodes = 1 if requested == 1 else nodes
    if requested is None and gpus == 1 < scale.gpus:
        uneven = f"task.accumulate={micro_batches} micro-batches cannot be divided evenly among scale.gpus={scale.gpus}"
        remedy = "set accumulate to a multiple of the GPUs, or gpus: 1 for this run"
        raise UserError(f"{run.id}: {uneven}, so only one GPU would be used; {remedy}")
    if micro_batches % gpus or gpus % nodes:
        uneven = f"cannot be divided evenly among gpus={requested} on nodes={nodes}"
        remedy = "set gpus to a divisor of accumulate and a multiple of nodes"
        raise UserError(f"{run.id}: task.accumulate={micro_batches} micro-batches {uneven}; {remedy}")
    sharded, reason = scale.sharded, unsupported_by_sharding(run, carried=carried)
    if sharded and reason:
        raise UserError(f"{run.id}: scale.sharded=true, but {reason} does not support sharding; leave sharded out")
    if sharded is None:
        sharded = reason is None and memory_bytes(run, hardware) > hardware.memory_gb * 1e9
    return {"gpus": gpus, "nodes": nodes, "sharded": sharded and gpus > 1}


def too_large_runs(runs: list[Run], hardware: Hardware) -> dict[str, int | None]:
    """Return {run: number of processors} for the runs that are too large for one processor.

    The number is a power of two, or None if the run does not support sharding or does not fit on 64 processors.
    """
    limit, needed = hardware.memory_gb * 1e9, dict[str, int | None]()
    for run in runs:
        powers = [2**power for power in range(7 if unsupported_by_sharding(run) is None else 1)]
        fitting = (shards for shards in powers if memory_bytes(run, hardware, shards) <= limit)
        needed[f"{run.study}/{run.name}"] = next(fitting, None)
    return {run: shards for run, shards in needed.items() if shards != 1}


def loader_resources(
    run: Run, data: DataSpec, hours: float, gpus: int, *, threads: int, flexible: bool
) -> dict[str, int]:
    """Return the CPU `threads` of each process, and `loader_bytes`, the host memory of its workers and image batches.

    If `flexible`, the configured `threads` are raised to at most `CPUS_PER_GPU`, so that image loading is as fast as
    training, which takes the predicted `hours` on `gpus` GPUs.
    """
    images, images_per_s = 0.0, _images_per_s(run, data)
    if images_per_s:
        assert isinstance(run.task, Classification)
        assert isinstance(run.model, VisionTransformer)
        if flexible:
            threads = max(threads, min(CPUS_PER_GPU, ceil(run.tokens / (3600 * hours) / gpus / images_per_s)))
        images = STEPS_IN_MEMORY * NOISE_FACTOR * run.task.batch / gpus + run.task.valid_images
        images *= run.model.image**2 * run.model.channels
    return {"threads": threads, "loader_bytes": threads * WORKER_BYTES + int(images) if images and threads > 1 else 0}


def loading_hours(run: Run, data: DataSpec, gpus: int, threads: int) -> float:
    """Return the hours that `threads` workers per GPU need to load images; 0 for runs without loader workers."""
    images_per_s = _images_per_s(run, data)
    return run.tokens / (3600 * images_per_s * threads * gpus) if images_per_s else 0.0


def _images_per_s(run: Run, data: DataSpec) -> float | None:
    """Return the images per second of a DataLoader worker; None for text and for pixels without timm augmentation."""
    storage = getattr(data, "storage", "pixels")
    if not isinstance(run.task, Classification) or not isinstance(run.model, VisionTransformer):
        return None
    plain = storage == "pixels" and not isinstance(run.task.augmentation, TimmAugmentation)
    return None if plain else IMAGES_PER_S[storage]


def run_cost(run: Run, scale: Scale, hardware: Hardware, gpus: int, shards: int) -> Cost:
    """Return parameters, tokens, FLOPs, bytes of memory and disk, and hours of a run on `gpus` processors."""
    parameters = run.model.params()
    return {
        "parameters": parameters,
        "tokens": run.tokens,
        "flops": run.flops,
        "memory_bytes": memory_bytes(run, hardware, shards),
        "disk_bytes": parameters * (1 + CHECKPOINT_FILES_ELEMENTS) * BYTES_WEIGHT,
        "hours": hours(run, scale, hardware, gpus),
        "processors": gpus,
    }


def loading_cost(run: ReleasedRun, hardware: Hardware) -> Cost:
    """Return the cost of loading a released model and evaluating it on held-out text: memory and hours."""
    parameters, stored = run.model.params(), BYTES_WEIGHT if run.measuring_precision == "float32" else BYTES_WEIGHT // 2
    memory = int(hardware.memory_base_mb * 2**20) + parameters * stored
    cost = {"parameters": parameters, "tokens": 0, "flops": 0, "memory_bytes": memory, "disk_bytes": 0}
    return cost | {"hours": forward_cost(run, run.tokens, hardware)["hours"]}


def evaluation_tokens(run: Run, scale: Scale) -> int:
    """Estimate the tokens of all validations and of the test (`max_held_out_bytes`); 0 except for language models."""
    if not isinstance(run.task, LanguageModeling):
        return 0
    evaluations = 1 + ceil(run.steps / run.evaluate_every)
    held_out = getattr(scale.data[run.data], "max_held_out_bytes", None) or 0
    return evaluations * run.task.valid_windows * run.task.context + held_out // BYTES_PER_TOKEN


def hours(run: Run, scale: Scale, hardware: Hardware, count: int = 1) -> float:
    """Return the hours of a run on `count` processors: matrix products, overheads, evaluation and start-up."""
    model, rate = run.model, _rate(run, hardware, run.precision)
    trained, evaluated = run.tokens, evaluation_tokens(run, scale)
    overhead_s = (blocks(model) * hardware.block_us + hardware.micro_batch_us) / 1e6
    speedup = count * (PARALLEL_EFFICIENCY if count > 1 else 1.0)
    tokens = trained / speedup + evaluated / TRAINING_PASSES  # every process validates; training is split
    recompute_factor = (TRAINING_PASSES + 1) / TRAINING_PASSES if run.checkpoint_activations else 1.0
    matmul_s = (recompute_factor * run.flops / speedup + evaluated * run.forward_flops) / rate
    start_s = hardware.start_s + (hardware.compile_s * blocks(model) if run.compile else 0.0)
    mixer_bytes = model.depth.bytes_moved(model.layers, model.width) if isinstance(model, Decoder) else 0
    mixer_s = tokens * mixer_bytes / (BANDWIDTH_FRACTION * hardware.memory_gb_per_s * 1e9)
    return (start_s + matmul_s + mixer_s + tokens / run.task.micro_batch_tokens * overhead_s) / 3600


def _rate(run: AnyRun, hardware: Hardware, precision: str) -> float:
    """Return the FLOP/s that the model of a run reaches."""
    kinds = {getattr(getattr(run.model, name, None), "kind", None) for name in ("projection", "feedforward")}
    return hardware.flops_per_s(precision, pattention="pattention" in kinds)


def blocks(model: Model | Pretrained) -> int:
    """Return the number of blocks of a model, or 0 if it has no `layers`."""
    return int(getattr(model, "layers", 0))


def forward_cost(run: AnyRun, tokens: int, hardware: Hardware, *, cached: bool = False) -> Cost:
    """Return the estimated FLOPs and hours of a forward pass over `tokens`, token by token if `cached`."""
    flops, steps = tokens * run.forward_flops, tokens * blocks(run.model) * cached
    seconds = hardware.start_s + flops / _rate(run, hardware, run.measuring_precision) + steps * hardware.cache_us / 1e6
    return {"tokens": tokens, "flops": flops, "hours": seconds / 3600}


def totals(costs: list[Cost]) -> Cost:
    """Return the sums over runs; hours are processor-hours, and memory is the maximum over runs."""
    summed = {key: sum(cost[key] for cost in costs) for key in ("tokens", "flops", "disk_bytes")}
    summed["hours"] = sum(cost["hours"] * cost.get("processors", 1) for cost in costs)
    return summed | {"runs": len(costs), "memory_bytes": max((cost["memory_bytes"] for cost in costs), default=0)}
