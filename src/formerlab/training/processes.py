"""How several processes train one run: torchrun starts them, one per GPU.

They share out the parts of a step; each makes and works on its own, gradients are summed, and all take the same
optimizer step. Global batch, learning rate, dropout and the order of the data are those of one process, so losses
differ by the order of sums alone. Every process holds the whole model (torch's DDP), or, where that does not fit on
one GPU, a part of each of its tensors (torch's FSDP2): then weights, gradients and moments are split along their first
axis, and the weights of a block are gathered before it computes and let go after it. The processes are told by their
environment: how many there are, and whether tensors are split, is no part of what a run is.
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
"""How long a process waits for the others, at most: while the first one hashes the data or writes a checkpoint. NCCL's
own default; gloo's is 30 minutes."""


@contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the processes that torchrun started, if it did, and yield this one's device."""
    if world_size() == 1:
        yield device
        return
    own = f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else device
    if device == "cuda":
        torch.cuda.set_device(own)
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=LONGEST_WAIT)
    try:
        yield own
    except StoppedEarly:
        distributed.destroy_process_group()
        raise
    distributed.destroy_process_group()  # not after an error: it would wait for the other processes


def world_size() -> int:
    """Return how many processes torchrun started, 1 without it.

    Raises UserError where WORLD_SIZE is no such number, or the variables that torchrun sets with it are missing.
    """
    size = variable("WORLD_SIZE") or "1"
    if not size.isdecimal() or int(size) == 0:
        raise UserError(f"WORLD_SIZE={size}: give a number of processes, 1 or more, or unset it")
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if variable(name) is None]
    if int(size) > 1 and missing:
        raise UserError(f"WORLD_SIZE={size} without {', '.join(missing)}: unset it, or start the processes by torchrun")
    return int(size)


def count() -> int:
    """Return the number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this process; the first, 0, writes the files."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def sharded() -> bool:
    """Say whether tensors are split over the processes."""
    return os.environ.get(SHARDED) == "1" and count() > 1


def unsplittable(run: Run, *, carried: bool = False) -> str | None:
    """Return what of a run works on whole tensors only, if anything does; `carried` is its optimizer by another run."""
    growth = run.growth or Growth()
    reasons = {
        f"model.kind={run.model.kind}": run.model.kind != "decoder",
        "growth.optimizer=carry": growth.optimizer == "carry",
        "growth.old_tokens": growth.old_tokens != "train",
        "a run that hands its optimizer on (growth.optimizer=carry)": carried,
        "optimizer.kind=muon": isinstance(run.optimizer, Muon),
        "optimizer.mixing_start_step": run.optimizer.mixing_start_step > 0,
    }
    return next((reason for reason, met in reasons.items() if met), None)


def placed(model: nn.Module, device: str, precision: str) -> nn.Module:
    """Return the model on its device: whole, or where tensors are split this process's parts of it.

    A model built on the meta device has memory there, but no values yet.
    """
    if sharded():
        _split(model, device, precision)
    if any(weight.is_meta for weight in model.parameters()):
        model.to_empty(device=device)
        for part in model.modules():
            if part._non_persistent_buffers_set:  # tables, which no state dict holds
                part.reset_parameters()  # type: ignore[operator]
    return model.to(device)


def _split(model: Any, device: str, precision: str) -> None:
    """Leave this process its parts of the model's tensors.

    A decoder is split block by block, and the rest of it is one part more. Under bfloat16 the weights of a block are
    gathered in it, as their products want them; its norms and the rest stay float32, like the stream between blocks.
    Gradients are summed in float32 in any case.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(torch.device(device).type, (count(),))
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        for norm in block.modules() if precision == "bfloat16" else ():
            if isinstance(norm, NormLayer) and list(norm.parameters()):
                fully_shard(norm, mesh=mesh)
        fully_shard(block, mesh=mesh, mp_policy=half if precision == "bfloat16" else MixedPrecisionPolicy())
    fully_shard(model, mesh=mesh)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)  # summed: losses are divided by the number of parts already
            part.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sums


def summing_gradients(model: nn.Module, *, some_rest: bool) -> nn.Module:
    """Return what to call in the model's place, so that backward sums its gradients over the processes as it goes.

    `some_rest` says that some weights have no part in some steps. A model that is split sums by itself.
    """
    if count() == 1 or sharded():
        return model
    called = nn.parallel.DistributedDataParallel(
        model, forward_sync_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=some_rest
    )

    def total(state: None, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
        work: Any = distributed.all_reduce(bucket.buffer(), async_op=True)
        summed: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
        return summed

    called.register_comm_hook(None, total)  # it would take the mean: losses are divided by the number of parts already
    return called


def of_part(model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """Return the context of a part of a step: gradients are summed over the processes after the last alone.

    Those of a split model are summed after every part, since they would be whole in every process between two.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel) and not last:
        return model.no_sync()  # type: ignore[no-untyped-call,no-any-return]
    return nullcontext()


def any_wants(*wishes: bool) -> list[bool]:
    """Say of every wish whether any process has it: all of them stop, or save, after the same step.

    They talk over the network, not through their GPUs, so no process waits for a GPU.
    """
    if count() == 1:
        return list(wishes)
    wanted = torch.tensor(wishes, dtype=torch.uint8)
    distributed.all_reduce(wanted, op=distributed.ReduceOp.MAX)
    return [bool(one) for one in wanted]


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor, or a number that every process holds its parts' share of, whole."""
    gather: Any = getattr(tensor, "full_tensor", None)  # which only split ones have
    return tensor if gather is None else gather()


def whole_tensors(tree: dict[str, Any]) -> dict[str, Any]:
    """Return nested mappings with whole tensors in place of split ones, on the CPU of the first process alone."""
    if not sharded():
        return tree
    from torch.distributed.tensor import DTensor
    from torch.utils._pytree import tree_map_only

    def gather(tensor: Any) -> Tensor | None:
        full: Tensor = tensor.full_tensor()
        return full.cpu() if rank() == 0 else None

    gathered: dict[str, Any] = tree_map_only(DTensor, gather, tree)
    return gathered


def part(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, split as another of its shape is."""
    if not sharded():
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def gathered(rows: Any) -> list[Any]:
    """Return what every process has, in their order."""
    if count() == 1:
        return [rows]
    found = [None] * count()
    distributed.all_gather_object(found, rows)
    return found


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
