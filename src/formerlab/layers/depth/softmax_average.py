"""Averages over depth whose weights are positive and sum to one."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from formerlab.layers.depth.dwa import DepthWeightedAverageLayer, Dilated


class SoftmaxAverage(Dilated):
    """Y_i = sum over j in S_i of softmax(beta_i)_j X_j, S_i = {j <= i : j = i mod k}, where p divides i; else Y_i = X_i
    (arXiv:2311.02265, the weights of ELC-BERT).

    Static as in DenseFormer, but normalised: a convex combination, so no weight is negative and none is exactly one.
    A fresh model is therefore not the plain Transformer. The logits start at 1 for the block's own output and 0 for
    the others, as in the official code of ELC-BERT; its `zero` variant is own = 0. In ELC-BERT the average stands in
    for the residual connection around attention; here the blocks keep theirs.
    """

    kind: Literal["softmax"] = "softmax"
    own: float = Field(default=1.0, ge=-100.0, le=100.0)
    """Initial logit of the block's own output; the larger, the nearer the start is to the plain Transformer."""

    @property
    def start(self) -> tuple[float, float]:
        """Those of ELC-BERT's code."""
        return 0.0, self.own


class SoftmaxAverageLayer(DepthWeightedAverageLayer, of=SoftmaxAverage):
    """The module of `SoftmaxAverage`; its `alphas` are the logits beta."""

    def row(self, destination: int) -> Tensor:
        logits: Tensor = self.alphas[str(destination)]
        return logits.softmax(dim=0)
