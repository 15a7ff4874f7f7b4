"""The jobs of the plan."""

import math
from pathlib import Path

import pytest

from formerlab.files import write_json
from formerlab.plan.build import build_plan
from formerlab.plan.staleness import Staleness, run_jobs
from formerlab.results.stages import WRITER
from formerlab.training.any_run import ReleasedRun
from formerlab.training.run import Run

ROOT = Path(__file__).parents[2]
SCALES = sorted(path.stem for path in (ROOT / "workflow/scales").glob("*.yaml"))


@pytest.fixture(scope="module")
def plans():
    return {}


@pytest.fixture(params=SCALES)
def plan(request, plans):
    """Return the plan of the repository's configuration at each scale."""
    if request.param not in plans:
        plans[request.param] = build_plan(ROOT, {"scale": request.param, "tracking_uri": ""})
    return plans[request.param]


def test_every_scale_has_runs_of_its_studies(plan):
    studies = set(plan["studies"]) if plan["scale"] not in ("pretrained", "released") else {"decay"}
    unsearched = {"decay", "combined"} if plan["scale"] == "pilot" else set()
    assert studies - unsearched == {job["study"] for job in run_jobs(plan).values()}


def test_resolved_specs_are_complete_runs(plan):
    for name, job in plan["train"].items():
        run = Run.model_validate(job["spec"])
        assert (run.id, run.init_id, run.fingerprint()) == (name, job["init"], job["spec_hash"])
        assert (run.to_dict(), run.model.params()) == (job["spec"], job["cost"]["parameters"])


def test_parents_come_first_and_with_higher_priority(plan):
    earlier = []
    for name, job in plan["train"].items():
        assert job["init"] is None or job["init"] in earlier
        earlier.append(name)
        children = [child["priority"] for child in plan["train"].values() if child["init"] == name]
        assert job["priority"] == max(children, default=0) + max(1, round(3600 * job["cost"]["hours"]))


def test_released_models_read_text_encoded_with_their_tokenizer(plan):
    assert bool(plan["load"]) == (plan["scale"] in ("released", "pretrained", "paper"))
    if plan["scale"] in ("released", "pretrained"):  # the released model and the trained decoder have different shapes
        assert plan["decode"]["decay"]["runs"] == ["decay/released-smollm2-135m-instruct/seed0"]
    for name, job in plan["load"].items():
        run = ReleasedRun.model_validate(job["spec"])
        assert (run.id, run.to_dict(), run.fingerprint()) == (name, job["spec"], job["spec_hash"])
        tokenizer = plan["data"][job["data"]]["spec"]["tokenizer"]
        assert (tokenizer["model"], tokenizer["vocabulary"]) == (run.released, run.model.vocabulary)
        assert job["cost"]["flops"] == 0


def test_figures_that_wait_for_the_same_jobs_are_rendered_in_one_job(plan):
    def waits(inputs):
        return {(path.rpartition("/")[0], WRITER[path.rpartition("/")[2]]) for path in inputs}

    if plan["scale"] == "laptop":  # laptop has draw_by_study: one job per study
        assert sorted(job["study"] for job in plan["draw"].values()) == sorted(plan["studies"])
        return
    awaited = []
    for name, job in plan["draw"].items():
        awaited.append((job["study"], waits(job["inputs"])))
        assert name == next(iter(job["entries"]))
        assert all(waits(entry["inputs"]) == awaited[-1][1] for entry in job["entries"].values())
        for key in ("inputs", "outputs"):
            assert set(job[key]) == {path for entry in job["entries"].values() for path in entry[key]}
    assert all(group not in awaited[:index] for index, group in enumerate(awaited))
    assert len({path for job in plan["draw"].values() for path in job["outputs"]}) == 4 * sum(
        len(job["entries"]) for job in plan["draw"].values()
    )


SEEDS = [
    ("config.yaml", "{}", {"plain": [0, 1], "parent": [0, 1], "child": [0, 1]}),
    ("scale", "studies: {small: {seeds: [5]}}", {"plain": [5], "parent": [5], "child": [5]}),
    (
        "scale",
        "studies: {small: {runs: {parent: {seeds: [5, 6, 7]}, plain: {seeds: [8]}}}}",
        {"plain": [8], "parent": [5, 6, 7], "child": [5]},
    ),
    ("config.yaml", "seeds: [7, 9]", {"plain": [7, 9], "parent": [7, 9], "child": [7, 9]}),
]


def test_the_most_specific_seeds_are_used_and_need_parents(project):
    seeds_of_plans = set()
    for file, text, seeds in SEEDS:
        project.merge_into(project.scale if file == "scale" else file, text)
        train = project.plan()["train"]
        for run, expected in seeds.items():
            assert [job["seed"] for job in train.values() if job["run"] == run] == expected
        children = [job for job in train.values() if job["run"] == "child"]
        assert [job["init"] for job in children] == [f"small/parent/seed{seed}" for seed in seeds["child"]]
        seeds_of_plans |= {job["spec"]["seed"] for job in train.values()}
    assert seeds_of_plans == {0, 1, 5, 6, 7, 8, 9}
    project.merge_into(project.config, "seeds: null")
    project.merge_into(project.scale, "studies: {small: {runs: {child: {seeds: [5, 4]}}}}")
    refused = "small.runs.child: seed 4 has no parent, because 'parent' has seeds 5, 6, 7; give both runs"
    assert project.mistake().startswith(f"{project.scale}: {refused}")


def test_a_child_keeps_or_recomputes_tau(project):
    def tau(**growth_settings):
        return project.run("child", **growth_settings)["model"]["projection"]["tau"]

    assert tau() == pytest.approx(math.sqrt(8))
    assert tau(set={"small.runs.child.growth.tau": "sqrt"}) is None


def test_zero_shot_jobs_need_questions(project):
    assert set(project.plan()["zeroshot"]) == {"small/plain/seed0", "small/plain/seed1"}
    without = project.plan(set={"scale.data.text.questions": 0})
    assert without["zeroshot"] == {}
    assert [job["settings"]["questions"] for job in without["prune"].values()] == [False, False]


def test_only_data_sets_of_runs_are_prepared(project):
    project.merge_into(project.scale, "data: {other: {tokenizer: {kind: bpe, vocabulary: 400}}}")
    assert list(project.plan()["data"]) == ["text"]
    plan = project.plan(set={"small.runs.plain.data": "other"})
    assert sorted(plan["data"]) == ["other", "text"]
    assert plan["train"]["small/plain/seed0"]["spec"]["model"]["vocabulary"] == 400


def test_the_source_fingerprint_depends_on_the_text_and_not_on_its_path(project):
    def state(path):
        source = {"kind": "files", "train": [str(path)]}
        return project.plan(data={"text": {"source": source, "questions": 0}})["data"]["text"]["source"]

    path = project.root / "mine.txt"
    path.write_text("words")
    first = state(path)
    path.write_text("other words")
    assert state(path) != first
    moved = project.root / "elsewhere" / "mine.txt"
    moved.parent.mkdir()
    moved.write_text("words")
    assert state(moved) == first


def test_prepared_data_stay_up_to_date_without_their_text(project, monkeypatch):
    monkeypatch.chdir(project.root)

    def plan():
        source = {"kind": "files", "train": [str(project.root / "mine.txt")]}
        return project.plan(data={"text": {"source": source, "questions": 0}})

    (project.root / "mine.txt").write_text("words")
    job = plan()["data"]["text"]
    record = {"source_fingerprint": job["source"], "recipe": job["recipe"], "code_hash": job["code"]}
    write_json(project.root / job["out"] / "manifest.json", record)
    (project.root / "mine.txt").unlink()
    assert Staleness(plan()).check("data", "text").current
