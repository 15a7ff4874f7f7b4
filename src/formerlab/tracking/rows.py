"""What MLflow is told about a study, a configuration and a run, as plain values."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from formerlab.results.read import Results, flatten
from formerlab.results.schema import Table
from formerlab.results.stages import MEASURED
from formerlab.statistics import student, weighted_means
from formerlab.tracking.claims import claim_files, claim_tags

MOST_PARAMS = 100
LONGEST_PARAM = 500
MOST_POINTS = 1000
FINAL = (
    *("parameters", "parameters_non_embedding", "tokens", "flops", "flops_cumulative"),
    *("training_time_s", "wall_time_s", "tokens_per_s", "peak_memory_bytes", "model_flops_utilisation"),
)
"""Numbers of run.json that become metrics of the last step."""

SHOWN = {file: table for stage in MEASURED.values() for file, table in stage.tables.items() if table.value}
"""Files of rows whose means become metrics of the last step."""

LAYOUT = "2"
"""Stands before the hash of what an entry holds: what another layout wrote is written anew."""

Point = tuple[str, float, int, int]
"""Metric, value, time in ms since 1970, step."""


@dataclass(frozen=True)
class Entry:
    """One MLflow run."""

    key: str
    """Its name in the whole project, by which it is found again."""
    name: str
    content: str
    """Hash of all that it holds."""
    started_ms: int
    finished_ms: int
    status: str = "FINISHED"
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    dataset: tuple[str, str] | None = None
    """Name and digest."""


def study_entry(results: Results, records: Sequence[dict[str, Any]], figures: Path) -> Entry:
    """Return the MLflow run of a study, which holds its figures, tables and the verdicts on its claims."""
    from formerlab.report.drawings import catalogue

    study = records[0]["study"]
    names = [name for drawing in catalogue().values() if drawing.study == study for name in drawing.outputs]
    files = [path for name in names if (path := figures / name).exists()] + claim_files(figures)
    tags, metrics = claim_tags(figures, study)
    tags["mlflow.note.content"] = (
        f"Figures, tables and verdicts on the claims of study {study} at scale {results.scale}: open Artifacts."
    )
    finished = max(_milliseconds(record["finished"]) for record in records)
    return Entry(
        key=_key(results, study),
        name=f"{study}: figures, tables, claims",
        content=LAYOUT + _hash_files(files),
        started_ms=min(_milliseconds(record["started"]) for record in records),
        finished_ms=finished,
        tags=_place(results, study) | {"formerlab.level": "study"} | tags,
        points=[(name, value, finished, 0) for name, value in metrics.items()],
        files=files,
    )


def configuration_entry(results: Results, study: str, run: str, seeds: Sequence[Entry]) -> Entry:
    """Return the MLflow run of a configuration: its params, and the means over seeds of what all of them have.

    The interval of the held-out loss stands beside its mean: `test/loss_nats_low`, `test/loss_nats_high`.
    """
    finished = max(entry.finished_ms for entry in seeds)
    losses = [(point[1], point[3]) for entry in seeds for point in entry.points if point[0] == "test/loss_nats"]
    interval, step = student([loss for loss, _ in losses]), max((step for _, step in losses), default=0)
    ends = {"low": interval.low, "high": interval.high}
    points = _means_over_seeds(seeds)
    points += [(f"test/loss_nats_{end}", value, finished, step) for end, value in ends.items() if math.isfinite(value)]
    mean = f"held-out loss {interval.mean:.4f} nats" if math.isfinite(interval.mean) else "no held-out loss"
    count = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    note = f"{run}, {count}: {mean}. Metrics are means over its seeds, the runs below it."
    named = ("mlflow.source.name", "mlflow.source.type", "mlflow.source.git.commit")
    source = {name: seeds[0].tags[name] for name in named if name in seeds[0].tags}
    of_all = {"formerlab.level": "configuration", "formerlab.seeds": str(len(seeds)), "mlflow.note.content": note}
    return Entry(
        key=_key(results, study, run),
        name=run,
        content=LAYOUT + hashlib.sha256("".join(entry.content for entry in seeds).encode()).hexdigest(),
        started_ms=min(entry.started_ms for entry in seeds),
        finished_ms=finished,
        tags=_place(results, study) | source | of_all,
        params={key: value for key, value in seeds[0].params.items() if key != "seed"},
        points=points,
        dataset=seeds[0].dataset,
    )


def _means_over_seeds(seeds: Sequence[Entry]) -> list[Point]:
    """Return the mean of every metric at every step that all seeds have, at the time of the first seed."""
    values: dict[tuple[str, int], list[float]] = {}
    for entry in seeds:
        for name, value, _, step in entry.points:
            values.setdefault((name, step), []).append(value)
    return [
        (name, sum(found) / len(found), time, step)
        for name, _, time, step in seeds[0].points
        if len(found := values[name, step]) == len(seeds)
    ]


def seed_entry(results: Results, record: dict[str, Any]) -> Entry:
    """Return the MLflow run of a finished run: all that its rows say."""
    folder = results.folder(record["study"], record["run"], record["seed"])
    files, exported = sorted([*folder.glob("*.csv"), *folder.glob("run.*")]), results.exported.get(record["study"])
    spec = flatten(record["spec"])
    params = {
        _name(key): _shorten(value)
        for key, value in sorted(spec.items(), key=lambda item: (item[0].count("."), item[0]))
    }
    return Entry(
        key=_key(results, record["id"]),
        name=f"{record['run']} seed{record['seed']}",
        content=LAYOUT + (json.dumps(record) if exported else _hash_files(files)),
        started_ms=_milliseconds(record["started"]),
        finished_ms=_milliseconds(record["finished"]),
        status="FINISHED" if record["status"] == "finished" else "FAILED",
        tags=_place(results, record["study"]) | _tags(record, len(params), results.scale),
        params=dict(list(params.items())[:MOST_PARAMS]),
        points=[point for point in _points(results, record) if math.isfinite(point[1])],
        files=files,
        dataset=(record["data"]["name"], str(record["data"]["fingerprint"])[:36]),
    )


def _tags(record: dict[str, Any], params: int, scale: str) -> dict[str, str]:
    """Return what a run is searched by; nothing of the environment, which may hold secrets."""
    git = record.get("git") or {}
    tags = {
        "formerlab.level": "run",
        "formerlab.id": record["id"],
        "formerlab.status": record["status"],
        "formerlab.spec_hash": record.get("spec_hash"),
        "formerlab.code_hash": record.get("code_hash"),
        "formerlab.host": record.get("host"),
        "formerlab.device": record.get("device"),
        "formerlab.params_omitted": str(max(0, params - MOST_PARAMS)),
        "mlflow.source.name": "formerlab",
        "mlflow.source.type": "LOCAL",
        "mlflow.note.content": _note(record, scale),
        "mlflow.source.git.commit": git.get("commit"),
        "formerlab.git_dirty_hash": git.get("dirty_hash"),
        **{f"formerlab.version.{name}": version for name, version in (record.get("versions") or {}).items()},
    }
    return {_name(key): _shorten(value) for key, value in tags.items() if value is not None}


def _note(record: dict[str, Any], scale: str) -> str:
    """Return what a reader of the run is told first."""
    grown = f" It goes on from {record['init']['id']}." if isinstance(record.get("init"), dict) else ""
    command = f"`python -m formerlab train {record['id']} --scale {scale}`"
    return f"{record['run']}, seed {record['seed']}, on data set {record['data']['name']}.{grown} Command: {command}"


def _points(results: Results, record: dict[str, Any]) -> Iterator[Point]:
    """Yield curves, stamped with the time of their step, and final values, stamped with the end."""
    names = ("train.csv", "timing.csv", "eval.csv", "test.csv", *SHOWN)
    rows = {name: results.rows(name, record["study"], (record["run"],)) for name in names}
    rows = {name: frame[frame["seed"] == record["seed"]] for name, frame in rows.items()}
    start, end = _milliseconds(record["started"]), _milliseconds(record["finished"])
    valid = weighted_means(rows["eval.csv"], ["split", "step"]).sort_index().reset_index()
    curves: list[tuple[str, DataFrame, tuple[str, ...]]] = [
        ("train", rows["train.csv"], ("loss_nats", "lr", "grad_norm"))
    ]
    curves.append(("timing", rows["timing.csv"], ("tokens_per_s", "memory_bytes")))
    for split, frame in valid.groupby("split"):
        curves.append((str(split), frame, ("loss_nats",)))
    for group, frame, columns in curves:
        frame = frame.iloc[_spread(len(frame))]
        times = _times(frame["step"], rows["timing.csv"], start)
        for column in columns:
            for value, time, step in zip(frame[column], times, frame["step"], strict=True):
                yield f"{group}/{column}", float(value), int(time), int(step)
    last = int(rows["train.csv"]["step"].max()) if len(rows["train.csv"]) else 0
    for name, value in _finals(rows, record).items():
        yield name, value, end, last


def _finals(rows: dict[str, DataFrame], record: dict[str, Any]) -> dict[str, float]:
    test = rows["test.csv"]
    loss = float(np.average(test["loss_nats"], weights=test["tokens"]))
    values = {"test/loss_nats": loss, "test/perplexity": math.exp(loss)}
    values |= {name: float(record[name]) for name in FINAL if record.get(name) is not None}
    for file, table in SHOWN.items():
        values |= _means(file.removesuffix(".csv"), rows[file], table)
    return values


def _means(stage: str, rows: DataFrame, table: Table) -> dict[str, float]:
    """Return the means that a table says are shown, by name: `zeroshot/task/metric`, `prune/h2o/budget 0.4/...`."""
    types = {column.name: column.type for column in table.columns}
    groups = rows.groupby(list(table.by), dropna=False) if table.by else [((), rows)] * bool(len(rows))
    found = {}
    for key, group in groups:
        labels = [(name, value) for name, value in zip(table.by, key, strict=True) if value == value]
        parts = [str(value) if types[name] == "text" else f"{name} {value:g}" for name, value in labels]
        parts += [] if table.value == "value" else [table.value]
        weights = group["tokens"] if "tokens" in types else None
        found[_name("/".join([stage, *parts]))] = float(np.average(group[table.value], weights=weights))
    return found


def _spread(count: int) -> NDArray[np.int64]:
    """Return the places of at most MOST_POINTS rows, evenly spread, the first and the last among them."""
    places: NDArray[np.int64] = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(np.int64))
    return places


def _times(steps: Any, timing: DataFrame, start: int) -> NDArray[np.int64]:
    """Return the time of each step in ms, from the measured training time; the same for the same files."""
    if timing.empty:
        return np.full(len(steps), start, dtype=np.int64)
    seconds = np.interp(steps, timing["step"], timing["time_s"])
    times: NDArray[np.int64] = (start + 1000 * seconds).astype(np.int64)
    return times


def _place(results: Results, study: str) -> dict[str, str]:
    return {"formerlab.study": study, "formerlab.scale": results.scale, "formerlab.tree": results.tree}


def _key(results: Results, *parts: str) -> str:
    return "/".join([results.tree, results.scale, *parts])


def _milliseconds(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def _hash_files(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _name(text: str) -> str:
    """Replace what MLflow does not take in a name."""
    return re.sub(r"[^\w\-. /:]", "_", text)


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_PARAM else f"{text[: LONGEST_PARAM - 20]}... ({len(text)} characters)"
