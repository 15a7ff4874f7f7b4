"""Initial values of a whole model, from torch's own random numbers or from a seed.

Every layer draws its values when it is built, by its `reset_parameters`, as PyTorch's own layers do. A run wants more:
values that depend on its seed and on a parameter's place and on nothing else, so that two models that share a part
(with and without a depth mixer, say) start with the same values there, which is what makes paired comparisons by seed
meaningful.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from formerlab.seeding import mixed_seed

Module = TypeVar("Module", bound=nn.Module)


def initialise(module: nn.Module, seed: int | None = None) -> None:
    """Draw all initial values of a module and of every module in it anew, by their `reset_parameters`.

    With a seed every module draws from a stream of its own, given by the seed and its qualified name, and torch's
    generators are left as they were; without one all draw from torch's generators, in turn. Call it after `to_empty`
    on a model that was built on the meta device.
    """
    parts = [(name, part) for name, part in module.named_modules() if callable(getattr(part, "reset_parameters", None))]
    if seed is None:
        for _, part in parts:
            part.reset_parameters()
        return
    gpus = {weight.device.index for weight in module.parameters() if weight.device.type == "cuda"}
    generators = [torch.default_generator, *(torch.cuda.default_generators[gpu] for gpu in sorted(gpus))]
    states = [generator.get_state() for generator in generators]
    try:
        for name, part in parts:
            for generator in generators:
                generator.manual_seed(mixed_seed(seed, name))
            part.reset_parameters()
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def seeded(make: Callable[[], Module], seed: int) -> Module:
    """Return the module that `make` gives with values drawn from the seed; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        module = make()
    initialise(module, seed)
    return module


@contextmanager
def without_values() -> Iterator[None]:
    """Let modules be built with shapes alone: on the meta device, and no value is drawn.

    To draw none there torch imports its compiler, which takes two seconds of a process.
    """
    with torch.device("meta"), _NothingDrawn():
        yield


class _NothingDrawn(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(function, "__name__", "") in ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_"):
            return args[0] if args else given["tensor"]
        return function(*args, **given)
