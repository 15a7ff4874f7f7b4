"""Read the rows of finished runs."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from fixtures.rows import make_denseformer, make_run, write_csv

from formerlab.errors import UserError
from formerlab.files import RECORD_HASH
from formerlab.results.read import Results, read_rows
from formerlab.results.stages import TABLES
from formerlab.results.write import hashes_of_rows, write_rows


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "live" / "laptop"
    make_run(root, "study", "a", 1)
    make_run(root, "study", "a", 0)
    make_run(root, "study", "b", 0, loss=4.0)
    make_run(root, "other", "a", 0)
    return root


def test_only_finished_runs_are_listed_in_order(root):
    (root / "study" / "c" / "seed0").mkdir(parents=True)
    (root / "study" / "c" / "seed0" / "train.csv").write_text("step\n")
    runs = Results(root).runs()
    assert list(runs["id"]) == ["other/a/seed0", "study/a/seed0", "study/a/seed1", "study/b/seed0"]
    assert list(runs["spec.model.layers"]) == [4] * 4
    assert Results(root).scale == "laptop"
    assert Results(root).tree == "live"


def test_runs_are_selected_by_study_and_pattern(root):
    results = Results(root)
    assert list(results.runs("study", ("b*",))["run"]) == ["b"]
    assert results.runs("none").empty
    assert set(results.rows("test.csv", "study", ("a", "b"))["run"]) == {"a", "b"}


def test_rows_are_read_bit_identically(root):
    values = [0.1 + 0.2, 1 / 3, 1e-300, *np.random.default_rng(0).normal(size=200).tolist()]
    path = root / "study" / "b" / "seed0" / "test.csv"
    write_csv(path, TABLES["test.csv"].required, [(window, 64, value) for window, value in enumerate(values)])
    rows = Results(root).rows("test.csv", "study", ("b",))
    assert list(rows.columns) == ["study", "run", "seed", "window", "tokens", "loss_nats"]
    assert rows["loss_nats"].tolist() == values


def test_a_token_named_like_a_missing_value_is_text(tmp_path):
    texts, table = ["None", "NA", "null", "nan"], TABLES["attention.csv"]
    row = {name: "0" for name in table.required}
    path = tmp_path / "attention.csv"
    write_csv(path, table.required, [(row | {"query_token": text}).values() for text in texts])
    assert read_rows(path)["query_token"].tolist() == texts


def test_missing_files_and_files_with_only_a_header_have_no_rows(tmp_path):
    make_denseformer(tmp_path, seeds=(0,), depths=(4,))
    write_csv(tmp_path / "denseformer/plain-4/seed0/eval.csv", TABLES["eval.csv"].required, [])
    results = Results(tmp_path)
    for name in ("depth.csv", "eval.csv"):
        assert set(results.rows(name)["run"]) == {"dwa-1x1-4", "dwa-2x3-4"}
    assert results.rows("eval.csv")["loss_nats"].dtype == float
    write_csv(
        tmp_path / "denseformer/dwa-2x3-4/seed0/train.csv", TABLES["train.csv"].names, [[1, 8, 2.0, 0.1, 1.0, 1.9]]
    )
    assert set(results.rows("train.csv").columns) == {"study", "run", "seed", *TABLES["train.csv"].names}
    empty_rows = results.rows("prune.csv")
    assert empty_rows.empty
    assert list(empty_rows.columns) == ["study", "run", "seed", *TABLES["prune.csv"].required]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"window,tokens\n0,64\n", "column 'loss_nats' is missing"),
        (b"window,tokens,loss_nats\n0,64,3.5,7\n1,64,3.5,8,9\n0,64,3.5\n", "cannot be read"),
        (b"\xff\xfe\x00\n", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_damaged_rows_are_refused(root, content, message):
    path = root / "study" / "b" / "seed0" / "test.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        Results(root).rows("test.csv")
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda record: json.dumps(record | {"schema": 2}), "schema 2, but this version reads schema 1"),
        (lambda record: json.dumps(record | {"id": "study/z/seed0"}), "does not match its study, run, seed and folder"),
        (
            lambda record: json.dumps({key: record[key] for key in record if key != "status"}),
            r"keys are missing .status.;",
        ),
        (lambda record: '{"schema": 1,', r"b/seed0/run\.json: cannot be read"),
        (lambda record: json.dumps(record | {RECORD_HASH: "0"}), r"b/seed0/run\.json: .*changed since its stage"),
    ],
)
def test_damaged_records_are_refused_or_left_out_if_they_are_stale(root, damage, message):
    path = root / "study" / "b" / "seed0" / "run.json"
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(UserError, match=message):
        Results(root).runs()
    results_without_stale = Results(root, lambda stage, name: "damaged" if "/b/" in name else "")
    assert set(results_without_stale.runs()["run"]) == {"a"}
    assert results_without_stale.left_out() == ["train study/b/seed0: damaged"]


@pytest.mark.parametrize("measured", [False, True])
def test_rows_with_another_hash_than_in_the_record_are_refused(root, measured):
    """Rows of another run, rows with an edited digit and missing rows do not have the recorded hash."""
    name, record = ("zeroshot.csv", "zeroshot.json") if measured else ("test.csv", "run.json")
    folder, other = root / "study/b/seed0", root / "study/a/seed0"
    for run_folder, value in ((folder, 1.0), (other, 0.0)):
        write_csv(run_folder / "zeroshot.csv", TABLES["zeroshot.csv"].required, [("t", "1", "0", "acc", value)])
    contents = json.loads((folder / record).read_text()) if (folder / record).exists() else {}
    (folder / record).write_text(json.dumps(contents | {"rows_sha256": hashes_of_rows(folder, [name])}))
    original = (folder / name).read_bytes()
    assert len(Results(root).rows(name, "study"))
    for content in ((other / name).read_bytes(), original.replace(b"1", b"2", 1)):
        (folder / name).write_bytes(content)
        with pytest.raises(UserError, match=f"b/seed0/{name}: changed since its stage wrote it; delete it"):
            Results(root).rows(name, "study")
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"b/seed0/{name}: missing"):
        Results(root).rows(name, "study")
    (folder / name).write_bytes(original)
    assert len(Results(root).rows(name, "study"))


def test_modules_that_read_rows_import_neither_torch_nor_mlflow():
    code = """
import sys
from importlib import import_module
from formerlab.report.catalogue import catalogue
entries = catalogue()
assert not {"pandas", "matplotlib"} & set(sys.modules), "the catalogue must not import plotting libraries"
for entry in entries.values():
    import_module(entry.module)
for name in ("results.read", "statistics", "report.published", "tracking.mlflow", "tracking.rows", "results.export",
             "report.headline", "report.write", "report.claims.render", "report.run_table", "report.claims.arms",
             "data.any_data"):
    import_module(f"formerlab.{name}")
print(sorted({"torch", "mlflow", "snakemake", "datasets"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_stale_rows_are_left_out_and_listed(root):
    write_csv(root / "study/b/seed0/zeroshot.csv", TABLES["zeroshot.csv"].required, [("t", "1", "0", "acc", 1)])
    write_csv(root / "study/a/seed0/zeroshot.csv", TABLES["zeroshot.csv"].required, [("t", "1", "0", "acc", 1)])
    write_csv(root / "study/speed.csv", TABLES["speed.csv"].required, [("a", "m", 1, 1, 1, 1, 1, 1)])
    wrong = {("train", "study/a/seed1"): "not in the plan", ("zeroshot", "study/b/seed0"): "changed since: code"}
    wrong["speed", "study"] = "changed since: configuration"
    results = Results(root, lambda stage, name: wrong.get((stage, name), ""))
    assert list(results.runs("study")["id"]) == ["study/a/seed0", "study/b/seed0"]
    assert set(results.rows("test.csv", "study")["run"]) == {"a", "b"}
    assert set(results.rows("zeroshot.csv", "study")["run"]) == {"a"}
    assert results.rows_of("speed.csv", "study").empty
    assert results.left_out("study", ("b", "c*")) == [
        "zeroshot study/b/seed0: changed since: code",
        "speed study: changed since: configuration",
    ]
    assert results.left_out("study", ("a",))[0] == "train study/a/seed1: not in the plan"
    # records without a spec match every pattern
    assert results.left_out("study", ("depth.kind=dwa",)) == results.left_out("study")
    assert results.left_out("other") == []
    assert results.origin("study") == "scale laptop, live results, 3 left out because the plan differs"
    assert results.origin("other") == Results(root).origin() == "scale laptop, live results"
    assert len(results.all_records) == 4


def test_floats_are_exact_and_a_missing_value_is_an_empty_cell(tmp_path):
    path = tmp_path / "rows.csv"
    values = [0.1, 1 / 3, 1e-300, float("inf"), np.float64(2 / 3), np.nextafter(1, 2)]
    write_rows(path, ("name", "value", "missing"), [(f"a,{i}\n", value, None) for i, value in enumerate(values)])
    assert path.read_bytes().startswith(b"name,value,missing\n")
    assert b"\r" not in path.read_bytes()
    with open(path, newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["value"]) for row in read] == values
    assert [row["name"] for row in read] == [f"a,{i}\n" for i in range(len(values))]
    assert {row["missing"] for row in read} == {""}


def test_a_row_with_the_wrong_length_keeps_the_old_file(tmp_path):
    path = tmp_path / "rows.csv"
    write_rows(path, ("a", "b"), [(1, 2)])
    with pytest.raises(ValueError, match="a row has 1 cells, but the header 2"):
        write_rows(path, ("a", "b"), [(3, 4), (5,)])
    assert path.read_text() == "a,b\n1,2\n"
    assert list(tmp_path.iterdir()) == [path]
