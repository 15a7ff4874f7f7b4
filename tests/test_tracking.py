"""Rows in MLflow are complete, without duplicates and without secrets."""

import fcntl
import json
import shutil
import sqlite3
from contextlib import suppress
from urllib.parse import parse_qsl

import pytest
import sqlalchemy
from fixtures.ports import free_ports
from fixtures.rows import make_decay, make_run, model, write_csv

from formerlab.__main__ import main
from formerlab.errors import StoppedEarly, UserError
from formerlab.results.notes import stage_note
from formerlab.results.read import Results, flatten
from formerlab.results.stages import TABLES
from formerlab.results.write import hashes_of_rows
from formerlab.tracking.mlflow import pages, sync
from formerlab.tracking.rows import MAX_POINTS, seed_entry

pytestmark = pytest.mark.xdist_group("mlflow")
PLAIN = "live/laptop/denseformer/plain-8"


@pytest.fixture(scope="module")
def synced_results(tmp_path_factory):
    """Write two studies and a figure, and sync them; return their folder and the outcome of the sync."""
    folder = tmp_path_factory.mktemp("tracking")
    root = folder / "results/live/laptop"
    make_run(root, "denseformer", "plain-8", 0, spec=model(8))
    make_run(root, "denseformer", "plain-8", 1, spec=model(8))
    wide = make_run(root, "denseformer", "plain-16", 0, spec=model(16), status="diverged", diverged_at_step=7)
    settings = {f"k{i}": i for i in range(150)} | {"a,b": "x" * 9000}
    change(wide / "run.json", lambda record: record["spec"].update(settings))
    make_decay(root)
    figures = folder / "figures/live/laptop"
    figures.mkdir(parents=True)
    (figures / "denseformer_depth.png").write_bytes(b"picture")
    (figures / "denseformer_depth.rst").write_text("caption, of the figure")
    return folder, synced(folder)


@pytest.fixture
def root(synced_results):
    """Return the folder of both studies after a sync."""
    synced(synced_results[0])
    return synced_results[0]


def change(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def synced(root):
    return sync(root / "results/live/laptop", f"sqlite:///{root}/mlflow.db", root / "figures/live/laptop")


def active(root, study="denseformer"):
    """Return the MLflow runs of a study by key."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    experiment = client.get_experiment_by_name(f"formerlab/laptop/{study}")
    runs = client.search_runs([experiment.experiment_id])
    by_key = {run.data.tags["formerlab.key"]: run for run in runs}
    assert len(by_key) == len(runs), "no key appears twice"
    return client, by_key


def artifacts(client, run):
    """Return the paths of the artifacts of an MLflow run."""
    entries = client.list_artifacts(run.info.run_id)
    nested = [
        file for folder in entries if folder.is_dir for file in client.list_artifacts(run.info.run_id, folder.path)
    ]
    return [file.path for file in (*entries, *nested) if not file.is_dir]


def counts(root):
    client, runs = active(root)
    child = runs[f"{PLAIN}/seed0"]
    history = client.get_metric_history(child.info.run_id, "train/loss_nats")
    return len(runs), len(history), len(child.data.params), len(artifacts(client, child))


def test_sync_is_complete_and_has_no_duplicates(synced_results, root, monkeypatch):
    outcome = synced_results[1]
    runs = len(list((root / "results/live/laptop").glob("*/*/seed*")))
    # plus one entry per configuration, and one entry for the study and its figures
    entries = runs + len(list((root / "results/live/laptop").glob("*/*/"))) + 1
    assert (outcome["status"], outcome["runs"], len(outcome["created"])) == ("ok", runs, entries)
    counts_before = counts(root)
    monkeypatch.setattr("formerlab.results.read.read_rows", lambda *_: pytest.fail("rows are read again"))
    again = synced(root)
    assert (again["created"], again["updated"], len(again["unchanged"])) == ([], [], entries)
    record = json.loads((root / "results/live/laptop/denseformer/plain-8/seed0/run.json").read_text())
    assert counts(root) == counts_before == (6, 20, len(flatten(record["spec"])), 6)
    assert len(active(root)[1]["live/laptop/denseformer/plain-16/seed0"].data.params) > 150


def test_seeds_are_children_of_their_configuration_with_mean_metrics(root):
    client, runs = active(root)
    top, middle = runs["live/laptop/denseformer"], runs[PLAIN]
    children = [runs[f"{PLAIN}/seed{seed}"] for seed in (0, 1)]
    assert all(child.data.tags["mlflow.parentRunId"] == middle.info.run_id for child in children)
    assert not {"mlflow.parentRunId"} & (middle.data.tags.keys() | top.data.tags.keys())
    for run in (top, middle):
        assert artifacts(client, run) == ["figures/denseformer_depth.png"]
    losses = [child.data.metrics["test/loss_nats"] for child in children]
    assert middle.data.metrics["test/loss_nats"] == pytest.approx(sum(losses) / 2, rel=1e-3)
    curves = [client.get_metric_history(run.info.run_id, "train/loss_nats") for run in (middle, *children)]
    assert len(curves[0]) == len(curves[1]) > 1
    for mean, *ours in zip(*curves, strict=True):
        assert mean.value == pytest.approx(sum(point.value for point in ours) / 2, rel=1e-3)
        assert {point.step for point in ours} == {mean.step}
    assert middle.data.tags["mlflow.source.git.commit"] == "a" * 40
    assert runs["live/laptop/denseformer/plain-16/seed0"].info.status == "FAILED"


def test_pages_have_links_to_tracked_studies_sorted_by_loss(root):
    client, runs = active(root)
    experiment = client.get_experiment_by_name("formerlab/laptop/denseformer")
    addresses = pages(f"sqlite:///{root}/mlflow.db", "laptop", ["tokenformer", "denseformer", "decay"])
    assert list(addresses) == ["denseformer", "decay"]
    page, _, query = addresses["denseformer"].partition("?")
    assert page == f"/#/experiments/{experiment.experiment_id}/runs"
    parameters = dict(parse_qsl(query))
    assert (parameters["workflowType"], parameters["orderByAsc"]) == ("machine_learning", "true")
    assert pages(f"sqlite:///{root}/mlflow.db", "smoke", ["denseformer"]) == {}
    listed = client.search_runs(
        [experiment.experiment_id],
        filter_string=parameters["searchFilter"],
        order_by=[f"{parameters['orderByKey']} ASC"],
    )
    losses = [run.data.metrics["test/loss_nats"] for run in listed if "test/loss_nats" in run.data.metrics]
    assert len(losses) > 1
    assert losses == sorted(losses)
    assert min(runs[PLAIN].data.metrics) == "test/loss_nats"  # MLflow lists metrics by name
    assert {run.data.tags["formerlab.level"] for run in listed} == {"configuration", "study"}


def test_a_run_has_metrics_tags_and_data(root):
    client, runs = active(root)
    for key in (PLAIN, f"{PLAIN}/seed0"):
        (used,) = client.get_run(runs[key].info.run_id).inputs.dataset_inputs
        assert (used.dataset.name, used.dataset.digest) == ("text", "00112233445566778899aabbccddeeff")
        assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "training")]
    child = runs[f"{PLAIN}/seed0"]
    assert child.data.params["model.layers"] == "8"
    assert child.data.tags["mlflow.source.git.commit"] == "a" * 40
    assert child.data.tags["formerlab.host"] == "synthetic-host"
    assert child.data.tags["formerlab.data_fingerprint"] == "00112233445566778899aabbccddeeff"
    assert child.data.metrics["weights/million_parameters"] == 0.25
    assert child.data.metrics["training/TFLOP"] == 1.0
    assert child.data.metrics["training/minutes"] == 0.1667
    assert all(value == float(f"{value:.4g}") for value in child.data.metrics.values())
    _, pruned = active(root, "decay")
    metrics = pruned["live/laptop/decay/decoder/seed0"].data.metrics
    assert "prune/decay/alpha 0.2/recent 0/budget 0.1/loss_nats" in metrics
    assert "prune/h2o variant_local_statistics/recent 0.5/budget 0.1/loss_nats" in metrics


def test_verdicts_are_searchable_tags(root):
    """The verdicts are tags of the study. Claims of other studies are not added as tags."""
    figures = root / "figures/live/laptop"
    rows = [
        "claim,kind,outcome,verdict,changed,ours,reason,holm_p",
        "denseformer-a,measured,agrees,agrees at laptop,changed in version 2,gap = 0.1,,0.03",
        "denseformer-b,measured,not_tested,not tested,,,withdrawn: taken at another time,",
        "decay-c,measured,contradicts,contradicts,,,,",
    ]
    (figures / "claims.csv").write_text("\n".join(rows) + "\n")
    (figures / "claims.html").write_text("<p>claims</p>")
    assert "live/laptop/denseformer" in synced(root)["updated"]
    client, runs = active(root)
    experiment = runs["live/laptop/denseformer"].info.experiment_id
    (top,) = client.search_runs([experiment], filter_string="tags.`claim.denseformer-a` = 'agrees'")
    assert top.data.tags["claim.denseformer-a.ours"] == "gap = 0.1"
    assert top.data.tags["claim.denseformer-b.reason"] == "withdrawn: taken at another time"
    assert "claim.decay-c" not in top.data.tags
    assert {"tables/claims.csv", "tables/claims.html"} <= set(artifacts(client, top))
    for name in ("claims.csv", "claims.html"):
        (figures / name).unlink()
    synced(root)
    assert not [tag for tag in active(root)[1]["live/laptop/denseformer"].data.tags if tag.startswith("claim.")]


def test_a_changed_run_is_replaced(root):
    folder = root / "results/live/laptop/denseformer/plain-8/seed0"
    for loss, layers in ((1.0, 6), (2.0, 8)):
        write_csv(folder / "test.csv", TABLES["test.csv"].required, [(0, 64, loss)])
        change(folder / "run.json", lambda record, n=layers: record["spec"]["model"].update(layers=n))
        assert synced(root)["updated"] == [PLAIN, f"{PLAIN}/seed0"]
        _, after = active(root)
        assert after[f"{PLAIN}/seed0"].data.metrics["test/loss_nats"] == loss
        assert after[f"{PLAIN}/seed0"].data.params["model.layers"] == str(layers)
        assert after[f"{PLAIN}/seed1"].data.tags["mlflow.parentRunId"] == after[PLAIN].info.run_id


def test_a_run_with_an_older_layout_is_replaced(root):
    client, runs_before = active(root)
    top = runs_before["live/laptop/denseformer"].info.run_id
    client.log_text(top, "picture", "denseformer_depth.png")
    client.set_tag(top, "formerlab.content", "a hash without its layout")
    synced(root)
    client, runs_after = active(root)
    assert artifacts(client, runs_after["live/laptop/denseformer"]) == ["figures/denseformer_depth.png"]
    assert set(runs_after) == set(runs_before)


def test_deleted_and_incomplete_runs_are_restored(root):
    client, runs_before = active(root)
    client.delete_run(runs_before[f"{PLAIN}/seed1"].info.run_id)
    client.delete_tag(runs_before["live/laptop/denseformer/plain-16/seed0"].info.run_id, "formerlab.content")
    outcome = synced(root)
    assert outcome["created"] == [f"{PLAIN}/seed1"]
    assert outcome["updated"] == ["live/laptop/denseformer/plain-16/seed0"]
    assert set(active(root)[1]) == set(runs_before)
    client.delete_experiment(runs_before[PLAIN].info.experiment_id)
    for _ in range(2):
        assert synced(root)["status"] == "ok"
        assert set(active(root)[1]) == set(runs_before)


def test_damaged_rows_are_refused_and_the_others_tracked(tmp_path):
    root = tmp_path / "results/live/laptop"
    for run in ("plain", "other"):
        folder = make_run(root, "denseformer", run)
        hashes = hashes_of_rows(folder, ["test.csv"])
        change(folder / "run.json", lambda record, hashes=hashes: record.update(rows_sha256=hashes))
    (root / "denseformer/plain/seed0/test.csv").unlink()
    (make_run(root, "denseformer", "damaged") / "run.json").write_text("[]")
    outcome = synced(tmp_path)
    assert len(outcome["created"]) == 2
    damaged, incomplete = outcome["refused"]
    assert "damaged/seed0/run.json: is not a JSON object" in damaged
    assert "plain/seed0/test.csv: missing" in incomplete


def test_an_unfinished_run_is_tracked_as_running_and_continued(tmp_path):
    root = tmp_path / "results/live/laptop"
    folder, key = make_run(root, "denseformer", "plain"), "live/laptop/denseformer/plain"
    rows = {name: (folder / name).read_text() for name in ("run.json", "test.csv", "train.csv")}
    for name in ("run.json", "test.csv"):
        (folder / name).unlink()
    (folder / "train.csv").write_text("".join(rows["train.csv"].splitlines(keepends=True)[:11]))
    (folder / "run.yaml").write_text(json.dumps(json.loads(rows["run.json"])["spec"]))
    data = root / "data" / json.loads(rows["run.json"])["data"]["name"]
    with suppress(StoppedEarly), stage_note("train", folder):
        assert synced(tmp_path)["created"] == []  # the data are being prepared again
        raise StoppedEarly("time limit")
    data.mkdir(parents=True, exist_ok=True)
    (data / "manifest.json").write_text('{"fingerprint": "00112233445566778899aabbccddeeff", "splits": {}}')

    def sync_and_read():
        synced(tmp_path)
        client, runs = active(tmp_path)
        curve = client.get_metric_history(runs[key].info.run_id, "train/loss_nats")
        (status,) = {runs[name].info.status for name in (key, f"{key}/seed0")}
        return status, [point.step for point in curve], [run.info.run_id for run in runs.values()]

    with suppress(StoppedEarly), stage_note("train", folder):
        assert sync_and_read()[:2] == ("RUNNING", list(range(10, 101, 10)))
        raise StoppedEarly("time limit")
    *stopped, runs = sync_and_read()
    assert stopped == ["KILLED", list(range(10, 101, 10))]
    with suppress(StoppedEarly), stage_note("train", folder):  # another start time
        assert sync_and_read() == ("RUNNING", list(range(10, 101, 10)), runs)
        raise StoppedEarly("time limit")
    for name, text in rows.items():
        (folder / name).write_text(text)
    assert sync_and_read() == ("FINISHED", list(range(10, 201, 10)), runs)


def test_weights_are_logged_once_on_request(tmp_path):
    root = tmp_path / "results/live/laptop"
    folder = make_run(root, "denseformer", "plain")
    (folder / "weights.safetensors").write_bytes(b"weights")
    for weights, logged in ((False, 0), (True, 1), (True, 1), (False, 1)):
        sync(root, f"sqlite:///{tmp_path}/mlflow.db", tmp_path, weights=weights)
        files = list(tmp_path.glob("mlartifacts/**/weights.safetensors"))
        assert [path.read_bytes() for path in files] == [b"weights"] * logged
    assert active(tmp_path)[1]["live/laptop/denseformer/plain/seed0"].data.tags["formerlab.weights"] == "1" * 64


def test_new_runs_are_tracked_while_the_ui_is_open(tmp_path, monkeypatch):
    results, server = tmp_path / "results/live/laptop", tmp_path / "server"
    make_run(results, "denseformer", "plain")
    server.write_text(f"#!/bin/sh\nwhile ! [ -e '{tmp_path}/mlartifacts' ]; do sleep 0.1; done\n")
    server.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(server))
    monkeypatch.setattr("formerlab.commands.tools.SECONDS_BETWEEN_SYNCS", 0.2)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    plan = {"results": str(results), "figures": str(tmp_path), "tracking_uri": uri, "scale": "laptop", "studies": {}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert main(["ui", "--plan", str(tmp_path / "plan.json"), "--port", str(free_ports(1)[0])]) == 0
    assert "live/laptop/denseformer/plain/seed0" in active(tmp_path)[1]


def test_points_are_thinned_and_get_times_from_files(tmp_path):
    folder = make_run(tmp_path, "denseformer", "long")
    steps = range(1, 5001)
    write_csv(
        folder / "train.csv", TABLES["train.csv"].required, [(step, step, 3.0, 0.1, float("nan")) for step in steps]
    )
    results = Results(tmp_path)
    entry = seed_entry(results, results.records()[0])
    points = entry.thinned().query("name == 'train/loss_nats'")
    assert MAX_POINTS / 2 < len(points) <= MAX_POINTS
    assert points["step"].iloc[[0, -1]].tolist() == [1, 5000]
    assert points["time_ms"].is_monotonic_increasing
    assert entry.points.equals(seed_entry(Results(tmp_path), results.records()[0]).points)
    assert "train/grad_norm" not in set(entry.points["name"])


def test_an_unreachable_server_gives_one_line_without_its_token(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "t0ken-of-the-environment")
    make_run(tmp_path / "laptop", "tokenformer", "tokenformer-1")
    with pytest.raises(UserError) as error:
        sync(tmp_path / "laptop", "http://127.0.0.1:9/path", tmp_path)
    assert str(error.value).startswith("tracking at http://127.0.0.1:9/path failed")
    assert "t0ken" not in str(error.value)
    results = Results(tmp_path / "laptop")
    assert "t0ken" not in repr(seed_entry(results, results.records()[0]))


def test_a_failed_sync_is_counted_and_fails_no_job(tmp_path, monkeypatch, capsys):
    results = tmp_path / "results/live/laptop"
    make_run(results, "denseformer", "plain")
    plan = {
        "results": str(results),
        "figures": str(tmp_path / "figures"),
        "tracking_uri": "sqlite:////proc/no/mlflow.db",
    }

    def tracked(**changes):
        (tmp_path / "plan.json").write_text(json.dumps(plan | changes))
        assert main(["track", "--plan", str(tmp_path / "plan.json")]) == 0
        outcome = json.loads((results / "mlflow.json").read_text())
        return outcome["status"], outcome["failures"]

    (results / "mlflow.json").write_text('{"failures": "many"}')
    assert tracked() == ("failed", 1)
    assert capsys.readouterr().err.startswith("warning: tracking at sqlite:////proc/no/mlflow.db failed (")
    monkeypatch.setattr("formerlab.tracking.mlflow.Results", lambda *_: 1 / 0)  # sync may raise any exception
    assert tracked() == ("failed", 2)
    assert capsys.readouterr().err == "warning: ZeroDivisionError: division by zero\n"
    monkeypatch.undo()
    assert tracked(tracking_uri="") == ("off", 2)
    with open(results / ".mlflow.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert tracked() == ("failed", 3)
    assert "another sync of these results is running" in capsys.readouterr().err


def test_the_message_of_a_damaged_database_says_to_delete_it(tmp_path):
    make_run(tmp_path / "results/live/laptop", "denseformer", "plain")
    database = tmp_path / "mlflow.db"
    synced(tmp_path)
    content = database.read_bytes()
    for damaged in (b"no database at all" * 1000, content[:4096] + b"\xff" * (len(content) - 4096)):
        database.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"results are not affected, delete {database} and sync again"):
            synced(tmp_path)


def test_a_locked_database_and_a_copied_folder_give_one_line_with_a_remedy(tmp_path, monkeypatch):
    old, new = tmp_path / "old", tmp_path / "new copy"
    make_run(old / "results/live/laptop", "denseformer", "plain")
    synced(old)
    shutil.copytree(old, new)
    with pytest.raises(UserError, match=r"copy/mlflow\.db: was written in another folder; delete it"):
        synced(new)
    make_run(old / "results/live/laptop", "denseformer", "another")
    less = {"PRAGMA busy_timeout = 20000;": "PRAGMA busy_timeout = 20;"}  # MLflow waits this many milliseconds
    monkeypatch.setattr(sqlalchemy.sql, "text", lambda words: sqlalchemy.text(less.get(words, words)))
    with sqlite3.connect(old / "mlflow.db") as other:
        other.execute("begin exclusive")
        with pytest.raises(UserError, match=r"database is locked.*sync again"):
            synced(old)
        other.rollback()
    assert len(synced(old)["created"]) == 2
