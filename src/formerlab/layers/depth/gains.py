"""Learned gains on the residual connections."""

from typing import Literal

import torch
from torch import nn

from formerlab.layers.depth.identity import DepthSpec, History, Mixer, Stream, check_index


class SkipsWithGains(DepthSpec):
    """x <- g x + f(norm(x)) with a learned scalar g for each of the two residual additions of every block
    (arXiv:2402.02622, section 4.1: Skips with Gains; official code, basewgains).

    The gains start at 1, so the model starts bit-identical to the plain Transformer.
    """

    kind: Literal["gains"] = "gains"

    def bytes_moved(self, layers: int, width: int) -> int:
        """Count two float32 reads per gain: x and the gradient of the sum."""
        return 2 * 4 * 2 * layers * width


class SkipsWithGainsLayer(Mixer, of=SkipsWithGains):
    """The module of `SkipsWithGains`."""

    def __init__(self, layers: int, width: int | None, spec: SkipsWithGains) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.empty(2 * layers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gains)

    def add(self, index: int, x: Stream, update: Stream, history: History) -> Stream:
        """Return g x + update; the sum is at least float32."""
        check_index("sub-layer", index, len(self.gains))
        stream = torch.promote_types(x.dtype, update.dtype)
        compute_dtype = torch.promote_types(stream, torch.float32)
        return (self.gains[index - 1].to(compute_dtype) * x.to(compute_dtype) + update).to(stream)

    def weights(self) -> list[tuple[int, int, float]]:
        """Return (i, i - 1, product of the two gains of block i)."""
        gains = self.gains.detach().view(-1, 2).double().prod(dim=1).tolist()
        return [(i, i - 1, gain) for i, gain in enumerate(gains, start=1)]
