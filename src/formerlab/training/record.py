"""The record of a run: what it was, what it cost and where it comes from."""

from pathlib import Path
from typing import Any

import torch

from formerlab.errors import UserError
from formerlab.files import read_json, sha256
from formerlab.training import parallel, provenance
from formerlab.training.cost import matmul_flops_per_s, model_flops_utilisation, peak_memory_bytes
from formerlab.training.reading import reading_of, readings
from formerlab.training.run import Run
from formerlab.training.settings import Settings
from formerlab.training.state import State

SCHEMA = 1

Record = dict[str, Any]


def record_of(
    run: Run,
    state: State,
    settings: Settings,
    manifest: Record,
    parent: Record | None,
    diverged: int | None,
    data: Any,
) -> Record:
    """Return the content of run.json but for the hash of the weights and the final losses.

    `manifest` is that of the data, `parent` the record of the run that this one grew from, `data` what
    the task loaded to train on.
    """
    device = torch.device(settings.device)
    chain = readings(parent)
    read = reading_of(run, state.step, manifest["fingerprint"], data, chain)
    tokens = read.tokens
    flops = run.task.flops_until(run.model, data, run.seed, state.step, read.start)
    rate, time_s = matmul_flops_per_s(device, run.precision), state.training_time_s
    processes = parallel.count()
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
        "data": {key: manifest[key] for key in ("name", "fingerprint")},
        "init": parent and {key: parent[key] for key in ("id", "weights_sha256")},
        "read": [reading.plain() for reading in (*chain, read)],
        "parameters": run.model.params(),
        "parameters_non_embedding": run.model.params(embedding=False),
        "tokens": tokens,
        "flops": flops,
        "flops_cumulative": flops + (parent["flops_cumulative"] if parent else 0),
        "training_time_s": time_s,
        "wall_time_s": state.wall_time_s,
        "tokens_per_s": tokens / time_s if time_s else None,
        "peak_memory_bytes": peak_memory_bytes(device),
        "model_flops_utilisation": model_flops_utilisation(flops, time_s, rate, processes) if time_s else None,
        "matmul_flops_per_s": rate,
        "threads": settings.threads,
        "processes": processes,
        "device": provenance.device_name(device),
        "host": provenance.host(),
        "git": provenance.git_state(),
        "versions": provenance.versions(),
        "started": state.started,
        "finished": provenance.now(),
    }


def load_record(folder: Path) -> Record:
    """Read run.json and check that the weights beside it are those it describes."""
    record: Record = read_json(folder / "run.json")
    weights = folder / "weights.safetensors"
    if not weights.is_file():
        raise UserError(f"{weights}: no such file; train {record['id']} again")
    if sha256(weights) != record["weights_sha256"]:
        raise UserError(f"{weights}: not the weights that run.json describes; train {record['id']} again")
    return record
