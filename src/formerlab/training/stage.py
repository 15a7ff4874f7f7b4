"""The stage `train`: train a run on prepared data and write the files that later stages read."""

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

from formerlab.data.images.batches import stop_waiting
from formerlab.data.manifest import read_manifest, verify_all
from formerlab.errors import UserError
from formerlab.files import read_record, sha256, write_text
from formerlab.growth.optimizer import grow_optimizer_state, limit_old_tokens
from formerlab.growth.stage import continued_spec, grow_into, grown_spec
from formerlab.kernels.native import keep_memory, kernel_implementation
from formerlab.layers.initialization import without_values
from formerlab.results.stages import OPTIMIZER, STAGES, WEIGHTS
from formerlab.training import processes, provenance
from formerlab.training.checkpoint import Content, checkpoint_to_resume, differences, load_tensors, save_checkpoint
from formerlab.training.loop import Hooks, evaluate_on_test, train
from formerlab.training.record import (
    CHECKPOINT,
    Record,
    data_usages,
    finish,
    load_record,
    next_position,
    remove_checkpoints,
    write_metrics,
)
from formerlab.training.run import Run
from formerlab.training.runtime import RuntimeConfig, StopRequest
from formerlab.training.state import State


def train_stage(run: Run, data: Path, out: Path, *, parent: Path | None, runtime: RuntimeConfig) -> None:
    """Train `run` on the prepared data in `data` and write to `out`; `parent` is the folder of the run `run.init`.

    Returns immediately if `out` contains the finished run with all files intact. Raises UserError if the data are
    damaged, if the parent is not finished, or if `out` contains another run. With `runtime.replace`, existing results
    in `out` are not checked and are overwritten. Raises StoppedEarly at a signal or before the time limit; another call
    resumes the run.
    """
    with StopRequest(runtime.time_limit_s, runtime.margin_s) as stop, processes.process_group(runtime.device) as device:
        # Check the data, the parent and existing results.
        manifest, parent_record = read_manifest(data), load_parent_record(run, parent)
        hashes = input_hashes(run.fingerprint(), manifest, runtime.code_hash, parent_record)
        with processes.rank_zero_first():
            if not runtime.replace and is_finished(run, out, hashes, keep_optimizer=runtime.keep_optimizer):
                return
            verify_all(data)

        # Start from a checkpoint, the parent's weights, or initial weights.
        clock = time.monotonic() - runtime.startup_s
        provenance.git_state()  # cached now, because files may change during training
        torch.set_num_threads(runtime.threads)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # needed for determinism; cuBLAS reads it at start
        set_deterministic(runtime.deterministic, compiles=run.compile)
        keep_memory()
        path = out / CHECKPOINT
        content = checkpoint_to_resume(path, hashes)
        state = initial_state(run, parent, parent_record, content, device)
        if content is not None:
            print(f"resuming from {path} after step {state.step}", file=sys.stderr)
        note_kernels(state)
        clock -= state.wall_time_s
        if processes.rank() == 0:
            (out / "run.json").unlink(missing_ok=True)  # an old record must not describe new files
            write_text(out / "run.yaml", yaml.safe_dump(run.to_dict(), sort_keys=False))

        # Train and test.
        def save(state: State) -> None:
            began = time.monotonic()
            state.wall_time_s = began - clock
            content = state.dump()
            if processes.rank() == 0:
                save_checkpoint(path, content, hashes)
                write_metrics(run, state, out)
            if processes.sharded():
                processes.wait_for_all()
            # Leave time for the longest step and for a save that takes twice as long as this save.
            stop.raise_margin(hooks.longest_step_s + 2 * (time.monotonic() - began))

        examples = run.task.load(data, "train")
        stop_waiting(examples, stop)
        start = next_position(data_usages(parent_record), manifest["fingerprint"])
        hooks = Hooks(save, stop, runtime.checkpoint_seconds)
        diverged = train(run, state, examples, run.task.load(data, "valid"), hooks, start)
        evaluate_on_test(run, state, data, hooks, diverged)

        # Write the final files.
        state.wall_time_s = time.monotonic() - clock
        if diverged is not None and processes.rank() == 0:
            saved = f"last good checkpoint: {path}" if path.exists() else "no earlier checkpoint"
            print(
                f"{run.id}: loss, gradient or weights not finite in step {diverged}; recorded as diverged ({saved}). "
                f"Try a lower optimizer.lr (now {run.optimizer.lr:g}), a longer schedule.warmup, optimizer.clip 1.0 or "
                "precision float32.",
                file=sys.stderr,
            )
        finish(run, state, runtime, out, manifest, parent_record, diverged, examples)


def set_deterministic(enabled: bool, *, compiles: bool) -> None:
    """Set torch's deterministic mode; without compilation, avoid importing the compiler."""
    if compiles:
        torch.use_deterministic_algorithms(enabled)
    else:
        torch.set_deterministic_debug_mode("error" if enabled else "default")


def load_parent_record(run: Run, parent: Path | None) -> Record | None:
    """Return the record of the run's parent, or None without `init`; raise UserError if the parent is not finished."""
    if run.init is None:
        return None
    subject = f"{run.id}: init={run.init}"
    if parent is None:
        raise UserError(f"{subject} needs the folder of that run")
    if not (parent / "run.json").exists():
        raise UserError(f"{subject} is not finished, {parent / 'run.json'} is missing; train it first")
    record = load_record(parent)
    if record["status"] != "finished":
        raise UserError(f"{subject} {record['status']}; change its settings (lower optimizer.lr) first")
    return record


def input_hashes(spec_hash: str, data: Record, code_hash: str, init: Record | None) -> dict[str, str]:
    """Return the hashes that determine the results of a run, given the manifest of its data and its parent's record."""
    hashes = {"spec": spec_hash, "data": data["fingerprint"], "code": code_hash}
    return hashes if init is None else hashes | {"init": init["weights_sha256"]}


def is_finished(run: Run, out: Path, hashes: dict[str, str], *, keep_optimizer: bool) -> bool:
    """Return whether `out` contains this run with all files intact; raise UserError if it contains another run."""
    path = out / "run.json"
    if not path.exists():
        return False
    record = read_record(path, "spec_hash", "data", "code_hash", "init", "status", "weights_sha256")
    existing = input_hashes(record["spec_hash"], record["data"], record["code_hash"], record["init"])
    if differing := differences(existing, hashes):
        raise UserError(f"{path}: result of another run ({differing}); delete it, or train in another folder")
    names = (*STAGES["train"].written, OPTIMIZER) if keep_optimizer else STAGES["train"].written
    digests = record.get("rows_sha256", {}) | {WEIGHTS: record["weights_sha256"]}
    damaged = [name for name in names if not (out / name).exists()]
    damaged = damaged or [name for name, digest in digests.items() if sha256(out / name) != digest]
    if damaged:
        print(f"training again: missing or damaged in {out}: {', '.join(damaged)}", file=sys.stderr)
        return False
    print(f"{run.id}: already {record['status']}", file=sys.stderr)
    remove_checkpoints(out, record["status"])
    return True


def initial_state(run: Run, parent: Path | None, record: Record | None, content: Content | None, device: str) -> State:
    """Build model and optimizer with initial weights, the parent's weights, or the state of the checkpoint `content`.

    `parent` and `record` are the folder and the record of the parent run, or None.
    """
    growth, weights, spec = run.growth, dict[str, Tensor](), run.model
    if parent is not None and record is not None:
        weights, parent_spec = load_file(parent / WEIGHTS), Run.model_validate(record["spec"]).model
        spec = continued_spec(parent_spec, spec) if growth is None else grown_spec(parent_spec, spec, growth)
    model: nn.Module
    if content is None and growth is not None:
        model = grow_into(weights, parent_spec, spec, growth, run.seed)
    else:
        with nullcontext() if content is None else without_values():
            model = spec.build(run.seed)
        if weights and content is None:
            model.load_state_dict(weights)
    model = processes.place_model(model, device, run.precision)
    state = State(model, run.optimizer.build(model), started=provenance.utc_timestamp())
    if growth is not None:
        limit_old_tokens(state.optimizer, model, weights, growth.old_tokens)
    if content is not None:
        state.restore(content)
    elif parent is not None and growth is not None and growth.optimizer == "carry":
        remedy = f"train {run.init_id} again to write this file"
        carried = load_tensors(parent / OPTIMIZER, {"state", "param_groups"}, remedy)
        state.optimizer.load_state_dict(grow_optimizer_state(carried, state.optimizer))
    return state


def note_kernels(state: State) -> None:
    """Record the kernels of the next steps in `state`; warn if earlier steps used other kernels."""
    current, previous = kernel_implementation(), state.kernels[-1:]
    if previous and previous != [current] and processes.rank() == 0:
        change = f"earlier steps were computed with kernels '{previous[0]}', the next steps with '{current}'"
        print(f"{change}: results may differ in the last bits from an uninterrupted run", file=sys.stderr)
    state.kernels += [current] if previous != [current] else []
