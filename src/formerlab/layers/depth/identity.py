"""No depth mixing, and the interface of all depth mixers."""

from typing import Any, ClassVar, Literal

from torch import nn

from formerlab.errors import UserError
from formerlab.layers.layer_spec import LayerSpec
from formerlab.layers.shapes import Stream as Stream

History = Any
"""What a mixer keeps during one forward pass; only the mixer itself looks inside."""


def check_index(what: str, index: int, count: int) -> None:
    """Raise ValueError unless the sub-layer or block of that index exists; both count from 1."""
    if not 1 <= index <= count:
        raise ValueError(f"{what} {index} of {count}: {what}s count from 1 to {count}")


def append(index: int, x: Stream, history: list[Stream]) -> None:
    """Append X_index to the outputs of the earlier blocks; raise ValueError where the history has others."""
    if len(history) != index:
        raise ValueError(f"block {index} after {len(history) - 1} blocks: give every block's output once, in turn")
    history.append(x)


class DepthSpec(LayerSpec):
    """Base of the specs of depth mixers: `build`, `params`, `bytes_moved` and `matmul_flops` take (layers, width).

    Mixers whose size does not depend on the width can be asked without it.
    """

    module: ClassVar[Any]
    """The class of the mixer; the class itself names its spec: `class AnchorLayer(Mixer, of=Anchor)`."""

    def build(self, layers: int, width: int | None = None) -> "Mixer":
        """Return the module for `layers` blocks."""
        if width is None and self.params(layers, 1) != self.params(layers, 2):
            raise UserError(f"{type(self).__name__}: its size depends on the width; give width=...")
        mixer: Mixer = self.module(layers, width, self)
        return mixer

    def bytes_moved(self, layers: int, width: int) -> int:
        """Estimate of the bytes per token that a compiled training step in bfloat16 reads and writes for the mixer.

        They are those beyond the plain model, whose stream is float32.
        """
        return 0

    def matmul_flops(self, layers: int, width: int) -> int:
        """FLOPs of matrix products per token (2 per multiply-add)."""
        return 0

    def saved_elements(self, width: int) -> int:
        """Estimate of the numbers kept per token and block for the backward pass, beyond those of the plain block."""
        return width


class Identity(DepthSpec):
    """Y_i = X_i: the plain Transformer (arXiv:1706.03762)."""

    kind: Literal["identity"] = "identity"

    def saved_elements(self, width: int) -> int:
        return 0


class Mixer(nn.Module):
    """The interface of all depth mixers, and the module of `Identity`.

    A mixer stands in two places of a model: at every residual addition inside a block (`add`), and between the blocks
    (`mix`). One forward pass calls `begin` once with X_0, the embedded tokens; then, for every block, `add` twice and
    `mix` once. The history lives in the caller's frame, so no graph outlives a step. Where a block is computed again
    (activation checkpointing), its calls of `add` come again with the same sites.
    """

    def __init__(self, layers: int = 0, width: int | None = None, spec: DepthSpec | None = None) -> None:
        super().__init__()

    def __init_subclass__(cls, *, of: type[DepthSpec] | None = None) -> None:
        if of is not None:
            of.module = cls

    def reset_parameters(self) -> None:
        """Set or draw the initial weights; there are none here."""

    def no_weight_decay(self) -> set[str]:
        """Return the names of weights that are never decayed."""
        return set()

    def begin(self, x: Stream) -> tuple[Stream, History]:
        """Return what the first sub-layer reads, and the history for `add` and `mix` with what they need of X_0."""
        return x, None

    def add(self, site: int, x: Stream, update: Stream, history: History) -> Stream:
        """Return the residual stream after sub-layer `site`: by default x + update.

        Sub-layers count from 1 to 2 x layers: attention of block i is 2i - 1, its feed-forward 2i. x is the stream that
        the sub-layer read (before its norm) and `update` its output. Raises ValueError for another `site` wherever it
        would change the result.
        """
        return x + update

    def mix(self, index: int, x: Stream, history: History) -> Stream:
        """Return Y_index, which block index + 1 reads, given the raw output X_index of block `index`, from 1 to layers.

        Raises ValueError for another `index` wherever it would change the result.
        """
        return x

    def weights(self) -> list[tuple[int, int, float]]:
        """Return (destination, source, weight) of every learned static mixing weight, in blocks."""
        return []


Identity.module = Mixer
