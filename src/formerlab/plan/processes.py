"""How many processors train a run, on how many machines, and whether each holds all of it."""

from typing import NamedTuple

from formerlab.errors import UserError
from formerlab.plan.hardware import Hardware
from formerlab.plan.memory import memory_bytes
from formerlab.plan.schema import Scale, StudyScale
from formerlab.training.processes import unsplittable
from formerlab.training.run import Run


class Processes(NamedTuple):
    """The processes of one run."""

    gpus: int
    """How many; on a CPU, processes instead of GPUs."""
    nodes: int
    """Machines that they are on, as many on each."""
    sharded: bool
    """Whether they split the run's tensors."""

    @property
    def shards(self) -> int:
        """Return into how many parts the tensors are split."""
        return self.gpus if self.sharded else 1


def processes_of(run: Run, scale: Scale, hardware: Hardware) -> Processes:
    """Return the processes of a run: where it does not fit on one of several, its tensors are split.

    Raises UserError where they cannot share the parts of its steps, or the machines the processes, or its tensors.
    """
    at_scale = scale.studies.get(run.study, StudyScale())
    gpus, nodes = gpus_of(run, scale), at_scale.nodes or scale.nodes
    if gpus % nodes:
        raise UserError(f"{run.id}: gpus={gpus} are not spread evenly over nodes={nodes}; make gpus a multiple of it")
    wanted = scale.sharded if at_scale.sharded is None else at_scale.sharded
    reason = unsplittable(run)
    if wanted and reason:
        raise UserError(f"{run.id}: sharded=true, but {reason} needs whole tensors; leave sharded out for its study")
    if wanted is None:
        wanted = reason is None and not fits(run, hardware)
    return Processes(gpus, nodes, wanted and gpus > 1)


def gpus_of(run: Run, scale: Scale) -> int:
    """Return the number of GPUs that train a run.

    Raises UserError where they cannot share out the parts of its steps.
    """
    count = scale.studies.get(run.study, StudyScale()).gpus or scale.gpus
    accumulate: int = getattr(run.task, "accumulate", count)
    if accumulate % count:
        raise UserError(
            f"{run.id}: task.accumulate={accumulate} parts of a step cannot be shared out to gpus={count}; "
            "make task.accumulate a multiple of gpus"
        )
    return count


def fits(run: Run, hardware: Hardware, shards: int = 1) -> bool:
    """Say whether a run fits on a processor, or on as many as it is split over."""
    return memory_bytes(run, hardware, shards) <= hardware.memory_gb * 1e9


def enough(run: Run, hardware: Hardware) -> int | None:
    """Return the smallest power of two of processors that hold a run together, if up to 64 of them do."""
    powers = range(7 if unsplittable(run) is None else 1)
    return next((shards for shards in (2**power for power in powers) if fits(run, hardware, shards)), None)
