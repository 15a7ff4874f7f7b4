"""Hyper-Connections that mix the streams with doubly stochastic matrices."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from formerlab.layers.depth.hyper_connections import HyperConnections, HyperConnectionsLayer, Streams, Weights, product
from formerlab.spec import Epsilon, Layers

Matrices = Float[Tensor, "batch time streams streams"]

SCALE = 0.01
"""Initial alpha (arXiv:2512.24880, Table 5)."""
PRE_LOGIT = 4.0
"""Initial logit b of H_pre elements that start near 1; elements that start near 0 have logit -PRE_LOGIT."""
RES_DIAGONAL = {"identity": PRE_LOGIT, "mixing": 1.0}
"""Initial b_res on the diagonal for each value of `start`; the other elements have the negative value.

With 4 streams the diagonal of H_res starts at 0.999 or 0.711. At 0.999 the gradient of b_res is smaller than Adam's
eps, and H_res does not change.
"""


class ManifoldHyperConnections(HyperConnections):
    """X <- H_res X + H_post^T T(H_pre X): manifold-constrained Hyper-Connections, mHC (arXiv:2512.24880, eq. 3, 7-9).

    With x' = RMSNorm(vec(X)) over all n streams of a token, H_pre = logistic(alpha_pre x' phi_pre + b_pre), H_post = 2
    logistic(alpha_post x' phi_post + b_post) and H_res = SinkhornKnopp(alpha_res mat(x' phi_res) + b_res). H_res is
    doubly stochastic up to the finite number of iterations. The gain of the norm is part of phi (section 4.3.1).

    The paper does not specify the initial streams, the final readout, the initial phi and b, and the weight decay. As
    in `StaticHyperConnections`, the streams start as copies, and the final norm reads their sum. phi starts at zero,
    b_post at 0 (H_post = 1), b_pre so that H_pre is near e_(k mod n) in sub-layer k, and b_res according to `start`.
    Weight decay applies to phi and alpha only. A doubly stochastic matrix does not change equal streams, so the model
    starts with the plain model's function, except for scales of the streams. The norms remove these scales up to their
    eps; the remaining difference is a few percent of the standard deviation of the logits at width 64, and less at
    larger widths.
    """

    kind: Literal["manifold_hyper_connections"] = "manifold_hyper_connections"
    stream_accesses: ClassVar[int] = HyperConnections.stream_accesses + 7
    """Additional reads and writes. Forward: norm, product with phi and product with H_pre (3 reads). Backward: product
    with phi (1 read, 1 write), gradient accumulation (2 reads)."""
    iterations: Layers = 20
    """t_max: number of normalisations of columns and rows."""
    start: Literal["identity", "mixing"] = "identity"
    """Initial H_res: close to the identity, or mixed enough for b_res to be learned (see `RES_DIAGONAL`)."""
    eps: Epsilon = 1e-5
    """Added to the mean square in RMSNorm."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of elements of H_pre, H_post and H_res per token."""
        return self.streams, self.streams, self.streams**2

    def shapes(self, width: int | None) -> dict[str, tuple[int, ...]]:
        """Return the shapes of b (`static`), phi (`dynamic`) and alpha (`scale`), concatenated over H_pre, H_post and
        H_res.
        """
        return {"static": (sum(self.sizes),), "dynamic": (sum(self.sizes), self.streams * (width or 0)), "scale": (3,)}

    def matmul_flops(self, layers: int, width: int) -> int:
        """Return the FLOPs per token of the products with H_pre and H_res, and of the products that compute them."""
        return super().matmul_flops(layers, width) + 2 * (2 * layers * self.streams * width * sum(self.sizes))

    def saved_elements(self, width: int) -> int:
        """Add the streams (one element per value), the n x n matrices, and the factors of every Sinkhorn iteration."""
        return super().saved_elements(width) + 2 * self.streams * (width + 6 * self.streams + 4 * self.iterations)


class ManifoldHyperConnectionsLayer(HyperConnectionsLayer, of=ManifoldHyperConnections):
    """The module of `ManifoldHyperConnections`."""

    dynamic: nn.ParameterList
    scale: nn.ParameterList

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for index, static in enumerate(self.static, start=1):
            pre, post, res = static.split(self.spec.sizes)
            pre.fill_(-PRE_LOGIT)[index % self.streams] = PRE_LOGIT
            post.zero_()
            diagonal = RES_DIAGONAL[self.spec.start]
            res.fill_(-diagonal).view(self.streams, -1).fill_diagonal_(diagonal)
        for weights, scale in zip(self.dynamic, self.scale, strict=True):
            nn.init.zeros_(weights)
            nn.init.constant_(scale, SCALE)

    def connections(self, index: int, streams: Streams) -> Weights:
        flat = streams.flatten(-2).to(torch.promote_types(streams.dtype, torch.float32))
        inverse = (flat.square().mean(dim=-1, keepdim=True) + self.spec.eps).rsqrt()
        scale = torch.cat(
            [alpha.expand(size) for alpha, size in zip(self.scale[index - 1].split(1), self.spec.sizes, strict=True)]
        )
        # The division by the norm follows the product, so that the normalised streams are not saved (section 4.3.1).
        logits = scale * (product(flat, self.dynamic[index - 1].mT) * inverse) + self.static[index - 1]
        pre, post, res = logits.split(self.spec.sizes, dim=-1)
        mix = sinkhorn_knopp(res.unflatten(-1, (self.streams, self.streams)), self.spec.iterations)
        return pre.sigmoid().unsqueeze(-2), mix, 2 * post.sigmoid().unsqueeze(-1)


def sinkhorn_knopp(logits: Matrices, iterations: int) -> Matrices:
    """Normalise the columns and then the rows of exp(logits) to sum 1, `iterations` times (arXiv:2512.24880, eq. 9).

    The rows of the result sum to 1, the columns approximately. The loop computes only scale factors of rows and
    columns, so autograd does not save a matrix per iteration. The subtraction of the maximum of each column cancels in
    the first division.
    """
    # The stream dimensions come first, so that sums over them add long vectors.
    matrices = logits.movedim((-2, -1), (0, 1)).contiguous()
    matrices = (matrices - matrices.detach().amax(dim=0, keepdim=True)).exp()
    rows = torch.ones_like(matrices[:, :1])
    for _ in range(iterations):
        columns = (rows * matrices).sum(dim=0, keepdim=True).reciprocal()
        rows = (matrices * columns).sum(dim=1, keepdim=True).reciprocal()
    return (rows * matrices * columns).movedim((0, 1), (-2, -1))
