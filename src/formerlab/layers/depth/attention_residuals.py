"""Attention over depth in place of residual connections."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.depth.fused_dwa import LAUNCH_BOUND
from formerlab.layers.depth.identity import DepthSpec, Mixer, Stream, check_index
from formerlab.spec import Epsilon, Layers


class AttentionResiduals(DepthSpec):
    """h_l = sum over i < l of alpha_il v_i, alpha_il = softmax over i of w_l . RMSNorm(v_i): Attention Residuals
    (arXiv:2603.15031, eq. 1-6).

    l counts sub-layers (attention and feed-forward each count as one), v_0 is the embedded tokens, v_i = f_i(norm(h_i))
    is the output of sub-layer i, and w_l is a learned pseudo-query. h_l replaces the residual stream as the input of
    sub-layer l; the last h is the input of the final norm. block_size S = 1 is Full AttnRes. S > 1 is Block AttnRes:
    the outputs of every group of S sub-layers are summed to one source b_n, and h_l attends over b_0 = v_0, the sums of
    earlier groups and the partial sum of the current group.

    This is the paper's variant with one static query per sub-layer and a single head. Difference from the paper: the
    norm of the keys has no learned gain, which would only rescale w. The queries start at zero, as in the paper, so the
    model starts with uniform averages of its sources and differs from the plain Transformer.
    """

    kind: Literal["attention_residuals"] = "attention_residuals"
    block_size: Layers = 1
    """S: number of sub-layers per source. 1 is Full AttnRes; the paper's ablation of Block AttnRes uses 4."""
    eps: Epsilon = 1e-5
    """Added to the mean square in RMSNorm."""

    def sources(self, index: int) -> list[int]:
        """Return the sources that h attends over after sub-layer `index`: 0, the last sub-layer of each completed group
        of `block_size`, and `index`.
        """
        return [0, *range(self.block_size, index, self.block_size), index]

    def bytes_moved(self, layers: int, width: int) -> int:
        """Each pair of sub-layer and source causes two bfloat16 reads (forward, backward) and one float32 read of the
        source's gradient.
        """
        return (2 * 2 + 4) * sum(len(self.sources(index)) for index in range(1, 2 * layers + 1)) * width


def stacked_attention(values: tuple[Tensor, ...], keys: tuple[Tensor, ...], query: Tensor) -> Tensor:
    """Return the attention over sources with a constant number of kernel launches, for decoding.

    values, keys: (batch, time, width) per source. query: (width). Result: (batch, time, width).
    """
    weights = (torch.stack(keys) * query).sum(dim=-1, keepdim=True).softmax(dim=0)
    return (weights * torch.stack(values)).sum(dim=0)


Sources = dict[int, tuple[Tensor, Tensor]]
"""The history: (value, key) by sub-layer index. The value is the sum of outputs of its group up to this sub-layer, and
the key is the normalised value. Activation checkpointing sets the same entries again in a recomputation.
"""


class AttentionResidualsLayer(Mixer, of=AttentionResiduals):
    """The module of `AttentionResiduals`."""

    def __init__(self, layers: int, width: int, spec: AttentionResiduals) -> None:
        super().__init__()
        self.spec = spec
        self.queries = nn.Parameter(torch.empty(2 * layers, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.queries)

    def begin(self, x: Stream) -> tuple[Stream, Sources]:
        return x, {0: (x, self._key(x))}

    def add(self, index: int, x: Stream, update: Stream, history: Sources) -> Stream:
        """Return the input of the next sub-layer, or of the final norm."""
        check_index("sub-layer", index, len(self.queries))
        starts_group = (index - 1) % self.spec.block_size == 0
        value = update if starts_group else history[index - 1][0] + update
        history[index] = (value, self._key(value))
        values, keys = zip(*(history[i] for i in self.spec.sources(index)), strict=True)
        query = self.queries[index - 1].to(keys[0].dtype)
        if value.device.type != "cpu" and value.numel() <= LAUNCH_BOUND and not torch.is_grad_enabled():
            return stacked_attention(values, keys, query).to(x.dtype)
        weights = torch.stack([(key * query).sum(dim=-1) for key in keys]).softmax(dim=0).unsqueeze(-1)
        mixed = weights[-1] * value
        for weight, earlier in zip(weights[:-1], values[:-1], strict=True):
            mixed = mixed + weight * earlier
        return mixed.to(x.dtype)

    def _key(self, value: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        compute_dtype = torch.promote_types(value.dtype, torch.float32)
        return F.rms_norm(value.to(compute_dtype), value.shape[-1:], eps=self.spec.eps)
