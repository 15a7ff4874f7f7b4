"""Three real runs in the DAG, and the remaining outputs after a failure."""

import json
import re
import shutil

import pandas as pd
import pytest
from fixtures.checkout import Checkout, figures_of_runs

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dag_of_real_jobs")]

TINY = """
studies: [tokenformer]
tracking_uri: ""
scale.data.text:
  source: {kind: files, paths: [words.txt], documents: paragraph}
  tokenizer: {vocabulary: 270}
  questions: 0
scale.studies.tokenformer.only: [transformer-2, tokenformer-1, grown-zero-keep-2]
tokenformer: {steps: 4, evaluate_every: 2, log_every: 2}
"""

RUNS = [f"tokenformer/{run}/seed0" for run in ("transformer-2", "tokenformer-1", "grown-zero-keep-2")]


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory):
    """Return a checkout after three real runs of four steps on a small synthetic text."""
    checkout = Checkout(tmp_path_factory.mktemp("tiny"))
    paragraphs = [" ".join(f"w{i * j % 97}" for j in range(60)) for i in range(400)]
    (checkout.root / "words.txt").write_text("\n\n".join(paragraphs))
    (checkout.root / "tiny.yaml").write_text(TINY)
    checkout.edit("config.yaml", "scale: laptop", "scale: smoke\noverlay: tiny.yaml")
    result = checkout.snakemake("--cores", "2")
    assert result.returncode == 0, result.stderr
    return checkout


def test_real_runs_write_all_files_and_no_job_remains(finished_runs):
    results = finished_runs.root / "results/live/smoke"
    records = [json.loads((results / run / "run.json").read_text()) for run in RUNS]
    assert [record["status"] for record in records] == ["finished"] * 3
    assert records[2]["init"]["weights_sha256"] == records[1]["weights_sha256"]
    assert {path.name for path in (finished_runs.root / "figures/live/smoke").iterdir()} >= {"tokenformer_cost.pdf"}
    assert json.loads((results / "mlflow.json").read_text())["status"] == "off"
    assert finished_runs.to_do() == set()


def test_a_moved_checkout_reruns_no_job_and_renders_missing_figures(finished_runs, monkeypatch):
    old_root, new_root = finished_runs.root, finished_runs.root.with_name("elsewhere")
    old_root.rename(new_root)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(finished_runs, "root", new_root)
            patch.setitem(finished_runs.environment, "PYTHONPATH", str(new_root / "src"))
            patch.setitem(finished_runs.environment, "XDG_CACHE_HOME", str(new_root / "cache"))
            assert finished_runs.to_do() == set()
            figure = "figures/live/smoke/tokenformer_cost.pdf"
            (new_root / figure).unlink()
            assert finished_runs.snakemake("--cores", "1", "--", figure).returncode == 0
            assert (new_root / figure).exists()
    finally:
        new_root.rename(old_root)


def test_a_failed_figure_keeps_its_files_and_is_rendered_again(finished_runs):
    """SOURCE_DATE_EPOCH is after the year 9999.

    PDF cannot store this year, so every figure fails, and tables succeed.
    """
    figures = finished_runs.root / "figures/live/smoke"
    pictures = {path: path.read_bytes() for path in figures.glob("tokenformer_*.png")}
    (figures / "tokenformer_cost.csv").unlink()
    result = finished_runs.snakemake("--cores", "1", SOURCE_DATE_EPOCH="1000000000000")
    assert result.returncode == 1
    number = re.search(r"(\d+) of the figures and tables could not be rendered", result.stderr)[1]
    assert "status says why; the same command renders them again" in result.stderr
    assert "warning: tokenformer_" in result.stderr
    assert {path: path.read_bytes() for path in pictures} == pictures
    assert (figures / "tokenformer_cost.csv").read_text() == "source\n"
    assert len(list(figures.glob(".*.failed"))) == int(number)
    assert finished_runs.snakemake("--cores", "1").returncode == 0
    assert (figures / "tokenformer_cost.csv").read_text().startswith("source,")
    assert finished_runs.to_do() == set()


def test_after_a_failure_all_other_jobs_finish_and_the_failed_job_is_named(finished_runs):
    weights = finished_runs.root / "results/live/smoke" / RUNS[1] / "weights.safetensors"
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    shutil.rmtree(finished_runs.root / "figures")
    changes = {f"tokenformer.runs.{run}.optimizer.lr": 1.0e-3 for run in ("transformer-2", "grown-zero-keep-2")}
    result = finished_runs.snakemake("--cores", "2", "--keep-going", config={"set": changes})
    assert result.returncode == 1
    output = result.stdout + result.stderr
    lines = [line for line in output.splitlines() if line.startswith(f"train  {RUNS[2]}  failed  ")]
    assert len(lines) == 1
    assert lines[0].endswith(f"; log logs/smoke/train/{RUNS[2]}.log")
    assert "Finished work is saved; the same command continues where this one stopped." in output
    record = json.loads((finished_runs.root / "results/live/smoke" / RUNS[0] / "run.json").read_text())
    assert record["spec"]["optimizer"]["lr"] == 1.0e-3
    old_record = json.loads((finished_runs.root / "results/live/smoke" / RUNS[2] / "run.json").read_text())
    # the old finished run stays on disk, and figures leave it out
    assert old_record["spec"]["optimizer"]["lr"] != 1.0e-3
    table = pd.read_csv(finished_runs.root / "figures/live/smoke/tokenformer_table.csv")
    assert table[table["source"] == "ours"]["run"].nunique() == 2
    weights.write_bytes(intact)
    # the plan has no zero-shot questions
    figures = figures_of_runs("tokenformer/grown-zero-keep-2") - {"draw_tokenformer_zeroshot"}
    assert finished_runs.to_do(config={"set": changes}) == {
        f"train {RUNS[2]}",
        *figures,
        "claims",
        "runs",
        "track",
        "all",
    }
