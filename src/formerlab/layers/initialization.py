"""Initial values of a model.

Each layer samples its values in `reset_parameters` when it is built, as PyTorch's layers do. With a seed, the random
numbers depend only on the seed, the qualified name of the submodule, its shapes and the device. Modules with the same
name, shapes and initial distribution therefore start equal in two models, and comparisons can be paired by seed. The
initial standard deviation of projections that write to the residual stream may depend on the number of layers; in
models of different depths, these weights differ by a factor.
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
    """Call `reset_parameters` of a module and of all its submodules.

    With a seed, torch's generators are seeded for each submodule with the seed and the submodule's qualified name, and
    their state is restored at the end. Call this function after `to_empty` on a model that was built on the meta
    device.
    """
    named = dict(module.named_modules()).items()
    submodules = [(name, layer) for name, layer in named if callable(getattr(layer, "reset_parameters", None))]
    if seed is None:
        for _, submodule in submodules:
            submodule.reset_parameters()
        return
    gpus = {weight.device.index for weight in module.parameters() if weight.device.type == "cuda"}
    generators = [torch.default_generator, *(torch.cuda.default_generators[gpu] for gpu in sorted(gpus))]
    states = [generator.get_state() for generator in generators]
    try:
        for name, submodule in submodules:
            for generator in generators:
                generator.manual_seed(mixed_seed(seed, name))
            submodule.reset_parameters()
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def seeded(make: Callable[[], Module], seed: int) -> Module:
    """Build a module and initialise it with the seed; the state of torch's CPU generator does not change."""
    with torch.random.fork_rng(devices=[]):
        module = make()
    initialise(module, seed)
    return module


@contextmanager
def without_values() -> Iterator[None]:
    """Build modules on the meta device without sampling values.

    To sample values on the meta device, torch imports its compiler, which takes two seconds.
    """
    with torch.device("meta"), _SkipRandomInit():
        yield


class _SkipRandomInit(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in ("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)
