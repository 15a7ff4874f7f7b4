"""Dense connections over depth with weights that depend on the token."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.depth.dwa import Dilated
from formerlab.layers.depth.identity import Mixer, Stream, append, check_index
from formerlab.spec import Epsilon


class DynamicDense(Dilated):
    """Y_i = sum over j in S_i of A_ij X_j, A_i = gelu(RMSNorm(X_i) W_i1) W_i2 + a_i, if p divides i; otherwise Y_i =
    X_i (arXiv:2502.12170, MUDD connections).

    A network with |S_i| hidden units, as in the official code, computes the weights A_i of each token from X_i. This is
    the paper's variant "dynamic dense" with one mixture for query, key, value and residual stream; MUDDFormer has one
    mixture for each. Differences from the paper: RMSNorm has no gain, and there are no norms before and after the sum.
    W_i1 starts with standard deviation width^-1/2, W_i2 at 0, a_ii at 1 and a_ij at 0, so the model starts
    bit-identical to the plain Transformer. S_i is defined as in DenseFormer (dilation k, period p).
    """

    kind: Literal["mudd"] = "mudd"
    eps: Epsilon = 1e-5
    """Added to the mean square in RMSNorm."""

    def bytes_moved(self, layers: int, width: int) -> int:
        """Add the traffic of the norm. In bfloat16, its output is written once and read twice, and the gradient of the
        output is written once and read once. In float32, X_i and dX_i are read, and the accumulated dX_i is written.
        """
        return super().bytes_moved(layers, width) + (5 * 2 + 3 * 4) * len(self.sources_by_block(layers)) * width

    def matmul_flops(self, layers: int, width: int) -> int:
        return sum(2 * n * (width + n) for n in map(len, self.sources_by_block(layers).values()))


class DynamicDenseLayer(Mixer, of=DynamicDense):
    """The module of `DynamicDense`."""

    def __init__(self, layers: int, width: int, spec: DynamicDense) -> None:
        super().__init__()
        self.sources, self.eps, self.layers = spec.sources_by_block(layers), spec.eps, layers
        sizes = {str(i): len(js) for i, js in self.sources.items()}
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
        """Return Y_index and store X_index; the sum is at least float32."""
        check_index("block", index, self.layers)
        append(index, x, history)
        if index not in self.sources:
            return x
        compute_dtype, i = torch.promote_types(x.dtype, torch.float32), str(index)
        normed = F.rms_norm(x, x.shape[-1:], eps=self.eps)
        dynamic = F.linear(F.gelu(F.linear(normed, self.inner[i])), self.outer[i])
        weights = (dynamic.to(compute_dtype) + self.static[i].to(compute_dtype)).unbind(dim=-1)
        mixed: Tensor = weights[-1][..., None] * x.to(compute_dtype)
        for weight, j in zip(weights[:-1], self.sources[index][:-1], strict=True):
            mixed = mixed + weight[..., None] * history[j].to(compute_dtype)
        return mixed.to(x.dtype)
