"""Two runs side by side."""

import re

import pytest
from fixtures.rows import dwa, make_run, model, write_csv

from formerlab.errors import UserError
from formerlab.results.compare import compare
from formerlab.results.stages import TABLES


@pytest.fixture
def plain(tmp_path):
    return make_run(tmp_path, "denseformer", "plain", loss=4.0)


def test_spec_differences_curves_and_verdict(tmp_path, plain):
    mixed = make_run(tmp_path, "denseformer", "mixed", loss=3.7, spec=model(depth=dwa(1, 1)))
    text = compare(plain, mixed)
    assert "a: denseformer/plain/seed0" in text
    assert re.search(r"model\.depth\.kind +identity +dwa\n", text)
    assert "model.layers" not in text
    assert re.search(r"\n  200 +4\.\d+ +3\.\d+\n", text)
    assert re.search(r"b - a: -0\.\d+ nats, 95 % interval \[-0\.\d+, -0\.\d+\]", text)
    assert "b is lower than a (paired bootstrap over 40 windows; it speaks of these two models" in text


def test_a_run_does_not_differ_from_itself(plain):
    text = compare(plain, plain)
    assert "no difference can be told from zero" in text
    assert "nothing" in text


def test_noise_is_not_a_difference(tmp_path, plain):
    windows = [(i, 64, 4.0 + 0.1 * (-1) ** i) for i in range(40)]
    others = [(i, 64, 4.0 - 0.1 * (-1) ** i) for i in range(40)]
    write_csv(plain / "test.csv", TABLES["test.csv"].required, windows)
    noisy = make_run(tmp_path, "denseformer", "noisy")
    write_csv(noisy / "test.csv", TABLES["test.csv"].required, others)
    assert "no difference can be told from zero" in compare(plain, noisy)


def test_other_data_are_not_comparable(tmp_path, plain):
    other = make_run(tmp_path, "denseformer", "other", data={"name": "text", "fingerprint": "another"})
    assert "not comparable: a read data" in compare(plain, other)


def test_other_windows_are_not_comparable(tmp_path, plain):
    other = make_run(tmp_path, "denseformer", "other")
    write_csv(other / "test.csv", TABLES["test.csv"].required, [(0, 128, 4.0)])
    assert "not comparable: the held-out windows differ" in compare(plain, other)


def test_a_run_without_evaluations_has_no_curve(tmp_path, plain):
    early = make_run(tmp_path, "denseformer", "early", status="diverged", diverged_at_step=2)
    write_csv(early / "eval.csv", TABLES["eval.csv"].required, [])
    assert re.search(r"\n  200 +4\.\d+ +-\n", compare(plain, early))


def test_a_folder_without_a_run_is_named(tmp_path, plain):
    with pytest.raises(UserError, match="no finished run there"):
        compare(plain, tmp_path)
