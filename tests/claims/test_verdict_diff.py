"""Verdicts of two states of the rows side by side."""

import pandas as pd
import pytest

from formerlab.errors import UserError
from formerlab.report.claims.verdict_diff import ABSENT, changed, read_verdicts, text


def rows(*entries):
    return pd.DataFrame(entries, columns=["claim", "item", "kind", "verdict", "ours"])


THEN = rows(
    ("a", None, "measured", "agrees", "x = 1"),
    ("b", None, "measured", "not tested", ""),
    ("b", "stage_2", "measured", "agrees", "x = 2"),
    ("e", None, "exact", "holds", "d = 0"),
)
NOW = rows(
    ("a", None, "measured", "agrees", "x = 1.5"),
    ("b", None, "measured", "contradicts", ""),
    ("b", "stage_2", "measured", "agrees", "x = 3"),
    ("b", "stage_3", "measured", "contradicts", "x = 4"),
    ("e", None, "exact", "holds", "d = 0"),
)


def test_only_verdicts_that_changed_are_listed():
    found = changed(THEN, NOW)
    assert found[["claim", "item", "then", "now"]].to_numpy().tolist() == [
        ["b", "", "not tested", "contradicts"],
        ["b", "stage_3", ABSENT, "contradicts"],
    ]
    assert text(THEN, NOW).startswith("Of 2 measured claims 1 have another verdict. Of 1 exact claims 0 have another")
    assert text(NOW, NOW).count("\n") == 0


def test_files_are_read_as_they_are_written(tmp_path):
    NOW.to_csv(tmp_path / "claims.csv", index=False)
    assert changed(read_verdicts(tmp_path / "claims.csv"), NOW).empty
    NOW.drop(columns="verdict").to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(UserError, match="lacks the column 'verdict'"):
        read_verdicts(tmp_path / "other.csv")
    with pytest.raises(UserError, match="cannot be read"):
        read_verdicts(tmp_path / "none.csv")
