"""A run of `python -m formerlab train` that is killed or stopped, and then restarted, is bit-identical.

Processes and signals are real, but processes send the signals to themselves at chosen calls, so that no test depends on
the speed of the machine.
"""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import MODEL, hashes, interrupt_run, small, train_run, write_plan

from formerlab.results.notes import read_note, stage_note
from formerlab.training.record import CHECKPOINT

pytestmark = pytest.mark.xdist_group("killed")  # the tests share one process, because it takes seconds to start


RUN = small(model=MODEL.model_copy(update={"dropout": 0.1}))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


class Processes:
    """Starts commands through faulty_processes.py."""

    def __init__(self):
        script = Path(__file__).with_name("faulty_processes.py")
        self.server = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )

    def run(self, *command, signal="SIGKILL", at_call=None, function=None, **limits):
        """Run a command; return its status, output and number of calls.

        The process gets the signal at call number `at_call` of `function`, or of any function by default. With
        `at_call=0`, calls are only counted.
        """
        order = {"command": [str(word) for word in command], "signal": signal, "at_call": at_call, "function": function}
        order |= limits
        print(json.dumps(order), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())


@pytest.fixture(scope="module")
def processes():
    processes = Processes()
    yield processes
    processes.server.stdin.close()
    processes.server.wait()


@pytest.fixture(scope="module")
def uninterrupted_hashes(data, tmp_path_factory):
    """Return the hashes of the uninterrupted run without checkpoints."""
    out = tmp_path_factory.mktemp("uninterrupted")
    train_run(RUN, data, out)
    return hashes(out)


def train_command(run, data, folder, **changes):
    """Write a plan of one run; return the command that trains it with a checkpoint after every step."""
    return "train", run.id, "--plan", write_plan(run, data, folder, **changes), "--checkpoint-seconds", "0"


@pytest.fixture
def command(data, tmp_path):
    return train_command(RUN, data, tmp_path)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results" / RUN.id


@pytest.fixture(scope="module")
def calls(processes, data, tmp_path_factory):
    """Return the number of calls of an uninterrupted run."""
    result = processes.run(*train_command(RUN, data, tmp_path_factory.mktemp("counted")), at_call=0)
    assert result["status"] == 0, result["output"]
    return result["calls"]


@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_at_random_moments_is_bit_identical(seed, processes, command, out, uninterrupted_hashes, calls):
    """The first kill hits a random call in the first 90 % of the run. With two of the seeds, up to two kills follow."""
    moments = random.Random(seed)
    first = processes.run(*command, at_call=moments.randrange(1, calls * 9 // 10))
    assert first["status"] == -9
    for _ in range(2 if seed < 2 else 0):
        assert processes.run(*command, at_call=moments.randrange(1, calls))["status"] in (-9, 0)
    assert processes.run(*command)["status"] == 0
    assert hashes(out) == uninterrupted_hashes
    assert not list(out.rglob("*.tmp"))
    assert not (out / "checkpoint").exists()


@pytest.fixture(scope="module")
def fsyncs(processes, data, tmp_path_factory):
    """Return the number of fsync calls of an uninterrupted run."""
    return processes.run(*train_command(RUN, data, tmp_path_factory.mktemp("written")), function="fsync", at_call=0)[
        "calls"
    ]


@pytest.mark.parametrize("written", ["last.pt", "train.csv", "weights.safetensors", "run.json"])
def test_a_run_killed_before_each_rename_is_bit_identical(
    written, processes, command, out, uninterrupted_hashes, fsyncs
):
    """os.fsync is called for every file.

    The order is run.yaml, each checkpoint with its four tables, six tables, the weights, and the record.
    """
    curves = ["timing.csv", "depth.csv", "train.csv", "eval.csv"]
    last = [*curves, "test.csv", "lender_test.csv", "weights.safetensors", "run.json"]
    names = ["run.yaml", *["last.pt", *curves] * ((fsyncs - len(last)) // 5), *last]
    killed = processes.run(*command, function="fsync", at_call=names.index(written) + 1)
    assert killed["status"] == -9
    assert not (out / written).exists()
    assert [path.name for path in out.rglob(f".{written}.*.tmp")]
    assert processes.run(*command)["status"] == 0
    assert hashes(out) == uninterrupted_hashes
    assert not list(out.rglob("*.tmp"))


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_a_signal_saves_the_run_and_sets_the_exit_status(signal, processes, command, out, uninterrupted_hashes):
    stopped = processes.run(*command[:4], signal=signal, function="train_batch", at_call=6)
    assert stopped["status"] == 75
    assert f"study/run/seed3: stopped after step 6 of 12 ({signal}); run again to continue" in stopped["output"]
    assert json.loads((out / ".train.state.json").read_text())["state"] == "stopped"
    assert not (out / "run.json").exists()
    again = processes.run(*command[:4])
    assert again["status"] == 0
    assert "last.pt after step 6" in again["output"]
    assert hashes(out) == uninterrupted_hashes
    assert not (out / ".train.state.json").exists()


def test_a_second_process_prints_the_process_that_trains_the_run(processes, command, out):
    with stage_note("train", out):
        second = processes.run(*command)
        assert second["status"] == 2
        assert second["output"].startswith(f"error: {out}: train is already running here (process {os.getpid()} on ")
        assert second["output"].count("\n") == 1
    assert not any(out.iterdir())


@pytest.mark.parametrize(("function", "status"), [("test_rows", 75), ("save_file", 0), ("hashes_of_rows", 0)])
def test_a_signal_during_the_test_saves_the_run_and_a_signal_after_the_test_lets_it_finish(
    function, status, processes, command, out, uninterrupted_hashes
):
    ended = processes.run(*command, signal="SIGTERM", function=function, at_call=2 if status else 1)
    assert ended["status"] == status
    if status:
        assert "stopped during the test, 2 of " in ended["output"]
        again = processes.run(*command, at_call=0, function="test_rows")
        groups = int(re.search(r"2 of (\d+) groups", ended["output"])[1])
        assert (again["status"], again["calls"]) == (0, groups - 2)
    assert hashes(out) == uninterrupted_hashes


def test_the_time_limit_saves_the_run_and_sets_the_exit_status(processes, command, out, uninterrupted_hashes):
    stopped = processes.run(*command, "--time-limit", "0.000001", "--margin", "0")
    assert stopped["status"] == 75
    assert "stopped after step 0 of 12 (the time limit of 1e-06 s is near); run again to continue" in stopped["output"]
    assert processes.run(*command, "--time-limit", "1000")["status"] == 0
    assert hashes(out) == uninterrupted_hashes


@pytest.mark.parametrize(("largest_file", "unwritten_file"), [(20_000, CHECKPOINT), (2_000, "weights.safetensors")])
def test_a_full_disk_is_reported_and_the_same_call_continues(
    largest_file, unwritten_file, processes, data, tmp_path, uninterrupted_hashes
):
    """The disk is full at the first checkpoint after resuming from step 6 or, without checkpoints, at the weights."""
    command = train_command(RUN, data, tmp_path)
    out = tmp_path / "results" / RUN.id
    if unwritten_file == CHECKPOINT:
        assert processes.run(*command[:4], signal="SIGTERM", function="train_batch", at_call=6)["status"] == 75
        good = (out / CHECKPOINT).read_bytes()
    else:
        command = command[:4]
    failed = processes.run(*command, largest_file=largest_file)
    assert failed["status"] == 2, failed["output"]
    (output,) = [line for line in failed["output"].splitlines() if not line.startswith(("train ", "resuming"))]
    assert output.startswith(f"error: {out / unwritten_file}: could not be written, is the disk full? Make room")
    assert not list(out.rglob("*.tmp"))
    assert not (out / "run.json").exists()
    note = read_note("train", out)
    assert (note["state"], f"error: {note['reason']}") == ("failed", output)
    if unwritten_file == CHECKPOINT:
        assert (out / CHECKPOINT).read_bytes() == good
    else:
        assert not (out / unwritten_file).exists()
    again = processes.run(*command)
    assert again["status"] == 0, again["output"]
    assert ("last.pt after step 6" in again["output"]) == (unwritten_file == CHECKPOINT)
    assert hashes(out) == uninterrupted_hashes


@pytest.mark.parametrize("damaged", [True, False])
def test_the_previous_checkpoint_replaces_a_damaged_or_missing_one(
    damaged, data, tmp_path, uninterrupted_hashes, monkeypatch, capsys
):
    """The last checkpoint is missing if the run is killed between the renames of a save."""
    interrupt_run(monkeypatch, 3, RUN, data, tmp_path, checkpoint_seconds=0)
    path = tmp_path / CHECKPOINT
    assert {file.name for file in path.parent.iterdir()} == {"last.pt", "previous.pt"}
    path.write_bytes(path.read_bytes()[::-1]) if damaged else path.unlink()
    train_run(RUN, data, tmp_path)
    output = capsys.readouterr().err
    assert (f"{path}: damaged" in output) == damaged
    assert ("resuming from the previous checkpoint, previous.pt" in output) == damaged
    assert "last.pt after step 3" in output
    assert hashes(tmp_path) == uninterrupted_hashes
