"""The stage `train`: from a run and its data to the files that every later stage reads."""

import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from formerlab.data.text.streams import read_manifest
from formerlab.errors import UserError
from formerlab.files import read_json, sha256, write_json, write_text
from formerlab.growth.tokens import continued_spec, grow_into, grow_optimizer_state, hold_old_tokens
from formerlab.kernels.native import keep_memory
from formerlab.training import parallel, provenance, sharded
from formerlab.training.checkpoint import (
    differences,
    keep_before,
    load_checkpoint,
    load_tensors,
    previous,
    remove,
    save_checkpoint,
)
from formerlab.training.loop import Hooks, train
from formerlab.training.products import FILES, OPTIMIZER, WEIGHTS, write_results, write_weights
from formerlab.training.reading import next_place, readings
from formerlab.training.record import Record, load_record, record_of
from formerlab.training.run import Run
from formerlab.training.settings import Settings
from formerlab.training.sharded_checkpoint import in_one_piece, restore, save_parts
from formerlab.training.state import State
from formerlab.training.stop import StopRequest

CHECKPOINT = "checkpoint/last.pt"
SUPERSEDED = "checkpoint.superseded"


def train_stage(run: Run, data: Path, out: Path, *, parent: Path | None, settings: Settings) -> None:
    """Train `run` on the prepared data in `data`, from the finished run in `parent` where it grows; leave all in `out`.

    Where `out` holds this very run, finished, nothing is done.

    Raises
    ------
    UserError
        Where data, parent, or the results or checkpoint found in `out` do not fit the run.
    StoppedEarly
        When a signal came or the time limit is near; the work is saved and the same call continues.
    """
    with StopRequest(settings.time_limit_s, settings.margin_s) as stop, parallel.joined(settings.device) as device:
        sharded.check(run, keep_optimizer=settings.keep_optimizer)
        manifest, parent_record = read_manifest(data), _parent_record(run, parent)
        belongs_to = _identity(run.fingerprint(), manifest, settings.code_hash, parent_record)
        with parallel.first_in_turn():
            finished = _is_finished(run, out, belongs_to, settings)
        if finished:
            return
        clock = time.monotonic() - settings.before_s
        provenance.git_state()  # remembered from here on: files may be edited while a run trains
        torch.set_num_threads(settings.threads)
        keep_memory()
        state = _initial_state(run, parent, parent_record, device)
        path = out / CHECKPOINT
        with parallel.first_in_turn():
            content = _read_checkpoint(path, belongs_to, settings)
        if content is not None:
            _resume(path, state, content)
        clock -= state.wall_time_s

        def save(state: State) -> None:
            state.wall_time_s = time.monotonic() - clock
            _save(path, state, belongs_to)

        if parallel.rank() == 0:
            (out / "run.json").unlink(missing_ok=True)  # no old record speaks for new files
            write_text(out / "run.yaml", yaml.safe_dump(run.plain(), sort_keys=False))
        hooks = Hooks(save, stop, settings.checkpoint_seconds)
        examples = run.task.load(data, "train")
        start = next_place(readings(parent_record), manifest["fingerprint"])
        diverged = train(run, state, examples, run.task.load(data, "valid"), hooks, start)
        state = sharded.gathered(state) if sharded.wanted() else state
        if parallel.rank() > 0:
            return
        if diverged is not None:
            _explain_divergence(run, diverged, path)
        final = write_results(run, state, data, out, diverged)
        write_weights(out, state, keep_optimizer=settings.keep_optimizer)
        state.wall_time_s = time.monotonic() - clock
        record = record_of(run, state, settings, manifest, parent_record, diverged, examples)
        write_json(out / "run.json", record | {"weights_sha256": sha256(out / WEIGHTS), "final": final})
        _tidy(out, record["status"])


def _identity(spec_hash: str, data: Record, code_hash: str, init: Record | None) -> dict[str, str]:
    """Return what decides the results of a run; `data` and `init` are records of its data and of its parent."""
    identity = {"spec": spec_hash, "data": data["fingerprint"], "code": code_hash}
    return identity if init is None else identity | {"init": init["weights_sha256"]}


def _parent_record(run: Run, parent: Path | None) -> Record | None:
    """Return the record of the run that this one grows from, checked with its weights."""
    if run.init is None:
        return None
    if parent is None:
        raise UserError(f"{run.id}: init={run.init} needs the folder of that run")
    if not (parent / "run.json").exists():
        raise UserError(f"{run.id}: init={run.init} is not finished, {parent / 'run.json'} is missing; train it first")
    record = load_record(parent)
    if "read" not in record:
        raise UserError(
            f"{run.id}: init={run.init} is of an older version that did not note what it read; train it again"
        )
    if record["status"] != "finished":
        raise UserError(f"{run.id}: init={run.init} {record['status']}; change its settings (lower optimizer.lr) first")
    return record


def _is_finished(run: Run, out: Path, belongs_to: dict[str, str], settings: Settings) -> bool:
    """Say whether `out` holds this very run, whole; another one is replaced only if the settings say so."""
    path = out / "run.json"
    if not path.exists():
        return False
    record = read_json(path)
    found = _identity(record["spec_hash"], record["data"], record["code_hash"], record["init"])
    if differing := differences(found, belongs_to):
        reason = f"{path}: result of another run ({differing})"
        if settings.on_mismatch != "restart":
            raise UserError(f"{reason}; replace it with --on-mismatch restart")
        print(f"training anew: {reason}", file=sys.stderr)
        return False
    names = (*FILES, OPTIMIZER) if settings.keep_optimizer else FILES
    damaged = [name for name in names if not (out / name).exists()]
    if not damaged and sha256(out / WEIGHTS) != record["weights_sha256"]:
        damaged = [WEIGHTS]
    if damaged:
        print(f"training again: {out} has no whole {', '.join(damaged)}", file=sys.stderr)
        return False
    print(f"{run.id}: already {record['status']}", file=sys.stderr)
    _tidy(out, record["status"])
    return True


def _initial_state(run: Run, parent: Path | None, parent_record: Record | None, device: str) -> State:
    """Build model and optimizer at step 0, grown from the parent where there is one."""
    if parent is None or parent_record is None:
        model = sharded.placed(run.model.build(run.seed), device)
        return State(model, run.optimizer.build(model), started=provenance.now())
    weights, spec = load_file(parent / WEIGHTS), Run.model_validate(parent_record["spec"]).model
    if run.growth is None:
        model = continued_spec(spec, run.model).build(run.seed)
        model.load_state_dict(weights)
        model = sharded.placed(model, device)
        return State(model, run.optimizer.build(model), started=provenance.now())
    model = sharded.placed(grow_into(weights, spec, run.model, run.growth, run.seed), device)
    optimizer = run.optimizer.build(model)
    hold_old_tokens(optimizer, model, weights, run.growth.old_tokens)
    if run.growth.optimizer == "carry":
        remedy = f"train {parent_record['id']} again, which then keeps it"
        carried = load_tensors(parent / OPTIMIZER, {"state", "param_groups"}, remedy)
        optimizer.load_state_dict(grow_optimizer_state(carried, optimizer))
    return State(model, optimizer, started=provenance.now())


def _save(path: Path, state: State, belongs_to: dict[str, str]) -> None:
    """Write a checkpoint; where tensors are split all processes do, else the first."""
    if sharded.wanted():
        folder = path.with_name(f".{path.name}.parts.tmp")
        save_parts(folder, state, belongs_to)
        if parallel.rank() == 0:
            keep_before(path)
            folder.rename(path)
        parallel.wait_for_all()
    elif parallel.rank() == 0:
        save_checkpoint(path, state.dump(), belongs_to)


def _read_checkpoint(path: Path, belongs_to: dict[str, str], settings: Settings) -> dict[str, Any] | None:
    """Read a checkpoint where there is one; one of another run is refused or set aside."""
    if parallel.rank() == 0:  # it writes already when the others come here
        for left in path.parent.glob(".*.tmp"):
            remove(left)  # half a checkpoint of a killed process
    if not path.exists() and not previous(path).exists():
        return None
    try:
        return load_checkpoint(path, belongs_to)
    except UserError as error:
        if settings.on_mismatch != "restart":
            raise
        aside = path.parent.with_name(SUPERSEDED)
        shutil.rmtree(aside, ignore_errors=True)
        path.parent.rename(aside)
        print(f"starting from step 0: {error}", file=sys.stderr)
        return None


def _resume(path: Path, state: State, content: dict[str, Any]) -> None:
    """Take over what a checkpoint holds, in whichever form."""
    if sharded.wanted():
        restore(state, content)
    else:
        state.restore(in_one_piece(content))
    print(f"continuing after step {state.step} of {path}", file=sys.stderr)


def _explain_divergence(run: Run, step: int, path: Path) -> None:
    saved = f"last good checkpoint: {path}" if path.exists() else "no checkpoint was written before it"
    print(
        f"{run.id}: loss, gradient or weights not finite in step {step}; recorded as diverged ({saved}). Try a lower "
        f"optimizer.lr (now {run.optimizer.lr:g}), a longer schedule.warmup, optimizer.clip 1.0 or precision float32.",
        file=sys.stderr,
    )


def _tidy(out: Path, status: str) -> None:
    """Remove what a run needed on its way; the last good checkpoint of a diverged one stays to be looked at."""
    if status == "finished":
        shutil.rmtree((out / CHECKPOINT).parent, ignore_errors=True)
    shutil.rmtree(out / SUPERSEDED, ignore_errors=True)
