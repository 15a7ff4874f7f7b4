"""Rows of finished runs -> MLflow. One writer, after the fact: training neither waits for tracking nor fails with it.

The database is a product of results/ that can be thrown away and written again. Each study at a scale is an
experiment: one MLflow run for the study (its figures and tables), one per configuration, below that one per seed. The
experiment keeps a view of its runs, VIEW, to which links lead. An MLflow run is found again by the tag `formerlab.key`
and left alone while the tag `formerlab.content` equals the hash of what it holds; that tag is written last, so what an
interrupted sync left half done is done again.
"""

import json
import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from formerlab.errors import UserError
from formerlab.files import locked
from formerlab.progress import Progress
from formerlab.results.read import Results
from formerlab.tracking.rows import Entry, configuration_entry, seed_entry, study_entry

METRICS_PER_CALL, ITEMS_PER_CALL = 1000, 100
"""The limits of MLflow's REST interface."""
VIEW = "formerlab"
"""Name of the view that each of our experiments keeps: held-out loss first, and what a run costs."""
SHOWN_COLUMNS = tuple(
    f"metrics.`{name}`"
    for name in (
        *("test/loss_nats", "test/loss_nats_low", "test/loss_nats_high"),
        *("parameters", "flops_cumulative", "training_time_s"),
    )
)
NOT_SEEDS = "tags.`formerlab.level` != 'run'"
"""What the view shows: MLflow lists all runs flat as soon as they are sorted by a metric."""
_SECRETS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD")
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


def sync(root: Path, uri: str, figures: Path | None = None) -> dict[str, Any]:
    """Bring MLflow at `uri` up to date with the finished runs in `root` (results/<tree>/<scale>).

    Repeating it changes nothing.
    `figures` is the folder with the drawn figures and tables, figures/<tree>/<scale> beside `results` where not given.
    Returns what was done, with the URI free of credentials. Raises UserError where anything goes wrong, without
    credentials too; whoever calls turns that into a warning.
    """
    results = Results(root)
    place = root.resolve()
    folder = figures or place.parents[2] / "figures" / place.parent.name / place.name
    lock = root / ".mlflow.lock"
    with locked(lock, lambda: f"{lock}: another sync of these results is running; wait for it and sync again"):
        try:
            return {"status": "ok", "uri": redacted(uri)} | _sync(results, _Store(uri), folder)
        except UserError:
            raise
        except Exception as error:  # whatever MLflow, its database or the network throws
            reason = _without_secrets(str(error), uri).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(
                f"tracking at {redacted(uri)} failed ({reason}); results are complete, sync again"
            ) from None


def _sync(results: Results, store: "_Store", figures: Path) -> dict[str, Any]:
    records = results.records()
    done: dict[str, list[str]] = {"created": [], "replaced": [], "unchanged": []}
    with Progress(len(records), "track", unit="run") as progress:
        for study in sorted({record["study"] for record in records}):
            of_study = [record for record in records if record["study"] == study]
            experiment = store.experiment(experiment_name(results.scale, study), _description(results, of_study))
            store.upsert(experiment, study_entry(results, of_study, figures), done)
            for run in sorted({record["run"] for record in of_study}):
                entries = [seed_entry(results, record) for record in of_study if record["run"] == run]
                middle = store.upsert(experiment, configuration_entry(results, study, run, entries), done)
                for entry in entries:
                    store.upsert(experiment, entry, done, middle)
                    progress.advance()
    store.remove_empty_default()
    return {"runs": len(records), **{name: sorted(keys) for name, keys in done.items()}}


def experiment_name(scale: str, study: str) -> str:
    """Return the name of the experiment of a study at a scale."""
    return f"formerlab/{scale}/{study}"


def _description(results: Results, records: list[dict[str, Any]]) -> str:
    study, names = records[0]["study"], {record["run"] for record in records}
    return (
        f"Study {study} at scale {results.scale}: {len(records)} finished runs of {len(names)} configurations. A row "
        "is a configuration, with means over its seeds. Clear the search field to see every seed. The row "
        f"*{study}: figures, tables, claims* has the pictures among its artifacts."
    )


def _about(description: str) -> dict[str, str]:
    """Return the tags of an experiment: what it is about, and the view that links to it ask for."""
    sorting = {"orderByKey": "metrics.`test/loss_nats`", "orderByAsc": True}
    view = sorting | {"searchFilter": NOT_SEEDS, "selectedColumns": list(SHOWN_COLUMNS)}
    return {
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.note.content": description,
        f"mlflow.sharedViewState.{VIEW}": json.dumps(view),
    }


class _Store:
    """MLflow, as far as it is needed."""

    def __init__(self, uri: str) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        for name in ("mlflow.store.db.utils", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._database = database_of(uri)
        self._client = MlflowClient(tracking_uri=f"sqlite:///{self._database}" if self._database else uri)
        self._known: dict[str, dict[str, Any]] = {}

    def experiment(self, name: str, description: str) -> str:
        """Return the id of an experiment, made where there is none; describe it, and read what it holds."""
        # A server keeps artifacts itself; beside a file they lie in a folder, whatever the working directory is.
        place = _artifacts(self._database, name) if self._database else None
        found = self._client.get_experiment_by_name(name)
        if found is None:
            identity = str(self._client.create_experiment(name, artifact_location=place))
        else:
            identity = str(found.experiment_id)
        for key, value in _about(description).items():
            if found is None or found.tags.get(key) != value:
                self._client.set_experiment_tag(identity, key, value)
        self._known[identity] = {run.data.tags.get("formerlab.key", ""): run for run in self._runs(identity)}
        return identity

    def remove_empty_default(self) -> None:
        """Delete the experiment that MLflow makes by itself in a database of our own, where nobody uses it."""
        found = self._client.get_experiment_by_name("Default") if self._database else None
        if found is None or found.lifecycle_stage != "active":
            return
        if not self._client.search_runs([found.experiment_id], max_results=1):
            self._client.delete_experiment(found.experiment_id)

    def _runs(self, experiment: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([experiment], max_results=1000, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def upsert(self, experiment: str, entry: Entry, done: dict[str, list[str]], parent: str | None = None) -> str:
        """Make sure that the entry is there, once and with its present content; return the id of its MLflow run."""
        found = self._known[experiment].get(entry.key)
        if found is not None and found.data.tags.get("formerlab.content") == entry.content:
            done["unchanged"].append(entry.key)
            identity = str(found.info.run_id)
            if parent is not None and found.data.tags.get("mlflow.parentRunId") != parent:
                self._client.set_tag(identity, "mlflow.parentRunId", parent)
            return identity
        if found is not None:
            self._client.delete_run(found.info.run_id)
        done["created" if found is None else "replaced"].append(entry.key)
        return self._write(experiment, entry, parent)

    def _write(self, experiment: str, entry: Entry, parent: str | None) -> str:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

        tags = entry.tags | {"formerlab.key": entry.key} | ({"mlflow.parentRunId": parent} if parent else {})
        run = self._client.create_run(experiment, start_time=entry.started_ms, run_name=entry.name)
        identity = str(run.info.run_id)
        for part in _parts([RunTag(key, value) for key, value in tags.items()], ITEMS_PER_CALL):
            self._client.log_batch(identity, tags=part)
        for part in _parts([Param(key, value) for key, value in entry.params.items()], ITEMS_PER_CALL):
            self._client.log_batch(identity, params=part)
        for part in _parts([Metric(*point) for point in entry.points], METRICS_PER_CALL):
            self._client.log_batch(identity, metrics=part)
        if entry.dataset is not None:
            name, digest = entry.dataset
            dataset = Dataset(name, digest, source_type="formerlab", source=json.dumps({"name": name}))
            self._client.log_inputs(identity, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
        for path in entry.files:
            self._client.log_artifact(identity, str(path))
        self._client.set_terminated(identity, entry.status, end_time=entry.finished_ms)
        self._client.set_tag(identity, "formerlab.content", entry.content)
        return identity


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def database_of(uri: str) -> Path | None:
    """Return the file of a sqlite URI, absolute, its folder made; nothing for a server.

    MLflow keeps absolute places of artifacts. In a folder that was moved or copied they are made to point here.
    """
    scheme = urlsplit(uri).scheme
    if scheme == "sqlite":
        path = Path(uri.removeprefix("sqlite:///")).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            _settle(path)
        return path
    if scheme not in ("http", "https"):
        raise UserError(f"tracking URI '{redacted(uri)}': give sqlite:///path/to/mlflow.db or http(s)://server")
    return None


def landing(uri: str, scale: str, studies: Sequence[str]) -> str:
    """Return the part of the UI's address that opens the first of these studies that was tracked, in our view of it."""
    database = database_of(uri)
    if database is None or not database.is_file():
        return ""
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        wanted = "SELECT experiment_id FROM experiments WHERE name = ? AND lifecycle_stage = 'active'"
        for study in studies:
            row = connection.execute(wanted, (experiment_name(scale, study),)).fetchone()
            if row is not None:
                return f"/#/experiments/{row[0]}/runs?viewStateShareKey={VIEW}&workflowType=machine_learning"
    return ""


def _artifacts(database: Path, experiment: str) -> str:
    """Return where the artifacts of an experiment lie, as MLflow notes it."""
    return (database.parent / "mlartifacts" / experiment).as_uri()


def _settle(database: Path) -> None:
    """Let our experiments and their runs look for artifacts beside the database."""
    ours = "SELECT experiment_id, name, artifact_location FROM experiments"
    ours += " WHERE name LIKE 'formerlab/%' AND lifecycle_stage = 'active'"
    of_experiment = "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?"
    of_runs = "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?)"
    of_runs += " WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?"
    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone():
                return
            for identity, name, there in connection.execute(ours).fetchall():
                if there != (here := _artifacts(database, name)):
                    connection.execute(of_experiment, (here, identity))
                    connection.execute(of_runs, (here, len(there) + 1, identity, len(there), there))
    except sqlite3.Error as error:
        raise UserError(f"{database}: {error}; close what uses it or move it away, then sync again") from None


def redacted(uri: str) -> str:
    """Return the URI without user, password and query."""
    parts = urlsplit(uri)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) if parts.netloc else uri


def _without_secrets(text: str, uri: str) -> str:
    """Return a message without the credentials of the URI or the environment."""
    text = text.replace(uri, redacted(uri))
    parts = urlsplit(uri)
    secrets = [parts.password, unquote(parts.password or ""), parts.query, *map(os.environ.get, _SECRETS)]
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return re.sub(r"//[^/@\s]+@", "//***@", text)
