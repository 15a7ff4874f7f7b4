"""The files of a finished run: metrics, weights, and run.json with its spec, data, cost and provenance."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from safetensors.torch import save_file

from formerlab.errors import UserError
from formerlab.files import read_record, replacing, sha256, write_record
from formerlab.results.stages import OPTIMIZER, STAGES, TABLES, WEIGHTS
from formerlab.results.write import hashes_of_rows, write_rows
from formerlab.spec import Spec
from formerlab.tasks.task import DataPosition, Row
from formerlab.training import processes, provenance
from formerlab.training.any_run import AnyRun
from formerlab.training.run import Run
from formerlab.training.runtime import RuntimeConfig
from formerlab.training.state import State

Record = dict[str, Any]
SCHEMA = 1
CHECKPOINT = "checkpoint/last.pt"
SUPERSEDED = "checkpoint.superseded"


def load_record(folder: Path) -> Record:
    """Read run.json. Raises UserError if run.json or the weights are missing or if the weights differ from the hash."""
    record: Record = read_record(folder / "run.json", "id", "spec", "weights_sha256")
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise UserError(f"{weights}: no such file; train {record['id']} again")
    if sha256(weights) != record["weights_sha256"]:
        differing = "differs from weights_sha256 in run.json"
        raise UserError(f"{weights}: {differing}; delete this file and train {record['id']} again")
    return record


class DataUsage(Spec):
    """Data usage of one run; run.json lists the ancestors of the run first, then the run itself."""

    run: str
    """Id of the run."""
    data: str
    """Fingerprint of the data set."""
    stretch: tuple[float, float]
    """Range of the training split that the run uses: start and end as fractions of the split."""
    start: DataPosition
    """Position at which the run started."""
    end: DataPosition
    """Position at which the run ended; a child run on the same data continues there."""
    tokens: NonNegativeInt
    """Number of predicted tokens (images for classification)."""
    epochs: NonNegativeFloat
    """Mean number of times that the run read each token of its range."""
    tokens_cumulative: NonNegativeInt
    """Number of tokens that the run and its ancestors predicted on these data."""
    epochs_cumulative: NonNegativeFloat
    """Mean number of times that the run and its ancestors read each token of this range."""


def data_usages(record: Record | None) -> list[DataUsage]:
    """Return the data usage of a run and its ancestors from its record, or an empty list without a record."""
    return [DataUsage.model_validate(usage) for usage in record["read"]] if record else []


def next_position(ancestors: Sequence[DataUsage], data: str) -> DataPosition:
    """Return the start position of a run on the data with this fingerprint, given the data usage of its ancestors."""
    if not ancestors:
        return DataPosition()
    end = next((usage.end for usage in reversed(ancestors) if usage.data == data), DataPosition())
    return end.model_copy(update={"chain_steps": ancestors[-1].end.chain_steps})


def data_usage(run: Run, state: State, fingerprint: str, data: Any, ancestors: Sequence[DataUsage]) -> DataUsage:
    """Return the data usage of a run up to its current step.

    `fingerprint` identifies the data set, `data` is the loaded training split, and `ancestors` is the data usage of the
    run's ancestors.
    """
    start = next_position(ancestors, fingerprint)
    low, high = stretch = getattr(run.task, "stretch", (0.0, 1.0))
    epochs = state.tokens / run.task.epoch_tokens(data)
    earlier = [usage for usage in ancestors if usage.data == fingerprint]
    ranges = [usage.stretch for usage in earlier]
    overlaps = [max(0.0, min(high, end) - max(low, begin)) / (high - low) for begin, end in ranges]
    return DataUsage(
        run=run.id,
        data=fingerprint,
        stretch=stretch,
        start=start,
        end=run.task.position_after(data, start, state.step),
        tokens=state.tokens,
        epochs=epochs,
        tokens_cumulative=state.tokens + sum(usage.tokens for usage in earlier),
        epochs_cumulative=epochs + sum(used.epochs * overlap for used, overlap in zip(earlier, overlaps, strict=True)),
    )


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
    """Write metrics and weights, then run.json with their hashes. All processes must call this function.

    `manifest` describes the data set, `parent` is the record of the parent run, `diverged` is the step at which the run
    diverged or None, and `data` is the loaded training split.
    """
    content = state.dump()
    if processes.rank() > 0:
        return
    final = _write_rows(run, state, out)
    weights = {
        name: weight.detach().cpu().nan_to_num().contiguous()  # weights of a diverged run may overflow
        for name, weight in content["model"].items()
    }
    with replacing(out / WEIGHTS) as temporary:
        save_file(weights, temporary)
    (out / OPTIMIZER).unlink(missing_ok=True)
    if runtime.keep_optimizer:  # for a child run with growth.optimizer=carry
        with replacing(out / OPTIMIZER) as temporary:
            torch.save(content["optimizer"], temporary)
    ancestors = data_usages(parent)
    usages = (*ancestors, data_usage(run, state, manifest["fingerprint"], data, ancestors))
    rate, time_s = provenance.matmul_flops_per_s(runtime.device, run.precision), state.training_time_s
    mfu = provenance.model_flops_utilisation(state.flops, time_s, rate, processes.group_size()) if time_s else None
    record = base_record(run, manifest, runtime.code_hash, runtime.device) | {
        "status": "finished" if diverged is None else "diverged",
        "diverged_at_step": diverged,
        "init": parent and {key: parent[key] for key in ("id", "weights_sha256")},
        "read": [usage.to_dict() for usage in usages],
        "tokens": state.tokens,
        "flops": state.flops,
        "flops_cumulative": state.flops + (parent["flops_cumulative"] if parent else 0),
        "training_time_s": time_s,
        "wall_time_s": state.wall_time_s,
        "tokens_per_s": state.tokens / time_s if time_s else None,
        "model_flops_utilisation": mfu,
        "matmul_flops_per_s": rate,
        "threads": runtime.threads,
        "processes": processes.group_size(),
        "kernels": state.kernels,
        "started": state.started,
        "weights_sha256": sha256(out / WEIGHTS),
        "rows_sha256": hashes_of_rows(out, STAGES["train"].tables),
        "final": final,
    }
    write_record(out / "run.json", record | runtime.extra)
    remove_checkpoints(out, record["status"])


def base_record(run: AnyRun, manifest: Record, code_hash: str, device: str, *packages: str) -> Record:
    """Return the keys that the records of trained and released runs have in common."""
    test = manifest["splits"].get("test") or {}
    return {
        "schema": SCHEMA,
        "id": run.id,
        "study": run.study,
        "run": run.name,
        "seed": run.seed,
        "spec": run.to_dict(),
        "spec_hash": run.fingerprint(),
        "code_hash": code_hash,
        "data": {key: manifest[key] for key in ("name", "fingerprint")},
        "bytes_per_token": test["bytes"] / test["tokens"] if test.get("bytes") and test.get("tokens") else None,
        "parameters": run.model.params(),
        "parameters_non_embedding": run.model.params(embedding=False),
        "peak_memory_bytes": provenance.peak_memory_bytes(device),
        **provenance.collect_provenance(device, *packages),
    }


def _write_rows(run: Run, state: State, out: Path) -> dict[str, float | None]:
    """Write the metrics of training and of held-out data; return the mean losses for the record."""
    write_metrics(run, state, out)
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


def write_metrics(run: Run, state: State, out: Path) -> None:
    """Write the metrics of all finished steps. The training stage calls this function at every checkpoint."""
    columns = {name: TABLES[f"{name}.csv"].names for name in ("timing", "depth")}
    columns["train"] = (*TABLES["train.csv"].required, *run.task.train_columns)
    columns["eval"] = ("step", "split", "batch", *run.task.eval_columns)
    for name, names in columns.items():
        write_rows(out / f"{name}.csv", names, state.rows[name])


def _mean_loss(rows: Iterable[Row]) -> float:
    """Return the mean loss in nats per token of rows that begin with (tokens, loss)."""
    pairs = [(float(row[0] or 0), float(row[1] or 0)) for row in rows]
    return sum(tokens * loss for tokens, loss in pairs) / sum(tokens for tokens, _ in pairs)


def remove_checkpoints(out: Path, status: str) -> None:
    """Remove the checkpoints of a run, except the last good checkpoint of a diverged run."""
    if status == "finished":
        shutil.rmtree((out / CHECKPOINT).parent, ignore_errors=True)
    shutil.rmtree(out / SUPERSEDED, ignore_errors=True)
