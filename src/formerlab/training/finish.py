"""How a run ends: rows, weights and record are written, and what it needed on its way goes."""

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from formerlab.files import replacing, sha256, write_json
from formerlab.results.stages import OPTIMIZER, STAGES, TABLES
from formerlab.results.write import hashes_of_rows, write_rows
from formerlab.tasks.task import Row
from formerlab.training import processes, provenance
from formerlab.training.cost import matmul_flops_per_s, model_flops_utilisation, peak_memory_bytes
from formerlab.training.record import Record, reading_of, readings
from formerlab.training.run import Run
from formerlab.training.runtime_config import RuntimeConfig
from formerlab.training.state import State

SCHEMA = 1
CHECKPOINT = "checkpoint/last.pt"
SUPERSEDED = "checkpoint.superseded"
WEIGHTS = "weights.safetensors"
FILES = STAGES["train"].written[:-1]
"""The files of a run beside run.json, which is written last and speaks for them."""


def finish(
    run: Run,
    state: State,
    runtime: RuntimeConfig,
    out: Path,
    manifest: Record,
    parent: Record | None,
    diverged: int | None,
    data: Any,
) -> None:
    """Write rows, weights, and run.json, which says what the run was, what it read and cost and where it comes from.

    `manifest` is that of the data, `parent` the record of the run that this one grew from, `data` what
    the task loaded to train on. All processes take part; the first writes.
    """
    content = state.dump()
    if processes.rank() > 0:
        return
    if diverged is not None:
        _explain_divergence(run, diverged, out / CHECKPOINT)
    final = _write_rows(run, state, out)
    _write_weights(out, content, keep_optimizer=runtime.keep_optimizer)
    device = torch.device(runtime.device)
    chain = readings(parent)
    rate, time_s = matmul_flops_per_s(device, run.precision), state.training_time_s
    used = model_flops_utilisation(state.flops, time_s, rate, processes.count()) if time_s else None
    record: Record = {
        "schema": SCHEMA,
        "id": run.id,
        "study": run.study,
        "run": run.name,
        "seed": run.seed,
        "status": "finished" if diverged is None else "diverged",
        "diverged_at_step": diverged,
        "spec": run.to_dict(),
        "spec_hash": run.fingerprint(),
        "code_hash": runtime.code_hash,
        "data": {key: manifest[key] for key in ("name", "fingerprint")},
        "init": parent and {key: parent[key] for key in ("id", "weights_sha256")},
        "read": [one.to_dict() for one in (*chain, reading_of(run, state, manifest["fingerprint"], data, chain))],
        "parameters": run.model.params(),
        "parameters_non_embedding": run.model.params(embedding=False),
        "tokens": state.tokens,
        "flops": state.flops,
        "flops_cumulative": state.flops + (parent["flops_cumulative"] if parent else 0),
        "training_time_s": time_s,
        "wall_time_s": state.wall_time_s,
        "tokens_per_s": state.tokens / time_s if time_s else None,
        "peak_memory_bytes": peak_memory_bytes(device),
        "model_flops_utilisation": used,
        "matmul_flops_per_s": rate,
        "threads": runtime.threads,
        "processes": processes.count(),
        "device": provenance.device_name(device),
        "kernels": state.kernels,
        "host": provenance.host(),
        "git": provenance.git_state(),
        "versions": provenance.versions(),
        "started": state.started,
        "finished": provenance.now(),
    }
    written = {"weights_sha256": sha256(out / WEIGHTS), "rows_sha256": hashes_of_rows(out, STAGES["train"].tables)}
    write_json(out / "run.json", record | written | {"final": final})
    tidy(out, record["status"])


def _write_rows(run: Run, state: State, out: Path) -> dict[str, float | None]:
    """Write the rows of training and of the held-out streams; return their means for people."""
    write_curves(run, state, out)
    columns = {"test": run.task.test_columns, "lender_test": TABLES["lender_test.csv"].names}
    tested = {name: sorted(row for group in state.tested.get(name, ()) for row in group) for name in columns}
    for name, rows in tested.items():
        write_rows(out / f"{name}.csv", columns[name], rows)
    evaluated = state.rows["eval"]
    valid = [row[3:] for row in evaluated if row[0] == evaluated[-1][0]]
    return {
        "train_loss_nats": float(state.rows["train"][-1][2]) if state.rows["train"] else None,
        "valid_loss_nats": _mean_loss(valid) if valid else None,
        "test_loss_nats": _mean_loss(row[1:] for row in tested["test"]),
    }


def write_curves(run: Run, state: State, out: Path) -> None:
    """Write the rows of the steps so far, at every checkpoint too: what still trains can be looked at."""
    columns = {name: TABLES[f"{name}.csv"].names for name in ("timing", "depth")}
    columns["train"] = (*TABLES["train.csv"].required, *run.task.train_columns)
    columns["eval"] = ("step", "split", "batch", *run.task.eval_columns)
    for name, names in columns.items():
        write_rows(out / f"{name}.csv", names, state.rows[name])


def _mean_loss(rows: Iterable[Row]) -> float:
    """Return the mean loss per token in nats of rows that begin with tokens and loss."""
    pairs = [(float(row[0] or 0), float(row[1] or 0)) for row in rows]
    return sum(tokens * loss for tokens, loss in pairs) / sum(tokens for tokens, _ in pairs)


def _write_weights(out: Path, content: dict[str, Any], *, keep_optimizer: bool) -> None:
    """Write the final weights, and the optimizer's state where a later run carries it on."""
    weights = {
        name: weight.detach().cpu().nan_to_num().contiguous()  # the step that makes a run diverge may overflow them
        for name, weight in content["model"].items()
    }
    with replacing(out / WEIGHTS) as temporary:
        save_file(weights, temporary)
    (out / OPTIMIZER).unlink(missing_ok=True)
    if keep_optimizer:
        with replacing(out / OPTIMIZER) as temporary:
            torch.save(content["optimizer"], temporary)


def _explain_divergence(run: Run, step: int, path: Path) -> None:
    """Say in which step a run diverged, where its last checkpoint is, and what may help."""
    saved = f"last good checkpoint: {path}" if path.exists() else "no checkpoint was written before it"
    print(
        f"{run.id}: loss, gradient or weights not finite in step {step}; recorded as diverged ({saved}). Try a lower "
        f"optimizer.lr (now {run.optimizer.lr:g}), a longer schedule.warmup, optimizer.clip 1.0 or precision float32.",
        file=sys.stderr,
    )


def tidy(out: Path, status: str) -> None:
    """Remove what a run needed on its way; the last good checkpoint of a diverged one stays to be looked at."""
    if status == "finished":
        shutil.rmtree((out / CHECKPOINT).parent, ignore_errors=True)
    shutil.rmtree(out / SUPERSEDED, ignore_errors=True)
