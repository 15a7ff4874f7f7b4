"""The stage `train`: from a run and its data to the files that every later stage reads."""

import math
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from formerlab.data.streams import load_stream
from formerlab.errors import UserError
from formerlab.evaluation.cost import flops_utilisation, matmul_flops_per_s, peak_memory_bytes
from formerlab.evaluation.perplexity import WindowLoss, mean_loss, window_count, window_losses, write_losses
from formerlab.files import read_json, replacing, sha256, write_json, write_text
from formerlab.finished import load_record
from formerlab.growth import grow_into, grow_optimizer_state
from formerlab.models.decoder import Decoder, DecoderModel
from formerlab.rows import write_rows
from formerlab.run import Run
from formerlab.training import provenance
from formerlab.training.checkpoint import load_checkpoint, save_checkpoint
from formerlab.training.loop import Hooks, State, train
from formerlab.training.stop import StopRequest

SCHEMA = 1
COLUMNS = {
    "train": ("step", "tokens", "loss_nats", "lr", "grad_norm"),
    "timing": ("step", "time_s", "tokens_per_s", "memory_bytes"),
    "eval": ("step", "split", "batch", "tokens", "loss_nats"),
}


@dataclass(frozen=True)
class Settings:
    """How a run is carried out; nothing here changes its results on a given number of threads."""

    threads: int = 1
    device: str = "cpu"
    time_limit_s: float | None = None
    margin_s: float = 30.0
    checkpoint_seconds: float = 60.0
    on_mismatch: str = "refuse"
    """What to do with a checkpoint of another run: refuse | restart."""
    code_hash: str = ""
    """Hash of the code that the run depends on."""
    keep_optimizer: bool = False
    """Leave the optimizer's final state in optimizer.pt, for runs that grow from this one and carry it on."""


def train_stage(run: Run, data: Path, out: Path, *, parent: Path | None, settings: Settings) -> None:
    """Train `run` on the prepared data in `data`, from the finished run in `parent` where it grows; leave all in `out`.

    Raises
    ------
    UserError
        Where data, parent or checkpoint do not fit the run.
    StoppedEarly
        When a signal came or the time limit is near; the work is saved and the same call continues.
    """
    stop = StopRequest(settings.time_limit_s, settings.margin_s)
    stop.install()
    torch.set_num_threads(settings.threads)
    started, clock = provenance.now(), time.monotonic()
    manifest = read_json(data / "manifest.json")
    belongs_to = {"spec": run.fingerprint(), "data": manifest["fingerprint"], "code": settings.code_hash}
    model, init = _initial_model(run, parent)
    if init is not None:
        belongs_to["init"] = init["weights_sha256"]
    model.to(settings.device)
    state = State(model, run.optimizer.build(model))
    if run.growth is not None and run.growth.optimizer == "carry" and parent is not None:
        carried = torch.load(parent / "optimizer.pt", weights_only=True)
        state.optimizer.load_state_dict(grow_optimizer_state(carried, state.optimizer))
    path = out / "checkpoint" / "last.pt"
    earlier_s = _resume(path, state, belongs_to, settings)

    def save(state: State) -> None:
        wall = earlier_s + time.monotonic() - clock
        save_checkpoint(path, state.dump() | {"wall_time_s": wall}, belongs_to)

    write_text(out / "run.yaml", yaml.safe_dump(run.plain(), sort_keys=False))
    hooks = Hooks(save, stop, settings.checkpoint_seconds)
    diverged = train(run, state, load_stream(data, "train"), load_stream(data, "valid"), hooks)
    if diverged is not None:
        _explain_divergence(run, diverged, path)
    final = _write_rows(run, state, data, out, diverged)
    _write_weights(out, state, settings)
    record = _record(run, state, settings, manifest, init, final, diverged)
    record |= {"weights_sha256": sha256(out / "weights.safetensors"), "started": started, "finished": provenance.now()}
    record["wall_time_s"] = earlier_s + time.monotonic() - clock
    write_json(out / "run.json", record)
    shutil.rmtree(path.parent, ignore_errors=True)
    shutil.rmtree(out / "checkpoint.superseded", ignore_errors=True)


def _initial_model(run: Run, parent: Path | None) -> tuple[DecoderModel, dict[str, Any] | None]:
    """Build the model at step 0 and say what it was grown from."""
    if run.init is None:
        return run.model.build(run.seed), None
    if parent is None or run.growth is None:
        raise UserError(f"{run.id}: init={run.init} needs the folder of that run and the key growth")
    record = load_record(parent)
    if record["status"] != "finished":
        raise UserError(f"{run.id}: init={run.init} {record['status']}; change its settings (lower optimizer.lr) first")
    weights = load_file(parent / "weights.safetensors")
    parent_model = Decoder.model_validate(record["spec"]["model"])
    model = grow_into(weights, parent_model, run.model, run.growth, run.seed)
    kept = ("id", "weights_sha256", "flops_cumulative")
    return model, {key: record[key] for key in kept}


def _resume(path: Path, state: State, belongs_to: dict[str, str], settings: Settings) -> float:
    """Continue from a checkpoint where there is one; return the wall time spent before, in seconds."""
    if not path.exists():
        return 0.0
    try:
        content = load_checkpoint(path, belongs_to)
    except UserError as error:
        if settings.on_mismatch != "restart":
            raise
        aside = path.parent.with_name("checkpoint.superseded")
        shutil.rmtree(aside, ignore_errors=True)
        path.parent.rename(aside)
        print(f"starting from step 0: {error}", file=sys.stderr)
        return 0.0
    state.restore(content)
    print(f"continuing after step {state.step} of {path}", file=sys.stderr)
    return float(content["wall_time_s"])


def _explain_divergence(run: Run, step: int, path: Path) -> None:
    saved = f"last good checkpoint: {path}" if path.exists() else "no checkpoint was written before it"
    print(
        f"{run.id}: loss or gradient not finite in step {step}; recorded as diverged ({saved}). Try a lower "
        f"optimizer.lr (now {run.optimizer.lr:g}), a longer schedule.warmup, optimizer.clip 1.0 or precision float32.",
        file=sys.stderr,
    )


def _write_rows(run: Run, state: State, data: Path, out: Path, diverged: int | None) -> dict[str, float | None]:
    """Write the rows of training and of the held-out stream; return their means for people."""
    context, model = run.task.context, state.model
    stream = load_stream(data, "test")
    if diverged is None:
        windows = window_losses(model.eval(), stream, context, batch=run.task.batch)
    else:  # a diverged run counts as a uniform guess
        uniform = math.log(run.model.vocabulary)
        count = window_count(len(stream), context)
        windows = [WindowLoss(i, min(context, len(stream) - 1 - i * context), uniform) for i in range(count)]
    for name, columns in COLUMNS.items():
        write_rows(out / f"{name}.csv", columns, state.rows[name])
    write_rows(out / "depth.csv", ("destination", "source", "weight"), model.mixer.weights())
    write_losses(out / "test.csv", windows)
    last = state.rows["eval"][-1][0] if state.rows["eval"] else None
    valid = [float(row[4]) for row in state.rows["eval"] if row[0] == last]
    return {
        "train_loss_nats": float(state.rows["train"][-1][2]) if state.rows["train"] else None,
        "valid_loss_nats": sum(valid) / len(valid) if valid else None,
        "test_loss_nats": mean_loss(windows),
    }


def _write_weights(out: Path, state: State, settings: Settings) -> None:
    """Write the final weights, and the optimizer's state where a later run carries it on."""
    weights = {name: weight.detach().cpu().contiguous() for name, weight in state.model.state_dict().items()}
    with replacing(out / "weights.safetensors") as temporary:
        save_file(weights, temporary)
    if settings.keep_optimizer:
        with replacing(out / "optimizer.pt") as temporary:
            torch.save(state.optimizer.state_dict(), temporary)


def _record(
    run: Run,
    state: State,
    settings: Settings,
    manifest: dict[str, Any],
    init: dict[str, Any] | None,
    final: dict[str, float | None],
    diverged: int | None,
) -> dict[str, Any]:
    """Return the content of run.json but for times and the hash of the weights."""
    share = state.step / run.steps
    flops = round(run.flops * share)
    device = torch.device(settings.device)
    rate = matmul_flops_per_s(device)
    time_s = state.training_time_s
    return {
        "schema": SCHEMA,
        "id": run.id,
        "study": run.study,
        "run": run.name,
        "seed": run.seed,
        "status": "finished" if diverged is None else "diverged",
        "diverged_at_step": diverged,
        "spec": run.plain(),
        "spec_hash": run.fingerprint(),
        "code_hash": settings.code_hash,
        "data": {"name": manifest["name"], "fingerprint": manifest["fingerprint"]},
        "init": init,
        "parameters": run.model.params(),
        "parameters_non_embedding": run.model.params(embedding=False),
        "tokens": round(run.tokens * share),
        "flops": flops,
        "flops_cumulative": flops + (init["flops_cumulative"] if init else 0),
        "training_time_s": time_s,
        "tokens_per_s": run.tokens * share / time_s if time_s else None,
        "peak_memory_bytes": peak_memory_bytes(device),
        "flops_utilisation": flops_utilisation(flops, time_s, rate) if time_s else None,
        "matmul_flops_per_s": rate,
        "threads": settings.threads,
        "device": provenance.device_name(device),
        "host": provenance.host(),
        "git": provenance.git_state(),
        "versions": provenance.versions(),
        "final": final,
    }
