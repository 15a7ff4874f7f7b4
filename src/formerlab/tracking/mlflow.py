"""Write the metrics of runs to MLflow.

Each study at a scale is an experiment with one MLflow run for its figures, one MLflow run per configuration, and one
nested MLflow run per seed. The tag `formerlab.key` identifies an MLflow run. Metrics, parameters and files are updated
only if the tag `formerlab.content` differs from the hash of the current content. A sync writes this tag last, so the
next sync repeats an interrupted update. Weights have the tag `formerlab.weights`.
"""

import logging
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from formerlab.errors import UserError, reason
from formerlab.files import locked
from formerlab.progress import Progress
from formerlab.results.read import Results, read_run
from formerlab.results.stages import MAKING
from formerlab.tracking.rows import (
    FOLDERS,
    Entry,
    configuration_entry,
    content_hash,
    figure_of_run,
    seed_entry,
    study_entry,
    unfinished_records,
)

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
LAYOUT = "layout 2, "
"""Version of the names of metrics and folders of artifacts; MLflow runs of another version are written again."""
TRAINING_VIEW = "workflowType=machine_learning"
"""Query of the URL for the training view; MLflow's default is its view for agents."""
CONFIGURATION_FILTER = "tags.`formerlab.level` != 'run'"
"""Filter of a study's page that hides the nested runs of single seeds."""

_DAMAGED_DATABASE_MESSAGES = ("disk image is malformed", "file is not a database")
"""Messages of SQLite for a damaged file."""


def sync(root: Path, uri: str, figures: Path, *, weights: bool = False) -> dict[str, Any]:
    """Update MLflow at `uri` with the runs in `root` (results/<tree>/<scale>), including runs in progress.

    `figures` is the folder of rendered figures and tables. With `weights`, the weights of finished runs become
    artifacts. Returns `status`, `uri`, the number of records (`runs`), the created, updated and unchanged MLflow runs,
    and in `refused` a message for every configuration with damaged rows, and for every stage of a run whose rows were
    left out. Raises UserError for any other failure.
    """

    def unreadable(stage: str, name: str) -> str:
        """Return the error message of an unreadable record, or an empty string."""
        path = root / name / "run.json"
        if stage in MAKING and path.exists():
            try:
                read_run(path)
            except UserError as error:
                return str(error)
        return ""

    lock = root / ".mlflow.lock"
    # List the unfinished runs first: a run that finishes between the two calls is then in at least one of the lists.
    training = unfinished_records(root)
    results = Results(root, unreadable)
    with locked(lock, lambda: f"{lock}: another sync of these results is running; wait for it and sync again"):
        try:
            store = _Store(uri, root, weights=weights)
            return {"status": "ok", "uri": uri} | _sync(results, training, store, figures)
        except UserError:
            raise
        except Exception as error:  # any error of MLflow, its database or the network
            damaged = uri.startswith("sqlite:") and any(message in str(error) for message in _DAMAGED_DATABASE_MESSAGES)
            remedy = f"delete {connect(uri)[1]} and sync again" if damaged else "sync again"
            raise UserError(f"tracking at {uri} failed ({reason(error)}); results are not affected, {remedy}") from None


def _sync(results: Results, training: list[dict[str, Any]], store: "_Store", figures: Path) -> dict[str, Any]:
    """Create or update all studies, configurations and seeds.

    Returns the number of runs, the keys of created, updated and unchanged MLflow runs, and the error messages of
    refused configurations.
    """
    finished, refused = results.records(), results.left_out()
    finished_ids = {record["id"] for record in finished}
    records = [*finished, *(record for record in training if record["id"] not in finished_ids)]
    records.sort(key=itemgetter("study", "run", "seed"))
    with Progress(len(records), "track", unit="run", delay=2) as progress:
        for study, study_records in groupby(records, itemgetter("study")):
            store.open(results.scale, study)
            entry = study_entry(results.scale, study, figures)
            if entry.files:
                store.upsert([study], content_hash(entry.tags, entry.files), partial(lambda built: built, entry))
            for _, run_records in groupby(study_records, itemgetter("run")):
                seeds = list(run_records)
                try:
                    _configuration(results, store, seeds, figure_of_run(figures, seeds[0]))
                except UserError as error:  # a configuration with damaged rows does not stop the sync of the others
                    refused.append(str(error))
                progress.advance(len(seeds))
    return {"runs": len(records), **store.synced_keys, "refused": refused}


def _configuration(
    results: Results, store: "_Store", records: Sequence[dict[str, Any]], figure: Sequence[Path]
) -> None:
    """Create or update a configuration and its seeds; read their rows only if the content has changed."""
    files = [sorted((results.root / record["id"]).glob("[!.]*.json")) for record in records]
    contents = list(map(content_hash, records, files))
    seeds = [cache(partial(seed_entry, results, record)) for record in records]
    study, run = records[0]["study"], records[0]["run"]
    parent = store.upsert(
        [study, run],
        content_hash(contents, figure),
        lambda: configuration_entry(run, [seed() for seed in seeds], figure),
    )
    for record, content, seed in zip(records, contents, seeds, strict=True):
        run_id = store.upsert([record["id"]], content, seed, parent)
        if "weights_sha256" in record:
            store.log_weights(run_id, results.root / record["id"] / "weights.safetensors", record["weights_sha256"])


def connect(uri: str) -> tuple[Any, Path | None]:
    """Return an MLflow client, and the absolute path of the database for a sqlite URI (None for a server).

    Sets MLflow's environment variables, and creates the folder of the database.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    database = None
    if uri.startswith("sqlite:"):
        database = Path(uri.removeprefix("sqlite:///")).absolute()
        database.parent.mkdir(parents=True, exist_ok=True)
    return MlflowClient(tracking_uri=f"sqlite:///{database}" if database else uri), database


def pages(uri: str, scale: str, studies: Sequence[str]) -> dict[str, str]:
    """Return the UI path of each tracked study. The page sorts configurations by held-out loss."""
    by_loss = {"searchFilter": CONFIGURATION_FILTER, "orderByKey": "metrics.`test/loss_nats`", "orderByAsc": "true"}
    query = f"{urlencode(by_loss, quote_via=quote)}&{TRAINING_VIEW}"
    client, _ = connect(uri)
    experiments = {study: client.get_experiment_by_name(f"formerlab/{scale}/{study}") for study in studies}
    return {
        study: f"/#/experiments/{experiment.experiment_id}/runs?{query}"
        for study, experiment in experiments.items()
        if experiment
    }


class _Store:
    """The MLflow operations of a sync."""

    def __init__(self, uri: str, root: Path, *, weights: bool) -> None:
        self._client, self._database = connect(uri)
        self._experiment, self._runs, self._weights = "", dict[str, Any](), weights
        if self._database:
            self._prefix = os.path.relpath(root.resolve(), self._database.parent.resolve()).removeprefix("results/")
        else:  # several users and checkouts may share a server
            self._prefix = f"{os.getuid()}:{root.resolve()}"
        self.synced_keys: dict[str, list[str]] = {"created": [], "updated": [], "unchanged": []}

    def open(self, scale: str, study: str) -> None:
        """Open the experiment of a study, which is created or restored if necessary."""
        name = f"formerlab/{scale}/{study}"
        # With a database file, artifacts are in a folder next to it; a server has its own store.
        folder = (self._database.parent / "mlartifacts" / name).as_uri() if self._database else None
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            self._experiment = str(self._client.create_experiment(name, artifact_location=folder))
        elif folder in (None, experiment.artifact_location):
            self._experiment = str(experiment.experiment_id)
        else:
            raise UserError(f"{self._database}: was written in another folder; delete it and sync again")
        if experiment is not None and experiment.lifecycle_stage != "active":
            self._client.restore_experiment(self._experiment)
        note = (
            f"Study {study} at scale {scale}. A row is a configuration, with means over its seeds. Clear the search "
            f"field to see every seed. The row *{study}: figures, tables, claims* has the figures as artifacts."
        )
        tags = {"mlflow.experimentKind": "custom_model_development", "mlflow.note.content": note}
        for key, value in tags.items():
            self._client.set_experiment_tag(self._experiment, key, value)
        self._runs = {}
        for run in self._client.search_runs([self._experiment], max_results=50_000):  # the limit of MLflow
            key = run.data.tags.get("formerlab.key", "")
            if key and key in self._runs:  # a restored experiment includes its deleted runs
                self._client.delete_run(run.info.run_id)
            self._runs.setdefault(key, run)

    def upsert(self, key_parts: Sequence[str], content: str, build: Callable[[], Entry], parent: str = "") -> str:
        """Create or update the MLflow run of an entry and return its id.

        `content` is the hash of the record and files of the entry. `build` creates the entry if this hash has changed.
        `parent` is the id of the MLflow run of the configuration.

        An MLflow run is updated in place if the entry only has additional points. MLflow cannot delete metrics and
        parameters, so an MLflow run with other values is deleted and created again.
        """
        key, content = "/".join([self._prefix, *key_parts]), LAYOUT + content
        existing = self._runs.get(key)
        if existing is not None and existing.data.tags.get("formerlab.content") == content:
            self.synced_keys["unchanged"].append(key)
            if existing.data.tags.get("mlflow.parentRunId", "") != parent:
                self._client.set_tag(existing.info.run_id, "mlflow.parentRunId", parent)
            return str(existing.info.run_id)
        entry = build()
        self.synced_keys["created" if existing is None else "updated"].append(key)
        values = {(name, _rounded(value)) for name, value in entry.points[["name", "value"]].to_numpy()}
        only_new_points = (
            existing is not None
            and existing.data.tags.get("formerlab.content", LAYOUT).startswith(LAYOUT)
            and existing.data.params.items() <= entry.params.items()
            and existing.data.metrics.items() <= values
        )
        if existing is not None and not only_new_points:
            self._client.delete_run(existing.info.run_id)
            existing = None
        run = existing or self._client.create_run(self._experiment, start_time=entry.started_ms)
        run_id = str(run.info.run_id)
        tags = entry.tags | {"formerlab.key": key} | ({"mlflow.parentRunId": parent} if parent else {})
        for name in run.data.tags.keys() - tags.keys():
            if name.startswith("claim."):
                self._client.delete_tag(run_id, name)
        # The MLflow run keeps the start time of the first attempt, so times of a later attempt are shifted to it.
        self._write(run_id, entry, tags, run.info.start_time - entry.started_ms)
        self._client.set_tag(run_id, "formerlab.content", content)
        return run_id

    def log_weights(self, run_id: str, path: Path, digest: str) -> None:
        """Log the weights of a run once."""
        if not self._weights or not path.exists():
            return
        if self._client.get_run(run_id).data.tags.get("formerlab.weights") != digest:
            self._client.log_artifact(run_id, str(path))
            self._client.set_tag(run_id, "formerlab.weights", digest)

    def _write(self, run_id: str, entry: Entry, tags: dict[str, str], shift_ms: int) -> None:
        """Write an entry to the MLflow run `run_id`, with `shift_ms` added to the times of its points."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

        points = [Metric(name, _rounded(value), time_ms + shift_ms, step)
                  for name, value, time_ms, step in entry.thinned().itertuples(index=False, name=None)]  # fmt: skip
        params = [Param(*item) for item in entry.params.items()]
        self._client.log_batch(run_id, metrics=points, params=params, tags=[RunTag(*item) for item in tags.items()])
        if entry.data:
            context = [InputTag("mlflow.data.context", "training")]
            self._client.log_inputs(run_id, datasets=[DatasetInput(Dataset(**entry.data), context)])
        for path in entry.files:
            self._client.log_artifact(run_id, str(path), FOLDERS.get(path.suffix))
        if entry.finished_ms is None:  # the run is training; MLflow may have another status after an earlier stop
            self._client.update_run(run_id, status="RUNNING")
        else:
            self._client.set_terminated(run_id, entry.status, end_time=entry.finished_ms)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
