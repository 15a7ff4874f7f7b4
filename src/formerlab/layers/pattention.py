"""Pattention: attention to learned parameter tokens in place of a linear projection.

The default score, l2_gelu, has a memory-efficient implementation, `lean_pattention`. It stores half as many activations
for the backward pass as an MLP of the same shape: the normalised products Z = tau A / ||A|| with A = x K^T, and
tau / ||A|| per row. The backward pass recomputes the scores gelu(Z) and uses the closed form of the gradient. On a CPU
with a C++ compiler, a kernel fuses norm and GeLU. On a GPU, torch.compile fuses them.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from formerlab.kernels import norm_gelu_cpu
from formerlab.layers.autocast import autocast_operands, func_transform_active
from formerlab.layers.layer_spec import LayerSpec
from formerlab.layers.score import SCORES, SMALLEST_NORM, RowFactor, ScoreName, Scores, row_factor
from formerlab.spec import Size

TRUNCATED_STD = 0.8796256610342398
"""Standard deviation of a standard normal distribution truncated to [-2, 2]."""


class Pattention(LayerSpec):
    """y = gelu(tau x K^T / ||x K^T||_2) V: token-parameter attention (arXiv:2410.23168, eq. 4 and 16; version 1, eq. 4
    and 5).

    K (tokens x d_in) and V (tokens x d_out) are learned parameter tokens. The norm runs over the parameter tokens, and
    tau = sqrt(tokens) by default. There is no bias and no factor 1/sqrt(d). A feed-forward network is one Pattention
    from d to d. Adding tokens with zero keys preserves the function only if tau is fixed, as in Appendix B. `score.py`
    defines the other scores.
    """

    kind: Literal["pattention"] = "pattention"
    tokens: Size = 768
    """Number of parameter tokens n."""
    score: ScoreName = "l2_gelu"
    """Name of the score function (layers/score.py)."""
    tau: float | None = Field(default=None, gt=0.0, le=1e6)
    """Scale tau; default sqrt(tokens), as in the paper. Growth with tau = keep sets it to the parent's value."""
    init: Literal["fan_in", "fan_in_truncated", "neox"] = "fan_in"
    """Distribution and standard deviation of the initial values. fan_in: normal, keys 1/sqrt(d_in), values
    1/sqrt(tokens) (used for attention by the official TPU code, which produced the paper's scaling results).
    fan_in_truncated: the same standard deviations, from a normal distribution that is truncated at two of its standard
    deviations (used by the official TPU code for feed-forward).
    neox: normal, keys 0.02, values 2/(layers sqrt(d_out)) (official GPU code)."""

    @property
    def scale(self) -> float:
        """The field `tau`, or sqrt(tokens) if it is None."""
        return math.sqrt(self.tokens) if self.tau is None else self.tau

    def build(self, d_in: int, d_out: int, *, layers: int = 1, residual: bool = False) -> "PattentionLayer":
        """Return the module; `layers` only changes the neox initial values, and `residual` has no effect."""
        return PattentionLayer(d_in, d_out, self, layers)

    def flops(self, d_in: int, d_out: int) -> int:
        """Return the FLOPs of the matrix products of one token's forward pass (2 per multiply-add)."""
        return 2 * self.tokens * (d_in + d_out)


class UnreservedModuleDict(nn.ModuleDict):
    """A ModuleDict that accepts the names of its own methods as keys."""

    def __setitem__(self, key: str, module: nn.Module) -> None:
        self._modules[key] = module


class PattentionLayer(nn.Module):
    """The module of `Pattention`."""

    def __init__(self, d_in: int, d_out: int, spec: Pattention, layers: int = 1) -> None:
        super().__init__()
        self.spec, self.layers = spec, layers
        self.tau = spec.scale
        self.score = spec.score
        self.keys = nn.Parameter(torch.empty(spec.tokens, d_in))
        self.values = nn.Parameter(torch.empty(spec.tokens, d_out))
        self.reset_parameters()

    def __setattr__(self, name: str, value: Any) -> None:
        """Support torch.nn.utils.parametrize, whose ModuleDict reserves the names `keys` and `values`."""
        super().__setattr__(name, UnreservedModuleDict() if name == "parametrizations" else value)

    def reset_parameters(self) -> None:
        (tokens, d_in), d_out = self.keys.shape, self.values.shape[1]
        neox = self.spec.init == "neox"
        stds = (0.02, 2 / (self.layers * math.sqrt(d_out))) if neox else (d_in**-0.5, tokens**-0.5)
        for weight, std in zip((self.keys, self.values), stds, strict=True):
            if self.spec.init == "fan_in_truncated":
                std /= TRUNCATED_STD
                nn.init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std)
            else:
                nn.init.normal_(weight, 0.0, std)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save tau, which is not a tensor, in the metadata of the state dict."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):  # a plain dictionary has no metadata
            destination._metadata[prefix[:-1]]["tau"] = self.tau

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *args: Any) -> None:
        """Refuse weights whose metadata contain a different tau. A state dict without metadata is not checked."""
        super()._load_from_state_dict(state, prefix, metadata, *args)  # type: ignore[no-untyped-call]
        tau, errors = metadata.get("tau", self.tau), args[-1]
        if not math.isclose(tau, self.tau, rel_tol=1e-6):
            errors.append(f"{prefix}tau is {self.tau:g}, but these weights need {tau:g}; build with tau={tau!r}")

    def extra_repr(self) -> str:
        sizes = f"{self.keys.shape[1]}, {self.values.shape[1]}, tokens={len(self.keys)}"
        return f"{sizes}, score={self.score!r}, tau={self.tau:.6g}"

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        if self.score == "l2_gelu" and not func_transform_active():
            return lean_pattention(x, self.keys, self.values, self.tau)
        return SCORES[self.score](x @ self.keys.T, self.tau) @ self.values


X = Float[Tensor, "*batch d_in"]
Keys = Float[Tensor, "tokens d_in"]
Values = Float[Tensor, "tokens d_out"]
Y = Float[Tensor, "*batch d_out"]

ALIGNED = 64
"""On tensor cores, the number of parameter tokens is padded to a multiple of this number for speed."""


def lean_pattention(x: X, keys: Keys, values: Values, tau: float) -> Y:
    """Return gelu(tau A / ||A||_2) V with A = x K^T (arXiv:2410.23168, eq. 4 and 16; gradient: Appendix A).

    Autocast applies as for a matrix product. Second derivatives are not supported.
    """
    x, keys, values = autocast_operands(x, keys, values)
    padding = -len(keys) % ALIGNED
    if padding and _uses_tensor_cores(x):  # zero keys do not change the norm or the sum
        keys, values = (F.pad(tokens, (0, 0, 0, padding)) for tokens in (keys, values))
    y: Tensor = _Pattention.apply(x.reshape(-1, x.shape[-1]), keys, values, tau)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], values.shape[1])


def _uses_tensor_cores(x: Tensor) -> bool:
    return x.device.type != "cpu" and x.dtype in (torch.bfloat16, torch.float16)


class _Pattention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, values: Tensor, tau: float) -> Tensor:
        z, factor, scores = _normalise_and_activate(x @ keys.T, tau)
        ctx.save_for_backward(x, keys, values, z, factor)
        ctx.tau = tau
        return scores @ values

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, keys, values, z, factor = ctx.saved_tensors
        # Apply the row factor to the incoming gradient, which is smaller than dA.
        scaled = (grad * factor).to(grad.dtype)
        scores, grad_products = _scores_and_gradient(scaled @ values.T, z, ctx.tau)
        return grad_products @ keys, grad_products.T @ x, scores.T @ grad, None


def _fused(scores: Scores) -> bool:
    """Return whether a C++ kernel computes these scores."""
    return not torch.compiler.is_compiling() and norm_gelu_cpu.fits(scores)


def _normalise_and_activate(products: Scores, tau: float) -> tuple[Scores, RowFactor, Scores]:
    """Return (Z, tau / ||A||, gelu(Z)) with Z = tau A / ||A||; Z overwrites A."""
    if _fused(products):
        return products, *norm_gelu_cpu.normalise_and_activate(products, tau, SMALLEST_NORM)
    factor = row_factor(products, tau)
    z = products.mul_(factor)
    return z, factor, F.gelu(z)


def _scores_and_gradient(grad: Scores, z: Scores, tau: float) -> tuple[Scores, Scores]:
    """Return (gelu(Z), dA) with dA = g - Z (Z . g) / tau^2 and g = grad gelu'(Z); dA overwrites `grad`.

    `grad` is the gradient of gelu(Z) times tau / ||A||, so dA is the gradient of Appendix A.
    """
    if _fused(z):
        return norm_gelu_cpu.scores_and_gradient(grad, z, tau)
    # Under torch.compile, write GeLU with ndtr; otherwise the compiler would save gelu(Z) from the forward pass.
    scores = z * torch.special.ndtr(z) if torch.compiler.is_compiling() else F.gelu(z)
    g: Tensor = torch.ops.aten.gelu_backward.grad_input(grad, z, grad_input=grad)
    projection = (g * z).sum(dim=-1, keepdim=True)
    return scores, g.addcmul_(z, projection, value=-1 / (tau * tau))
