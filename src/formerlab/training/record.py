"""What the record of a finished run says to others: its weights, and what its chain read of the training data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt

from formerlab.errors import UserError
from formerlab.files import read_json, sha256
from formerlab.spec import Spec
from formerlab.tasks.task import Place
from formerlab.training.run import Run
from formerlab.training.state import State

Record = dict[str, Any]


def load_record(folder: Path) -> Record:
    """Read run.json and check that the weights beside it are those it describes."""
    record: Record = read_json(folder / "run.json")
    weights = folder / "weights.safetensors"
    if not weights.is_file():
        raise UserError(f"{weights}: no such file; train {record['id']} again")
    if sha256(weights) != record["weights_sha256"]:
        raise UserError(f"{weights}: not the weights that run.json describes; train {record['id']} again")
    return record


class Reading(Spec):
    """What one run of a chain read of its training split; run.json holds those of its ancestors and its own, last."""

    run: str
    """Id of the run."""
    data: str
    """Fingerprint of the data set."""
    stretch: tuple[float, float]
    """Where the part of the training split that the run drew from begins and ends, as shares of it."""
    start: Place
    """Where the run began."""
    end: Place
    """Where it ended, and the next run of the chain on the same data goes on."""
    tokens: NonNegativeInt
    """Tokens that it predicted (images, where the task is classification)."""
    epochs: NonNegativeFloat
    """Those by the tokens of the stretch: how often the run read a token of it on average."""
    tokens_cumulative: NonNegativeInt
    """Tokens that the chain up to this run predicted on these data."""
    epochs_cumulative: NonNegativeFloat
    """How often the chain read a token of the run's stretch on average."""


def readings(record: dict[str, Any] | None) -> list[Reading]:
    """Return what the chain that ends with the run of this record has read; nothing where there is no chain."""
    return [Reading.model_validate(reading) for reading in record["read"]] if record else []


def next_place(chain: Sequence[Reading], data: str) -> Place:
    """Return where a run on the data of this fingerprint begins, whose ancestors read what `chain` says."""
    if not chain:
        return Place()
    last = next((reading.end for reading in reversed(chain) if reading.data == data), Place())
    return last.model_copy(update={"chain_steps": chain[-1].end.chain_steps})


def reading_of(run: Run, state: State, fingerprint: str, data: Any, chain: Sequence[Reading]) -> Reading:
    """Return what a run read so far of the `data` that its task loaded, as a descendant of `chain`."""
    start = next_place(chain, fingerprint)
    stretch = getattr(run.task, "stretch", (0.0, 1.0))
    epochs = state.tokens / run.task.epoch_tokens(data)
    before = [reading for reading in chain if reading.data == fingerprint]
    return Reading(
        run=run.id,
        data=fingerprint,
        stretch=stretch,
        start=start,
        end=run.task.place_after(data, start, state.step),
        tokens=state.tokens,
        epochs=epochs,
        tokens_cumulative=state.tokens + sum(reading.tokens for reading in before),
        epochs_cumulative=epochs + sum(reading.epochs * _covered(stretch, reading.stretch) for reading in before),
    )


def _covered(stretch: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the share of a stretch that another covers."""
    shared = min(stretch[1], other[1]) - max(stretch[0], other[0])
    return max(0.0, shared) / (stretch[1] - stretch[0])
