import csv

import numpy as np
import pytest

from formerlab.results.write import write_rows


def test_floats_come_back_bit_for_bit_and_none_is_empty(tmp_path):
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


def test_a_row_of_another_length_leaves_the_old_file(tmp_path):
    path = tmp_path / "rows.csv"
    write_rows(path, ("a", "b"), [(1, 2)])
    with pytest.raises(ValueError, match="1 cells under 2 columns"):
        write_rows(path, ("a", "b"), [(3, 4), (5,)])
    assert path.read_text() == "a,b\n1,2\n"
    assert list(tmp_path.iterdir()) == [path]
