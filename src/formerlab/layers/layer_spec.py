"""LayerSpec: the base of specs whose `build(*sizes)` returns one layer."""

import functools
from typing import Any

from formerlab.layers.initialization import without_values
from formerlab.spec import Spec


class LayerSpec(Spec):
    """Spec of a layer; `build(*sizes)` returns its module."""

    def params(self, *sizes: int) -> int:
        """Return the number of parameters of `build(*sizes)`, without allocating memory."""
        return _count(self, sizes)


@functools.cache
def _count(spec: Any, sizes: tuple[int, ...]) -> int:
    with without_values():
        return sum(weight.numel() for weight in spec.build(*sizes).parameters())
