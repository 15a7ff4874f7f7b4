"""What a training run holds in memory, in closed form."""

from formerlab.models import Model
from formerlab.plan.hardware import Hardware
from formerlab.run import Run

BYTES_WEIGHT = 4
STATE_WORDS = 4
"""Float32 numbers per parameter in memory: weight, gradient and AdamW's two moments."""
GATHERED = 2
"""Blocks whose weights and gradients are whole at a time where all else is split: one computes, one is on its way."""


def memory_bytes(run: Run, hardware: Hardware, shards: int = 1) -> int:
    """Return the peak on a processor that trains: state and activations of a part, and what surrounds them.

    With several shards the state is split over as many processors, but for what is whole while it is used.
    """
    bytes_activation = BYTES_WEIGHT // 2 if run.precision == "bfloat16" else BYTES_WEIGHT
    activations = run.task.part_tokens * run.model.activation_words() * bytes_activation
    state = run.model.params() * STATE_WORDS * BYTES_WEIGHT
    if shards > 1:
        state = state // shards + whole_words(run.model) * BYTES_WEIGHT
    return int(hardware.memory_base_mb * 2**20 + hardware.memory_factor * (state + activations))


def whole_words(model: Model) -> int:
    """Return the weights and gradients that each processor holds whole at a time: embedding, head, some blocks."""
    inside = model.params(embedding=False)
    return 2 * (model.params() - inside + GATHERED * inside // max(1, getattr(model, "layers", 1)))
