"""Kept keys numbered anew: they stand elsewhere in the cache than in the text."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from formerlab.cache.policies.policy import Logits, Policy, Queries, on_device
from formerlab.errors import UserError
from formerlab.layers.attention import KeyHeads
from formerlab.layers.position import PositionEncoding


def check_position(policy: Policy, position: PositionEncoding | None) -> PositionEncoding | None:
    """Return the position encoding; raise UserError where the policy numbers keys anew and this one cannot follow."""
    if not policy.reindexes_positions:
        return position
    if position is None:
        raise UserError(f"{policy!r} numbers the kept keys anew; pass position=model.position")
    if type(position).embed is not PositionEncoding.embed:
        raise UserError(
            f"{policy!r} cannot number the kept keys anew: the model adds positions to the embedded tokens, so keys "
            "are made of them; use positions='kept'"
        )
    return position


def rotated(
    keys: Float[Tensor, "batch key_heads some d_head"], by: int, position: PositionEncoding
) -> Float[Tensor, "batch key_heads some d_head"]:
    """Return the keys as if they stood `by` positions later."""
    return position.rotate(keys.flatten(1, 2).unsqueeze(2), by).view_as(keys)


def reindexed_sink(
    logits: Logits,
    queries: Queries,
    keys: KeyHeads,
    sink: Sequence[int],
    budgets: Sequence[int],
    position: PositionEncoding,
) -> Logits:
    """Return the logits where each sequence's first `sink` keys stand right in front of a window that slides.

    Query q of a cache of b = `budgets` keys finds e = max(0, q - b) positions missing between the sink and the
    window. Only distances matter, so the sink's keys are turned e positions further and all others stay.
    """
    time = logits.shape[-1]
    first, held = on_device(sink, logits.device), on_device(budgets, logits.device)
    missing = (torch.arange(time, device=logits.device) - held[:, None]).clamp(min=0)
    steps = max(time - min(budgets), 1)
    logits = logits.clone()
    for key in range(max(sink)):
        places = position.rotate(keys[:, :, key : key + 1].expand(-1, -1, steps, -1), 0)
        index = missing[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[3])
        column = (queries * places.gather(2, index).unsqueeze(2)).sum(-1)
        logits[..., key] = torch.where((key < first)[:, None, None, None], column, logits[..., key])
    return logits
