"""scripts/evidence.py trains runs in the order of the scale's key `only`, each after its parent.

The same command resumes an interrupted call.
"""

import importlib.util
import os
import shutil
import subprocess
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest
from fixtures.checkout import ROOT
from fixtures.project import Project, write_records
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
    """Return a function that runs scripts/evidence.py in a small project, the list of its calls, and the plan.

    The stages of the project only write records.
    """
    project = Project(tmp_path)
    project.merge_into(project.config, "seeds: [0]")
    only = "only: ['deep-4', child, parent, plain]"
    project.merge_into(project.scale, f"studies: {{small: {{{only}}}}}")
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
            write_records(plan, (stage, name))
            return True

        def export(self, name):
            called.append(("exported", name))

    def run_evidence(runs=("*",), **settings):
        called.clear()
        options = {"to": Path("elsewhere"), "commit": False, "missing": False, "committed": False} | settings
        run_evidence = Quick(Namespace(study="small", runs=runs, scale="smoke", **options))
        vars(run_evidence).update(settings)
        run_evidence.prepare()
        run_evidence.work()
        return run_evidence

    return run_evidence, called, plan


def trained(called):
    return [name.split("/")[1] for stage, name in called if stage == "train"]


def test_runs_train_in_the_order_of_only_with_parents_first(study):
    run_evidence, called, plan = study
    run_evidence()
    assert called[0] == ("data", "text")
    assert trained(called) == ["deep-4", "parent", "child", "plain"]
    assert called.index(("prune", "small/plain/seed0")) == called.index(("train", "small/plain/seed0")) + 2
    staleness = Staleness(plan)
    assert all(staleness.check(stage, name).current for stage in ("data", "train", "prune") for name in plan[stage])


def test_finished_jobs_are_skipped(study):
    run_evidence, called, plan = study
    write_records(plan, ("data", "text"), ("train", "small/deep-4/seed0"), ("train", "small/plain/seed0"))
    run_evidence()
    assert trained(called) == ["parent", "child"]
    assert ("prune", "small/plain/seed0") in called
    run_evidence()
    assert called == []


def test_selected_runs_are_trained_with_their_parents(study):
    run_evidence, called, _ = study
    run_evidence(runs=["ch*"])
    assert trained(called) == ["parent", "child"]


@pytest.mark.parametrize(
    ("option", "exported", "expected"),
    [("missing", ["deep-4", "parent"], ["parent", "child", "plain"]), ("committed", ["child"], ["parent", "child"])],
)
def test_missing_or_committed_runs_are_trained_with_their_parents(option, exported, expected, study, tmp_path):
    run_evidence, called, _ = study
    results = tmp_path / "elsewhere/results"
    for run in exported:
        make_run(results / "live/smoke", "small", run)
    export(results / "live/smoke", results / "cached/smoke")
    run_evidence(**{option: True})
    assert trained(called) == expected


def test_only_children_of_a_failed_run_are_skipped(study):
    run_evidence, called, _ = study
    queue = run_evidence(fails=("train", "small/parent/seed0"))
    assert trained(called) == ["deep-4", "parent", "plain"]
    assert queue.failed == {"small/parent/seed0", "small/child/seed0"}


def test_children_train_after_a_failed_measurement_of_their_parent(study):
    run_evidence, called, plan = study
    plan["zeroshot"]["small/parent/seed0"] = plan["zeroshot"]["small/plain/seed0"]
    queue = run_evidence(fails=("zeroshot", "small/parent/seed0"))
    assert trained(called) == ["deep-4", "parent", "child", "plain"]
    assert queue.failed == {"small/parent/seed0"}


def test_a_pattern_that_matches_no_trained_run_is_refused(study):
    run_evidence, _, _ = study
    message = r"^--runs: 'plan' matches no run that small trains at scale smoke; did you mean pl"
    with pytest.raises(UserError, match=message):
        run_evidence(runs=["plan"])


def test_given_weights_are_unpacked_and_their_run_is_not_trained(study, tmp_path):
    run_evidence, called, plan = study
    write_records(plan, ("data", "text"), ("train", "small/parent/seed0"))
    plan["train"]["small/parent/seed0"]["given"] = True
    folder = tmp_path / "results/live/smoke/small/parent/seed0"
    archive = tmp_path / "results/weights/other-small-weights.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as file:
        file.write(folder / "run.json", "small/parent/seed0/run.json")
        file.writestr("small/plain/seed0/run.json", "not given")
    (folder / "run.json").unlink()  # an interrupted call left incomplete weights
    run_evidence()
    assert trained(called) == ["deep-4", "child", "plain"]
    assert (folder / "run.json").exists()


def test_make_evidence_passes_committed_unless_a_scale_is_given():
    # Remove the variables of an outer make, which would add its options and print directory messages.
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
    project.merge_into(project.config, "studies: [small, other]")
    shutil.copy(tmp_path / project.study, tmp_path / "workflow/studies/other.yaml")
    project.write("workflow/data.yaml", "{}")
    source = "{kind: files, train: [$FORMERLAB_DATA/absent]}"
    project.merge_into(
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
