"""Speeds and memory of processors (a GPU, or one CPU thread). A configuration can extend the table."""

from typing import Annotated, Any

from pydantic import Field

from formerlab.errors import UserError, near_misses
from formerlab.plan.merging import Tree, merge, parse
from formerlab.spec import Spec

Positive = Annotated[float, Field(ge=1e-6, le=1e9)]
NonNegative = Annotated[float, Field(ge=0.0, le=1e9)]


class Hardware(Spec):
    """Specifications of a processor, used to estimate time and memory.

    Time of a training step = FLOPs / (peak x utilisation) + block_us per block and micro-batch + micro_batch_us per
    micro-batch; `cost.hours` adds start-up, compilation, depth mixers and evaluation.
    """

    memory_gb: Positive
    """Memory in 10^9 bytes."""
    float32_tflops: Positive
    """Peak throughput of dense float32 matrix products (no TF32) in 10^12 FLOP/s."""
    bfloat16_tflops: Positive
    """Peak throughput of dense bfloat16 matrix products in 10^12 FLOP/s."""
    utilisation: float = Field(default=0.4, ge=1e-6, le=1.0)
    """Fraction of the peak that large models reach in training."""
    pattention_utilisation: float | None = Field(default=None, ge=1e-6, le=1.0)
    """Utilisation of models with Pattention, whose score functions are memory-bound; null means `utilisation`."""
    block_us: NonNegative = 250.0
    """Time of a block, forward and backward, without its matrix products, in microseconds."""
    micro_batch_us: NonNegative = 4000.0
    """Time of all other work per micro-batch, in microseconds: embedding, loss, optimizer, metrics."""
    cache_us: NonNegative = 2.0
    """Time per token and layer under a cache policy, for large batches, in microseconds."""
    memory_gb_per_s: Positive = 1000.0
    """Memory bandwidth in 10^9 bytes per second; depth mixers reach 0.8 of it (assumed)."""
    start_s: NonNegative = 90.0
    """Time from the start of a job to its first step, in seconds: imports and data."""
    compile_s: NonNegative = 3.0
    """Time to compile a block, in seconds; a compiled run compiles again at every start."""
    memory_base_mb: NonNegative = 800.0
    """Memory in MiB that does not depend on the model."""
    memory_factor: Positive = 1.2
    """Allocated memory, including temporary tensors, divided by the memory of weights, gradients, moments and
    activations."""
    basis: str = "as configured"
    """Source of these numbers: which are measured and which are assumed."""

    def flops_per_s(self, precision: str, *, pattention: bool) -> float:
        """Return the FLOP/s that training reaches."""
        peak = self.bfloat16_tflops if precision == "bfloat16" else self.float32_tflops
        return peak * 1e12 * ((pattention and self.pattention_utilisation) or self.utilisation)


def _gpu(
    memory_gb: float, memory_gb_per_s: float, float32: float, bfloat16: float, **measured: float
) -> dict[str, Any]:
    utilisation = "measured on an H100" if measured else "assumed"
    basis = f"memory and peaks from data sheets; utilisation {utilisation}, overheads assumed"
    sizes = {"memory_gb": memory_gb, "memory_gb_per_s": memory_gb_per_s}
    utilisations = {"utilisation": 0.4, "pattention_utilisation": 0.34} | measured
    return {"basis": basis, **sizes, "float32_tflops": float32, "bfloat16_tflops": bfloat16, **utilisations}


# GPUs: NVIDIA's data sheets of A100 80 GB SXM, H100 SXM, H200 SXM, GeForce RTX 4090. On an H100 a Transformer of 354M
# reaches 0.445 of the bfloat16 peak and a Tokenformer 0.362 (docs/performance.md); the table has rounder, lower values.
# The H200 has the H100's peaks and utilisations. For the A100 and the RTX 4090, 0.4 is commonly reported for compiled
# models of GPT-2's size, and 0.34 keeps the ratio of the H100's values. CPU: the peak is measured with a 1024 x 1024
# float32 product, memory_gb and bfloat16_tflops are assumed, the others are fitted to runs in results/cached/laptop.
TABLE: dict[str, dict[str, Any]] = {
    "A100": _gpu(80.0, 2039.0, 19.5, 312.0),
    "H100": _gpu(80.0, 3350.0, 67.0, 989.0, utilisation=0.42, pattention_utilisation=0.36),
    "H200": _gpu(141.0, 4800.0, 67.0, 989.0, utilisation=0.42, pattention_utilisation=0.36),
    "RTX4090": _gpu(24.0, 1008.0, 82.6, 165.0),
    "CPU": {
        "basis": "one thread of an AMD EPYC, measured in float32; memory and bfloat16_tflops assumed",
        **{"memory_gb": 16.0, "memory_gb_per_s": 20.0, "float32_tflops": 0.1, "bfloat16_tflops": 0.1},
        **{"utilisation": 0.75, "block_us": 2400.0, "micro_batch_us": 7000.0, "cache_us": 60.0, "start_s": 2.2},
        **{"memory_base_mb": 38.0, "memory_factor": 1.6},
    },
}


def find_hardware(config: Tree, name: str) -> Hardware:
    """Return a processor of the table, updated with `hardware` of the configuration. Raises UserError if unknown."""
    configured, table = config.subtree("hardware"), {}
    for processor in dict.fromkeys([*TABLE, *configured]):
        defaults, changes = dict(TABLE.get(processor, {})), configured.subtree(processor)
        if replaced := sorted(defaults.keys() & changes.keys()):
            defaults["basis"] = f"{defaults['basis']}; {', '.join(replaced)} as configured"
        defaults_tree = Tree(defaults, "hardware table" if defaults else changes.file)
        table[processor] = parse(Hardware, merge(defaults_tree, changes), f"hardware.{processor}")
    if name not in table:
        raise UserError(f"scale.hardware: {name!r} is not in the table{near_misses(name, list(table))}")
    return table[name]
