"""Rows of runs -> MLflow. One writer, beside training, which neither waits for tracking nor fails with it.

The database is a product of results/ that can be thrown away and written again. Each study at a scale is an
experiment: an MLflow run with its figures, one per configuration, and below that one per seed. An MLflow run is found
again by the tag `formerlab.key`, left alone while the tag `formerlab.content` equals the hash of what it holds, and
else updated. That tag is written last, so what an interrupted sync left half done is done again.
"""

import json
import logging
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from formerlab.errors import UserError, reason
from formerlab.files import locked
from formerlab.progress import Progress
from formerlab.results.read import Results, read_run
from formerlab.results.stages import MAKING
from formerlab.tracking.rows import (
    FOLDERS,
    Entry,
    configuration_entry,
    content_of,
    picture,
    seed_entry,
    study_entry,
    unfinished,
)

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
VIEW = "formerlab"
"""Name of the view that each of our experiments has: configurations by held-out loss, and what a run costs."""
_SHOWN = ("test/loss_nats", "training/TFLOP_with_ancestors", "training/minutes", "weights/million_parameters")
LAYOUT = "layout 2, "
"""Version of names of metrics and of folders of artifacts; what was written in another one is written anew."""
TRAINING_VIEW = "workflowType=machine_learning"
"""Part of an address; without it MLflow's page opens in its view for agents, whatever the kind of the experiment."""
_CURVES = ("valid/loss_nats", "train/loss_nats")
"""The charts that stand first; MLflow adds one for every other metric below them."""


_DAMAGED = ("disk image is malformed", "file is not a database")
"""What SQLite says of a file that it cannot read."""


def sync(root: Path, uri: str, figures: Path, *, weights: bool = False) -> dict[str, Any]:
    """Bring MLflow at `uri` up to date with the runs in `root` (results/<tree>/<scale>), those that train included.

    Repeating it changes nothing. `figures` is the folder with the drawn figures and tables. With `weights` those of
    finished runs become artifacts too.
    Returns what was done, and under `refused` which runs have damaged rows. Raises UserError where anything else goes
    wrong; whoever calls turns that into a warning.
    """

    def unreadable(stage: str, name: str) -> str:
        """Refuse a run whose record cannot be read; the others are tracked all the same."""
        path = root / name / "run.json"
        if stage in MAKING and path.exists():
            try:
                read_run(path)
            except UserError as error:
                return str(error)
        return ""

    lock = root / ".mlflow.lock"
    training = unfinished(root)  # read first: what finishes meanwhile is among the results
    results = Results(root, unreadable)
    with locked(lock, lambda: f"{lock}: another sync of these results is running; wait for it and sync again"):
        try:
            store = _Store(uri, root, weights=weights)
            return {"status": "ok", "uri": uri} | _sync(results, training, store, figures)
        except UserError:
            raise
        except Exception as error:  # whatever MLflow, its database or the network throws
            damaged = uri.startswith("sqlite:") and any(words in str(error) for words in _DAMAGED)
            remedy = f"delete {client_of(uri)[1]} and sync again" if damaged else "sync again"
            raise UserError(f"tracking at {uri} failed ({reason(error)}); results are complete, {remedy}") from None


def _sync(results: Results, training: list[dict[str, Any]], store: "_Store", figures: Path) -> dict[str, Any]:
    finished, refused = results.records(), results.left_out()
    known = {record["id"] for record in finished}
    records = [*finished, *(one for one in training if one["id"] not in known)]
    records.sort(key=itemgetter("study", "run", "seed"))
    with Progress(len(records), "track", unit="run", delay=2) as progress:
        for study, of_study in groupby(records, itemgetter("study")):
            store.open(results.scale, study)
            entry = study_entry(results.scale, study, figures)
            if entry.files:
                store.upsert([study], content_of(entry.tags, entry.files), partial(lambda made: made, entry))
            for _, of_run in groupby(of_study, itemgetter("run")):
                seeds = list(of_run)
                try:
                    _configuration(results, store, seeds, picture(figures, seeds[0]))
                except UserError as error:  # rows of one run are damaged; the others are wanted
                    refused.append(str(error))
                progress.advance(len(seeds))
    return {"runs": len(records), **store.done, "refused": refused}


def _configuration(
    results: Results, store: "_Store", records: Sequence[dict[str, Any]], figure: Sequence[Path]
) -> None:
    """Upsert a configuration and its seeds; their rows are read only where something changed."""
    files = [sorted((results.root / record["id"]).glob("[!.]*.json")) for record in records]
    contents = list(map(content_of, records, files))
    seeds = [cache(partial(seed_entry, results, record)) for record in records]
    study, run = records[0]["study"], records[0]["run"]
    parent = store.upsert(
        [study, run], content_of(contents, figure), lambda: configuration_entry(run, [one() for one in seeds], figure)
    )
    for record, content, seed in zip(records, contents, seeds, strict=True):
        identity = store.upsert([record["id"]], content, seed, parent)
        if "weights_sha256" in record:
            store.log_weights(identity, results.root / record["id"] / "weights.safetensors", record["weights_sha256"])


def client_of(uri: str) -> tuple[Any, Path | None]:
    """Return MLflow's client, and the file of a sqlite URI, absolute, its folder made; none for a server."""
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
    """Return, for each of these studies that was tracked, the part of the UI's address that opens our view of it."""
    client, _ = client_of(uri)
    experiments = {study: client.get_experiment_by_name(f"formerlab/{scale}/{study}") for study in studies}
    return {
        study: f"/#/experiments/{experiment.experiment_id}/runs?viewStateShareKey={VIEW}&{TRAINING_VIEW}"
        for study, experiment in experiments.items()
        if experiment
    }


def _view() -> dict[str, Any]:
    """Return what the page of an experiment shows, as MLflow's own page writes it: sorting, columns and charts."""
    card = {"type": "LINE", "metricSectionId": "loss", "runsCountToCompare": 10, "deleted": False, "isGenerated": True}
    card |= {"xAxisKey": "step", "xAxisScaleType": "linear", "scaleType": "linear", "yAxisKey": "metric", "range": {}}
    card |= {"yAxisExpressions": [], "lineSmoothness": 0, "useGlobalXaxisKey": True, "useGlobalLineSmoothing": True}
    section = {"uuid": "loss", "name": "loss", "display": True, "isReordered": True, "columns": len(_CURVES)}
    return {
        "orderByKey": "metrics.`test/loss_nats`",
        "orderByAsc": True,
        "searchFilter": "tags.`formerlab.level` != 'run'",  # sorted by a metric, MLflow lists all runs flat
        "selectedColumns": [f"metrics.`{name}`" for name in _SHOWN],
        "compareRunCharts": [card | {"uuid": name, "metricKey": name, "displayName": name} for name in _CURVES],
        "compareRunSections": [section],
        "isAccordionReordered": True,
    }


class _Store:
    """MLflow, as far as it is needed."""

    def __init__(self, uri: str, root: Path, *, weights: bool) -> None:
        self._client, self._database = client_of(uri)
        self._experiment, self._known, self._weights = "", dict[str, Any](), weights
        if self._database:
            self._prefix = os.path.relpath(root.resolve(), self._database.parent.resolve()).removeprefix("results/")
        else:  # a server may have the runs of several people and checkouts
            self._prefix = f"{os.getuid()}:{root.resolve()}"
        self.done: dict[str, list[str]] = {"created": [], "updated": [], "unchanged": []}

    def open(self, scale: str, study: str) -> None:
        """Turn to the experiment of a study, made or restored; describe it, and read what it holds."""
        name = f"formerlab/{scale}/{study}"
        # A server stores artifacts itself; beside a file they lie in a folder, whatever the working directory is.
        folder = (self._database.parent / "mlartifacts" / name).as_uri() if self._database else None
        found = self._client.get_experiment_by_name(name)
        if found is None:
            self._experiment = str(self._client.create_experiment(name, artifact_location=folder))
        elif folder in (None, found.artifact_location):
            self._experiment = str(found.experiment_id)
        else:
            raise UserError(f"{self._database}: was written in another folder; delete it and sync again")
        if found is not None and found.lifecycle_stage != "active":
            self._client.restore_experiment(self._experiment)
        note = (
            f"Study {study} at scale {scale}. A row is a configuration, with means over its seeds. Clear the search "
            f"field to see every seed. The row *{study}: figures, tables, claims* has the pictures as artifacts."
        )
        tags = {"mlflow.experimentKind": "custom_model_development", "mlflow.note.content": note}
        for key, value in (tags | {f"mlflow.sharedViewState.{VIEW}": json.dumps(_view())}).items():
            self._client.set_experiment_tag(self._experiment, key, value)
        self._known = {}
        for run in self._client.search_runs([self._experiment], max_results=50_000):  # the most that MLflow takes
            key = run.data.tags.get("formerlab.key", "")
            if key and key in self._known:  # an experiment is restored with all that was ever deleted in it
                self._remove(run)
            self._known.setdefault(key, run)

    def upsert(self, names: Sequence[str], content: str, build: Callable[[], Entry], parent: str = "") -> str:
        """Make sure that an entry is there, once and with its present content; return the id of its MLflow run.

        A run that has grown is updated. MLflow does not take back metrics and parameters: one that has others than the
        entry is removed and written anew.
        """
        key, content = "/".join([self._prefix, *names]), LAYOUT + content
        found = self._known.get(key)
        if found is not None and found.data.tags.get("formerlab.content") == content:
            self.done["unchanged"].append(key)
            if found.data.tags.get("mlflow.parentRunId", "") != parent:
                self._client.set_tag(found.info.run_id, "mlflow.parentRunId", parent)
            return str(found.info.run_id)
        entry = build()
        self.done["created" if found is None else "updated"].append(key)
        values = {(name, _rounded(value)) for name, value in entry.points[["name", "value"]].to_numpy()}
        grown = (
            found is not None
            and found.data.tags.get("formerlab.content", LAYOUT).startswith(LAYOUT)
            and found.data.params.items() <= entry.params.items()
            and found.data.metrics.items() <= values
        )
        if found is not None and not grown:
            self._remove(found)
            found = None
        run = found or self._client.create_run(self._experiment, start_time=entry.started_ms)
        identity = str(run.info.run_id)
        tags = entry.tags | {"formerlab.key": key} | ({"mlflow.parentRunId": parent} if parent else {})
        for name in run.data.tags.keys() - tags.keys():
            if name.startswith("claim."):
                self._client.delete_tag(identity, name)
        # Each attempt at training has a start of its own; curves go on from the one that MLflow has.
        self._write(identity, entry, tags, run.info.start_time - entry.started_ms)
        self._client.set_tag(identity, "formerlab.content", content)
        return identity

    def log_weights(self, identity: str, path: Path, digest: str) -> None:
        """Log the weights of a run once, if they are wanted and there."""
        if not self._weights or not path.exists():
            return
        if self._client.get_run(identity).data.tags.get("formerlab.weights") != digest:
            self._client.log_artifact(identity, str(path))
            self._client.set_tag(identity, "formerlab.weights", digest)

    def _remove(self, run: Any) -> None:
        """Delete an MLflow run: for good with its artifacts in a database of our own, into the trash of a server.

        The command `mlflow gc` does the same, but takes the experiments that somebody deleted too.
        """
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        self._client.delete_run(run.info.run_id)
        if self._database:
            get_artifact_repository(run.info.artifact_uri).delete_artifacts()  # type: ignore[no-untyped-call]
            self._client._tracking_client.store._hard_delete_run(run.info.run_id)

    def _write(self, identity: str, entry: Entry, tags: dict[str, str], later_ms: int) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

        points = [Metric(name, _rounded(value), at + later_ms, step)
                  for name, value, at, step in entry.thinned().itertuples(index=False, name=None)]  # fmt: skip
        params, said = ([kind(*item) for item in one.items()] for kind, one in ((Param, entry.params), (RunTag, tags)))
        self._client.log_batch(identity, metrics=points, params=params, tags=said)
        if entry.data:
            context = [InputTag("mlflow.data.context", "training")]
            self._client.log_inputs(identity, datasets=[DatasetInput(Dataset(**entry.data), context)])
        for path in entry.files:
            self._client.log_artifact(identity, str(path), FOLDERS.get(path.suffix))
        if entry.finished_ms is None:  # it goes on, maybe after a stop
            self._client.update_run(identity, status="RUNNING")
        else:
            self._client.set_terminated(identity, entry.status, end_time=entry.finished_ms)


def _rounded(value: float) -> float:
    """Return a number as people read it; the rows among the artifacts have all its digits."""
    return float(f"{value:.4g}")
