"""The MLflow UI in a real browser: experiments, parents and children, curves, seeds beside each other, artefacts."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from fixtures.chromium import browser, needed
from fixtures.ports import free_ports
from fixtures.rows import make_run, model, write_csv

from formerlab.results.stages import TABLES
from formerlab.tracking.address import landing
from formerlab.tracking.mlflow import sync

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mlflow")]
SECONDS = 300
CELLS = "[...document.querySelectorAll('[role=gridcell][col-id*=\"Run Name\"]')]"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A study of two configurations with two seeds, one of them with a long curve, and what they drew."""
    needed()
    place = tmp_path_factory.mktemp("ui")
    root, figures = place / "results/live/laptop", place / "figures/live/laptop"
    for seed in (0, 1):
        make_run(root, "denseformer", "plain-8", seed, spec=model(8))
        make_run(root, "denseformer", "plain-16", seed, spec=model(16))
    rows = [(step, step, 3.0 + 1 / step, 0.1, 1.0) for step in range(1, 5001)]
    write_csv(root / "denseformer/plain-8/seed0/train.csv", TABLES["train.csv"].required, rows)
    figures.mkdir(parents=True)
    (figures / "denseformer_table.md").write_text("# a table of the study")
    (figures / "claims.csv").write_text(
        "claim,kind,outcome,verdict,changed,ours,reason,holm_p\n"
        "denseformer-a,measured,agrees,agrees at laptop,,gap = 0.1,,0.03\n"
    )
    sync(root, f"sqlite:///{place}/mlflow.db")
    return place


@pytest.fixture(scope="module")
def address(place):
    """Where the server answers."""
    (port,) = free_ports(1)
    uri = f"sqlite:///{place}/mlflow.db"
    words = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--port", str(port), "--workers", "1"]
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(place / "server.log", "w") as log:
        server = subprocess.Popen(words, cwd=place, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + SECONDS
            while not answers(port):
                assert server.poll() is None, (place / "server.log").read_text()
                assert time.monotonic() < deadline, (place / "server.log").read_text()
                time.sleep(0.3)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGTERM)  # it has workers of its own
            server.wait(60)


def answers(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def page(address, tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def runs(place):
    """The experiment's id and the runs' ids by key."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{place}/mlflow.db")
    experiment = client.get_experiment_by_name("formerlab/laptop/denseformer").experiment_id
    found = client.search_runs([experiment])
    return experiment, {run.data.tags["formerlab.key"].removeprefix("live/laptop/"): run.info.run_id for run in found}


def see(page, *words):
    """Wait until a reader sees all words."""
    for word in words:
        page.wait(f"document.body && document.body.innerText.includes({json.dumps(word)})")


def test_the_link_lands_on_configurations_sorted_by_held_out_loss(page, address, place):
    page.open(address + landing(f"sqlite:///{place}/mlflow.db", "laptop", ["denseformer"]))
    see(page, "plain-8", "plain-16", "Sort: test/loss_nats")
    names = page.evaluate(f"{CELLS}.map(cell => cell.innerText.trim())")
    assert not [name for name in names if "seed" in name]


def test_the_chart_view_opens_on_curves(page, address, place):
    page.open(address + landing(f"sqlite:///{place}/mlflow.db", "laptop", ["denseformer"]) + "&compareRunsMode=CHART")
    page.wait("document.querySelectorAll('.js-plotly-plot .scatterlayer .trace path').length > 1")
    charts = page.evaluate("document.querySelector('[data-testid=experiment-view-compare-runs-chart-area]').innerText")
    assert charts.index("valid/loss_nats") < charts.index("train/loss_nats") < charts.index("cost")


def test_seeds_fold_out_below_their_configuration(page, address, runs):
    experiment, _ = runs
    page.open(f"{address}/#/experiments/{experiment}/runs?orderByKey=attributes.start_time&orderByAsc=false")
    see(page, "plain-8")
    expander = f"{CELLS}.find(cell => cell.querySelector('a')?.innerText.trim() === 'plain-8')?.querySelector('button')"
    page.wait(expander)
    page.evaluate(f"{expander}.click()")
    see(page, "seed0", "seed1")


def test_a_run_has_its_curve_and_artefacts_open(page, address, runs):
    experiment, ids = runs
    run = ids["denseformer/plain-8/seed0"]
    curve = "metric=%22train/loss_nats%22&plot_metric_keys=[%22train/loss_nats%22]"
    page.open(f"{address}/#/metric?runs=[%22{run}%22]&experiments=[%22{experiment}%22]&{curve}")
    see(page, "plain-8 seed0", "train/loss_nats", "3 (step=5000)", "4 (step=1)")
    page.wait("document.querySelector('.js-plotly-plot .scatterlayer .trace path')")
    page.open(f"{address}/#/experiments/{experiment}/runs/{run}/artifacts")
    see(page, "run.json", "test.csv")
    page.open(f"{address}/#/experiments/{experiment}/runs/{ids['denseformer']}/artifacts")
    see(page, "denseformer_table.md", "claims.csv")
