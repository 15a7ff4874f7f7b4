"""Convert studies, configurations and runs to the content of MLflow runs."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import yaml
from pandas import DataFrame

from formerlab.files import read_json
from formerlab.report.catalogue import catalogue
from formerlab.report.families import matches
from formerlab.results.notes import read_note
from formerlab.results.read import Results, flatten
from formerlab.results.schema import Table
from formerlab.results.stages import TABLES
from formerlab.statistics import weighted_means

MAX_POINTS = 1000
"""Maximum number of points of a curve in MLflow."""
CLAIMS = ("claims.csv", "claims.html")
"""Files that the command `claims` writes into the folder of figures."""
COSTS = {
    "parameters": ("weights/million_parameters", 1e6),
    "parameters_non_embedding": ("weights/million_parameters_non_embedding", 1e6),
    "tokens": ("training/million_tokens", 1e6),
    "flops": ("training/TFLOP", 1e12),
    "flops_cumulative": ("training/TFLOP_with_ancestors", 1e12),
    "training_time_s": ("training/minutes", 60),
    "wall_time_s": ("training/wall_minutes", 60),
    "tokens_per_s": ("training/tokens_per_s", 1),
    "peak_memory_bytes": ("training/peak_memory_GiB", 2**30),
    "model_flops_utilisation": ("training/model_flops_utilisation", 1),
}
"""Keys of run.json that become metrics, with the name of the metric and the divisor for its unit.

MLflow sorts metrics by name. These names come after `test/loss_nats`, so that MLflow shows the loss first.
"""
FOLDERS = {".png": "figures", ".pdf": "figures", ".csv": "tables", ".html": "tables", ".md": "tables"}
"""Artifact folder in MLflow by file extension."""
STATUS = {"finished": "FINISHED", "diverged": "FAILED", "failed": "FAILED", "running": "RUNNING"}
"""Status of a run in MLflow; any other status becomes KILLED."""
AVERAGED_TABLES = {file: table for file, table in TABLES.items() if table.value}
"""Metrics tables whose means become MLflow metrics, by file."""
CURVES = {"train.csv": ("loss_nats", "lr", "grad_norm"), "timing.csv": ("tokens_per_s", "memory_bytes")}
"""Columns that become curves, by file."""


@dataclass(frozen=True)
class Entry:
    """The content of one MLflow run."""

    tags: dict[str, str]
    started_ms: int
    finished_ms: int | None
    """End of the run, or None during training."""
    status: str = "FINISHED"
    params: dict[str, str] = field(default_factory=dict)
    points: DataFrame = field(default_factory=lambda: DataFrame(columns=["name", "value", "time_ms", "step"]))
    """Curves, sorted by step, and final values; times are milliseconds since 1970."""
    files: list[Path] = field(default_factory=list)
    data: dict[str, str] = field(default_factory=dict)
    """The training data set as MLflow's fields `name`, `digest`, `source_type`, `source` and `profile`."""

    def thinned(self) -> DataFrame:
        """Return at most MAX_POINTS points of each curve: every n-th point and the last point.

        n is a power of two. If a curve gets longer, points that were left out before stay left
        out, so the MLflow run can be updated in place.
        """
        curves = self.points.groupby("name", sort=False)["step"]
        nth, count = curves.cumcount(), curves.transform("size")
        stride = 2 ** np.ceil(np.log2(np.maximum(1, count / (MAX_POINTS - 1))))
        return self.points[(nth % stride == 0) | (nth == count - 1)]


def _display_tags(level: Literal["study", "configuration", "run"], name: str, note: str) -> dict[str, str]:
    return {"mlflow.runName": name, "mlflow.note.content": note, "formerlab.level": level}


def unfinished_records(root: Path) -> list[dict[str, Any]]:
    """Return a partial record of each unfinished run in `root` that has rows.

    The `status` of a record is running, stopped, failed or killed.
    """
    records = []
    for path in sorted(root.glob("*/*/seed*/run.yaml")):
        folder, note = path.parent, read_note("train", path.parent)
        if note is None or (folder / "run.json").exists() or not (folder / "timing.csv").exists():
            continue
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))
        manifest = root / "data" / spec["data"] / "manifest.json"
        if not manifest.exists():  # the data are being prepared again, or were deleted
            continue
        *_, study, run, seed = folder.parts
        record = {"id": f"{study}/{run}/{seed}", "study": study, "run": run, "seed": spec["seed"], "spec": spec}
        record |= {"status": note["state"], "started": note["since"]}
        record |= {"data": {"name": spec["data"], "fingerprint": read_json(manifest)["fingerprint"]}}
        last = datetime.fromtimestamp((folder / "timing.csv").stat().st_mtime, UTC)
        records.append(record | {"finished": last.isoformat()})
    return records


def content_hash(values: Any, files: Sequence[Path] = ()) -> str:
    """Return a hash of JSON values, and of the names and contents of files."""
    digest = sha256(json.dumps(values).encode())
    for path in files:
        digest.update(path.name.encode() + sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def study_entry(scale: str, study: str, figures: Path) -> Entry:
    """Return the entry of a study: its figures, its tables and the verdicts on its claims.

    The tag `claim.<id>` is the verdict, `claim.<id>.ours` the measured value, `claim.<id>.reason` the reason for a
    claim that is not tested, and `claim.<id>.changed` names the later versions that added or changed the claim or its
    statistics.
    """
    names = [name for entry in catalogue().values() if entry.study == study for name in entry.outputs]
    rendered = [name for name in names if FOLDERS.get(Path(name).suffix) and not name.endswith(".csv")]
    files = [path for name in (*rendered, *CLAIMS) if (path := figures / name).exists()]
    tags: dict[str, str] = {}
    if (path := figures / CLAIMS[0]).exists():
        rows = pd.read_csv(path).drop_duplicates("claim").set_index("claim")
        for column, ending in {"outcome": "", "ours": ".ours", "reason": ".reason", "changed": ".changed"}.items():
            study_rows = rows.loc[rows.index.str.startswith(f"{study}-"), column].dropna()
            tags |= {f"claim.{claim}{ending}": str(text) for claim, text in study_rows.items()}
    note = f"Figures, tables and verdicts on the claims of study {study} at scale {scale}: open Artifacts."
    times = [round(1000 * path.stat().st_mtime) for path in files] or [
        0
    ]  # the sync does not use an entry without files
    tags |= _display_tags("study", f"{study}: figures, tables, claims", note)
    return Entry(tags, min(times), max(times), files=files)


def figure_of_run(figures: Path, record: Mapping[str, Any]) -> list[Path]:
    """Return the first rendered figure of the study that shows a run, as a list of one path, or an empty list."""
    specs = [spec for spec in catalogue().values() if (spec.kind, spec.study) == ("figure", record["study"])]
    paths = (figures / f"{spec.name}.png" for spec in specs if matches(record["run"], record["spec"], spec.runs))
    return [path for path in paths if path.exists()][:1]


def configuration_entry(run: str, seeds: Sequence[Entry], figure: Sequence[Path]) -> Entry:
    """Return the entry of a configuration: its parameters, a figure, and means of the points of all seeds."""
    states, end_times_ms = {entry.status for entry in seeds}, [entry.finished_ms for entry in seeds]
    points = pd.concat([entry.points for entry in seeds]).groupby(["name", "step"], sort=False)
    means = points.agg(value=("value", "mean"), time_ms=("time_ms", "first"), seeds=("value", "size")).reset_index()
    means = means.loc[means["seeds"] == len(seeds), [*seeds[0].points]]  # only points that all seeds have
    tags = {name: tag for name, tag in seeds[0].tags.items() if name.startswith(("mlflow.source", "formerlab.data"))}
    count = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return Entry(
        tags
        | _display_tags("configuration", run, f"{run}, {count}. Metrics are means over the seeds, the nested runs."),
        started_ms=seeds[0].started_ms,
        finished_ms=None if None in end_times_ms else max(filter(None, end_times_ms)),
        status=next((status for status in ("RUNNING", "KILLED") if status in states), "FINISHED"),
        params={key: value for key, value in seeds[0].params.items() if key != "seed"},
        points=means,
        files=[*figure],
        data=seeds[0].data,
    )


def seed_entry(results: Results, record: dict[str, Any]) -> Entry:
    """Return the entry of a run: its curves, final values and files, and tags for searches."""
    names = (*CURVES, "eval.csv", *AVERAGED_TABLES)
    rows = {name: frame for name in names if len(frame := results.rows_of(name, record["id"]))}
    spec = sorted(flatten(record["spec"]).items(), key=lambda item: (item[0].count("."), item[0]))
    folder, git, data = results.root / record["id"], record.get("git") or {}, record["data"]
    parent = f" Its parent is {record['init']['id']}." if isinstance(record.get("init"), dict) else ""
    command = f"`python -m formerlab train {record['id']} --scale {results.scale}`"
    note = f"{record['run']}, seed {record['seed']}, on data set {data['name']}.{parent} Command: {command}"
    tags = {
        **{f"formerlab.{key}": record.get(key) for key in ("id", "status", "spec_hash", "code_hash", "host", "device")},
        **{f"formerlab.version.{name}": version for name, version in (record.get("versions") or {}).items()},
        "formerlab.data": data["name"],
        "formerlab.data_fingerprint": data["fingerprint"],
        "formerlab.git_dirty_hash": git.get("dirty_hash"),
        "mlflow.source.name": "formerlab",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": git.get("commit"),
        **_display_tags("run", f"{record['run']} seed{record['seed']}", note),
    }
    points = _points(rows, record)
    return Entry(
        {_mlflow_name(key): _as_string(value) for key, value in tags.items() if value is not None},
        started_ms=_milliseconds(record["started"]),
        finished_ms=None if record["status"] == "running" else _milliseconds(record["finished"]),
        status=STATUS.get(record["status"], "KILLED"),
        params={_mlflow_name(key): _as_string(value) for key, value in spec},
        points=points[np.isfinite(points["value"])],
        files=[path for name in ("run.json", "run.yaml", *names) if (path := folder / name).exists()],
        data=_data_set(results.root / "data" / data["name"], data["fingerprint"]),
    )


def _data_set(folder: Path, fingerprint: str) -> dict[str, str]:
    """Return MLflow's fields of a prepared data set, including the sizes of its splits if the data exist."""
    fields = {"name": folder.name, "digest": fingerprint, "source_type": "local"}
    fields["source"] = json.dumps({"uri": str(folder.absolute())})
    if (path := folder / "manifest.json").exists():
        fields["profile"] = json.dumps(read_json(path)["splits"])
    return fields


def _points(rows: dict[str, DataFrame], record: dict[str, Any]) -> DataFrame:
    """Return curves with the time of each step, and final values with the end time of the run."""
    start, end = (_milliseconds(record[moment]) for moment in ("started", "finished"))
    curves = [
        rows[file].melt("step", columns, "name").assign(_file=file.removesuffix(".csv"))
        for file, columns in CURVES.items()
        if file in rows
    ]
    if "eval.csv" in rows:
        losses = weighted_means(rows["eval.csv"], ["split", "step"]).sort_index().rename("value")
        curves.append(losses.reset_index().rename(columns={"split": "_file"}).assign(name="loss_nats"))
    final_values = {
        name: float(record[key]) / unit for key, (name, unit) in COSTS.items() if record.get(key) is not None
    }
    for file in (file for file in AVERAGED_TABLES if file in rows):
        final_values |= _means(file.removesuffix(".csv"), rows[file], AVERAGED_TABLES[file])
    if "test/loss_nats" in final_values:
        final_values["test/perplexity"] = math.exp(final_values["test/loss_nats"])
    last = int(rows["train.csv"]["step"].max()) if "train.csv" in rows else 0
    final_points = DataFrame(final_values.items(), columns=["name", "value"]).assign(time_ms=end, step=last)
    points = pd.concat([*(curve.assign(name=curve["_file"] + "/" + curve["name"]) for curve in curves), final_points])
    timing = rows.get("timing.csv", DataFrame({"step": [0], "time_s": [0]}))
    times = start + 1000 * np.interp(points["step"], timing["step"], timing["time_s"])
    points["time_ms"] = points["time_ms"].where(points["time_ms"].notna(), times).astype(int)
    return points.astype({"value": float}).reset_index(drop=True)[[*final_points]]


def _means(stage: str, rows: DataFrame, table: Table) -> dict[str, float]:
    """Return the means of `table.value` by metric name (`zeroshot/task/metric` or
    `prune/h2o/recent 0.5/budget 0.4/loss_nats`).
    """
    groups = rows.groupby(list(table.by), dropna=False) if table.by else [((), rows)]
    means: dict[str, float] = {}
    for key, group in groups:
        labels = [(name, value) for name, value in zip(table.by, key, strict=True) if value == value]
        levels = [str(value) if table.columns[name] == "text" else f"{name} {value:g}" for name, value in labels]
        levels += [] if table.value == "value" else [table.value]
        weights = group["tokens"] if "tokens" in table.columns else None
        means[_mlflow_name("/".join([stage, *levels]))] = float(np.average(group[table.value], weights=weights))
    return means


def _milliseconds(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def _mlflow_name(text: str) -> str:
    """Replace characters that MLflow does not allow in a name by underscores."""
    return re.sub(r"[^\w\-. /:]", "_", text)


def _as_string(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
