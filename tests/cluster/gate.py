"""A gate in the training loop of a copied checkout, at which a run waits for what a test does to it.

`gates/<run id>.json` says {"step": where, ...}. A run that comes to its gate for the first time saves a checkpoint,
leaves the file `<...>.reached` and waits until it is asked to stop; a `deaf` one does not hear that. The next process
passes. At a gate with a `mistake` or a `crash` every process ends for that. A file `<...>.open` lets the first one go
on. `memory_mb` is taken and held by every process that
comes to the gate, and a `greedy` one then waits to be killed for it, as long as its job has not that much.
"""

import json
import os
import sys
import time
from pathlib import Path

from formerlab.errors import UserError

HELD = []


def pass_through(run_id, state, hooks):
    gate = Path("gates", f"{run_id}.json")
    if not gate.exists() or state.step != (order := json.loads(gate.read_text()))["step"]:
        return
    if "mistake" in order:
        raise UserError(order["mistake"])
    if "crash" in order:
        raise RuntimeError(order["crash"])
    reached = gate.with_suffix(".reached")
    before = reached.exists()
    if not before:
        hooks.save(state)
        seen = {name: os.environ.get(name) for name in ("SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES")} | {"words": sys.argv}
        gate.with_suffix(".tmp").write_text(json.dumps(seen))
        gate.with_suffix(".tmp").rename(reached)
    HELD.append(b"x" * (order.get("memory_mb", 0) << 20))
    if before:
        time.sleep(3 * order.get("greedy", 0))  # long enough to be seen
    else:
        while not gate.with_suffix(".open").exists() and (order.get("deaf") or hooks.stop() is None):
            time.sleep(0.05)
