"""Released models in the plan and its stages: tiny random models from a folder replace trained runs."""

import json
from contextlib import chdir
from itertools import product

import numpy as np
import pandas as pd
import pytest
import tiny_models
import yaml
from fixtures.project import Project
from safetensors.torch import load_file, save_file

from formerlab.__main__ import main
from formerlab.cache import H2O, Simulation
from formerlab.errors import EXIT_USER_ERROR
from formerlab.files import read_record
from formerlab.plan.show import table
from formerlab.plan.staleness import Staleness
from formerlab.results.export import export
from formerlab.results.read import Results
from formerlab.tasks.window_losses import spread_windows, window_losses
from formerlab.training.any_run import ReleasedRun

STUDY = """
title: Small
paper: none
question: Is it small?
runs:
  "released-{model}": {released: "{model}", data: "{model}", context: 32, windows: 4}
measure:
  zeroshot: {runs: ["released-*"]}
  prune: {runs: ["released-*"], policies: [{kind: h2o}], alphas: [0.2], budgets: [0.4], windows: 3, context: 32,
          batch_tokens: 64, mask_windows: 1, calibration_windows: 1, score_windows: 1}
  answers: {runs: ["released-llama"], tasks: [birds], examples: 2, policies: [{kind: local}], budgets: [4]}
"""


@pytest.fixture(scope="module")
def project(tokenizer, tmp_path_factory):
    """Return a project with two released models and a suite."""
    root = tmp_path_factory.mktemp("project")
    project = Project(root)
    for kind in ("llama", "opt"):
        tiny_models.save(kind, root / kind, tokenizer)
    random = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "the", "dog", "ran", "to", "an", "old", "house"]
    project.write("lines.txt", "\n".join(" ".join(random.choice(words, 12)) for _ in range(200)))
    rows = [{"query": f"the cat {n} sat", "choices": ["on a mat", "mat a on"], "gold": n % 2} for n in range(4)]
    project.write("cats.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    models = {kind: {"kind": "folder", "path": str(root / kind), "dtype": "float32"} for kind in ("llama", "opt")}
    source = {"kind": "files", "paths": [str(root / "lines.txt")], "documents": "line"}
    data = {
        kind: {
            "source": source,
            "tokenizer": {"kind": "released", "model": kind},
            "valid_share": 0.2,
            "test_share": 0.2,
        }
        for kind in models
    }
    scale = {
        "description": "tiny",
        "data": data,
        "released": models,
        "suites": {"cats_local": {"kind": "files", "paths": [str(root / "cats.jsonl")]}},
        "studies": {"small": {"runs": {"released-{model}": {"grid": {"model": ["llama", "opt"]}}}}},
    }
    project.write(project.scale, yaml.safe_dump(scale, sort_keys=False))
    project.write(project.study, STUDY)
    return project


@pytest.fixture(scope="module")
def finished_project(project, birds):
    """Return the project after all stages."""
    with chdir(project.root):
        for words in (
            *(["data", kind] for kind in ("llama", "opt")),
            *(["load", f"small/released-{kind}/seed0"] for kind in ("llama", "opt")),
            *(
                [command, f"small/released-{kind}/seed0"]
                for command in ("zeroshot", "prune")
                for kind in ("llama", "opt")
            ),
            ["answers", "small/released-llama/seed0"],
        ):
            assert main(words) == 0, words
    return project


def test_sizes_vocabulary_and_costs_match_the_model(project):
    with chdir(project.root):
        plan = project.plan()
    job = plan["load"]["small/released-llama/seed0"]
    model = tiny_models.build("llama")
    assert job["spec"]["model"]["parameters"] == model.num_parameters() == job["cost"]["parameters"]
    assert plan["data"]["llama"]["spec"]["tokenizer"]["vocabulary"] == tiny_models.VOCABULARY
    assert plan["train"] == {}
    assert plan["prune"]["small/released-llama/seed0"]["cost"]["flops"] > 0
    assert "small/released-opt/seed0" in table(plan, seeds=True)
    block_parameters = model.num_parameters() - 2 * tiny_models.VOCABULARY * 32
    matmul_flops = 2 * (block_parameters + tiny_models.VOCABULARY * 32) + 4 * 2 * 32 * 32
    run = ReleasedRun.model_validate(job["spec"])
    assert run.tokens * run.forward_flops == pytest.approx(4 * 32 * matmul_flops)


def test_all_stages_accept_a_released_model_as_a_finished_run(finished_project):
    with chdir(finished_project.root):
        plan = finished_project.plan()
        staleness = Staleness(plan)
        stages = ("data", "load", "zeroshot", "prune", "answers")
        assert {staleness.check(stage, name).state for stage in stages for name in plan[stage]} == {"finished"}
        results = Results(finished_project.root / plan["results"], staleness.staleness_reason)
    records = results.runs("small")
    assert list(records["run"]) == ["released-llama", "released-opt"]
    assert set(records["flops"]) == {0}
    assert results.left_out() == []
    assert results.rows("train.csv", "small").empty, "no run was trained"
    rows = results.rows("prune.csv", "small")
    assert rows.groupby(["run", "policy"]).size().to_dict() == {
        (run, policy): 3 for run in ("released-llama", "released-opt") for policy in ("decay", "full", "h2o")
    }
    assert len(results.rows("prune_questions.csv", "small")["example"].unique()) == 4
    assert set(results.rows("zeroshot.csv", "small")["task"]) == {"cats_local"}
    rows = results.rows("answers.csv", "small")
    arms = [*product(("full", "local"), ("birds_long", "birds_short"))]
    assert rows.groupby(["policy", "task"]).size().to_dict() == dict.fromkeys(arms, 2)
    record = read_record(
        finished_project.root / plan["results"] / "small/released-llama/seed0/answers.json", "rows_sha256"
    )
    assert record["examples_sha256"].keys() == {"birds_long", "birds_short"}
    assert record["settings"]["tasks"] == ["birds"]
    assert record["versions"].keys() == {"lm_eval", "transformers", "torch"}


def test_losses_match_the_model_on_text_in_its_tokens(finished_project):
    from formerlab.data import load_stream
    from formerlab.integrations.huggingface.released_run import load_released_run

    folder = finished_project.root / "results/live/smoke/small/released-llama/seed0"
    stream = load_stream(finished_project.root / "results/live/smoke/data/llama", "test")
    model, run = load_released_run(folder)
    windows = spread_windows(stream, 32, 3)
    for policy, attend_for in (("full", None), ("h2o", lambda lengths: Simulation(H2O(), 0.4, lengths))):
        expected = window_losses(model, stream, 32, windows=windows, attend_for=attend_for)
        rows = pd.read_csv(folder / "prune.csv").query(f"policy == '{policy}'")
        assert rows["loss_nats"].tolist() == pytest.approx([loss.loss_nats for loss in expected], abs=1e-5)
    assert len(pd.read_csv(folder / "test.csv")) == run.windows


def test_runs_are_listed_exported_and_tracked(finished_project, capsys):
    from formerlab.tracking.mlflow import sync

    with chdir(finished_project.root):
        assert main(["runs", "--out", "listed"]) == 0
        assert "released-opt" in (finished_project.root / "listed/runs.csv").read_text()
        assert main(["status"]) == 0
        assert "finished" in capsys.readouterr().out
        report = export(finished_project.root / "results/live/smoke", finished_project.root / "results/cached/smoke")
        assert len(report["exported"]) == 2
        cached = Results(finished_project.root / "results/cached/smoke")
        assert len(cached.rows("prune.csv", "small")) == 18
        for tree in ("live", "cached"):
            output = sync(
                finished_project.root / f"results/{tree}/smoke",
                f"sqlite:///{finished_project.root}/mlflow.db",
                finished_project.root,
            )
            assert output["status"] == "ok"
            assert output["runs"] == 2


def test_a_second_call_does_nothing_and_changed_weights_are_detected(finished_project, capsys):
    run = "small/released-opt/seed0"
    with chdir(finished_project.root):
        record = finished_project.root / "results/live/smoke" / run / "run.json"
        modified = record.stat().st_mtime_ns
        assert main(["load", run]) == 0
        assert record.stat().st_mtime_ns == modified
        weights = finished_project.root / "opt/model.safetensors"
        content = weights.read_bytes()
        save_file({name: value + 1 for name, value in load_file(weights).items()}, weights, {"format": "pt"})
        try:
            plan = finished_project.plan()
            assert str(Staleness(plan).check("load", run)) == "stale (changed since: weights)"
            capsys.readouterr()
            assert main(["prune", run]) == EXIT_USER_ERROR
            assert f"load {run} is stale (changed since: weights)" in capsys.readouterr().err
        finally:
            weights.write_bytes(content)


def test_invalid_released_runs_are_refused_by_the_plan(project):
    def error_of(**changes):
        with chdir(project.root):
            return project.mistake(set={key.replace("__", "."): value for key, value in changes.items()})

    runs = "small.runs.released-llama"
    assert "no such folder" in error_of(scale__released__llama__path="nowhere")
    assert "no released model 'lama' at this scale; did you mean llama" in error_of(**{f"{runs}.released": "lama"})
    message = f"command line: set: {runs}.data: 'opt' does not use the tokenizer of 'llama'; give that data set"
    assert error_of(**{f"{runs}.data": "opt"}).startswith(message)
    assert "context: 100 exceeds the maximum context of 'llama', 64 tokens" in error_of(**{f"{runs}.context": 100})
    assert "unknown key" in error_of(**{f"{runs}.steps": 100})
    assert "windows: Input should be greater than 0" in error_of(**{f"{runs}.windows": 0})
    assert "vocabulary: 300, but the tokenizer has 290" in error_of(scale__data__llama__tokenizer__vocabulary=300)


def test_models_that_differ_from_the_plan_or_cannot_be_pruned_are_refused_by_the_stage(
    finished_project, tokenizer, capsys
):
    tiny_models.save("bloom", finished_project.root / "bloom", tokenizer)
    sizes = {"layers": 3, "width": 32, "vocabulary": 290, "context": 64, "parameters": 1000}
    for changes, message in (
        ({"llama": {"sizes": sizes}}, "released.llama.sizes: layers is 2, not 3, parameters is"),
        ({"llama": {"path": "bloom", "sizes": sizes}}, "Bloom"),
    ):
        (finished_project.root / "overlay.yaml").write_text(yaml.safe_dump({"scale": {"released": changes}}))
        with chdir(finished_project.root):
            overlay = ["--overlay", "overlay.yaml", "--set", "results=other"]
            assert main(["data", "llama", *overlay]) == 0
            capsys.readouterr()
            assert main(["load", "small/released-llama/seed0", *overlay]) == EXIT_USER_ERROR
        output = capsys.readouterr().err
        (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
        assert message in line
