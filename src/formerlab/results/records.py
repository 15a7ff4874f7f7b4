"""run.json as readers know it: which keys it must have, of which kind, and what follows from them."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from formerlab.errors import UserError
from formerlab.files import read_json

SCHEMA = 1
"""The version of run.json that this version reads."""

TRAINED = ("train.csv", "timing.csv", "eval.csv", "test.csv")
"""Files that training writes before run.json; without one of them a finished run is damaged."""
LOADED = ("test.csv",)
"""The same of a released model."""
_REQUIRED = ("schema", "id", "study", "run", "seed", "status", "spec", "data")
_TEXTS = (
    *("id", "study", "run", "status", "data.name", "data.fingerprint", "init.id", "device", "host", "git.commit"),
    *("git.dirty_hash", "code_hash", "spec_hash", "versions.torch", "started", "finished"),
)
_NUMBERS = (
    *("seed", "parameters", "parameters_non_embedding", "tokens", "flops", "flops_cumulative", "training_time_s"),
    *("wall_time_s", "tokens_per_s", "peak_memory_bytes", "model_flops_utilisation", "threads"),
)
"""Keys of run.json that are text, and numbers, or empty."""


def always_written(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files of rows without which the finished run of a record is damaged."""
    return LOADED if is_released(record) else TRAINED


def is_released(record: Mapping[str, Any]) -> bool:
    """Say whether a run.json is that of a released model, which nobody here trained."""
    model = record["spec"].get("model") if isinstance(record["spec"], Mapping) else None
    return isinstance(model, Mapping) and model.get("kind") == "released"


def read_run(path: Path) -> dict[str, Any]:
    """Read and check a run.json."""
    return checked(path, read_json(path), "/".join(path.resolve().parent.parts[-3:]))


def checked(path: Path, record: Any, place: str) -> dict[str, Any]:
    """Return a record, if it is one of a run at that place, or below it, which this version reads."""
    if not isinstance(record, dict) or (missing := [key for key in _REQUIRED if key not in record]):
        what = f"lacks {', '.join(missing)}" if isinstance(record, dict) else "is not a JSON object"
        raise UserError(f"{path}: {what}; delete the folder and train again")
    if record["schema"] != SCHEMA:
        raise UserError(f"{path}: schema {record['schema']}, but this version reads schema {SCHEMA}; train again")
    if record["id"] != place and not str(record["id"]).startswith(f"{place}/"):
        raise UserError(f"{path}: id {record['id']!r} is not its folder's name; move the folder back or train again")
    _check_values(path, record)
    return record


def _check_values(path: Path, record: dict[str, Any]) -> None:
    """Refuse a record whose names could lead elsewhere, and one whose values are of another kind."""
    names = [str(record["study"]), str(record["run"]), f"seed{record['seed']}"]
    if "/".join(names) != record["id"] or not all(re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) for name in names):
        raise UserError(f"{path}: {record['id']!r} is not made of plain names of study, run and seed; train again")
    flat = flatten(record)
    wrong = ["status"] if record["status"] not in ("finished", "diverged") else []
    wrong += [key for key in _TEXTS if not isinstance(flat.get(key), str | None)]
    wrong += [key for key in _NUMBERS if not isinstance(flat.get(key), int | float | None)]
    if wrong:
        raise UserError(f"{path}: {wrong[0]}: got {flat.get(wrong[0])!r}; delete the folder and train again")


def flatten(value: Mapping[str, Any]) -> dict[str, Any]:
    """Join the keys of nested mappings by dots: `{"a": {"b": 1}}` gives `{"a.b": 1}`; lists become JSON text."""
    return dict(_flat(value, ""))


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield prefix + key, json.dumps(item) if isinstance(item, list) else item
