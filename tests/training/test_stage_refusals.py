"""The stage `train` where it finds something already there: results or checkpoints, of this run or of another one."""

import json
import shutil

import numpy as np
import pytest
from small_runs import RUN, bits, interrupted, small, trained

from formerlab.errors import UserError
from formerlab.kernels.native import kernel_path
from formerlab.training import stage
from formerlab.training.runtime import RuntimeConfig

CHANGES = {"spec": (small(optimizer={"lr": 0.02}), "code"), "code": (RUN, "new code")}
"""Another run in the same folder: its spec and its code."""


def train(run, code, data, out, **settings):
    stage.train_stage(run, data, out, parent=None, runtime=RuntimeConfig(code_hash=code, **settings))


@pytest.fixture
def own(finished, tmp_path):
    """Return a copy of the finished run that a test may change."""
    return shutil.copytree(finished, tmp_path / "own")


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.parametrize("key", CHANGES)
def test_the_checkpoint_of_another_run_is_refused_or_set_aside(key, data, tmp_path, monkeypatch, capsys):
    out, fresh = tmp_path / "run", tmp_path / "fresh"
    interrupted(monkeypatch, 4, RUN, data, out)
    before = (out / "checkpoint" / "last.pt").read_bytes()
    with pytest.raises(UserError, match=rf"last.pt: checkpoint of another run \({key} \w+ there, [\w ]+ here\)"):
        train(*CHANGES[key], data, out)
    assert (out / "checkpoint" / "last.pt").read_bytes() == before
    train(*CHANGES[key], data, out, on_mismatch="restart")
    assert "starting from step 0" in capsys.readouterr().err
    train(*CHANGES[key], data, fresh)
    assert bits(out) == bits(fresh)
    assert not (out / "checkpoint.superseded").exists()


def test_a_broken_checkpoint_is_refused_or_kept_aside(finished, data, tmp_path, monkeypatch):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "last.pt").write_bytes(b"garbage")
    with pytest.raises(UserError, match=r"checkpoint/last.pt: broken \(.+\); delete it to train from the start"):
        trained(RUN, data, tmp_path)
    interrupted(monkeypatch, 2, RUN, data, tmp_path, on_mismatch="restart")
    assert (tmp_path / "checkpoint.superseded" / "last.pt").read_bytes() == b"garbage"
    trained(RUN, data, tmp_path)
    assert bits(tmp_path) == bits(finished)
    assert not (tmp_path / "checkpoint.superseded").exists()


def test_a_finished_run_is_not_trained_again_and_what_a_kill_left_beside_it_is_removed(own, data, monkeypatch, capsys):
    monkeypatch.delattr(stage, "train")
    before = times(own)
    (own / "checkpoint").mkdir()
    (own / "checkpoint" / "last.pt").write_bytes(b"of this run")
    for on_mismatch in ("refuse", "restart"):
        trained(RUN, data, own, on_mismatch=on_mismatch)
        assert times(own) == before
        assert "study/run/seed3: already finished" in capsys.readouterr().err


@pytest.mark.parametrize("key", CHANGES)
def test_a_result_of_another_run_is_refused_or_replaced(key, own, data, tmp_path, capsys):
    before = times(own)
    message = (
        rf"run.json: result of another run \({key} \w+ there, [\w ]+ here\); replace it with --on-mismatch restart"
    )
    with pytest.raises(UserError, match=message):
        train(*CHANGES[key], data, own)
    assert times(own) == before
    train(*CHANGES[key], data, own, on_mismatch="restart")
    assert "training anew" in capsys.readouterr().err
    train(*CHANGES[key], data, tmp_path / "fresh")
    assert bits(own) == bits(tmp_path / "fresh")


@pytest.mark.parametrize("split", ["train", "test"])
def test_streams_that_are_not_those_of_the_manifest_are_refused(split, data, tmp_path):
    changed = shutil.copytree(data, tmp_path / "data")
    train(RUN, "code", changed, tmp_path / "first")
    stream = np.load(changed / f"{split}.npy")
    np.save(changed / f"{split}.npy", stream[::-1])
    with pytest.raises(UserError, match=rf"{split}\.npy: damaged or changed.*run the data stage again"):
        train(RUN, "code", changed, tmp_path / "second")


def test_a_resume_on_another_path_of_kernels_says_so(data, tmp_path, monkeypatch, capsys):
    interrupted(monkeypatch, 4, RUN, data, tmp_path)
    first = kernel_path()
    monkeypatch.setattr(stage, "kernel_path", lambda: "plain, of another machine")
    train(RUN, "code", data, tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["kernels"] == [first, "plain, of another machine"]
    assert f"'{first}', the next ones with 'plain, of another machine'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["weights.safetensors", "test.csv"])
@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_result_with_a_file_missing_or_changed_is_made_again(name, damage, own, finished, data, capsys):
    content = (own / name).read_bytes()
    (own / name).unlink()
    if damage == "changed":
        (own / name).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    trained(RUN, data, own)
    assert f"has no whole {name}" in capsys.readouterr().err
    assert bits(own) == bits(finished)


def test_a_run_whose_optimizer_is_wanted_since_is_made_again(own, finished, data):
    trained(RUN, data, own, keep_optimizer=True)
    assert (own / "optimizer.pt").exists()
    assert bits(own) == bits(finished)
    before = times(own)
    trained(RUN, data, own, keep_optimizer=True)
    assert times(own) == before
