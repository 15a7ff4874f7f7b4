"""Timing, and planning, training and staleness of equal-time runs."""

import json

import pytest
from fixtures.project import Project, write_records

from formerlab.commands import stages
from formerlab.errors import UserError
from formerlab.files import read_json, sha256, write_json
from formerlab.plan.show import states

STUDY = """
runs:
  matched: {model: {layers: 3}, equal_time: {arm: deep-4, reference: deep-3}}
measure: {speed: {runs: ["deep-*"], repetitions: 5}}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    project = Project(tmp_path)
    project.merge_into(project.study, STUDY)
    project.merge_into(project.config, "seeds: [0]")
    monkeypatch.chdir(tmp_path)
    return project


def test_timed_runs_match_the_patterns(project):
    plan = project.plan(seeds=[0, 1])
    assert plan["speed"]["small"]["runs"] == ["small/deep-3/seed0", "small/deep-4/seed0"]
    assert plan["speed"]["small"]["settings"]["repetitions"] == 5
    assert plan["train"]["small/matched/seed1"]["equal_time"] == {"arm": "deep-4", "reference": "deep-3"}
    assert plan["train"]["small/deep-3/seed0"]["equal_time"] is None


def test_only_settings_that_affect_speed_change_the_timing_job(project):
    def configuration(**settings):
        return project.plan(set=settings)["speed"]["small"]["configuration"]

    assert configuration(**{"small.steps": 5, "small.evaluate_every": 7}) == configuration()
    assert configuration(**{"small.task.batch": 2}) != configuration()


@pytest.mark.parametrize(
    ("equal", "answer"),
    [
        ("{arm: nobody}", r"matched\.equal_time: 'nobody' is not timed by the stage `speed`"),
        ("{reference: deep-4}", r"reference: 'deep-4' differs from the run"),
        ("{reference: null}", "reference: missing key"),
    ],
)
def test_mistakes_are_refused(project, equal, answer):
    project.merge_into(project.study, f"runs: {{matched: {{equal_time: {equal}}}}}")
    with pytest.raises(UserError, match=answer):
        project.plan()


class Arguments:
    time_limit = None
    margin = 30.0
    checkpoint_seconds = 60.0
    deterministic = False
    id = "small/matched/seed0"


def test_an_equal_time_run_trains_for_the_measured_time(project, monkeypatch, capsys):
    plan, trained = project.plan(), []

    def train_stage(run, data, out, *, parent, runtime):
        trained.append(run.steps)
        record = {"spec_hash": run.fingerprint(), "code_hash": job["code"], "data": {"fingerprint": "text"}}
        write_json(out / "run.json", record | runtime.extra)

    job = plan["train"]["small/matched/seed0"]
    folder = write_records(plan, ("data", "text")) / "small"
    (folder / "matched/seed0").mkdir(parents=True)
    header = "run,measure,repetition,place,sequences,tokens,time_s,memory_bytes\n"
    times = {"deep-3": 1.0, "deep-4": 1.3}
    rows = "".join(f"{run},training_step,1,1,4,128,{seconds},0\n" for run, seconds in times.items())
    (folder / "speed.csv").write_text(header + rows)
    measured = {"code_hash": plan["speed"]["small"]["code"], "configuration": plan["speed"]["small"]["configuration"]}
    write_json(folder / "speed.json", measured | {"rows_sha256": sha256(folder / "speed.csv")})
    monkeypatch.setattr(stages, "find_plan", lambda arguments: folder / "plan.json")
    monkeypatch.setattr(stages, "read_plan", lambda path: plan)
    monkeypatch.setattr("formerlab.training.stage.train_stage", train_stage)
    stages.train(Arguments())
    record = read_json(folder / "matched/seed0/run.json")
    assert trained == [26]
    assert record["equal_time"]["time_ratio"] == pytest.approx(1.3)
    message = "a step of deep-4 takes 1.3000 times as long as a step of deep-3, so this run trains for 26 steps"
    assert message in capsys.readouterr().err

    def state():
        return {(stage, name): (state, detail) for stage, name, state, detail in states(plan)}

    assert state()["speed", "small"] == ("finished", "")
    assert state()["train", "small/matched/seed0"] == ("finished", "")
    write_json(folder / "speed.json", measured | {"rows_sha256": "measured again"})
    assert state()["train", "small/matched/seed0"][1] == "changed since: measured speed"
    json.dumps(plan)
