"""Rows of runs -> MLflow. One writer, beside training, which neither waits for tracking nor fails with it.

The database is a product of results/ that can be thrown away and written again. Each study at a scale is an
experiment: an MLflow run with its figures, one per configuration, and below that one per seed. An MLflow run is found
again by the tag `formerlab.key`, left alone while the tag `formerlab.content` equals the hash of what it holds, and
else updated. That tag is written last, so what an interrupted sync left half done is done again.
"""

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, partial
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from formerlab.errors import UserError
from formerlab.files import locked
from formerlab.progress import Progress
from formerlab.results.read import Results
from formerlab.results.records import read_run
from formerlab.results.stages import MAKING
from formerlab.tracking.address import database_of, experiment_name, experiment_tags, redacted, without_secrets
from formerlab.tracking.rows import (
    Entry,
    configuration_entry,
    content_of,
    figure_of,
    hash_files,
    seed_entry,
    study_entry,
    study_files,
    unfinished,
)

LAYOUT = "3"
"""Stands before the hash of what an entry holds: what another layout wrote is written anew."""
METRICS_PER_CALL, ITEMS_PER_CALL = 1000, 100
"""The limits of MLflow's REST interface."""
_KEYS = ("study", "run", "seed")
SECONDS_UNSEEN = 2
"""How long a sync works before it shows its progress."""
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


def sync(root: Path, uri: str, figures: Path | None = None, *, weights: bool = False) -> dict[str, Any]:
    """Bring MLflow at `uri` up to date with the runs in `root` (results/<tree>/<scale>), those that train included.

    Repeating it changes nothing.
    `figures` is the folder with the drawn figures and tables, figures/<tree>/<scale> beside `results` where not given.
    With `weights` those of finished runs become artifacts too.
    Returns what was done, with the URI free of credentials, and under `refused` which runs have damaged rows. Raises
    UserError where anything else goes wrong, without credentials too; whoever calls turns that into a warning.
    """
    place, lock = root.resolve(), root / ".mlflow.lock"
    folder = figures or place.parents[2] / "figures" / place.parent.name / place.name
    training = unfinished(root)  # read first: what finishes meanwhile is among the results
    results = Results(root, partial(_unreadable, root))
    with locked(lock, lambda: f"{lock}: another sync of these results is running; wait for it and sync again"):
        try:
            store = _Store(uri, place, weights=weights)
            return {"status": "ok", "uri": redacted(uri)} | _sync(results, training, store, folder)
        except UserError:
            raise
        except Exception as error:  # whatever MLflow, its database or the network throws
            reason = without_secrets(str(error), uri).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(
                f"tracking at {redacted(uri)} failed ({reason}); results are complete, sync again"
            ) from None


def _unreadable(root: Path, stage: str, name: str) -> str:
    """Object to a run whose record cannot be read, which keeps none of the others out."""
    path = root / name / "run.json"
    if stage in MAKING and path.exists():
        try:
            read_run(path)
        except UserError as error:
            return str(error)
    return ""


def _sync(results: Results, training: list[dict[str, Any]], store: "_Store", figures: Path) -> dict[str, Any]:
    finished, refused = results.records(), results.left_out()
    known = {record["id"] for record in finished}
    records = sorted([*finished, *(one for one in training if one["id"] not in known)], key=itemgetter(*_KEYS))
    with Progress(len(records), "track", unit="run", delay=SECONDS_UNSEEN) as progress:
        for study, group in groupby(records, itemgetter("study")):
            of_study = list(group)
            store.open(experiment_name(results.scale, study), experiment_tags(results.scale, study))
            content = hash_files(study_files(figures, study))
            store.upsert([study], content, partial(study_entry, results, of_study, figures))
            for _, seeds in groupby(of_study, itemgetter("run")):
                of_run = list(seeds)
                try:
                    _configuration(results, store, of_run, figure_of(figures, of_run[0]))
                except UserError as error:  # rows of one run are damaged; the others are wanted
                    refused.append(str(error))
                progress.advance(len(of_run))
    return {"runs": len(records), **store.done, "refused": refused}


def _configuration(results: Results, store: "_Store", records: Sequence[dict[str, Any]], figure: list[Path]) -> None:
    """Upsert a configuration and its seeds; their rows are read only where something changed."""
    contents = [content_of(results, record) for record in records]
    seeds = [cache(partial(seed_entry, results, record)) for record in records]
    study, run = records[0]["study"], records[0]["run"]
    content = " ".join([*contents, hash_files(figure)])
    parent = store.upsert([study, run], content, lambda: configuration_entry(run, [one() for one in seeds], figure))
    for record, content, seed in zip(records, contents, seeds, strict=True):
        identity = store.upsert([record["id"]], content, seed, parent)
        if "weights_sha256" in record:
            store.keep_weights(identity, results.root / record["id"] / "weights.safetensors", record["weights_sha256"])


class _Store:
    """MLflow, as far as it is needed."""

    def __init__(self, uri: str, root: Path, *, weights: bool) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        for name in ("mlflow.store.db.utils", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._database = database_of(uri)
        self._client = MlflowClient(tracking_uri=f"sqlite:///{self._database}" if self._database else uri)
        self._experiment, self._known, self._weights = "", dict[str, Any](), weights
        self._results = _label(root.parents[1], self._database.parent if self._database else Path.cwd())
        self._prefix = "/".join(filter(None, [self._results, root.parent.name, root.name]))
        self.done: dict[str, list[str]] = {"created": [], "updated": [], "unchanged": []}

    def open(self, name: str, tags: dict[str, str]) -> None:
        """Turn to an experiment, made or restored where it is not there; describe it, and read what it holds."""
        # A server stores artifacts itself; beside a file they lie in a folder, whatever the working directory is.
        place = (self._database.parent / "mlartifacts" / name).as_uri() if self._database else None
        found = self._client.get_experiment_by_name(name)
        if found is None:
            self._experiment = str(self._client.create_experiment(name, artifact_location=place))
        else:
            self._experiment = str(found.experiment_id)
            if place not in (None, found.artifact_location):
                raise UserError(f"{self._database}: was written in another folder; delete it and sync again")
            if found.lifecycle_stage != "active":
                self._client.restore_experiment(self._experiment)
        for key, value in tags.items():
            if found is None or found.tags.get(key) != value:
                self._client.set_experiment_tag(self._experiment, key, value)
        self._known = self._runs()

    def _runs(self) -> dict[str, Any]:
        """Return the MLflow runs of ours in the experiment, by key."""
        found: dict[str, Any] = {}
        token = None
        while True:
            page = self._client.search_runs([self._experiment], max_results=1000, page_token=token)
            for run in page:
                key = run.data.tags.get("formerlab.key")
                if key in found:  # an experiment is restored with all that was ever deleted in it
                    self._client.delete_run(run.info.run_id)
                elif key:
                    found[key] = run
            token = page.token
            if not token:
                return found

    def upsert(self, names: Sequence[str], content: str, build: Callable[[], Entry], parent: str = "") -> str:
        """Make sure that an entry is there, once and with its present content; return the id of its MLflow run."""
        key = "/".join([self._prefix, *names])
        content = LAYOUT + sha256(content.encode()).hexdigest()
        found = self._known.get(key)
        tags = found.data.tags if found is not None else {}
        if found is not None and tags.get("formerlab.content") == content:
            self.done["unchanged"].append(key)
            if tags.get("mlflow.parentRunId", "") != parent:
                self._client.set_tag(found.info.run_id, "mlflow.parentRunId", parent)
            return str(found.info.run_id)
        entry = build()
        self.done["created" if found is None else "updated"].append(key)
        identity = self._emptied(found, entry)
        self._write(identity, entry, self._tags(entry, key, parent), tags)
        self._client.set_tag(identity, "formerlab.content", content)
        return identity

    def keep_weights(self, identity: str, path: Path, digest: str) -> None:
        """Log the weights of a run once, if they are wanted."""
        if self._weights and path.exists():
            found = self._client.get_run(identity).data.tags.get("formerlab.weights")
            if found != digest:
                self._client.log_artifact(identity, str(path))
                self._client.set_tag(identity, "formerlab.weights", digest)

    def _emptied(self, found: Any, entry: Entry) -> str:
        """Return the id of an MLflow run for an entry: the one `found`, without what may have changed, or a new one.

        MLflow's client cannot take back metrics and parameters. In a database of our own they are deleted; on a server
        a run that has others than the entry is moved to the trash.
        """
        if found is not None:
            if self._database:
                _forget(self._database, found.info.run_id)
                return str(found.info.run_id)
            values = {(name, _rounded(value)) for name, value, *_ in entry.points}
            if found.data.metrics.items() <= values and found.data.params.items() <= entry.params.items():
                return str(found.info.run_id)
            self._client.delete_run(found.info.run_id)
        return str(self._client.create_run(self._experiment, start_time=entry.started_ms).info.run_id)

    def _tags(self, entry: Entry, key: str, parent: str) -> dict[str, str]:
        return entry.tags | {
            "mlflow.runName": entry.name + (f" ({self._results})" if self._results else ""),
            "mlflow.note.content": entry.note,
            **({"mlflow.parentRunId": parent} if parent else {}),
            "formerlab.level": entry.level,
            "formerlab.results": self._results or "results",
            "formerlab.key": key,
        }

    def _write(self, identity: str, entry: Entry, tags: dict[str, str], before: dict[str, str]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

        client = self._client
        for name in before.keys() - tags.keys():
            if name.startswith(("formerlab.", "claim.")):
                client.delete_tag(identity, name)
        batches: dict[str, tuple[int, list[Any]]] = {
            "tags": (ITEMS_PER_CALL, [RunTag(*item) for item in tags.items()]),
            "params": (ITEMS_PER_CALL, [Param(*item) for item in entry.params.items()]),
            "metrics": (METRICS_PER_CALL, [Metric(p[0], _rounded(p[1]), p[2], p[3]) for p in entry.points]),
        }
        for kind, (size, items) in batches.items():
            for first in range(0, len(items), size):
                part: dict[str, Any] = {kind: items[first : first + size]}
                client.log_batch(identity, **part)
        if entry.dataset is not None:
            name, digest = entry.dataset
            dataset = Dataset(name, digest, source_type="formerlab", source=json.dumps({"name": name}))
            client.log_inputs(identity, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
        for path in entry.files:
            client.log_artifact(identity, str(path))
        if entry.finished_ms is None:  # it goes on, maybe after a stop
            client.update_run(identity, status="RUNNING")
        else:
            client.set_terminated(identity, entry.status, end_time=entry.finished_ms)


def _rounded(value: float) -> float:
    """Return a number as people read it; the rows among the artifacts have all its digits."""
    return float(f"{value:.4g}")


def _label(results: Path, base: Path) -> str:
    """Return what tells runs of other folders of results than `results` from them: the folder's name, or its path."""
    name = str(results.relative_to(base.resolve())) if results.is_relative_to(base.resolve()) else str(results)
    return "" if name == "results" else name


def _forget(database: Path, run: str) -> None:
    """Delete metrics, parameters and data sets of an MLflow run from a database of our own."""
    with closing(sqlite3.connect(database)) as connection, connection:
        for table in ("metrics", "latest_metrics", "params"):
            connection.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (run,))
        connection.execute("DELETE FROM inputs WHERE destination_type = 'RUN' AND destination_id = ?", (run,))
