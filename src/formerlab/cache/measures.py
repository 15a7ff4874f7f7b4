"""Statistics of the retained keys for the pruning study, with one value per sequence. Sequences must not be padded."""

import torch
from jaxtyping import Float
from torch import Tensor

from formerlab.cache.budget import Budget, resolve_budget
from formerlab.cache.policies.policy import largest
from formerlab.cache.simulation import Square, SquareMask


def retention_measures(visible: SquareMask) -> dict[str, Float[Tensor, " batch"]]:
    """Return statistics of the positions of retained keys, by name.

    `early_share`, `early_share_10` and `recent_share` are the fractions of retained keys in the first 40 %, the first
    10 % and the last 40 % of the positions before a query. `mean_position` is the mean of
    (position + 0.5) / number of earlier positions.

    Retained keys are the keys that a query sees in addition to its own key. Values are averaged over heads and over the
    queries of the second half that see at least one retained key. If a sequence has no such query, the value is NaN. A
    position on a boundary is counted fractionally, so a uniform choice, or no pruning, gives an early fraction of
    exactly 0.4 and a mean position of 0.5. (Claim decay-h2o-keeps-first-tokens; Decay article, Fig. 3.)
    """
    position = torch.arange(visible.shape[-1], device=visible.device)
    query = position[:, None]
    range_weights = [(fraction * query.double() - position).clamp(0, 1) for fraction in (0.4, 0.1, 0.6)]
    weights = torch.stack([*range_weights, (position.double() + 0.5) / query.clamp(min=1)], dim=-1)
    retained = (visible & (position < query)).double()
    count = retained.sum(-1)
    included = (2 * position >= len(position)) & (count > 0)
    means = torch.einsum("bhqk,qkm->mbhq", retained, weights) / count.clamp(min=1)
    early, early_10, not_recent, mean = (means * included).sum((2, 3)) / included.sum((1, 2))
    return {"early_share": early, "early_share_10": early_10, "mean_position": mean, "recent_share": 1 - not_recent}


def ideal_attention(full_probabilities: Square, budget: Budget) -> Square:
    """Return the unpruned probabilities of the keys that the ideal policy retains, and zero for all other keys.

    For each query, this policy retains its own key and the `budget` earlier keys of largest unpruned probability. It
    selects keys for each query head, whereas `Ideal` selects them for each key-value head.
    """
    time, device = full_probabilities.shape[-1], full_probabilities.device
    past = torch.ones(time, time, dtype=torch.bool, device=device).tril(-1)
    count = torch.full(full_probabilities.shape[:-1], resolve_budget(budget, time), device=device)
    best = largest(full_probabilities.masked_fill(~past, -torch.inf), count) & past
    return full_probabilities * (best | torch.eye(time, dtype=torch.bool, device=device))


def distance_to_ideal(probabilities: Square, ideal: Square, *, skip: int = 0) -> Float[Tensor, " batch"]:
    """Return 1 - cosine similarity of each attention row and its ideal row, as the mean over queries and heads.

    Compute both from the same logits, so that the distance excludes the drift of hidden states under pruning. `skip` is
    the number of first positions that are left out as keys and queries; skip = 1 removes the attention sink. (Claim
    decay-mask-closer-to-ideal; A2SF, arXiv:2407.20485, Table 2, as cosine similarity.)
    """
    pruned, ideal = probabilities[..., skip:].double(), ideal[..., skip:].double()
    norms = pruned.norm(dim=-1) * ideal.norm(dim=-1)
    cosine = torch.linalg.vecdot(pruned, ideal) / norms.clamp(min=torch.finfo(norms.dtype).tiny)
    distances: Tensor = (1 - cosine).clamp(min=0).mean(1)
    return distances[:, skip:].mean(1)
