"""No depth mixing: every block reads the output of the block before it."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from formerlab.spec import Spec

Stream = Float[Tensor, "batch time width"]
History = list[Stream]


class Identity(Spec):
    """Y_i = X_i: the plain Transformer (arXiv:1706.03762)."""

    kind: Literal["identity"] = "identity"

    def build(self, layers: int) -> "Mixer":
        """Return the module."""
        del layers
        return Mixer()

    def params(self, layers: int) -> int:
        """Count of parameters."""
        del layers
        return 0

    def flops(self, layers: int, width: int) -> int:
        """Elementwise FLOPs per token (2 per multiply-add)."""
        del layers, width
        return 0


class Mixer(nn.Module):
    """The interface of all depth mixers, and the module of `Identity`.

    One forward pass of a model calls `begin` once with X_0, the embedded tokens, and `mix` once after every block.
    The history lives in the caller's frame, so no graph outlives a step.
    """

    def begin(self, x: Stream) -> History:
        """Return the history that `mix` needs, holding what it needs of X_0."""
        del x
        return []

    def mix(self, index: int, x: Stream, history: History) -> Stream:
        """Return Y_index, given the raw output X_index of block `index` (1-based)."""
        del index, history
        return x

    def weights(self) -> list[tuple[int, int, float]]:
        """Return (destination, source, weight) of every learned static mixing weight."""
        return []
