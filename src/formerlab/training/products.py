"""What a run leaves behind when it ends, beside its record: rows and weights."""

import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from formerlab.data.streams import load_stream
from formerlab.evaluation.perplexity import WindowLoss, mean_loss, window_count, window_losses, write_losses
from formerlab.files import replacing
from formerlab.models.decoder import DecoderModel
from formerlab.rows import write_rows
from formerlab.run import Run
from formerlab.training.state import State

COLUMNS = {
    "train": ("step", "tokens", "loss_nats", "lr", "grad_norm"),
    "timing": ("step", "time_s", "tokens_per_s", "memory_bytes"),
    "eval": ("step", "split", "batch", "tokens", "loss_nats"),
    "depth": ("step", "destination", "source", "weight"),
}
WEIGHTS = "weights.safetensors"
FILES = ("run.yaml", "train.csv", "timing.csv", "eval.csv", "test.csv", "depth.csv", WEIGHTS)
"""The files of a run beside run.json, which is written last and speaks for them."""
OPTIMIZER = "optimizer.pt"
"""The optimizer's final state, where a run that grows from this one carries it on."""


def write_results(run: Run, state: State, data: Path, out: Path, diverged: int | None) -> dict[str, float | None]:
    """Write the rows of training and of the held-out stream; return their means for people."""
    windows = _test_losses(run, state.model, data, diverged)
    for name, columns in COLUMNS.items():
        write_rows(out / f"{name}.csv", columns, state.rows[name])
    write_losses(out / "test.csv", windows)
    evaluated = state.rows["eval"]
    valid = [WindowLoss(int(row[2]), int(row[3]), float(row[4])) for row in evaluated if row[0] == evaluated[-1][0]]
    return {
        "train_loss_nats": float(state.rows["train"][-1][2]) if state.rows["train"] else None,
        "valid_loss_nats": mean_loss(valid) if valid else None,
        "test_loss_nats": mean_loss(windows),
    }


def _test_losses(run: Run, model: DecoderModel, data: Path, diverged: int | None) -> list[WindowLoss]:
    """Return the losses on the held-out stream; those of a diverged run are a uniform guess's."""
    stream, context = load_stream(data, "test"), run.task.context
    if diverged is None:
        return window_losses(model, stream, context, batch=run.task.batch // run.task.accumulate)
    uniform = math.log(run.model.vocabulary)
    sizes = [min(context, len(stream) - 1 - i * context) for i in range(window_count(len(stream), context))]
    return [WindowLoss(window, tokens, uniform) for window, tokens in enumerate(sizes)]


def write_weights(out: Path, state: State, *, keep_optimizer: bool) -> None:
    """Write the final weights, and the optimizer's state where a later run carries it on."""
    weights = {
        name: weight.detach().cpu().nan_to_num().contiguous()  # the step that makes a run diverge may overflow them
        for name, weight in state.model.state_dict().items()
    }
    with replacing(out / WEIGHTS) as temporary:
        save_file(weights, temporary)
    (out / OPTIMIZER).unlink(missing_ok=True)
    if keep_optimizer:
        with replacing(out / OPTIMIZER) as temporary:
            torch.save(state.optimizer.state_dict(), temporary)
