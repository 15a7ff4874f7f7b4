"""Processors and their speed: a table to which a configuration adds its own machines and measurements."""

from typing import Annotated, Any

from pydantic import Field

from formerlab.errors import UserError, near_misses
from formerlab.plan.merging import Tree, merge, parse
from formerlab.spec import Spec

Positive = Annotated[float, Field(ge=1e-6, le=1e9)]
NonNegative = Annotated[float, Field(ge=0.0, le=1e9)]


class Hardware(Spec):
    """A processor as the time and memory estimates see it.

    Time = FLOPs / (peak x utilisation), plus a constant per block of every part of a step, and one per part: what a
    processor does besides matrix products, and all that small models do.
    """

    memory_gb: Positive
    """Memory, 10^9 bytes."""
    float32_tflops: Positive
    """Peak of dense products of float32 numbers (without TF32), 10^12 FLOP/s; of one thread on a CPU."""
    bfloat16_tflops: Positive
    """Peak of dense products of bfloat16 numbers, 10^12 FLOP/s; of one thread on a CPU."""
    utilisation: float = Field(default=0.4, ge=1e-6, le=1.0)
    """Fraction of the peak that large models reach in training."""
    pattention_utilisation: float | None = Field(default=None, ge=1e-6, le=1.0)
    """The same for models with Pattention, whose norm and GeLU of the scores take longer; null: no difference."""
    block_us: NonNegative = 250.0
    """Time of a block, forward and backward, beside its products, microseconds."""
    part_us: NonNegative = 4000.0
    """The same for everything else of a part: embedding, loss, optimizer, rows."""
    cache_us: NonNegative = 2.0
    """Time of one token in one layer under a cache policy, microseconds, many sequences at a time."""
    memory_gb_per_s: Positive = 1000.0
    """Bandwidth of the memory, 10^9 bytes per second, of which depth mixers reach `STREAMED` (plan/cost.py)."""
    start_s: NonNegative = 90.0
    """Time from the start of a job to its first step: imports and data."""
    compile_s: NonNegative = 3.0
    """Time to compile a block of a run that compiles, which every start of it does again."""
    memory_base_mb: NonNegative = 800.0
    """Memory beside what grows with the model: on a GPU its context and workspaces, MiB."""
    memory_factor: Positive = 1.2
    """Held memory over weights, gradients, moments and activations: temporary tensors and gaps."""
    basis: str = "as configured"
    """Where these numbers come from, in words: what is measured, and what is not."""

    def flops_per_s(self, precision: str, *, pattention: bool) -> float:
        """Return the FLOP/s that training reaches, with or without Pattention in the model."""
        peak = self.bfloat16_tflops if precision == "bfloat16" else self.float32_tflops
        return peak * 1e12 * ((pattention and self.pattention_utilisation) or self.utilisation)


def _gpu(memory_gb: float, memory_gb_per_s: float, float32: float, bfloat16: float, **more: float) -> dict[str, Any]:
    utilisation = "measured on an H100" if more else "assumed"
    basis = f"memory and peaks from data sheets; utilisation {utilisation}, overheads assumed"
    sizes = {"memory_gb": memory_gb, "memory_gb_per_s": memory_gb_per_s}
    reached = {"utilisation": 0.4, "pattention_utilisation": 0.34} | more
    return {"basis": basis, **sizes, "float32_tflops": float32, "bfloat16_tflops": bfloat16, **reached}


# GPUs: NVIDIA's data sheets of A100 80 GB SXM, H100 SXM, H200 SXM, GeForce RTX 4090. On an H100 a Transformer of 354M
# reaches 0.445 of the bfloat16 peak, a Tokenformer 0.362 (docs/performance.md); elsewhere 0.4 is what compiled
# GPT-2-sized models commonly report, and 0.34 has the same ratio to it. CPU: its peak is that of a 1024 x 1024 float32
# product, and the rest follows from the runs in results/cached/laptop.
TABLE: dict[str, dict[str, Any]] = {
    "A100": _gpu(80.0, 2039.0, 19.5, 312.0),
    "H100": _gpu(80.0, 3350.0, 67.0, 989.0, utilisation=0.42, pattention_utilisation=0.36),
    "H200": _gpu(141.0, 4800.0, 67.0, 989.0, utilisation=0.42, pattention_utilisation=0.36),
    "RTX4090": _gpu(24.0, 1008.0, 82.6, 165.0),
    "CPU": {
        "basis": "one thread of an AMD EPYC, measured in float32; memory and bfloat16_tflops assumed",
        **{"memory_gb": 16.0, "memory_gb_per_s": 20.0, "float32_tflops": 0.1, "bfloat16_tflops": 0.1},
        **{"utilisation": 0.75, "block_us": 2400.0, "part_us": 7000.0, "cache_us": 60.0, "start_s": 2.2},
        **{"memory_base_mb": 38.0, "memory_factor": 1.6},
    },
}


def find_hardware(config: Tree, name: str) -> Hardware:
    """Return a processor of the table, on which `hardware` of the configuration is laid: known ones in part, or new."""
    own, table = config.part("hardware"), {}
    for one in dict.fromkeys([*TABLE, *own]):
        known, given = dict(TABLE.get(one, {})), own.part(one)
        if replaced := sorted(known.keys() & given.keys()):
            known["basis"] = f"{known['basis']}; {', '.join(replaced)} as configured"
        below = Tree(known, "hardware table" if known else given.file)
        table[one] = parse(Hardware, merge(below, given), f"hardware.{one}")
    if name not in table:
        raise UserError(f"scale.hardware: {name!r} is not in the table{near_misses(name, list(table))}")
    return table[name]
