"""Pattention: attention to learned parameter tokens in place of a linear projection."""

import math
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from formerlab.layers.pattention_function import lean_pattention
from formerlab.layers.score import SCORES, ScoreName
from formerlab.spec import Size, Spec

TRUNCATED_STD = 0.8796256610342398
"""Standard deviation of a standard normal variable that is cut off at -2 and 2."""


class Pattention(Spec):
    """y = gelu(tau x K^T / ||x K^T||_2) V: token-parameter attention (arXiv:2410.23168, eq. 4; version 1, eq. 5).

    K (tokens x d_in) and V (tokens x d_out) are learned; the norm runs over the parameter tokens, tau = sqrt(tokens).
    There is no bias and no 1/sqrt(d). As a feed-forward it is one Pattention from d to d. Adding tokens with zero keys
    keeps the function only while tau keeps its value (Appendix B fixes it, the default does not): see
    `growth/tokens.py`. The default score is computed by `pattention_function.py`, which keeps half of an MLP's memory;
    the others are computed as they are written in `score.py`.
    """

    label: ClassVar[str] = "Tokenformer"
    look: ClassVar[tuple[str, str]] = ("#0072B2", "s")
    kind: Literal["pattention"] = "pattention"
    tokens: Size = 768
    """Number of parameter tokens n."""
    score: ScoreName = "l2_gelu"
    """Score function, by name (layers/score.py)."""
    tau: float | None = Field(default=None, gt=0.0, le=1e6)
    """Scale tau; empty means sqrt(tokens), the paper's default. Growth that keeps tau writes the old value here."""
    init: Literal["fan_in", "fan_in_truncated", "neox"] = "fan_in"
    """Initial values. fan_in: normal, keys 1/sqrt(d_in), values 1/sqrt(tokens) (official TPU code, used for the paper's
    scaling results; its attention). fan_in_truncated: the same deviations, cut off at two (its feed-forward). neox:
    normal, keys 0.02, values 2/(layers sqrt(d_out)) (official GPU code)."""

    @property
    def scale(self) -> float:
        """The value of tau in force."""
        return math.sqrt(self.tokens) if self.tau is None else self.tau

    def build(self, d_in: int, d_out: int, *, layers: int = 1, residual: bool = False) -> "PattentionLayer":
        """Return the module; `layers` only enters the neox initial values, `residual` changes nothing."""
        return PattentionLayer(d_in, d_out, self, layers)

    def params(self, d_in: int, d_out: int) -> int:
        """Count of parameters."""
        return self.tokens * (d_in + d_out)

    def flops(self, d_in: int, d_out: int) -> int:
        """FLOPs of matrix products to map one token forward (2 per multiply-add)."""
        return 2 * self.tokens * (d_in + d_out)


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

    def reset_parameters(self) -> None:
        """Draw keys and values."""
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
        """Note tau, which is no weight, beside torch's version of this module."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination._metadata[prefix[:-1]]["tau"] = self.tau

    def _load_from_state_dict(
        self,
        state: Any,
        prefix: str,
        metadata: dict[str, Any],
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: Any,
    ) -> None:
        """Refuse weights that were used with another tau: the same weights would be another function."""
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)  # type: ignore[no-untyped-call]
        tau = metadata.get("tau", self.tau)
        if not math.isclose(tau, self.tau, rel_tol=1e-6):
            errors.append(f"{prefix}tau is {self.tau:g} and was {tau:g} for these weights; build with tau={tau!r}")

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Map every token."""
        if self.score == "l2_gelu":
            return lean_pattention(x, self.keys, self.values, self.tau)
        return SCORES[self.score](x @ self.keys.T, self.tau) @ self.values

    def extra_repr(self) -> str:
        """Sizes for `print(model)`."""
        tokens, d_in = self.keys.shape
        return f"tokens={tokens}, d_in={d_in}, d_out={self.values.shape[1]}, tau={self.tau:.4g}, score={self.score}"
