"""A gate in the training loop of a copied checkout. A run pauses there until the test stops, kills or releases the run.

`gates/<run id>.json` contains {"step": the step at which the run pauses, ...}. At the first visit, the run saves a
checkpoint, writes the file `gates/<run id>.reached`, and waits for a request to stop. With `ignores_stop` it ignores
this request. The file `gates/<run id>.open` releases the waiting process. The next process that trains the run does not
pause. With `mistake` (UserError) or `crash` (RuntimeError), every process raises this error at the gate. Every process
allocates `memory_mb` at the gate. With `waits_for_kill`, a resumed process waits 3 s after the allocation, so that
Slurm kills it if `memory_mb` exceeds the memory of the job.
"""

import json
import os
import sys
import time
from pathlib import Path

from formerlab.errors import UserError

ALLOCATED = []


def pass_through(run_id, state, hooks):
    gate = Path("gates", f"{run_id}.json")
    if not gate.exists() or state.step != (settings := json.loads(gate.read_text()))["step"]:
        return
    if "mistake" in settings:
        raise UserError(settings["mistake"])
    if "crash" in settings:
        raise RuntimeError(settings["crash"])
    reached = gate.with_suffix(".reached")
    visited_before = reached.exists()
    if not visited_before:
        hooks.save(state)
        variables = {name: os.environ.get(name) for name in ("SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES")}
        gate.with_suffix(".tmp").write_text(json.dumps(variables | {"arguments": sys.argv}))
        gate.with_suffix(".tmp").rename(reached)
    ALLOCATED.append(b"x" * (settings.get("memory_mb", 0) << 20))
    if visited_before:
        time.sleep(3 * settings.get("waits_for_kill", 0))  # longer than Slurm's accounting interval of 2 s
    else:
        while not gate.with_suffix(".open").exists() and (settings.get("ignores_stop") or hooks.stop() is None):
            time.sleep(0.05)
