"""The stage `train` with existing results or checkpoints, of this run or of another run."""

import json
import shutil

import numpy as np
import pytest
from small_runs import RUN, hashes, interrupt_run, small, train_run, write_plan

from formerlab.__main__ import main
from formerlab.errors import UserError
from formerlab.kernels.native import kernel_implementation
from formerlab.training import stage
from formerlab.training.runtime import RuntimeConfig


def train(run, code, data, out, **settings):
    stage.train_stage(run, data, out, parent=None, runtime=RuntimeConfig(code_hash=code, **settings))


@pytest.fixture
def copied_run(finished_run, tmp_path):
    """Return a copy of the finished run, which a test may change."""
    return shutil.copytree(finished_run, tmp_path / "copy")


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.parametrize("why", ["checkpoint of another run (spec is ", "damaged"])
def test_an_unusable_checkpoint_is_moved_to_the_superseded_folder(
    why, finished_run, data, tmp_path, monkeypatch, capsys
):
    if why == "damaged":
        (tmp_path / "checkpoint").mkdir()
        for name in ("last.pt", "previous.pt"):
            (tmp_path / "checkpoint" / name).write_bytes(b"garbage")
    else:
        interrupt_run(monkeypatch, 4, small(optimizer={"lr": 0.02}), data, tmp_path)
    content = (tmp_path / "checkpoint" / "last.pt").read_bytes()
    interrupt_run(monkeypatch, 2, RUN, data, tmp_path)
    assert f"starting from step 0: {tmp_path}/checkpoint/" in (output := capsys.readouterr().err)
    assert why in output
    assert (tmp_path / "checkpoint.superseded" / "last.pt").read_bytes() == content
    train_run(RUN, data, tmp_path)
    assert hashes(tmp_path) == hashes(finished_run)
    assert not (tmp_path / "checkpoint.superseded").exists()


def test_a_finished_run_is_not_trained_again_and_leftovers_are_removed(copied_run, data, monkeypatch, capsys):
    monkeypatch.delattr(stage, "train")
    times_before = times(copied_run)
    (copied_run / "checkpoint").mkdir()
    (copied_run / "checkpoint" / "last.pt").write_bytes(b"of this run")
    train_run(RUN, data, copied_run)
    assert times(copied_run) == times_before
    assert "study/run/seed3: already finished" in capsys.readouterr().err


def test_a_result_of_another_run_is_refused(copied_run, data):
    times_before = times(copied_run)
    with pytest.raises(UserError, match=r"run.json: result of another run \(spec is \w+, expected \w+\); delete it"):
        train(small(optimizer={"lr": 0.02}), "code", data, copied_run)
    assert times(copied_run) == times_before


@pytest.mark.parametrize(("edited", "lr"), [(True, 0.01), (False, 0.02)], ids=["by hand", "in the plan"])
def test_the_command_trains_a_stale_run_again(edited, lr, copied_run, data, tmp_path, capsys):
    """Training and the staleness check must agree on a record with an edited spec; otherwise the job always fails."""
    run = small(optimizer={"lr": lr})
    record = json.loads((copied_run / "run.json").read_text())
    record["spec"]["steps"] += edited
    del record["record_sha256"]  # older records have no hash
    (copied_run / "run.json").write_text(json.dumps(record))
    words = ["train", run.id, "--plan", str(write_plan(run, data, tmp_path))]
    (tmp_path / "results/study/run").mkdir(parents=True)
    out = copied_run.rename(tmp_path / "results" / run.id)
    assert main(words) == 0
    assert "running again, because its result is stale (changed since: configuration)" in capsys.readouterr().err
    train_run(run, data, tmp_path / "fresh")
    assert hashes(out) == hashes(tmp_path / "fresh")


def test_token_streams_that_differ_from_the_manifest_are_refused(data, tmp_path):
    changed = shutil.copytree(data, tmp_path / "data")
    train(RUN, "code", changed, tmp_path / "first")
    stream = np.load(changed / "test.npy")
    np.save(changed / "test.npy", stream[::-1])
    with pytest.raises(UserError, match=r"test\.npy: damaged or changed.*run the data stage again"):
        train(RUN, "code", changed, tmp_path / "second")


def test_a_resume_with_other_kernels_prints_a_warning(data, tmp_path, monkeypatch, capsys):
    interrupt_run(monkeypatch, 4, RUN, data, tmp_path)
    first = kernel_implementation()
    monkeypatch.setattr(stage, "kernel_implementation", lambda: "plain, of another machine")
    train(RUN, "code", data, tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["kernels"] == [first, "plain, of another machine"]
    assert f"'{first}', the next steps with 'plain, of another machine'" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "damage"), [("weights.safetensors", "missing"), ("test.csv", "changed")])
def test_a_result_with_a_missing_or_changed_file_is_trained_again(name, damage, copied_run, finished_run, data, capsys):
    content = (copied_run / name).read_bytes()
    (copied_run / name).unlink()
    if damage == "changed":
        (copied_run / name).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    train_run(RUN, data, copied_run)
    assert f": {name}" in capsys.readouterr().err
    assert hashes(copied_run) == hashes(finished_run)


def test_a_run_without_the_needed_optimizer_file_is_trained_again(copied_run, finished_run, data):
    train_run(RUN, data, copied_run, keep_optimizer=True)
    assert (copied_run / "optimizer.pt").exists()
    assert hashes(copied_run) == hashes(finished_run)
    times_before = times(copied_run)
    train_run(RUN, data, copied_run, keep_optimizer=True)
    assert times(copied_run) == times_before
