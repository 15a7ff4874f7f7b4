"""Hyper-Connections that carry the streams by doubly stochastic matrices."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from formerlab.layers.depth.hyper_connections import HyperConnections, HyperConnectionsLayer, Streams, Weights, product
from formerlab.spec import Epsilon, Layers

Matrices = Float[Tensor, "batch time streams streams"]

SCALE = 0.01
"""Initial alpha (arXiv:2512.24880, Table 5)."""
START = 4.0
"""Initial b where a weight is to be nearly 1, and its negative where nearly 0: logistic(4) = 0.98 still learns."""
CARRIES = {"identity": START, "mixing": 1.0}
"""Initial b_res on the diagonal, and its negative elsewhere, by `start`.

With 4 streams the diagonal of H_res is then 0.999 or 0.711. At 4.0 so little gradient reaches b_res that Adam's eps
swallows it, and H_res stays where it is.
"""


class ManifoldHyperConnections(HyperConnections):
    """X <- H_res X + H_post^T T(H_pre X): manifold-constrained Hyper-Connections, mHC (arXiv:2512.24880, eq. 3, 7-9).

    With x' = RMSNorm(vec(X)) over all n streams of a token, H_pre = logistic(alpha_pre x' phi_pre + b_pre), H_post = 2
    logistic(alpha_post x' phi_post + b_post) and H_res = SinkhornKnopp(alpha_res mat(x' phi_res) + b_res), which is
    doubly stochastic up to its finite number of iterations. The norm's gain is part of phi (section 4.3.1).

    Left open by the paper, and here as in `StaticHyperConnections`: the streams begin as copies, and the final norm
    reads their sum; phi starts at zero, b_post = 0 (H_post = 1), b_pre at H_pre near e_(k mod n), and b_res as `start`
    says; b is not decayed, phi and alpha are. While the streams are equal a doubly stochastic matrix changes nothing,
    so a fresh model computes what the plain one does, up to scales that the norms undo.
    """

    kind: Literal["manifold_hyper_connections"] = "manifold_hyper_connections"
    passes: ClassVar[int] = HyperConnections.passes + 7
    """Forward norm, product and sub-layer read them. Backward the product's gradients read and write them, and the sum
    reads both."""
    iterations: Layers = 20
    """t_max: how often columns and rows are normalised."""
    start: Literal["identity", "mixing"] = "identity"
    """H_res of a fresh model: nearly the identity, or far enough from it that it learns (`CARRIES`)."""
    eps: Epsilon = 1e-5
    """Added to the mean square in RMSNorm."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many numbers a token has in H_pre, H_post and H_res."""
        return self.streams, self.streams, self.streams**2

    def shapes(self, width: int | None) -> dict[str, tuple[int, ...]]:
        """Return those of b, phi and alpha; the numbers of H_pre, H_post and H_res follow each other."""
        return {"static": (sum(self.sizes),), "dynamic": (sum(self.sizes), self.streams * (width or 0)), "scale": (3,)}

    def matmul_flops(self, layers: int, width: int) -> int:
        """FLOPs of matrix products per token: what every sub-layer reads and carries, and its weights."""
        return super().matmul_flops(layers, width) + 2 * (2 * layers * self.streams * width * sum(self.sizes))

    def saved_elements(self, width: int) -> int:
        """Estimate of the numbers kept per token and block: streams and the factors of every iteration, in float32."""
        return super().saved_elements(width) + 2 * self.streams * (width + 6 * self.streams + 4 * self.iterations)


class ManifoldHyperConnectionsLayer(HyperConnectionsLayer, of=ManifoldHyperConnections):
    """The module of `ManifoldHyperConnections`."""

    dynamic: nn.ParameterList
    scale: nn.ParameterList

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for site, static in enumerate(self.static, start=1):
            pre, post, res = static.split(self.spec.sizes)
            pre.fill_(-START)[site % self.streams] = START
            post.zero_()
            carry = CARRIES[self.spec.start]
            res.fill_(-carry).view(self.streams, -1).fill_diagonal_(carry)
        for weights, scale in zip(self.dynamic, self.scale, strict=True):
            nn.init.zeros_(weights)
            nn.init.constant_(scale, SCALE)

    def connections(self, site: int, streams: Streams) -> Weights:
        flat = streams.flatten(-2).to(torch.promote_types(streams.dtype, torch.float32))
        inverse = (flat.square().mean(dim=-1, keepdim=True) + self.spec.eps).rsqrt()
        scale = torch.cat(
            [one.expand(size) for one, size in zip(self.scale[site - 1].split(1), self.spec.sizes, strict=True)]
        )
        # Divided by the norm behind the product, which is the same and keeps less (section 4.3.1).
        made = scale * (product(flat, self.dynamic[site - 1].mT) * inverse) + self.static[site - 1]
        pre, post, res = made.split(self.spec.sizes, dim=-1)
        carry = sinkhorn_knopp(res.unflatten(-1, (self.streams, self.streams)), self.spec.iterations)
        return pre.sigmoid().unsqueeze(-2), carry, 2 * post.sigmoid().unsqueeze(-1)


def sinkhorn_knopp(logits: Matrices, iterations: int) -> Matrices:
    """Return exp(logits) with columns, then rows divided by their sums, `iterations` times (arXiv:2512.24880, eq. 9).

    So rows sum to 1, and columns nearly. What is computed are the factors of rows and columns, and not all matrices on
    the way, which autograd would keep. Of every column its largest exponent is taken off first, since the first
    division by the column's sum undoes that.
    """
    # Streams in front: sums over them are then sums of long vectors.
    matrices = logits.movedim((-2, -1), (0, 1)).contiguous()
    matrices = (matrices - matrices.detach().amax(dim=0, keepdim=True)).exp()
    rows = torch.ones_like(matrices[:, :1])
    for _ in range(iterations):
        columns = (rows * matrices).sum(dim=0, keepdim=True).reciprocal()
        rows = (matrices * columns).sum(dim=1, keepdim=True).reciprocal()
    return (rows * matrices * columns).movedim((0, 1), (-2, -1))
