"""How a run is carried out."""

from dataclasses import dataclass

SHARDED = "FORMERLAB_SHARDED"
"""Variable that is 1 in processes which split the tensors of their run (processes.py)."""


@dataclass(frozen=True)
class RuntimeConfig:
    """What a run's results do not depend on, given the number of threads and the kind of device."""

    threads: int = 1
    device: str = "cpu"
    time_limit_s: float | None = None
    margin_s: float = 30.0
    checkpoint_seconds: float = 60.0
    before_s: float = 0.0
    """What the process took until the stage began: its start and its imports."""
    on_mismatch: str = "refuse"
    """What to do with the results or the checkpoint of another run in the same folder: refuse | restart."""
    code_hash: str = ""
    """Hash of the code that the run depends on."""
    deterministic: bool = False
    """Let a GPU compute the same bits every time, with slower kernels; torch refuses what it has none for."""
    keep_optimizer: bool = False
    """Leave the optimizer's final state in optimizer.pt, for runs that grow from this one and carry it on."""
