"""Costs of runs and plans in closed form, before anything is built: work and sizes, and from them time and memory."""

from math import ceil
from typing import Any

from formerlab.evaluation.measurement import Reading
from formerlab.models import Decoder, Model
from formerlab.plan.hardware import Hardware
from formerlab.plan.memory import BYTES_WEIGHT, memory_bytes
from formerlab.plan.schema import Scale
from formerlab.tasks import LanguageModeling
from formerlab.tasks.task import TRAINING_PASSES
from formerlab.training.any_run import AnyRun, Pretrained, ReleasedRun
from formerlab.training.run import Run

CHECKPOINT_ELEMENTS = 3 * 3
"""Float32 numbers per parameter on disk: weight and two moments in the last checkpoint, its forerunner, the next."""
BYTES_PER_TOKEN = 3
"""Bytes of text per token, roughly, where only bytes are known."""
SHARING = 0.9
"""Speed of several GPUs over their number times that of one: the rest is the summing of gradients. Stated."""
STREAMED = 0.8
"""Share of the memory's bandwidth that a sum over many tensors reaches. Stated."""

Cost = dict[str, Any]


def run_cost(run: Run, scale: Scale, hardware: Hardware, gpus: int, shards: int) -> Cost:
    """Return parameters, tokens, FLOPs, bytes of memory and disk, and hours of a run on so many of `hardware`.

    Its tensors are split into so many shards.
    """
    parameters = run.model.params()
    return {
        "parameters": parameters,
        "tokens": run.tokens,
        "flops": run.flops,
        "memory_bytes": memory_bytes(run, hardware, shards),
        "disk_bytes": parameters * (1 + CHECKPOINT_ELEMENTS) * BYTES_WEIGHT,
        "hours": hours(run, scale, hardware, gpus),
    }


def loading_cost(run: ReleasedRun, hardware: Hardware) -> Cost:
    """Return what reading a released model and its loss on held-out text cost, in the form of `run_cost`."""
    parameters, stored = run.model.params(), BYTES_WEIGHT if run.measured_in == "float32" else BYTES_WEIGHT // 2
    memory = int(hardware.memory_base_mb * 2**20) + parameters * stored
    trained = {"parameters": parameters, "tokens": 0, "flops": 0, "memory_bytes": memory, "disk_bytes": 0}
    return trained | {"hours": forward_cost(run, Reading(run.tokens), hardware)["hours"]}


def evaluation_tokens(run: Run, scale: Scale) -> int:
    """Return the tokens predicted in validation and in the test after training; 0 where that depends on unseen data."""
    if not isinstance(run.task, LanguageModeling):
        return 0
    times = 1 + ceil(run.steps / run.evaluate_every)
    held_out = getattr(scale.data[run.data], "max_held_out_bytes", None) or 0
    return times * run.task.valid_windows * run.task.context + held_out // BYTES_PER_TOKEN


def hours(run: Run, scale: Scale, hardware: Hardware, count: int = 1) -> float:
    """Return the time of a run on `count` processors: products, what surrounds them, evaluation, and the start."""
    rate = scale.flops_per_s or hardware.flops_per_s(run.precision)
    trained, evaluated = run.tokens, evaluation_tokens(run, scale)
    around = (blocks(run.model) * hardware.block_us + hardware.part_us) / 1e6
    sharing = count * (SHARING if count > 1 else 1.0)
    parts = trained / sharing + evaluated / TRAINING_PASSES  # every process validates, all training is shared out
    products = (run.flops / sharing + evaluated * run.forward_flops) / rate
    starting = hardware.start_s + (hardware.compile_s * blocks(run.model) if run.compile else 0.0)
    moved = run.model.depth.moved(run.model.layers, run.model.width) if isinstance(run.model, Decoder) else 0
    mixing = parts * moved / (STREAMED * hardware.memory_gb_per_s * 1e9)
    return (starting + products + mixing + parts / run.task.part_tokens * around) / 3600


def blocks(model: Model | Pretrained) -> int:
    """Return the number of blocks of a model."""
    return int(getattr(model, "layers", 0))


def forward_cost(run: AnyRun, reading: Reading, hardware: Hardware) -> Cost:
    """Return FLOPs and hours of what a measurement reads, roughly."""
    flops = reading.tokens * run.forward_flops
    steps = reading.cached * blocks(run.model)
    seconds = hardware.start_s + flops / hardware.flops_per_s(run.measured_in) + steps * hardware.cache_us / 1e6
    return {"tokens": reading.tokens, "flops": flops, "hours": seconds / 3600}


def totals(costs: list[Cost]) -> Cost:
    """Return the sums over runs; memory is that of the largest."""
    keys = ("tokens", "flops", "disk_bytes", "hours")
    summed = {key: sum(cost[key] for cost in costs) for key in keys}
    return summed | {"runs": len(costs), "memory_bytes": max((cost["memory_bytes"] for cost in costs), default=0)}
