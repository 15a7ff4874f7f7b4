"""Exported rows keep their values, equal rows give equal bytes, and a damaged file gives an error."""

import json
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from formerlab.errors import UserError
from formerlab.results.export import write_study
from formerlab.results.read import ExportedStudy

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
RECORDS = st.dictionaries(
    st.from_regex(r"[a-z_]+", fullmatch=True),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=8,
    ),
)


def record(run, **more):
    return {"id": f"study/{run}/seed0", "run": run, "seed": 0} | more


def write(folder, records, **frames):
    """Write the rows of a file; the keyword arguments are the rows by run."""
    folder.mkdir(exist_ok=True)
    frames_with_run = [frame.assign(run=run, seed=0)[["run", "seed", *frame]] for run, frame in frames.items()]
    rows = {"any.csv": pd.concat(frames_with_run, ignore_index=True)} if frames_with_run else {}
    write_study(folder, records or [record(name) for name in frames], rows, {})
    return ExportedStudy(folder)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "study"


@pytest.fixture
def two_runs(folder):
    """Rows of two runs: `a` has an additional column, and `b` has integers in a column of floats."""
    a = pd.DataFrame({"kind": ["x", None], "value": [1.5, float("nan")], "loss": [0.1, 0.2], "more": [3, 4]})
    b = pd.DataFrame({"kind": ["y"], "value": [2], "loss": [float("inf")]}, index=[7])
    return write(folder, [], a=a, b=b)


@given(random_record=RECORDS)
def test_any_record_is_read_unchanged(tmp_path_factory, random_record):
    folder = tmp_path_factory.mktemp("study")
    written = [random_record | record("a"), record("b", git={"commit": "1e5"}), record("c", git=None)]
    read = [line["record"] for line in write(folder, written).records.values()]
    assert json.dumps(read, sort_keys=True) == json.dumps(written, sort_keys=True)


def test_every_run_has_its_own_rows_and_columns(two_runs):
    a, b = (two_runs.rows("any.csv", f"study/{run}/seed0") for run in "ab")
    expected = pd.DataFrame({"kind": ["x", None], "value": [1.5, float("nan")], "loss": [0.1, 0.2], "more": [3.0, 4.0]})
    assert_frame_equal(a, expected.astype({"kind": "str"}), check_exact=True)
    assert b.to_dict("list") == {"kind": ["y"], "value": [2.0], "loss": [float("inf")]}
    assert two_runs.rows("any.csv", "study/c/seed0") is None


def test_equal_rows_give_equal_bytes(two_runs, folder):
    original_files = {path.name: path.read_bytes() for path in folder.iterdir()}
    write(folder, [], **{run: two_runs.rows("any.csv", f"study/{run}/seed0") for run in "ab"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == original_files


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("any.parquet", b"PAR1"),
        ("records.jsonl", b"\xff\xfe"),
        ("records.jsonl", b""),
        ("records.jsonl", b"{}\n"),
        ("records.jsonl", b"[]\n"),
        ("records.jsonl", b'{"id": "a"}\n{"id": "b"'),
    ],
)
def test_damaged_files_give_a_one_line_error(name, content, two_runs, folder):
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"study/{name}: ")) as error:
        print(two_runs.records, two_runs.rows("any.csv", "study/a/seed0"))
    assert "\n" not in str(error.value)
