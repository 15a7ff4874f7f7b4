"""No depth mixing, and the interface of all depth mixers."""

from typing import Any, ClassVar, Literal

from torch import nn

from formerlab.errors import UserError
from formerlab.layers.layer_spec import LayerSpec
from formerlab.layers.shapes import Stream as Stream

History = Any
"""State of a mixer during one forward pass; callers pass it on unchanged."""


def check_index(unit: str, index: int, count: int) -> None:
    """Raise ValueError unless 1 <= index <= count; `unit` is "sub-layer" or "block"."""
    if not 1 <= index <= count:
        raise ValueError(f"{unit} {index} of {count}: {unit}s are numbered from 1 to {count}")


def append(index: int, x: Stream, history: list[Stream]) -> None:
    """Append X_index to the outputs of earlier blocks; raise ValueError unless blocks come in order."""
    if len(history) != index:
        raise ValueError(f"mix() got block {index}, expected block {len(history)}: call it once per block, in order")
    history.append(x)


class DepthSpec(LayerSpec):
    """Base of the specs of depth mixers: `build`, `params`, `bytes_moved` and `matmul_flops` take (layers, width).

    In `build`, `width` may be omitted for mixers whose size does not depend on it.
    """

    module: ClassVar[Any]
    """The module class, set by `class MyMixer(Mixer, of=MySpec)`."""

    def build(self, layers: int, width: int | None = None) -> "Mixer":
        """Return the module for `layers` blocks."""
        if width is None and self.params(layers, 1) != self.params(layers, 2):
            raise UserError(f"{type(self).__name__}: its size depends on the width; give width=...")
        mixer: Mixer = self.module(layers, width, self)
        return mixer

    def bytes_moved(self, layers: int, width: int) -> int:
        """Estimate the bytes per token that the mixer adds to the memory traffic of a training step.

        Assumes a compiled step in bfloat16 with a float32 residual stream.
        """
        return 0

    def matmul_flops(self, layers: int, width: int) -> int:
        """Return the FLOPs of matrix products per token (2 per multiply-add)."""
        return 0

    def saved_elements(self, width: int) -> int:
        """Estimate the elements that the mixer adds to the saved activations, per token and block.

        The unit is an element of the run's precision; a float32 value in bfloat16 training counts as two.
        """
        return width


class Identity(DepthSpec):
    """Y_i = X_i: the plain Transformer (arXiv:1706.03762)."""

    kind: Literal["identity"] = "identity"

    def saved_elements(self, width: int) -> int:
        return 0


class Mixer(nn.Module):
    """The interface of all depth mixers, and the module of `Identity`.

    A forward pass calls `begin` once with X_0, the embedded tokens. For each block, it calls `add` at both residual
    additions and `mix` after the block. The caller owns the history, so no graph outlives a step. During recomputation,
    activation checkpointing calls `add` again with the same indices.
    """

    def __init__(self, layers: int = 0, width: int | None = None, spec: DepthSpec | None = None) -> None:
        super().__init__()

    def __init_subclass__(cls, *, of: type[DepthSpec] | None = None) -> None:
        if of is not None:
            of.module = cls

    def extra_repr(self) -> str:
        parameters = self.named_parameters(recurse=False)
        return ", ".join(f"{name}: {' x '.join(map(str, weight.shape))}" for name, weight in parameters)

    def reset_parameters(self) -> None:
        """Set the initial weights."""

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters without weight decay."""
        return set()

    def begin(self, x: Stream) -> tuple[Stream, History]:
        """Return the input of the first sub-layer and the history for `add` and `mix`, given X_0."""
        return x, None

    def add(self, index: int, x: Stream, update: Stream, history: History) -> Stream:
        """Return the residual stream after sub-layer `index`: by default x + update.

        The attention of block i (from 1) has index 2i - 1, and its feed-forward has index 2i. x is the input of the
        sub-layer before its norm, and `update` is its output. Raises ValueError for an index out of range if the result
        depends on it.
        """
        return x + update

    def mix(self, index: int, x: Stream, history: History) -> Stream:
        """Return Y_index, given the output X_index of block `index` (from 1).

        Y_index is the input of the next block or of the final norm. Raises ValueError for an index out of range if the
        result depends on it.
        """
        return x

    def weights(self) -> list[tuple[int, int, float]]:
        """Return (destination block, source block, weight) for mixers with one scalar per pair, otherwise []."""
        return []


Identity.module = Mixer
