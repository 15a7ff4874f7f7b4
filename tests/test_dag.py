"""The DAG in a copy of the repository's files: what runs, and what runs again after a change.

Every job is replaced by a stand-in that only writes the files the job would write, so that all studies fit in seconds.
"""

import functools
import os
import subprocess
import sys
import time

import pytest
from fixtures.checkout import ROOT, Checkout, drawn_from, jobs

from formerlab.evaluation.prune import FILES
from formerlab.figures import catalogue
from formerlab.plan.build import build_plan

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dag")]

SCALES = sorted({path.stem for path in (ROOT / "workflow/scales").glob("*.yaml")} - {"smoke"})

ENDING = {"claims", "runs", "track", "all"}
"""What follows from any run."""

STAND_IN = f"""#!{sys.executable} -IS
import json, os, pathlib, sys, time

verb, *names = sys.argv[3:]
plan = json.load(open(os.environ["FORMERLAB_PLAN"]))
name = names[0] if names else ""
if name and name == os.environ.get("FAILING"):
    sys.exit("this one fails")
while "UNTIL" in os.environ and verb != "check" and not os.path.exists(os.environ["UNTIL"]):
    pathlib.Path("waiting").touch()
    time.sleep(0.05)
train = "run.json run.yaml train.csv timing.csv eval.csv test.csv depth.csv weights.safetensors"
prune = "{" ".join(FILES)} prune.json"
of_run = {{"flow": "flow.csv flow.json", "train": train, "zeroshot": "zeroshot.csv zeroshot.json", "prune": prune}}
translate = "translate.csv bleu.csv attention.csv translations.tsv translate.json"
of_run |= {{"translate": translate, "complexity": "complexity.csv complexity.json"}}
if verb == "draw":
    paths = plan["draw"][name]["outputs"]
elif verb in ("speed", "decode"):
    paths = [f"{{plan['results']}}/{{name}}/{{verb}}.{{ending}}" for ending in ("csv", "json")]
elif verb == "data":
    paths = [plan["data"][name]["out"] + "/manifest.json"]
elif verb == "exact":
    paths = [plan["results"] + "/exact.csv"]
elif verb == "claims":
    paths = [f"{{plan['figures']}}/claims.{{ending}}" for ending in ("csv", "md", "html")]
elif verb == "runs":
    paths = [f"{{plan['figures']}}/runs.{{ending}}" for ending in ("csv", "html")]
elif verb in of_run:
    paths = [f"{{plan['results']}}/{{name}}/{{file}}" for file in of_run[verb].split()]
else:
    paths = [plan["results"] + "/mlflow.json"] if verb == "track" else []
for path in map(pathlib.Path, paths):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{{verb}} {{time.time()}}")
"""


@pytest.fixture(scope="module")
def acted(tmp_path_factory):
    """The whole DAG at scale smoke, done by the stand-in, which fails in one run the first time."""
    checkout = Checkout(tmp_path_factory.mktemp("acted"))
    (checkout.bin / "python").write_text(STAND_IN)
    (checkout.bin / "python").chmod(0o755)
    checkout.edit("config.yaml", "scale: laptop", "scale: smoke")
    checkout.jobs = build_plan(checkout.root, {})["train"]
    done = checkout.snakemake("--cores", "2", "--keep-going", FAILING=next(iter(of_study(checkout, "denseformer"))))
    assert done.returncode == 1
    checkout.left = checkout.to_do()
    assert checkout.snakemake("--cores", "2").returncode == 0
    return checkout


def results(acted):
    return build_plan(acted.root, {})["results"]


def of_study(acted, study):
    """Return the runs of a study, by id."""
    return {run: job for run, job in acted.jobs.items() if job["study"] == study}


@functools.cache
def looked_at():
    """Return the runs, without their seeds, whose flow over depth is looked at."""
    return {run.rpartition("/")[0] for run in build_plan(ROOT, {"scale": "smoke"})["flow"]}


def following(*runs):
    """Return the jobs that train runs, look at them, draw from them, and end every call."""
    flow = {f"flow {run}" for run in runs if run.rpartition("/")[0] in looked_at()}
    return {f"train {run}" for run in runs} | flow | drawn_from(*runs) | ENDING


def test_a_failed_run_stops_only_what_hangs_on_it(acted):
    assert acted.left == following(next(iter(of_study(acted, "denseformer"))))


def test_nothing_runs_twice(acted):
    assert acted.to_do() == set()


def test_a_changed_run_takes_its_children_and_figures_along(acted):
    parent = next(job["init"] for job in acted.jobs.values() if job["init"])
    children = [run for run, job in acted.jobs.items() if job["init"] == parent]
    study, name, _ = parent.split("/")
    changed = acted.to_do(config={"set": {f"{study}.runs.{name}.optimizer.lr": 1.0e-4}})
    assert changed == following(parent, *children)
    assert 1 < len(children) + 1 < len(of_study(acted, study))


def test_a_changed_child_leaves_its_parent_and_siblings(acted):
    child, job = next((run, job) for run, job in acted.jobs.items() if job["init"])
    keys = {"random": "zero", "zero": "random"}[job["spec"]["growth"]["keys"]]
    (acted.root / "mine.yaml").write_text(f"{job['study']}.runs.{job['run']}.growth.keys: {keys}")
    assert acted.to_do(config={"overlay": "mine.yaml"}) == following(child)


def test_a_changed_sweep_trains_nothing(acted):
    changed = acted.to_do(config={"set": {"scale.studies.decay.prune.decoder.mask_windows": 3}})
    drawn = drawn_from("decay/decoder", reading=FILES)
    assert changed == {"prune decay/decoder/seed0", *drawn, "claims", "track", "all"}


def test_an_added_seed_leaves_the_runs_of_the_first(acted):
    runs = [run.replace("seed0", "seed1") for run in of_study(acted, "denseformer")]
    assert acted.to_do("denseformer", config={"seeds": [0, 1]}) == following(*runs) - ENDING | {"denseformer"}


def test_edited_code_runs_exactly_what_uses_it(acted):
    dense = [run for run, job in acted.jobs.items() if job["spec"]["model"].get("depth", {}).get("kind") == "dwa"]
    layer = "class DepthWeightedAverageLayer"
    acted.edit("src/formerlab/layers/dwa.py", layer, f"CHANGED = 1\n\n\n{layer}")
    try:
        # What is timed beside them is timed again, and so is trained what trains for the time of one of them.
        equal = [run for run, job in acted.jobs.items() if job["equal_time"]]
        looked = {f"flow {run}" for run in acted.jobs if run.rpartition("/")[0] in looked_at()}
        pruned = {f"prune {run}" for run in dense if run in build_plan(acted.root, {})["prune"]}
        assert acted.to_do() == following(*dense, *equal) | looked | pruned | {"speed denseformer"}
    finally:
        acted.edit("src/formerlab/layers/dwa.py", "CHANGED = 1\n\n\n", "")


def test_what_changes_no_number_runs_nothing(acted):
    acted.edit("src/formerlab/plan/code.py", "import ast\n", "import ast\n\nCHANGED = 1\n")
    acted.edit("src/formerlab/layers/dwa.py", "import torch\n", "import torch  # a comment\n")
    acted.edit("workflow/studies/denseformer.yaml", "runs:\n", "runs:  # a comment\n")
    assert acted.to_do(config={"threads": 2}) == set()


MISTAKES = {
    "decay.optimizer.lr": ("1e-3", "decay.runs.decoder.optimizer.lr: '1e-3' is text, not a number; write 1.0e-3"),
    "tokenformer.init": ("nobody", "'nobody' does not exist; known are "),
    "tokenformer.model.heads": (3, "heads=3 does not divide width=16; change one of them"),
}


@pytest.mark.parametrize("key", MISTAKES)
def test_a_mistake_stops_before_any_job(acted, key):
    value, answer = MISTAKES[key]
    plans = set((acted.root / ".formerlab/plans").iterdir())
    done = acted.snakemake("--cores", "1", "--forceall", config={"set": {key: value}})
    assert done.returncode != 0
    assert len([line for line in done.stderr.splitlines() if answer in line]) == 1
    assert jobs(done.stdout + done.stderr) == set()
    assert set((acted.root / ".formerlab/plans").iterdir()) == plans


@pytest.mark.parametrize("scale", SCALES)
def test_every_other_scale_has_a_dag(acted, scale):
    found = acted.to_do(config={"scale": scale})
    assert {"exact", *ENDING} <= found
    drawn = {name for name in catalogue() if f"draw_{name}" in found}
    studies = {drawing.study for drawing in catalogue().values()}
    assert {catalogue()[name].study for name in drawn} == studies
    if scale in ("workstation", "paper"):
        assert drawn == set(catalogue())
    for rule, least in (("data", 1), ("train", 8), ("prune", 1)):
        assert len([job for job in found if job.startswith(f"{rule} ")]) >= least


@pytest.mark.skipif(not (ROOT / "slurm/config.yaml").exists(), reason="the repository has no Slurm profile")
def test_the_cluster_profile_plans_the_whole_programme(acted):
    done = acted.snakemake("--profile", "slurm", "-n", config={"seeds": [0]})
    assert done.returncode == 0, done.stderr
    assert "results/live/paper/" in done.stdout
    found = jobs(done.stdout)
    assert not any(name.endswith("seed1") for name in found)
    assert {"track", "all"} <= found


def test_of_two_at_once_in_one_folder_the_second_is_refused_and_the_first_finishes(acted, tmp_path):
    words = (sys.executable, "-m", "snakemake", "--cores", "1", "--force", f"{results(acted)}/exact.csv")
    first = subprocess.Popen(
        words,
        cwd=acted.root,
        env=acted.environment | {"UNTIL": str(tmp_path / "go on")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (acted.root / "waiting").exists():
        assert first.poll() is None
        time.sleep(0.05)
    second = acted.snakemake("--cores", "1", "--forceall")
    (tmp_path / "go on").touch()
    assert second.returncode == 1
    assert "locked" in second.stderr.lower()
    assert jobs(second.stdout + second.stderr) == set()
    assert first.wait() == 0
    assert acted.snakemake("--cores", "1").returncode == 0  # what follows from the forced one
    assert acted.to_do() == set()


def test_modification_times_an_hour_ahead_run_nothing(acted):
    ahead = time.time() + 3600
    for path in (acted.root / "results").rglob("*"):
        os.utime(path, (ahead, ahead))
    assert acted.to_do() == set()
    check = [sys.executable, "-m", "formerlab", "check"]  # which every start of the DAG calls; here a stand-in does not
    done = subprocess.run(check, cwd=acted.root, env=acted.environment, capture_output=True, text=True)
    assert "results were from the future (do clocks differ?)" in done.stderr
    run = next(iter(of_study(acted, "vision")))
    (acted.root / results(acted) / run / "run.json").unlink()
    assert acted.snakemake("--cores", "1").returncode == 0  # what is younger than its reader's products fails it
    assert acted.to_do() == set()
