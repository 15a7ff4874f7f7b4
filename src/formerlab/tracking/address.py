"""Where MLflow is, without secrets in what is said of it, and what its page of an experiment shows first."""

import json
import os
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from formerlab.errors import UserError

VIEW = "formerlab"
"""Name of the view that each of our experiments has: held-out loss first, and what a run costs."""
SHOWN_COLUMNS = tuple(
    f"metrics.`{name}`"
    for name in (
        *("test/loss_nats", "test/loss_nats_low", "test/loss_nats_high"),
        *("size/million_parameters", "cost/TFLOP_with_ancestors", "cost/training_minutes"),
    )
)
NOT_SEEDS = "tags.`formerlab.level` != 'run'"
"""What the view shows: MLflow lists all runs flat as soon as they are sorted by a metric."""
CURVES = ("valid/loss_nats", "train/loss_nats")
"""The charts that stand first; MLflow adds one for every other metric below them."""
_SECRETS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD")


def experiment_name(scale: str, study: str) -> str:
    """Return the name of the experiment of a study at a scale."""
    return f"formerlab/{scale}/{study}"


def experiment_tags(scale: str, study: str) -> dict[str, str]:
    """Return the tags of an experiment: what it is about, and the view that links to it ask for."""
    note = (
        f"Study {study} at scale {scale}. A row is a configuration, with means over its seeds. Clear the search "
        f"field to see every seed. The row *{study}: figures, tables, claims* has the pictures as artifacts."
    )
    return {
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.note.content": note,
        f"mlflow.sharedViewState.{VIEW}": json.dumps(_view()),
    }


def _view() -> dict[str, Any]:
    """Return what the page of an experiment shows, as MLflow's own page writes it: sorting, columns and charts."""
    axes = {"xAxisKey": "step", "xAxisScaleType": "linear", "scaleType": "linear", "yAxisKey": "metric", "range": {}}
    shared = {"useGlobalXaxisKey": True, "useGlobalLineSmoothing": True, "lineSmoothness": 0, "yAxisExpressions": []}
    card = {"type": "LINE", "metricSectionId": "loss", "runsCountToCompare": 10, "deleted": False, "isGenerated": True}
    charts = [card | axes | shared | {"uuid": name, "metricKey": name, "displayName": name} for name in CURVES]
    section = {"uuid": "loss", "name": "loss", "display": True, "isReordered": True, "columns": len(charts)}
    sorting = {"orderByKey": "metrics.`test/loss_nats`", "orderByAsc": True, "searchFilter": NOT_SEEDS}
    shown = {"selectedColumns": list(SHOWN_COLUMNS), "compareRunCharts": charts, "compareRunSections": [section]}
    return sorting | shown | {"isAccordionReordered": True}


def database_of(uri: str) -> Path | None:
    """Return the file of a sqlite URI, absolute, its folder made; nothing for a server."""
    scheme = urlsplit(uri).scheme
    if scheme == "sqlite":
        path = Path(uri.removeprefix("sqlite:///")).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
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


def redacted(uri: str) -> str:
    """Return the URI without user, password and query."""
    parts = urlsplit(uri)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) if parts.netloc else uri


def without_secrets(text: str, uri: str) -> str:
    """Return a message without the credentials of the URI or the environment."""
    text = text.replace(uri, redacted(uri))
    parts = urlsplit(uri)
    secrets = [parts.password, unquote(parts.password or ""), parts.query, *map(os.environ.get, _SECRETS)]
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return re.sub(r"//[^/@\s]+@", "//***@", text)
