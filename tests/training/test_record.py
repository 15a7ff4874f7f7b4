"""run.json: what docs/files.md promises, and numbers that agree with what was counted."""

import functools
import json
import platform
import re
import subprocess
from datetime import datetime

import pytest
import torch
from small_runs import MODEL, RUN, TOKENFORMER, interrupted, rows, small, trained
from variation import counted_flops, counted_params

from formerlab.files import sha256
from formerlab.tasks import LanguageModeling
from formerlab.training import provenance, stage


@pytest.fixture(scope="module")
def record(finished):
    return json.loads((finished / "run.json").read_text())


def test_where_it_comes_from(record, finished, data):
    manifest = json.loads((data / "manifest.json").read_text())
    assert record["data"] == {"name": "text", "fingerprint": manifest["fingerprint"]}
    assert record["weights_sha256"] == sha256(finished / "weights.safetensors")
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["python"] == platform.python_version()
    started, ended = (datetime.fromisoformat(record[key]) for key in ("started", "finished"))
    assert started.utcoffset().total_seconds() == 0
    assert started < ended


@pytest.mark.parametrize("model", [MODEL, TOKENFORMER], ids=["transformer", "tokenformer"])
def test_parameters_tokens_and_flops_are_what_one_counts(model, data, tmp_path, monkeypatch):
    """Tokens as the loss saw them, FLOPs as PyTorch counts those of a forward pass, three times for training."""
    run, predicted, loss = small(model=model), [], LanguageModeling.loss

    def loss_and_count(task, model, windows):
        predicted.append(windows[:, 1:].numel() if model.training else 0)
        return loss(task, model, windows)

    monkeypatch.setattr(LanguageModeling, "loss", loss_and_count)
    record = trained(run, data, tmp_path)
    module = model.build()
    assert record["parameters"] == counted_params(module)
    assert record["parameters_non_embedding"] == counted_params(module) - module.embedding.numel()
    assert record["tokens"] == sum(predicted) == rows(tmp_path, "train")[-1]["tokens"]
    forward = counted_flops(module, torch.zeros(4, 8, dtype=torch.long))["Global"]
    assert record["flops"] == record["flops_cumulative"] == 3 * 12 * forward


def test_speed_is_of_the_training_steps_alone(record, finished):
    assert record["tokens_per_s"] == pytest.approx(record["tokens"] / record["training_time_s"])
    utilisation = record["flops"] / record["training_time_s"] / record["matmul_flops_per_s"]
    assert record["model_flops_utilisation"] == pytest.approx(utilisation)
    assert record["training_time_s"] == rows(finished, "timing")[-1]["time_s"] < record["wall_time_s"]


@pytest.mark.parametrize(("precision", "peak"), [("float32", 1.0e9), ("bfloat16", 4.0e9)])
def test_utilisation_is_of_the_peak_of_products_as_the_run_makes_them(precision, peak, data, tmp_path, monkeypatch):
    peaks = {"float32": 1.0e9, "bfloat16": 4.0e9}
    monkeypatch.setattr("formerlab.training.finish.matmul_flops_per_s", lambda device, precision: peaks[precision])
    found = trained(small(precision=precision, steps=1), data, tmp_path)
    assert (found["matmul_flops_per_s"], found["processes"]) == (peak, 1)
    assert found["model_flops_utilisation"] == pytest.approx(found["flops"] / found["training_time_s"] / peak)


def test_final_losses_are_the_means_over_tokens_of_the_last_rows(record, finished):
    """The last validation batch is a smaller one, so the mean is not that of the batches."""
    last = [(row["tokens"], row["loss_nats"]) for row in rows(finished, "eval") if row["step"] == 12]
    test = [(row["tokens"], row["loss_nats"]) for row in rows(finished, "test")]
    assert len({tokens for tokens, _ in last}) == 2
    for name, pairs in (("valid", last), ("test", test)):
        mean = sum(tokens * loss for tokens, loss in pairs) / sum(tokens for tokens, _ in pairs)
        assert record["final"][f"{name}_loss_nats"] == pytest.approx(mean)
    assert record["final"]["train_loss_nats"] == rows(finished, "train")[-1]["loss_nats"]


def test_provenance_is_that_of_the_start(data, tmp_path, monkeypatch):
    """Files may be edited while a run trains; its record speaks of the code that was loaded."""
    now, train = "before", stage.train

    def train_while_somebody_edits(*arguments):
        nonlocal now
        now = "after"
        return train(*arguments)

    monkeypatch.setattr(stage, "train", train_while_somebody_edits)
    monkeypatch.setattr(provenance, "_git", lambda *_: now)
    monkeypatch.setattr(provenance, "git_state", functools.cache(provenance.git_state.__wrapped__))
    assert trained(RUN, data, tmp_path)["git"]["commit"] == "before"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """The package as if it were installed in an environment within somebody's repository."""
    place = tmp_path / "venv" / "site-packages" / "formerlab"
    place.mkdir(parents=True)
    (place / "provenance.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(place / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def git(folder, *words):
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def test_the_commit_of_a_repository_that_does_not_hold_the_package_is_not_ours(installed):
    git(installed, "init")
    git(installed, "commit", "--allow-empty", "-m", "somebody's own work")
    assert provenance.git_state.__wrapped__() == {"commit": None, "dirty_hash": None}
    git(installed, "add", "venv")
    git(installed, "commit", "-m", "and the package")
    assert re.fullmatch(r"[0-9a-f]{40}", provenance.git_state.__wrapped__()["commit"])


def test_rows_that_were_exported_meanwhile_are_no_change_of_the_code(installed):
    rows, code = installed / "results" / "cached" / "runs.csv", installed / "venv" / "site-packages" / "code.py"
    for path in (rows, code):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before\n")
    git(installed, "init")
    git(installed, "add", ".")
    git(installed, "commit", "-m", "all")
    rows.write_text("after\n")
    assert provenance.git_state.__wrapped__()["dirty_hash"] is None
    code.write_text("after\n")
    assert provenance.git_state.__wrapped__()["dirty_hash"]


def test_an_interrupted_run_has_no_record_but_the_rows_of_its_steps(data, finished, tmp_path, monkeypatch):
    interrupted(monkeypatch, 3, RUN, data, tmp_path)
    assert not (tmp_path / "run.json").exists()
    for name in ("train", "eval"):
        assert rows(tmp_path, name) == [row for row in rows(finished, name) if row["step"] <= 3]
        assert rows(tmp_path, name)
