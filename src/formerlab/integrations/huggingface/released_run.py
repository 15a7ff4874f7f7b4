"""Stage `load`: evaluate a released model; write run.yaml, run.json and test.csv as `train` does for a trained
model.
"""

import json
import time
from collections import Counter
from pathlib import Path

import torch
import yaml

from formerlab.data.manifest import files_state, read_manifest, verify
from formerlab.data.text.streams import load_stream
from formerlab.errors import UserError
from formerlab.files import read_record, write_record, write_text
from formerlab.integrations.huggingface.causal_lm import CausalLM
from formerlab.integrations.huggingface.load import load_any
from formerlab.kernels.native import keep_memory
from formerlab.progress import Progress
from formerlab.released import Gguf, ReleasedModel, Sizes, sizes_of
from formerlab.results.stages import STAGES
from formerlab.results.write import hashes_of_rows, write_rows
from formerlab.tasks.language import LanguageModeling
from formerlab.tasks.window_losses import mean_loss, spread_windows, window_documents, window_losses
from formerlab.training import provenance
from formerlab.training.any_run import ReleasedRun
from formerlab.training.record import base_record

BATCH_TOKENS = 2048
"""Largest number of tokens in one forward pass (at least one window); the logits of a large vocabulary limit it."""
HASH_FILE = ".weights.json"
"""File beside run.json with the hashes of the model's files, valid until a file is modified."""


def load_stage(run: ReleasedRun, data: Path, out: Path, *, device: str, threads: int, code_hash: str) -> None:
    """Load the released model of `run`, measure its loss on the test text in `data`, and write the results to `out`."""
    start_time, started_at = time.monotonic(), provenance.utc_timestamp()
    provenance.git_state()
    torch.set_num_threads(threads)
    keep_memory()
    verify(data)
    manifest = read_manifest(data)
    weights = files_state(run.model.source, out / HASH_FILE)
    model = load_released_model(run, device)
    _check_sizes(run, model)
    write_text(out / "run.yaml", yaml.safe_dump(run.to_dict(), sort_keys=False))
    stream = load_stream(data, "test")
    windows = spread_windows(stream, run.context, run.windows)
    batch = max(1, BATCH_TOKENS // run.context)
    with Progress(len(windows), f"load {run.id}", unit="window") as progress:
        losses = window_losses(model, stream, run.context, batch=batch, windows=windows, progress=progress)
    documents = window_documents(stream, run.context, manifest["tokenizer"]["end_of_text"]).tolist()
    rows = [(*loss[:3], documents[loss.window]) for loss in losses]
    write_rows(out / "test.csv", LanguageModeling.test_columns, rows)
    record = base_record(run, manifest, code_hash, device, "transformers", "gguf") | {
        "status": "finished",
        "init": None,
        "released": {"name": run.released, "quantisation": quantisation(run.model.source)},
        "tokens": 0,
        "flops": 0,
        "flops_cumulative": 0,
        "training_time_s": 0.0,
        "wall_time_s": time.monotonic() - start_time,
        "threads": threads,
        "processes": 1,
        "started": started_at,
        "weights_sha256": weights,
        "rows_sha256": hashes_of_rows(out, STAGES["load"].tables),
        "final": {"train_loss_nats": None, "valid_loss_nats": None, "test_loss_nats": mean_loss(losses)},
    }
    write_record(out / "run.json", record)


def load_released_model(run: ReleasedRun, device: str = "cpu") -> CausalLM:
    """Load the model of a run in evaluation mode, with the interface of `DecoderModel`.

    Raises UserError for a model that cannot be loaded, a model that does not support cache policies, and a formerlab
    model.
    """
    loaded = load_any(run.model.source, device=device)
    if not isinstance(loaded.model, CausalLM):
        raise UserError(f"{run.released}: this is a formerlab model; name the run that trained it instead")
    return loaded.model


def load_released_run(folder: Path, device: str = "cpu") -> tuple[CausalLM, ReleasedRun]:
    """Return the released model of a finished run, and the run; raise UserError if the model's files changed."""
    record = read_record(folder / "run.json", "spec", "weights_sha256")
    run = ReleasedRun.model_validate(record["spec"])
    model = load_released_model(run, device)
    if files_state(run.model.source, folder / HASH_FILE) != record["weights_sha256"]:
        raise UserError(f"{run.released}: weights differ from weights_sha256 in {folder}/run.json; load {run.id} again")
    return model, run


def quantisation(source: ReleasedModel) -> str | None:
    """Return the tensor types of a GGUF file by frequency, such as `Q4_1 (210), F32 (61)`; None for other sources."""
    if not isinstance(source, Gguf):
        return None
    from gguf import GGUFReader

    counts = Counter(tensor.tensor_type.name for tensor in GGUFReader(source.locate()).tensors)
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common())


def _check_sizes(run: ReleasedRun, model: CausalLM) -> None:
    """Raise UserError if the sizes of a model differ from the configuration; a shorter context is allowed."""
    actual = sizes_of(model.model, run.model.context)
    names = [name for name in Sizes.model_fields if name != "context" or run.model.context > actual.context]
    if differing := [name for name in names if getattr(actual, name) != getattr(run.model, name)]:
        faults = [f"{name} is {getattr(actual, name)}, not {getattr(run.model, name)}" for name in differing]
        remedy = f"correct them to {json.dumps(actual.to_dict())}, or leave them out"
        raise UserError(f"released.{run.released}.sizes: {', '.join(faults)}; {remedy}")
