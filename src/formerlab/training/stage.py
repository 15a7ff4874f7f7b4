"""The stage `train`: from a run and its data to the files that every later stage reads.

A run goes one way: it is checked, starts (`start.py`), takes its steps (`loop.py`) and ends (`finish.py`).
"""

import time
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from formerlab.data.text.streams import read_manifest, verify
from formerlab.files import sha256, write_json, write_text
from formerlab.kernels.native import keep_memory
from formerlab.results.stages import STAGES
from formerlab.results.write import hashes_of_rows
from formerlab.training import checkpoint, finish, processes, provenance
from formerlab.training.finish import CHECKPOINT, WEIGHTS, explain_divergence, tidy, write_results, write_weights
from formerlab.training.loop import Hooks, train
from formerlab.training.record import next_place, readings, record_of
from formerlab.training.run import Run
from formerlab.training.runtime_config import RuntimeConfig
from formerlab.training.start import identity, initial_state, is_finished, note_kernels, record_of_parent, resume
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
        processes.check_sharding(run, keep_optimizer=runtime.keep_optimizer)
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
        keep_memory()
        path, state = out / CHECKPOINT, initial_state(run, parent, ancestor, device)
        resume(path, state, belongs_to, runtime.on_mismatch)
        note_kernels(state)
        clock -= state.wall_time_s
        if processes.rank() == 0:
            (out / "run.json").unlink(missing_ok=True)  # no old record speaks for new files
            write_text(out / "run.yaml", yaml.safe_dump(run.to_dict(), sort_keys=False))

        # Take the steps.
        def save(state: State) -> None:
            began = time.monotonic()
            state.wall_time_s = began - clock
            checkpoint.save(path, state, belongs_to)
            if processes.rank() == 0:
                finish.write_curves(run, state, out)
            a_step = state.training_time_s / max(1, state.step)
            stop.leave(a_step + 2 * (time.monotonic() - began))  # the step under way, and its save, be it twice as slow

        examples = run.task.load(data, "train")
        begins = next_place(readings(ancestor), manifest["fingerprint"])
        hooks = Hooks(save, stop, runtime.checkpoint_seconds)
        diverged = train(run, state, examples, run.task.load(data, "valid"), hooks, begins)

        # Finish.
        state = replace(state, model=processes.whole_model(state.model))
        if processes.rank() > 0:
            return
        if diverged is not None:
            explain_divergence(run, diverged, path)
        narrow = run.precision == "bfloat16" and device.startswith("cuda")  # as in validation; a CPU gains nothing
        with torch.autocast("cuda", torch.bfloat16, enabled=narrow):
            final = write_results(run, state, data, out, diverged)
        write_weights(out, state, keep_optimizer=runtime.keep_optimizer)
        state.wall_time_s = time.monotonic() - clock
        record = record_of(run, state, runtime, manifest, ancestor, diverged, examples)
        written = {"weights_sha256": sha256(out / WEIGHTS), "rows_sha256": hashes_of_rows(out, STAGES["train"].tables)}
        write_json(out / "run.json", record | written | {"final": final})
        tidy(out, record["status"])
