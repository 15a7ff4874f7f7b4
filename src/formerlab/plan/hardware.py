"""What jobs run on, and how fast: a table to which a configuration adds its own machines, measurements and prices."""

from pydantic import Field, NonNegativeFloat, PositiveFloat

from formerlab.errors import UserError
from formerlab.plan.layers import Layer, Tree
from formerlab.plan.read import near_misses, parse
from formerlab.spec import Spec


class Hardware(Spec):
    """A processor as the time and memory estimates see it.

    Time = FLOPs / (peak x utilisation), plus a constant per block of every part of a step, and one per part: what a
    processor does besides matrix products, and all that small models do.
    """

    memory_gb: PositiveFloat
    """Memory, 10^9 bytes."""
    float32_tflops: PositiveFloat
    """Peak of dense products of float32 numbers (without TF32), 10^12 FLOP/s; of one thread on a CPU."""
    bfloat16_tflops: PositiveFloat
    """Peak of dense products of bfloat16 numbers, 10^12 FLOP/s; of one thread on a CPU."""
    utilisation: PositiveFloat = Field(default=0.4, le=1.0)
    """Share of the peak that the products of large models reach in training."""
    block_us: NonNegativeFloat = 250.0
    """Time of a block, forward and backward, beside its products, microseconds."""
    part_us: NonNegativeFloat = 4000.0
    """The same for everything else of a part: embedding, loss, optimizer, rows."""
    cache_us: NonNegativeFloat = 2.0
    """Time of one token in one layer under a cache policy, microseconds, many sequences at a time."""
    start_s: NonNegativeFloat = 90.0
    """Time from the start of a job to its first step: imports, data, compilation."""
    memory_base_mb: NonNegativeFloat = 800.0
    """Memory beside what grows with the model: on a GPU its context and workspaces, MiB."""
    memory_factor: PositiveFloat = 1.2
    """Held memory over weights, gradients, moments and activations: temporary tensors and gaps."""
    price: NonNegativeFloat | None = None
    """Price of an hour, in whatever currency; null means not asked for."""

    def flops_per_s(self, precision: str) -> float:
        """Return what matrix products of training reach, FLOP/s."""
        peak = self.bfloat16_tflops if precision == "bfloat16" else self.float32_tflops
        return peak * 1e12 * self.utilisation


# GPUs: memory and dense peaks from NVIDIA's data sheets (A100 80 GB SXM, H100 SXM, H200 SXM, GeForce RTX 4090); their
# utilisation and overheads are stated, not measured: 0.4 of the bfloat16 peak is what compiled GPT-2-sized models
# commonly report. CPU: one thread of the AMD EPYC on which results/cached/laptop was made. Its peak is that of a
# 1024 x 1024 float32 product there, and the rest follows from those runs (`python -m formerlab predicted`).
TABLE: dict[str, Tree] = {
    "A100": {"memory_gb": 80.0, "float32_tflops": 19.5, "bfloat16_tflops": 312.0},
    "H100": {"memory_gb": 80.0, "float32_tflops": 67.0, "bfloat16_tflops": 989.0, "utilisation": 0.35},
    "H200": {"memory_gb": 141.0, "float32_tflops": 67.0, "bfloat16_tflops": 989.0, "utilisation": 0.35},
    "RTX4090": {"memory_gb": 24.0, "float32_tflops": 82.6, "bfloat16_tflops": 165.0},
    "CPU": {
        "memory_gb": 16.0,
        "float32_tflops": 0.1,
        "bfloat16_tflops": 0.1,
        "utilisation": 0.75,
        "block_us": 2400.0,
        "part_us": 7000.0,
        "cache_us": 60.0,
        "start_s": 2.2,
        "memory_base_mb": 38.0,
        "memory_factor": 1.6,
    },
}


def hardware_table(laid_over: Tree) -> dict[str, Hardware]:
    """Return the table with the configuration laid over: single keys of known processors, all keys of new ones.

    Raises
    ------
    UserError
        Naming the processor and the key that is wrong.
    """
    return {
        name: parse(
            Hardware,
            [Layer("hardware table", TABLE.get(name, {})), Layer("config.yaml", laid_over.get(name, {}))],
            f"hardware.{name}",
        )
        for name in [*TABLE, *(name for name in laid_over if name not in TABLE)]
    }


def choose(table: dict[str, Hardware], name: str) -> Hardware:
    """Return a processor of the table; an unknown name is answered with near misses."""
    if name not in table:
        raise UserError(f"scale.hardware: {name!r} is not in the table{near_misses(name, list(table))}")
    return table[name]
