"""Log-probabilities of tokens, for perplexity and zero-shot questions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.errors import UserError
from formerlab.layers.attention import Attend, causal_attention

AttendFor = Callable[[Int[Tensor, " batch"]], Attend]
"""Maps the unpadded lengths of the rows of a batch (on the CPU) to the attention function of the batch."""


class Scores(NamedTuple):
    """Scores of tokens 1, 2, ... of each row."""

    log_probs: Float[Tensor, "batch time"]
    """Natural logarithm of the probability of each token, given all tokens before it."""
    greedy: Bool[Tensor, "batch time"]
    """Whether this is the most probable token."""
    realised_budget: Float[Tensor, " batch"]
    """Measured cache size after the last input, as a fraction of all keys and values; 1 without pruning."""


@contextmanager
def evaluating(model: nn.Module, no_grad: Callable[[], Any] = torch.inference_mode) -> Iterator[None]:
    """Enter the context `no_grad()` in evaluation mode; at the end, restore the modes of all modules."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        with no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def check_finite(values: Tensor) -> None:
    """Raise UserError if a value is NaN or infinite."""
    if not values.isfinite().all():
        raise UserError("the model's logits are not finite; run it in float32 or bfloat16, or restore its weights")


def score(
    model: nn.Module,
    tokens: Int[Tensor, "batch time_plus_1"],
    lengths: Int[Tensor, " batch"],
    attend_for: AttendFor | None = None,
    last: int | None = None,
) -> Scores:
    """Score tokens 1, 2, ... of each row in one forward pass over the tokens before them.

    `lengths` has the number of inputs of each row, without padding. With `last`, only the last `last` columns are
    scored. Log-softmax is computed in float32 or wider, row by row, because a batch of float32 logits can be larger
    than the model. Raises UserError if the log-probability of a scored token is not finite.
    """
    on_device = tokens.to(next(model.parameters()).device, non_blocking=True)
    targets = on_device[:, 1:] if last is None else on_device[:, 1:][:, -last:]
    attend = causal_attention if attend_for is None else attend_for(lengths)
    logits = model(on_device[:, :-1], attend=attend, **({} if last is None else {"last": last}))
    precision = torch.promote_types(logits.dtype, torch.float32)
    losses = [F.cross_entropy(row.to(precision), t, reduction="none") for row, t in zip(logits, targets, strict=True)]
    log_probs = -torch.stack(losses).cpu()
    columns = torch.arange(tokens.shape[1] - 1 - log_probs.shape[1], tokens.shape[1] - 1)
    check_finite(log_probs[columns < lengths.cpu()[:, None]])  # logits of padding may have any value
    # Only pruning simulations have this attribute; `getattr` avoids an import of the cache package.
    cache_size: Tensor = getattr(attend, "realised_budget", torch.ones(len(tokens)))
    return Scores(log_probs, (logits.argmax(dim=-1) == targets).cpu(), cache_size.cpu())
