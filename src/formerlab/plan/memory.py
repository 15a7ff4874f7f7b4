"""What a training run holds in memory, in closed form, and what no run can be."""

from formerlab.models import Model
from formerlab.plan.hardware import Hardware
from formerlab.training.run import Run

BYTES_WEIGHT = 4
STATE_WORDS = 4
"""Float32 numbers per parameter in memory: weight, gradient and AdamW's two moments."""
GATHERED = 2
"""Blocks whose weights and gradients are whole at a time where all else is split: one computes, one is on its way."""


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
    state = run.model.params() * STATE_WORDS * BYTES_WEIGHT
    if shards > 1:
        state = state // shards + whole_words(run.model) * BYTES_WEIGHT
    return int(hardware.memory_base_mb * 2**20 + hardware.memory_factor * (state + activations))


def activation_elements(run: Run) -> int:
    """Return an estimate of the numbers that a run keeps per token (or image) of a part for the backward pass.

    Where blocks are computed again, they are those of one block and the inputs of all, a tenth of what a block keeps
    at most (models/activation_memory.py).
    """
    words = run.model.activation_elements()
    if not run.checkpoint_activations:
        return words
    logits = 2 * getattr(run.model, "vocabulary", 0)
    blocks = words - logits
    return logits + blocks // run.model.layers + blocks // 10


def whole_words(model: Model) -> int:
    """Return the weights and gradients that each processor holds whole at a time: embedding, head, some blocks."""
    inside = model.params(embedding=False)
    return 2 * (model.params() - inside + GATHERED * inside // max(1, getattr(model, "layers", 1)))
