"""The run table lists every finished run with its cost and provenance."""

import pandas as pd
from fixtures.rows import make_run

from formerlab.report.run_table import COLUMNS, costs_by_study, format_text, run_table, write_run_table
from formerlab.results.read import Results


def test_every_run_has_a_row_and_every_study_has_total_costs(tmp_path):
    root = tmp_path / "results/live/laptop"
    for seed in (0, 1):
        make_run(root, "denseformer", "plain-8", seed, flops=1e12)
    make_run(root, "denseformer", "plain-16", status="diverged")
    make_run(root, "tokenformer", "grown", init="tokenformer-1", flops=2e12, inherited=3e12)
    rows = run_table(Results(root))
    assert tuple(rows.columns) == COLUMNS
    assert len(rows) == 4
    by_study = costs_by_study(rows).set_index("study")
    assert by_study.loc["denseformer", ["runs", "diverged", "FLOPs"]].tolist() == [3, 1, "3e+12"]
    assert by_study.loc["tokenformer", "FLOPs"] == "2e+12", "FLOPs of an ancestor count in the study that trained it"
    assert (rows["outside_steps"] == 1 - rows["training_time_s"] / rows["wall_time_s"]).all()
    csv, page = write_run_table(Results(root), tmp_path)
    assert pd.read_csv(csv)["git.commit"].tolist() == ["a" * 40] * 4
    written = page.read_text()
    assert "synthetic processor" in written
    assert "aaaaaaaaaa" in written
    assert "diverged" in written


def test_the_table_is_empty_without_runs(tmp_path):
    (tmp_path / "live/smoke").mkdir(parents=True)
    assert len(run_table(Results(tmp_path / "live/smoke"))) == 0
    write_run_table(Results(tmp_path / "live/smoke"), tmp_path)
    assert format_text(Results(tmp_path / "live/smoke")).startswith("no finished run in ")


def test_runs_that_differ_from_the_plan_are_marked(tmp_path):
    root = tmp_path / "live/laptop"
    for run in ("plain-8", "plain-16"):
        make_run(root, "denseformer", run)
    results = Results(root, lambda stage, name: "changed since: code" if "plain-16" in name else "")
    assert run_table(results)["plan"].tolist() == ["changed since: code", "as planned"]
    write_run_table(results, tmp_path)
    assert "changed since: code" in (tmp_path / "runs.html").read_text()
    assert run_table(Results(root))["plan"].tolist() == ["", ""], "without a plan the column is empty"
