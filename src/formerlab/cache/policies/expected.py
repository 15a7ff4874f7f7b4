"""Expected Attention: score keys by the attention expected from queries with the prompt's query distribution."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from formerlab.cache.one_shot import QUERY_CHUNK
from formerlab.cache.policies.policy import Importance, OneShot, Prompt, UnknownRotation, at_least_float32, by_group
from formerlab.errors import UserError
from formerlab.layers.position import PositionEncoding, RotaryEncoding
from formerlab.layers.shapes import Heads
from formerlab.spec import AnyCount, Size


class ExpectedAttention(OneShot):
    """S[k] = (softmax over k of k.mu / sqrt(d) + k^T C k / (2 d)) ||v_k||_2 (arXiv:2510.00636).

    The argument of the softmax is the logarithm of the mean of exp(q.k / sqrt(d)) over Gaussian queries. mu and C are
    the mean and covariance of the prompt's unrotated queries, without the first `sink` queries. The mean rotation of
    the next `future` positions (up to the context of a `RotaryEncoding`) is then applied to both. Scores are averaged
    over the query heads of a key-value head, and the sink is retained. The policy is one-shot, because the statistics
    need a complete prompt.
    """

    kind: Literal["expected_attention"] = "expected_attention"
    future: Size = 512
    """Number of positions after the prompt in the mean rotation."""
    sink: AnyCount = 4
    """Number of first tokens that are always retained; the statistics exclude their queries."""

    def importance(self, prompt: Prompt, position: PositionEncoding | None) -> Importance:
        assert position is not None, "CompressedCache calls check_position first"
        q, k, v = map(at_least_float32, (prompt.q, prompt.k, prompt.v))  # squares of queries exceed float16
        time, d_head = k.shape[2:]
        sink = min(self.sink, time - 1)
        queries = unrotated(q, position)[:, :, sink:]
        mean = queries.mean(2, keepdim=True)
        centred = queries - mean
        covariance = centred.transpose(-1, -2) @ centred / centred.shape[2]
        rotation = rotations(position, time, self.future, q).mean(0)
        mean, covariance = mean @ rotation, rotation.T @ covariance @ rotation
        heads_per_kv_head = q.shape[1] // k.shape[1]
        keys = k[:, :, sink:].unsqueeze(2)
        logits = (by_group(mean, heads_per_kv_head) @ keys.transpose(-1, -2)).squeeze(3) / d_head**0.5
        logits = logits + (keys @ by_group(covariance, heads_per_kv_head) * keys).sum(-1) / (2 * d_head)
        importance = logits.softmax(-1).mean(2) * v[:, :, sink:].norm(dim=-1)
        return torch.nn.functional.pad(importance, (sink, 0))

    def check_position(self, position: PositionEncoding | None) -> PositionEncoding:
        if position is None:
            raise UserError(f"{self!r} needs queries before their rotation; pass position=model.position")
        if isinstance(position, UnknownRotation):
            raise UserError(
                f"{self!r} needs queries before their rotation, but the rotation of this model is unknown; use SnapKV, "
                "or a step-by-step policy such as Decay"
            )
        return position


def rotations(
    position: PositionEncoding, start: int, count: int, like: Tensor
) -> Float[Tensor, "positions d_head d_head"]:
    """Return matrices R with x R = x rotated to positions start, start + 1, ... (`RotaryEncoding`: up to its
    context).
    """
    if isinstance(position, RotaryEncoding):
        context = position.cosine.shape[0]
        start = min(start, context - 1)
        count = min(count, context - start)
    identity = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    return position.rotate(identity[None, :, None].expand(-1, -1, count, -1), start)[0].transpose(0, 1)


def unrotated(q: Heads, position: PositionEncoding) -> Heads:
    """Return the queries before their rotation."""
    chunks = []
    for start in range(0, q.shape[2], QUERY_CHUNK):
        chunk = q[:, :, start : start + QUERY_CHUNK].unsqueeze(3)
        chunks.append((chunk @ rotations(position, start, chunk.shape[2], q).transpose(-1, -2)).squeeze(3))
    return torch.cat(chunks, 2)
