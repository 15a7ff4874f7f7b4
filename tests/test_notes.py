"""Only one process at a time runs a stage in a folder. Temporary files of killed processes are found and removed."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from formerlab.errors import StoppedEarly, UserError
from formerlab.files import write_json
from formerlab.results.notes import read_note, stage_note

AT_WORK = """
import sys
from pathlib import Path
from formerlab.__main__ import let_signals_interrupt
from formerlab.results.notes import stage_note
from formerlab.files import replacing
let_signals_interrupt()
with stage_note(sys.argv[1], Path(sys.argv[2])), replacing(Path(sys.argv[2], sys.argv[3])) as temporary:
    temporary.write_text("half")
    print("begun", flush=True)
    input()
"""


@contextmanager
def running_stage(stage, folder, file="rows.csv"):
    """Start a process that runs a stage in a folder and has a half-written file; kill it after the block."""
    words = [sys.executable, "-c", AT_WORK, stage, str(folder), file]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def temporary_files(folder):
    return sorted(path.name for path in folder.rglob("*.tmp"))


def test_a_second_process_is_refused_with_the_name_of_the_first(tmp_path):
    with running_stage("train", tmp_path) as first:
        since = read_note("train", tmp_path)["since"]
        who = f"process {first.pid} on {socket.gethostname()}, since {since}"
        with pytest.raises(UserError) as caught, stage_note("train", tmp_path):
            pytest.fail("both worked")
        assert str(caught.value) == f"{tmp_path}: train is already running here ({who}); wait for it, or stop it"
        with stage_note("flow", tmp_path):  # other stages are not blocked
            assert read_note("train", tmp_path)["state"] == "running"
        first.kill()
        first.wait()
        assert read_note("train", tmp_path)["state"] == "killed"
        with stage_note("train", tmp_path):
            assert read_note("train", tmp_path)["pid"] == os.getpid()
    assert read_note("train", tmp_path) is None


def test_the_next_start_removes_temporary_files_of_a_killed_process_only(tmp_path):
    with running_stage("prune", tmp_path, "prune.csv"):
        with running_stage("zeroshot", tmp_path, "zeroshot.csv"):
            assert len(temporary_files(tmp_path)) == 2
        with stage_note("zeroshot", tmp_path):
            (remaining,) = temporary_files(tmp_path)
            assert remaining.startswith(".prune.csv.")


def test_temporary_files_of_another_machine_are_removed(tmp_path):
    write_json(tmp_path / ".flow.state.json", {"state": "running", "pid": 7, "host": "node-1.cluster"})
    for name in (".flow.csv.node-1-cluster.7.tmp", ".zeroshot.csv.node-1-cluster.8.tmp", ".a.node-2.7.tmp"):
        (tmp_path / name).touch()
    with stage_note("flow", tmp_path):
        assert temporary_files(tmp_path) == [".a.node-2.7.tmp", ".zeroshot.csv.node-1-cluster.8.tmp"]


def test_sigterm_stops_a_stage_with_a_note(tmp_path):
    with running_stage("zeroshot", tmp_path) as stage:
        stage.send_signal(signal.SIGTERM)
        stage.wait()
    note = read_note("zeroshot", tmp_path)
    assert (note["state"], note["reason"]) == ("stopped", "SIGTERM")
    assert temporary_files(tmp_path) == []


def test_a_long_reason_is_truncated(tmp_path):
    with pytest.raises(StoppedEarly), stage_note("train", tmp_path):
        raise StoppedEarly("x" * 10_000)
    assert set(read_note("train", tmp_path)["reason"]) == {"x"}
