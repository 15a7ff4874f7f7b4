import pytest

from formerlab.errors import UserError
from formerlab.files import write_json
from formerlab.plan.locate import plan_path

RUNS = ("small/plain/seed0", "small/plain/seed1")


@pytest.fixture
def words(project):
    """Write the questions of a local suite, and return the file."""
    path = project.root / "words.jsonl"
    path.write_text('{"text": "a b"}\n')
    return path


def suites(path):
    return {"suites": {"words_local": {"kind": "files", "paths": [str(path)], "format": "cloze"}}}


def test_suites_are_used_with_and_without_embedded_questions(project, words):
    plan = project.plan(**suites(words))
    for stage in ("zeroshot", "prune"):
        states = [job["suites"] for job in plan[stage].values()]
        assert states == 2 * [{"words_local": plan["suites"]["words_local"]["state"]}]
    alone = project.plan(**suites(words), set={"scale.data.text.questions": 0})
    assert set(alone["zeroshot"]) == set(RUNS)
    assert all(job["settings"]["questions"] for job in alone["prune"].values())
    assert project.plan()["zeroshot"][RUNS[0]]["suites"] == {}


def test_a_sweep_selects_its_suites(project, words):
    only = project.plan(**suites(words), set={"scale.studies.small.measure.prune.suites": []})
    assert only["prune"][RUNS[0]]["suites"] == {}
    assert only["zeroshot"][RUNS[0]]["suites"] != {}
    with pytest.raises(UserError, match=r"prune\.suites: no suite matches 'word_\*'; known names: words_local"):
        project.plan(**suites(words), set={"scale.studies.small.measure.prune.suites": ["word_*", "*"]})


def test_changed_files_change_jobs_and_the_plan(project, words):
    plan_before, path_before = project.plan(**suites(words)), plan_path(project.root, suites(words))
    words.write_text('{"text": "a c and more"}\n')
    plan_after = project.plan(**suites(words))
    for stage in ("zeroshot", "prune"):
        assert plan_after[stage][RUNS[0]]["suites"] != plan_before[stage][RUNS[0]]["suites"]
        assert plan_after[stage][RUNS[0]]["code"] == plan_before[stage][RUNS[0]]["code"]
    assert plan_path(project.root, suites(words)) != path_before
    assert plan_after["train"] == plan_before["train"]


def test_missing_suite_files_keep_the_recorded_state(project, words):
    plan = project.plan(**suites(words))
    state = plan["suites"]["words_local"]["state"]
    record = project.root / plan["results"] / RUNS[0] / "zeroshot.json"
    write_json(record, {"suites": {"words_local": state}})
    words.unlink()
    later = project.plan(**suites(words))["zeroshot"]
    assert [later[run]["suites"]["words_local"] for run in RUNS] == [state, None]


def test_a_misleading_name_is_refused(project, words):
    command_line = {"suites": {"piqa": {"kind": "files", "paths": [str(words)]}}}
    with pytest.raises(UserError, match="name a suite of files '<suite>_local'"):
        project.plan(**command_line)
