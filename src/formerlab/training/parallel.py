"""Data parallel training: the parts of a step are shared out to processes that torchrun starts, one per GPU.

Every process holds the whole model; each makes and works on its own parts of the batch, gradients are summed, and all
take the same optimizer step. Global batch, learning rate, dropout and the order of the data are those of one process,
so losses differ by the order of sums alone. Alone, every function here changes nothing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed, nn

from formerlab.errors import UserError
from formerlab.tasks.task import Share


@contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the processes that torchrun started, if it did, and yield this one's device."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    own = f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else device
    if device == "cuda":
        torch.cuda.set_device(own)
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    try:
        yield own
    finally:
        distributed.destroy_process_group()


def count() -> int:
    """Return the number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this process; the first, 0, writes the files."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def check(parts: int) -> None:
    """Raise UserError where steps of so many parts cannot be shared out evenly."""
    if parts % count():
        raise UserError(
            f"{count()} processes cannot share a step of {parts} parts; make task.accumulate a multiple of gpus"
        )


def share() -> Share:
    """Return which parts of a step this process has."""
    return Share(rank(), count())


def add_gradients(model: nn.Module, total: torch.Tensor) -> None:
    """Replace every gradient, and the loss `total`, by its sum over the processes; split ones are summed already."""
    if count() == 1:
        return
    from torch.distributed.tensor import DTensor

    gradients = (parameter.grad for parameter in model.parameters())
    tensors = [total, *(grad for grad in gradients if grad is not None and not isinstance(grad, DTensor))]
    for waiting in [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]:
        waiting.wait()


def any_wants(*wishes: bool) -> list[bool]:
    """Say of every wish whether any process has it: all of them stop, or save, after the same step.

    They talk over the network, not through their GPUs, so nobody waits for what those are doing.
    """
    if count() == 1:
        return list(wishes)
    said = torch.tensor(wishes, dtype=torch.uint8)
    distributed.all_reduce(said, op=distributed.ReduceOp.MAX)
    return [bool(wanted) for wanted in said]


def complete(number: torch.Tensor) -> torch.Tensor:
    """Return a number whole, where each process holds what its parts of the tensors add to it."""
    if count() == 1:
        return number
    from torch.distributed.tensor import DTensor

    return number.full_tensor() if isinstance(number, DTensor) else number


def device_of(model: nn.Module) -> torch.device:
    """Return where a model is."""
    return next(model.parameters()).device


@contextmanager
def first_in_turn() -> Iterator[None]:
    """Let the first process do the block before the others do it."""
    if rank() > 0:
        distributed.barrier()
    yield
    if rank() == 0 and count() > 1:
        distributed.barrier()


def wait_for_all() -> None:
    """Wait until every process is here."""
    if count() > 1:
        distributed.barrier()
