"""Train one run with several processes that torchrun starts, one per GPU.

The processes divide the micro-batches of a step among themselves, sum the gradients and take the same optimizer step.
Global batch, learning rate, dropout and data order do not depend on the number of processes, so losses differ only by
the order of sums. Each process has the whole model (torch's DDP) or, if the model does not fit on one GPU, a shard of
each tensor (torch's FSDP2). Environment variables set the number of processes and sharding.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn

from formerlab.errors import StoppedEarly, UserError
from formerlab.files import variable
from formerlab.growth.stage import Growth
from formerlab.layers.norm import NormLayer
from formerlab.training.optimizer import Muon
from formerlab.training.run import Run
from formerlab.training.runtime import SHARDED

LONGEST_WAIT = timedelta(minutes=10)
"""Timeout of collective operations, for example while rank 0 hashes the data or writes a checkpoint."""


@contextmanager
def process_group(device: str) -> Iterator[str]:
    """Join the process group if torchrun started several processes; yield the device of this process."""
    if world_size() == 1:
        yield device
        return
    local_device = f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else device
    if device == "cuda":
        torch.cuda.set_device(local_device)
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=LONGEST_WAIT)
    try:
        yield local_device
    except StoppedEarly:
        distributed.destroy_process_group()
        raise
    distributed.destroy_process_group()  # not in a `finally`: after an error, it would wait for the other processes


def world_size() -> int:
    """Return the number of processes that torchrun started, or 1 without torchrun.

    Raises UserError if WORLD_SIZE is not a positive number, or if other variables of torchrun are missing.
    """
    size = variable("WORLD_SIZE") or "1"
    if not size.isdecimal() or int(size) == 0:
        raise UserError(f"WORLD_SIZE={size}: set it to the number of processes, 1 or more, or unset it")
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if variable(name) is None]
    if int(size) > 1 and missing:
        raise UserError(f"WORLD_SIZE={size} without {', '.join(missing)}: unset it, or start with torchrun")
    return int(size)


def group_size() -> int:
    """Return the number of processes in the initialised process group, or 1 without a group."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process; rank 0 writes the files."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def sharded() -> bool:
    """Return whether tensors are sharded over the processes."""
    return os.environ.get(SHARDED) == "1" and group_size() > 1


def unsupported_by_sharding(run: Run, *, carried: bool = False) -> str | None:
    """Return the first setting of a run that does not support sharded tensors, or None.

    `carried` means that a child run continues with the optimizer state of this run.
    """
    growth = run.growth or Growth()
    reasons = {
        f"model.kind={run.model.kind}": run.model.kind != "decoder",
        "growth.optimizer=carry": growth.optimizer == "carry",
        "growth.old_tokens": growth.old_tokens != "train",
        "a run whose optimizer is carried over (growth.optimizer=carry)": carried,
        "optimizer.kind=muon": isinstance(run.optimizer, Muon),
        "optimizer.mixing_start_step": run.optimizer.mixing_start_step > 0,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def place_model(model: nn.Module, device: str, precision: str) -> nn.Module:
    """Move the model to the device; with sharding, keep only the shards of this process.

    A model on the meta device gets memory with undefined values.
    """
    if sharded():
        _shard(model, device, precision)
    if any(weight.is_meta for weight in model.parameters()):
        model.to_empty(device=device)
        for module in model.modules():
            if module._non_persistent_buffers_set:  # the state dict does not contain them
                module.reset_parameters()  # type: ignore[operator]
    return model.to(device)


def _shard(model: Any, device: str, precision: str) -> None:
    """Shard the tensors of a model with FSDP2.

    Each block of a decoder is one FSDP unit, and the remaining parameters form another. In bfloat16 runs the weights of
    a block are gathered in bfloat16; norms, the remaining parameters and the residual stream stay float32. Gradients
    are summed in float32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(torch.device(device).type, (group_size(),))
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        for norm in block.modules() if precision == "bfloat16" else ():
            if isinstance(norm, NormLayer) and list(norm.parameters()):
                fully_shard(norm, mesh=mesh)
        fully_shard(block, mesh=mesh, mp_policy=half if precision == "bfloat16" else MixedPrecisionPolicy())
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # sum: losses are already divided by the number of micro-batches
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sums


def wrap_in_ddp(model: nn.Module, *, unused_parameters: bool) -> nn.Module:
    """Wrap the model in DDP, so that the backward pass sums the gradients over processes.

    `unused_parameters` means that some parameters have no gradient in some steps.
    """
    if group_size() == 1 or sharded():
        return model
    wrapped = nn.parallel.DistributedDataParallel(
        model, forward_sync_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=unused_parameters
    )

    def total(state: None, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
        work: Any = distributed.all_reduce(bucket.buffer(), async_op=True)
        summed: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
        return summed

    wrapped.register_comm_hook(None, total)  # sum instead of mean: losses are divided by the number of micro-batches
    return wrapped


def micro_batch_context(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Return `no_sync` for all micro-batches except the last, so that DDP reduces gradients once per step."""
    if isinstance(model, nn.parallel.DistributedDataParallel) and not last:
        return model.no_sync()  # type: ignore[no-untyped-call,no-any-return]
    return nullcontext()


def any_process(*conditions: bool) -> list[bool]:
    """Return whether each condition is true in any process; the exchange uses gloo, so no process waits for a GPU."""
    if group_size() == 1:
        return list(conditions)
    flags = torch.tensor(conditions, dtype=torch.uint8)
    distributed.all_reduce(flags, op=distributed.ReduceOp.MAX)
    return [bool(flag) for flag in flags]


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor of a sharded tensor or partial sum; other tensors are returned unchanged."""
    gather: Any = getattr(tensor, "full_tensor", None)  # a method of DTensor
    return tensor if gather is None else gather()


def full_tensors(tree: dict[str, Any]) -> dict[str, Any]:
    """Replace sharded tensors in nested mappings by full CPU tensors on rank 0, and by None on other ranks."""
    if not sharded():
        return tree
    from torch.distributed.tensor import DTensor
    from torch.utils._pytree import tree_map_only

    def gather(tensor: Any) -> Tensor | None:
        full: Tensor = tensor.full_tensor()
        return full.cpu() if rank() == 0 else None

    gathered: dict[str, Any] = tree_map_only(DTensor, gather, tree)
    return gathered


def local_shard(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's shard of a full tensor, with the sharding of `like`."""
    if not sharded():
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def gather_objects(rows: Any) -> list[Any]:
    """Return the objects of all processes in rank order."""
    if group_size() == 1:
        return [rows]
    rows_of_ranks = [None] * group_size()
    distributed.all_gather_object(rows_of_ranks, rows)
    return rows_of_ranks


@contextmanager
def rank_zero_first() -> Iterator[None]:
    """Run the block in rank 0 first, then in the other processes."""
    if rank() > 0:
        distributed.barrier()
    yield
    if rank() == 0 and group_size() > 1:
        distributed.barrier()


def wait_for_all() -> None:
    """Wait for all processes."""
    if group_size() > 1:
        distributed.barrier()
