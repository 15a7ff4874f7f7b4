"""The stage `train`: from a run and its data to the files that every later stage reads.

A run goes one way: it is checked, starts (`start.py`), takes its steps (`loop.py`) and ends (`finish.py`).
"""

import os
import sys
import time
from pathlib import Path

import torch
import yaml

from formerlab.data.text.streams import read_manifest, verify
from formerlab.files import write_text
from formerlab.kernels.native import keep_memory
from formerlab.training import processes, provenance
from formerlab.training.checkpoint import found_checkpoint, save_checkpoint
from formerlab.training.finish import CHECKPOINT, finish, write_curves
from formerlab.training.loop import Hooks, measure, train
from formerlab.training.record import next_place, readings
from formerlab.training.run import Run
from formerlab.training.runtime_config import RuntimeConfig
from formerlab.training.start import (
    identity,
    initial_state,
    is_finished,
    note_kernels,
    record_of_parent,
)
from formerlab.training.state import State
from formerlab.training.stop import StopRequest


def train_stage(run: Run, data: Path, out: Path, *, parent: Path | None, runtime: RuntimeConfig) -> None:
    """Train `run` on the prepared data in `data`, from the finished run in `parent` where it grows; leave all in `out`.

    Where `out` holds this very run, finished, nothing is done.

    Raises
    ------
    UserError
        Where data, parent, or the results or checkpoint found in `out` do not fit the run.
    StoppedEarly
        When a signal came or the time limit is near; the work is saved and the same call continues.
    """
    with StopRequest(runtime.time_limit_s, runtime.margin_s) as stop, processes.joined(runtime.device) as device:
        # Check.
        processes.check(run, keep_optimizer=runtime.keep_optimizer)
        manifest, ancestor = read_manifest(data), record_of_parent(run, parent)
        belongs_to = identity(run.fingerprint(), manifest, runtime.code_hash, ancestor)
        with processes.first_in_turn():
            finished = is_finished(run, out, belongs_to, runtime)
            if not finished:
                verify(data)  # the record will name these data
        if finished:
            return

        # Start.
        clock = time.monotonic() - runtime.before_s
        provenance.git_state()  # remembered from here on: files may be edited while a run trains
        torch.set_num_threads(runtime.threads)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it; read when it starts
        torch.use_deterministic_algorithms(runtime.deterministic)
        keep_memory()
        path = out / CHECKPOINT
        content = found_checkpoint(path, belongs_to, runtime.on_mismatch)
        state = initial_state(run, parent, ancestor, content, device)
        if content is not None:
            print(f"continuing after step {state.step} of {path}", file=sys.stderr)
        note_kernels(state)
        clock -= state.wall_time_s
        if processes.rank() == 0:
            (out / "run.json").unlink(missing_ok=True)  # no old record speaks for new files
            write_text(out / "run.yaml", yaml.safe_dump(run.to_dict(), sort_keys=False))

        # Take the steps, and the test.
        def save(state: State) -> None:
            began = time.monotonic()
            state.wall_time_s = began - clock
            content = state.dump()
            if processes.rank() == 0:
                save_checkpoint(path, content, belongs_to)
                write_curves(run, state, out)
            if processes.sharded():
                processes.wait_for_all()
            a_step = state.training_time_s / max(1, state.step)
            stop.leave(a_step + 2 * (time.monotonic() - began))  # the step under way, and its save, be it twice as slow

        examples = run.task.load(data, "train")
        begins = next_place(readings(ancestor), manifest["fingerprint"])
        hooks = Hooks(save, stop, runtime.checkpoint_seconds)
        diverged = train(run, state, examples, run.task.load(data, "valid"), hooks, begins)
        measure(run, state, data, hooks, diverged)

        # Finish.
        state.wall_time_s = time.monotonic() - clock
        finish(run, state, runtime, out, manifest, ancestor, diverged, examples)
