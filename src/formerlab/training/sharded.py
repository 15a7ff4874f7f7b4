"""Training of a model that does not fit on one GPU: every process holds a part of each of its tensors (FSDP2).

Weights, gradients and moments are split over the processes along their first axis (`torch.distributed.fsdp`); the
weights of a block are gathered before it computes and let go after it. What is learned is what as many processes learn
without this (`parallel.py`), up to the order of sums. The processes are told by their environment, as torchrun tells
them their number: that a run is split is no part of what it is.
"""

import os
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from formerlab.errors import UserError
from formerlab.training import parallel
from formerlab.training.run import Run
from formerlab.training.settings import SHARDED
from formerlab.training.state import State


def wanted() -> bool:
    """Say whether tensors are split over the processes."""
    return os.environ.get(SHARDED) == "1" and parallel.count() > 1


def check(run: Run, *, keep_optimizer: bool) -> None:
    """Raise UserError where tensors are to be split of a run that needs them whole."""
    reason = "a run that hands its optimizer on (growth.optimizer=carry)" if keep_optimizer else unsplittable(run)
    if wanted() and reason:
        raise UserError(f"{run.id}: {reason} needs whole tensors; leave sharded out, or train on GPUs that hold them")


def placed(model: nn.Module, device: str) -> nn.Module:
    """Return the model on its device: whole, or where that is wanted this process's parts of it."""
    return _split(model, device) if wanted() else model.to(device)


def unsplittable(run: Run) -> str | None:
    """Return what of a run works on whole tensors only, if anything does."""
    growth = run.growth
    reasons = {
        f"model.kind={run.model.kind}": run.model.kind != "decoder",
        "growth.optimizer=carry": growth is not None and growth.optimizer == "carry",
        "growth.old_tokens": growth is not None and growth.old_tokens != "train",
        "optimizer.mixing_start_step": run.optimizer.mixing_start_step > 0,
    }
    return next((reason for reason, met in reasons.items() if met), None)


def _split(model: Any, device: str) -> nn.Module:
    """Split a decoder block by block; the rest of it is one part more. Its parts move to the device one by one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(torch.device(device).type, (parallel.count(),))
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh)
        part.set_gradient_divide_factor(1.0)  # gradients are summed: losses are divided by the number of parts already
        part.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sums
    moved: nn.Module = model.to(device)  # buffers
    return moved


def gathered(state: State) -> State:
    """Return the state with the whole model, for what follows training; all processes take part, the first keeps it."""
    model: Any = state.model
    weights = {name: whole(weight) for name, weight in model.state_dict().items()}
    if parallel.rank() > 0:
        return state
    built: nn.Module = model.spec.build()
    built.load_state_dict(weights)
    return replace(state, model=built.to(parallel.device_of(model)))


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor whole, on the CPU, where the processes hold parts of it."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor
