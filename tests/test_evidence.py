"""scripts/evidence.py: runs are made by priority, each after its parent, and the same command resumes."""

import importlib.util
import os
import shutil
import subprocess
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest
from fixtures.checkout import ROOT
from fixtures.project import Project, finish
from fixtures.rows import make_run

from formerlab.commands.context import plan_one_study
from formerlab.errors import UserError
from formerlab.plan.staleness import Staleness
from formerlab.results.export import export

_SPEC = importlib.util.spec_from_file_location("evidence", ROOT / "scripts" / "evidence.py")
evidence = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(evidence)


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return a function that makes the evidence of a small project whose stages only write records."""
    project = Project(tmp_path)
    project.lay_over(project.config, "seeds: [0]")
    only = "only: ['deep-4', child, parent, plain]"
    project.lay_over(project.scale, f"studies: {{small: {{{only}}}}}")
    monkeypatch.chdir(tmp_path)
    plan = project.plan()
    monkeypatch.setattr(evidence, "find_plan", lambda arguments: tmp_path / "plan.json")
    monkeypatch.setattr(evidence, "read_plan", lambda path: plan)
    called = []

    class Quick(evidence.StudyQueue):
        def call(self, stage, name):
            called.append((stage, name))
            if vars(self).get("fails") == (stage, name):
                return False
            finish(plan, (stage, name))
            return True

        def export(self, name):
            called.append(("exported", name))

    def made(runs=("*",), **settings):
        called.clear()
        given = {"to": Path("elsewhere"), "commit": False, "missing": False, "committed": False} | settings
        made = Quick(Namespace(study="small", runs=runs, scale="smoke", **given))
        vars(made).update(settings)
        made.prepare()
        made.work()
        return made

    return made, called, plan


def trained(called):
    return [name.split("/")[1] for stage, name in called if stage == "train"]


def test_the_most_wanted_first_but_parents_before_children(study):
    make, called, plan = study
    make()
    assert called[0] == ("data", "text")
    assert trained(called) == ["deep-4", "parent", "child", "plain"]
    assert called.index(("prune", "small/plain/seed0")) == called.index(("train", "small/plain/seed0")) + 2
    staleness = Staleness(plan)
    assert all(staleness.check(stage, name).current for stage in ("data", "train", "prune") for name in plan[stage])


def test_what_is_done_is_not_done_again(study):
    make, called, plan = study
    finish(plan, ("data", "text"), ("train", "small/deep-4/seed0"), ("train", "small/plain/seed0"))
    make()
    assert trained(called) == ["parent", "child"]
    assert ("prune", "small/plain/seed0") in called
    make()
    assert called == []


def test_runs_that_are_named_and_what_they_start_from(study):
    make, called, _ = study
    make(runs=["ch*"])
    assert trained(called) == ["parent", "child"]


def test_runs_that_have_rows_are_left_out_but_what_missing_ones_start_from(study, tmp_path):
    make, called, _ = study
    for run in ("deep-4", "parent"):
        make_run(tmp_path / "elsewhere/results/live/smoke", "small", run)
    export(tmp_path / "elsewhere/results/live/smoke", tmp_path / "elsewhere/results/cached/smoke")
    make(missing=True)
    assert trained(called) == ["parent", "child", "plain"]


def test_committed_runs_are_made_with_their_parents_alone(study, tmp_path):
    make, called, _ = study
    make_run(tmp_path / "elsewhere/results/live/smoke", "small", "child")
    export(tmp_path / "elsewhere/results/live/smoke", tmp_path / "elsewhere/results/cached/smoke")
    make(committed=True)
    assert trained(called) == ["parent", "child"]


def test_children_of_a_run_that_failed_are_left_and_the_rest_is_done(study):
    make, called, _ = study
    made = make(fails=("train", "small/parent/seed0"))
    assert trained(called) == ["deep-4", "parent", "plain"]
    assert made.failed == {"small/parent/seed0", "small/child/seed0"}


def test_a_measurement_that_failed_does_not_keep_children_from_training(study):
    make, called, plan = study
    plan["zeroshot"]["small/parent/seed0"] = plan["zeroshot"]["small/plain/seed0"]
    made = make(fails=("zeroshot", "small/parent/seed0"))
    assert trained(called) == ["deep-4", "parent", "child", "plain"]
    assert made.failed == {"small/parent/seed0"}


def test_a_pattern_that_matches_no_trained_run_is_refused(study):
    make, _, _ = study
    with pytest.raises(
        UserError, match=r"^--runs: 'plan' matches no run that small trains at scale smoke; did you mean pl"
    ):
        make(runs=["plan"])


def test_given_weights_are_unpacked_and_their_run_is_not_trained(study, tmp_path):
    make, called, plan = study
    finish(plan, ("data", "text"), ("train", "small/parent/seed0"))
    plan["train"]["small/parent/seed0"]["given"] = True
    folder = tmp_path / "results/live/smoke/small/parent/seed0"
    archive = tmp_path / "results/weights/other-small-weights.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as file:
        file.write(folder / "run.json", "small/parent/seed0/run.json")
        file.writestr("small/plain/seed0/run.json", "not given")
    (folder / "run.json").unlink()  # unpacking was interrupted
    make()
    assert trained(called) == ["deep-4", "child", "plain"]
    assert (folder / "run.json").exists()


def test_make_evidence_repeats_committed_runs_and_other_targets_take_the_scale_alone():
    # Without this, a make that runs the test hands down its flags and prints the folders that it enters.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }

    def printed(*words):
        command = ["make", "--no-print-directory", "-n", *words]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert printed("evidence", "STUDY=vision").strip().endswith("evidence.py vision --committed")
    assert printed("evidence", "STUDY=vision", "SCALE=pilot").strip().endswith("evidence.py vision --scale pilot")
    assert "--committed" not in printed("plan") + printed("status") + printed("demo")


def test_the_data_of_other_studies_are_not_needed(tmp_path, monkeypatch):
    project = Project(tmp_path)
    project.lay_over(project.config, "studies: [small, other]")
    shutil.copy(tmp_path / project.study, tmp_path / "workflow/studies/other.yaml")
    project.write("workflow/data.yaml", "{}")
    source = "{kind: files, train: [$FORMERLAB_DATA/absent]}"
    project.lay_over(
        project.scale, f"data: {{absent: {{source: {source}}}}}\nstudies: {{other: {{defaults: {{data: absent}}}}}}"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(evidence.PLAN_VARIABLE, raising=False)
    monkeypatch.setenv("FORMERLAB_DATA", str(tmp_path))

    def planned(study):
        arguments = Namespace(plan=None, scale=None, overlay=None, set=[])
        plan_one_study(arguments, study)
        return evidence.read_plan(evidence.find_plan(arguments))

    assert set(planned("small")["studies"]) == {"small"}
    with pytest.raises(UserError, match=r"absent"):
        planned("other")
