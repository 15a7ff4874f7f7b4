"""Averages over depth whose weights are positive and sum to one."""

from typing import Literal

from pydantic import Field
from torch import Tensor

from formerlab.layers.depth.dwa import DepthWeightedAverageLayer, Dilated


class SoftmaxAverage(Dilated):
    """Y_i = sum over j in S_i of softmax(beta_i)_j X_j, S_i = {j <= i : i - j is a multiple of k}, if p divides i;
    otherwise Y_i = X_i (arXiv:2311.02265, the weights of ELC-BERT).

    The model differs from the plain Transformer at initialisation. As in the official code of ELC-BERT, the logits
    start at 1 for the block's own output and at 0 for earlier outputs; its `zero` variant has own = 0. In ELC-BERT the
    average replaces the residual connection around attention; here, the blocks keep their residual connections.
    """

    kind: Literal["softmax"] = "softmax"
    own: float = Field(default=1.0, ge=-100.0, le=100.0)
    """Initial logit of the block's own output; a larger value starts closer to the plain Transformer."""

    @property
    def initial_weights(self) -> tuple[float, float]:
        return 0.0, self.own


class SoftmaxAverageLayer(DepthWeightedAverageLayer, of=SoftmaxAverage):
    """The module of `SoftmaxAverage`; its `alphas` are the logits beta."""

    def mixing_weights(self, destination: int) -> Tensor:
        logits: Tensor = self.alphas[str(destination)]
        return logits.softmax(dim=0)
