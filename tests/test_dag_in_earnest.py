"""A few jobs of the DAG in earnest, and what is left when one of them fails."""

import json
import re
import shutil

import pandas as pd
import pytest
from fixtures.checkout import Checkout, drawn_from

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dag_in_earnest")]

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
def tiny(tmp_path_factory):
    """Three runs of four steps on a few made-up words, in earnest."""
    checkout = Checkout(tmp_path_factory.mktemp("tiny"))
    paragraphs = [" ".join(f"w{i * j % 97}" for j in range(60)) for i in range(400)]
    (checkout.root / "words.txt").write_text("\n\n".join(paragraphs))
    (checkout.root / "tiny.yaml").write_text(TINY)
    checkout.edit("config.yaml", "scale: laptop", "scale: smoke\noverlay: tiny.yaml")
    done = checkout.snakemake("--cores", "2")
    assert done.returncode == 0, done.stderr
    return checkout


def test_a_real_run_leaves_every_file_and_then_nothing_to_do(tiny):
    results = tiny.root / "results/live/smoke"
    records = [json.loads((results / run / "run.json").read_text()) for run in RUNS]
    assert [record["status"] for record in records] == ["finished"] * 3
    assert records[2]["init"]["weights_sha256"] == records[1]["weights_sha256"]
    assert {path.name for path in (tiny.root / "figures/live/smoke").iterdir()} >= {"tokenformer_cost.pdf"}
    assert json.loads((results / "mlflow.json").read_text())["status"] == "off"
    assert tiny.to_do() == set()


def test_moved_elsewhere_nothing_runs_again_and_figures_are_redrawn(tiny, monkeypatch):
    home, elsewhere = tiny.root, tiny.root.with_name("elsewhere")
    home.rename(elsewhere)
    try:
        with monkeypatch.context() as there:
            there.setattr(tiny, "root", elsewhere)
            there.setitem(tiny.environment, "PYTHONPATH", str(elsewhere / "src"))
            there.setitem(tiny.environment, "XDG_CACHE_HOME", str(elsewhere / "cache"))
            assert tiny.to_do() == set()
            figure = elsewhere / "figures/live/smoke/tokenformer_cost.pdf"
            figure.unlink()
            assert tiny.snakemake("--cores", "1", "--", "figures/live/smoke/tokenformer_cost.pdf").returncode == 0
            assert figure.exists()
    finally:
        elsewhere.rename(home)


def test_a_figure_that_fails_keeps_its_files_fails_the_call_and_is_rendered_again(tiny):
    """The environment names a year beyond 9999, which no PDF can, so every figure fails and no table."""
    figures = tiny.root / "figures/live/smoke"
    pictures = {path: path.read_bytes() for path in figures.glob("tokenformer_*.png")}
    (figures / "tokenformer_cost.csv").unlink()
    for _ in range(2):
        done = tiny.snakemake("--cores", "1", SOURCE_DATE_EPOCH="1000000000000")
        assert done.returncode == 1
        number = re.search(r"(\d+) of the figures and tables could not be rendered", done.stderr)[1]
        assert "status says why; the same command renders them again" in done.stderr
        assert "warning: tokenformer_" in done.stderr
        assert {path: path.read_bytes() for path in pictures} == pictures
        assert (figures / "tokenformer_cost.csv").read_text() == "source\n"
        assert len(list(figures.glob(".*.failed"))) == int(number)
        assert "draw_tokenformer_cost" in tiny.to_do()
    assert tiny.snakemake("--cores", "1").returncode == 0
    assert (figures / "tokenformer_cost.csv").read_text().startswith("source,")
    assert tiny.to_do() == set()


def test_after_a_failure_the_rest_is_finished_drawn_and_the_failure_is_named(tiny):
    weights = tiny.root / "results/live/smoke" / RUNS[1] / "weights.safetensors"
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    shutil.rmtree(tiny.root / "figures")
    changes = {f"tokenformer.runs.{run}.optimizer.lr": 1.0e-3 for run in ("transformer-2", "grown-zero-keep-2")}
    done = tiny.snakemake("--cores", "2", "--keep-going", config={"set": changes})
    assert done.returncode == 1
    said = done.stdout + done.stderr
    lines = [line for line in said.splitlines() if line.startswith(f"train  {RUNS[2]}  failed  ")]
    assert len(lines) == 1
    assert lines[0].endswith(f"; log logs/smoke/train/{RUNS[2]}.log")
    assert "Finished work is saved; the same command continues where this one stopped." in said
    record = json.loads((tiny.root / "results/live/smoke" / RUNS[0] / "run.json").read_text())
    assert record["spec"]["optimizer"]["lr"] == 1.0e-3
    before = json.loads((tiny.root / "results/live/smoke" / RUNS[2] / "run.json").read_text())
    assert before["spec"]["optimizer"]["lr"] != 1.0e-3, "finished runs stay, and figures exclude them"
    table = pd.read_csv(tiny.root / "figures/live/smoke/tokenformer_table.csv")
    assert table[table["source"] == "ours"]["run"].nunique() == 2
    weights.write_bytes(intact)
    drawn = drawn_from("tokenformer/grown-zero-keep-2") - {"draw_tokenformer_zeroshot"}  # nothing was asked here
    assert tiny.to_do(config={"set": changes}) == {f"train {RUNS[2]}", *drawn, "claims", "runs", "track", "all"}
