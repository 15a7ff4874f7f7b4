"""Dense connections over depth whose weights depend on the token."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.depth.dwa import Dilated
from formerlab.layers.depth.identity import Mixer, Stream, append, check_index
from formerlab.spec import Epsilon


class DynamicDense(Dilated):
    """Y_i = sum over j in S_i of A_ij X_j, A_i = gelu(RMSNorm(X_i) W_i1) W_i2 + a_i, where p divides i; else Y_i = X_i
    (arXiv:2502.12170, MUDD connections).

    Every token has its own weights A_i, made by a small network from what the block gave it; n = |S_i| is also the
    number of hidden units, as in the official code. Variant: one way, that is the same mixture for query, key, value
    and residual stream (the paper's ablation "dynamic dense"; MUDDFormer has one mixture for each), RMSNorm without
    gain, and none of the norms before and behind the sum. W_i1 is drawn with standard deviation width^-1/2, W_i2 = 0,
    a_ii = 1 and a_ij = 0, so a fresh model is the plain Transformer, bit for bit. S_i is that of DenseFormer, with
    dilation k and period p.
    """

    kind: Literal["mudd"] = "mudd"
    eps: Epsilon = 1e-5
    """Added to the mean square in RMSNorm."""

    def bytes_moved(self, layers: int, width: int) -> int:
        """Those of the averages, and for every one the norm in front of its weights.

        It is written in bfloat16, read by the product and its gradient; its own gradient is written and read; X_i and
        its gradient are read, and the sum of both gradients written.
        """
        return super().bytes_moved(layers, width) + (5 * 2 + 3 * 4) * len(self.table(layers)) * width

    def matmul_flops(self, layers: int, width: int) -> int:
        return sum(2 * n * (width + n) for n in map(len, self.table(layers).values()))


class DynamicDenseLayer(Mixer, of=DynamicDense):
    """The module of `DynamicDense`."""

    def __init__(self, layers: int, width: int, spec: DynamicDense) -> None:
        super().__init__()
        self.table, self.eps, self.layers = spec.table(layers), spec.eps, layers
        sizes = {str(i): len(js) for i, js in self.table.items()}
        self.inner = nn.ParameterDict({i: nn.Parameter(torch.empty(n, width)) for i, n in sizes.items()})
        self.outer = nn.ParameterDict({i: nn.Parameter(torch.empty(n, n)) for i, n in sizes.items()})
        self.static = nn.ParameterDict({i: nn.Parameter(torch.empty(n)) for i, n in sizes.items()})
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for i in self.inner:
            self.inner[i].normal_(0.0, self.inner[i].shape[1] ** -0.5)
            self.outer[i].zero_()
            self.static[i].zero_()
            self.static[i][-1] = 1.0

    def begin(self, x: Stream) -> tuple[Stream, list[Stream]]:
        return x, [x]

    def mix(self, index: int, x: Stream, history: list[Stream]) -> Stream:
        """Return Y_index and keep X_index; weights and sum are in float32 at least."""
        check_index("block", index, self.layers)
        append(index, x, history)
        if index not in self.table:
            return x
        wide, i = torch.promote_types(x.dtype, torch.float32), str(index)
        normed = F.rms_norm(x, x.shape[-1:], eps=self.eps)
        dynamic = F.linear(F.gelu(F.linear(normed, self.inner[i])), self.outer[i])
        weights = (dynamic.to(wide) + self.static[i].to(wide)).unbind(dim=-1)
        mixed: Tensor = weights[-1][..., None] * x.to(wide)
        for weight, j in zip(weights[:-1], self.table[index][:-1], strict=True):
            mixed = mixed + weight[..., None] * history[j].to(wide)
        return mixed.to(x.dtype)
