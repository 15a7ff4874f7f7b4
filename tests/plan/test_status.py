"""The command `status` for jobs in all states."""

import os
import socket
import subprocess
import sys

import pytest
from fixtures.project import Project, write_records

from formerlab.errors import StoppedEarly, UserError
from formerlab.files import read_json, write_json
from formerlab.plan.show import report, states
from formerlab.results.notes import read_note, stage_note

DATA = ("data", "text")
PLAIN, PARENT, CHILD = (("train", f"small/{run}/seed0") for run in ("plain", "parent", "child"))
ZEROSHOT, PRUNE = ("zeroshot", "small/plain/seed0"), ("prune", "small/plain/seed0")
EXACT = ("exact", "claims")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Return a plan of three runs, in its project folder."""
    project = Project(tmp_path)
    project.merge_into(project.config, "seeds: [0]")
    project.merge_into(project.scale, "studies: {small: {only: [plain, parent, child]}}")
    monkeypatch.chdir(tmp_path)
    return project.plan()


@pytest.fixture
def finished(plan):
    """Return the same plan with the records of finished stages."""
    return write_records(plan)


def states_of(plan):
    return {(stage, name): (state, detail) for stage, name, state, detail in states(plan)}


def change(path, **keys):
    write_json(path, read_json(path) | keys)


def test_all_jobs_are_missing_at_first(plan):
    assert set(states_of(plan)) == {DATA, PLAIN, PARENT, CHILD, ZEROSHOT, PRUNE, EXACT}
    assert set(states_of(plan).values()) == {("missing", "")}
    assert report(plan).endswith("scale smoke: 7 missing")
    assert report(plan, problems_only=True) == "no failed, killed or stopped jobs"


def test_finished_and_diverged_jobs_are_up_to_date_and_unplanned_runs_are_listed(plan, finished):
    assert set(states_of(plan).values()) == {("finished", "")}
    change(finished / "small/plain/seed0/run.json", status="diverged")
    assert (states_of(plan)[PLAIN], states_of(plan)[ZEROSHOT]) == (("diverged", ""), ("finished", ""))
    (finished / "small/child").rename(finished / "small/another")
    assert "not in the plan, and therefore not in figures and counts: small/another/seed0" in report(plan)


@pytest.mark.parametrize(
    ("file", "keys", "stale", "detail"),
    [
        ("small/plain/seed0/run.json", {"spec_hash": "old"}, PLAIN, "changed since: configuration"),
        ("small/plain/seed0/run.json", {"code_hash": "old"}, PLAIN, "changed since: code"),
        ("small/plain/seed0/run.json", {"data": {"fingerprint": "old"}}, PLAIN, "changed since: data"),
        ("small/child/seed0/run.json", {"init": {"weights_sha256": "old"}}, CHILD, "changed since: parent"),
        ("small/plain/seed0/prune.json", {"settings": {}}, PRUNE, "changed since: configuration"),
        ("data/text/manifest.json", {"recipe": "old"}, DATA, "changed since: configuration"),
        ("data/text/manifest.json", {"source_fingerprint": "old"}, DATA, "changed since: source files"),
    ],
)
def test_outputs_that_differ_from_the_plan_are_stale(plan, finished, file, keys, stale, detail):
    change(finished / file, **keys)
    assert states_of(plan)[stale] == ("stale", detail)


def test_outputs_of_stale_inputs_are_stale(plan, finished):
    change(finished / "small/parent/seed0/run.json", spec_hash="old")
    assert states_of(plan)[CHILD] == ("stale", "small/parent/seed0 is stale")
    assert states_of(plan)[PLAIN] == ("finished", "")
    change(finished / "data/text/manifest.json", recipe="old")
    after = states_of(plan)
    assert after[CHILD] == ("stale", "text is stale; small/parent/seed0 is stale")
    assert after[ZEROSHOT] == ("stale", "small/plain/seed0 is stale")
    (finished / "small/parent/seed0/run.json").unlink()
    assert states_of(plan)[CHILD] == ("stale", "text is stale; small/parent/seed0 is missing")


def test_a_stage_in_progress_is_running(plan, finished):
    with stage_note("train", finished / "small/plain/seed0"):
        state, detail = states_of(plan)[PLAIN]
        assert state == "running"
        assert detail.startswith("since 20")
    assert states_of(plan)[PLAIN] == ("finished", "")


@pytest.mark.parametrize(
    ("error", "state", "detail"),
    [
        (UserError("no room; delete something"), "failed", "no room; delete something; log logs/x.log"),
        (ValueError("first line\nsecond line"), "failed", "first line; log logs/x.log"),
        (MemoryError(), "failed", "MemoryError; log logs/x.log"),
        (KeyboardInterrupt(), "stopped", "interrupted; log logs/x.log"),
        (StoppedEarly("stopped after step 3"), "stopped", "stopped after step 3; log logs/x.log"),
    ],
)
def test_a_stage_that_ended_early_has_a_reason_and_a_log(plan, finished, monkeypatch, error, state, detail):
    monkeypatch.setenv("FORMERLAB_LOG", "logs/x.log")
    with pytest.raises(type(error)), stage_note("train", finished / "small/plain/seed0"):
        raise error
    assert states_of(plan)[PLAIN] == (state, detail)
    text = report(plan, problems_only=True)
    assert text.splitlines()[0] == f"train  small/plain/seed0  {state}  {detail}"
    assert "small/child" not in text


def test_a_stage_whose_process_has_ended_was_killed(plan, finished):
    ended_process = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    note = {
        "state": "running",
        "pid": int(ended_process.stdout),
        "host": socket.gethostname(),
        "since": "now",
        "log": None,
    }
    write_json(finished / "small/plain/seed0/.train.state.json", note)
    assert states_of(plan)[PLAIN] == ("killed", "the process is gone")
    other_host = note | {"host": "another"}
    write_json(finished / "small/plain/seed0/.train.state.json", other_host)
    assert states_of(plan)[PLAIN][0] == "running"  # a process on another machine cannot be checked


def test_a_reused_process_id_does_not_count_as_running(tmp_path):
    write_json(tmp_path / ".train.state.json", {"state": "running", "pid": os.getpid(), "host": socket.gethostname()})
    assert read_note("train", tmp_path)["state"] == "killed"


def test_status_reports_a_missing_compiler(finished_plan, monkeypatch):
    assert "no C++ compiler" not in report(finished_plan)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler found (tried CXX, c++, g++, clang++): CPU kernels use plain torch" in report(finished_plan)
