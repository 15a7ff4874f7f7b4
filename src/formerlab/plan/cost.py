"""Predicted cost of a training run, in closed form, before anything is built."""

from typing import Any

from formerlab.models import Decoder, Model
from formerlab.plan.schema import Scale
from formerlab.run import Run

BYTES_WEIGHT = 4
STATE_WORDS = 4
"""Float32 numbers per parameter in memory: weight, gradient and AdamW's two moments."""
CHECKPOINT_WORDS = 3
"""Float32 numbers per parameter on disk: weight and two moments."""


def run_cost(run: Run, scale: Scale) -> dict[str, Any]:
    """Return parameters, tokens, FLOPs, bytes of memory and disk, and hours at the scale's assumed speed."""
    model, parameters = run.model, run.model.params()
    activations = run.task.part_tokens * activation_words(run.model) * BYTES_WEIGHT
    return {
        "parameters": parameters,
        "parameters_non_embedding": model.params(embedding=False),
        "tokens": run.tokens,
        "flops": run.flops,
        "memory_bytes": parameters * STATE_WORDS * BYTES_WEIGHT + activations,
        "disk_bytes": parameters * (1 + CHECKPOINT_WORDS) * BYTES_WEIGHT,
        "hours": run.flops / scale.flops_per_s / 3600,
    }


def activation_words(model: Model) -> int:
    """Return an estimate of the numbers kept per token for the backward pass.

    A block keeps about ten vectors of the model's width (inputs of norms and projections, queries, keys, values,
    attention's output), what its projections keep inside (two numbers per parameter token or hidden unit), and the
    depth mixer one vector per block; the logits are kept twice, in their own type and in float32. Other models than
    decoders say it themselves.
    """
    if not isinstance(model, Decoder):
        return model.activation_words()
    width = model.width
    inner = 2 * (model.feedforward.flops(width, width) // (4 * width))
    if model.projection.kind == "pattention":
        inner += 4 * 2 * model.projection.tokens
    mixing = width if model.depth.kind != "identity" else 0
    return model.layers * (10 * width + inner + mixing) + 2 * model.vocabulary


def totals(costs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over runs; memory is that of the largest."""
    summed = {key: sum(cost[key] for cost in costs) for key in ("tokens", "flops", "disk_bytes", "hours")}
    return summed | {"runs": len(costs), "memory_bytes": max((cost["memory_bytes"] for cost in costs), default=0)}
