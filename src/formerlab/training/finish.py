"""How a run ends: rows, weights and record are written, and what it needed on its way goes."""

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file

from formerlab.data.text.streams import lender
from formerlab.files import replacing
from formerlab.results.stages import OPTIMIZER, STAGES, TABLES
from formerlab.results.write import write_rows
from formerlab.tasks.task import Row
from formerlab.training.run import Run
from formerlab.training.state import State

CHECKPOINT = "checkpoint/last.pt"
SUPERSEDED = "checkpoint.superseded"
WEIGHTS = "weights.safetensors"
FILES = STAGES["train"].written[:-1]
"""The files of a run beside run.json, which is written last and speaks for them."""


def write_results(run: Run, state: State, data: Path, out: Path, diverged: int | None) -> dict[str, float | None]:
    """Write the rows of training and of the held-out stream; return their means for people."""

    def held_out(folder: Path) -> list[Row]:
        task = run.task
        return task.test_rows(state.model, folder) if diverged is None else task.guessed_rows(run.model, folder)

    test, other = held_out(data), lender(data) if run.task.reads == "text" else None
    write_curves(run, state, out)
    write_rows(out / "test.csv", run.task.test_columns, test)
    write_rows(out / "lender_test.csv", TABLES["lender_test.csv"].names, held_out(other) if other else ())
    evaluated = state.rows["eval"]
    valid = [row[3:] for row in evaluated if row[0] == evaluated[-1][0]]
    return {
        "train_loss_nats": float(state.rows["train"][-1][2]) if state.rows["train"] else None,
        "valid_loss_nats": _mean_loss(valid) if valid else None,
        "test_loss_nats": _mean_loss(row[1:] for row in test),
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


def explain_divergence(run: Run, step: int, path: Path) -> None:
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
