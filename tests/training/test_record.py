"""run.json: provenance, and numbers that match independent counts."""

import functools
import json
import platform
import re
import socket
import subprocess
from datetime import datetime

import pytest
import torch
from small_runs import MODEL, RUN, TOKENFORMER, interrupt_run, rows, small, train_run
from variation import counted_flops, counted_params

from formerlab.files import sha256
from formerlab.tasks import LanguageModeling
from formerlab.training import provenance, stage


@pytest.fixture(scope="module")
def record(finished_run):
    return json.loads((finished_run / "run.json").read_text())


def test_the_record_has_the_code_data_and_machine(record, finished_run, data):
    assert record["code_hash"] == "code"
    assert record["git"] == provenance.git_state()
    assert (record["host"], record["device"]) == (socket.gethostname(), provenance.device_name(torch.device("cpu")))
    manifest = json.loads((data / "manifest.json").read_text())
    assert record["data"] == {"name": "text", "fingerprint": manifest["fingerprint"]}
    test = manifest["splits"]["test"]
    assert record["bytes_per_token"] == test["bytes"] / test["tokens"]
    assert record["weights_sha256"] == sha256(finished_run / "weights.safetensors")
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["python"] == platform.python_version()
    started, ended = (datetime.fromisoformat(record[key]) for key in ("started", "finished"))
    assert started.utcoffset().total_seconds() == 0
    assert started < ended


@pytest.mark.parametrize("model", [MODEL, TOKENFORMER], ids=["transformer", "tokenformer"])
def test_parameters_tokens_and_flops_match_counts(model, data, tmp_path, monkeypatch):
    """Tokens are the targets of the loss; FLOPs are three times PyTorch's count of a forward pass."""
    run, predicted, loss = small(model=model), [], LanguageModeling.losses

    def loss_and_count(task, model, windows):
        predicted.append(windows[:, 1:].numel() if model.training else 0)
        return loss(task, model, windows)

    monkeypatch.setattr(LanguageModeling, "losses", loss_and_count)
    record = train_run(run, data, tmp_path)
    module = model.build()
    assert record["parameters"] == counted_params(module)
    assert record["parameters_non_embedding"] == counted_params(module) - module.embedding.numel()
    assert record["tokens"] == sum(predicted) == rows(tmp_path, "train")[-1]["tokens"]
    forward = counted_flops(module, torch.zeros(4, 8, dtype=torch.long))["Global"]
    assert record["flops"] == record["flops_cumulative"] == 3 * 12 * forward


def test_extra_entries_are_in_the_record_from_the_start(data, tmp_path):
    """The record is written once with all entries, so a run that is killed after this write is complete."""
    assert train_run(RUN, data, tmp_path, extra={"equal_time": {"arm": "plain"}})["equal_time"] == {"arm": "plain"}


def test_speed_counts_only_training_steps(record, finished_run):
    assert record["tokens_per_s"] == pytest.approx(record["tokens"] / record["training_time_s"])
    utilisation = record["flops"] / record["training_time_s"] / record["matmul_flops_per_s"]
    assert record["model_flops_utilisation"] == pytest.approx(utilisation)
    assert record["training_time_s"] == rows(finished_run, "timing")[-1]["time_s"] < record["wall_time_s"]


def test_final_losses_are_token_weighted_means_of_the_last_rows(record, finished_run):
    """The last validation batch is smaller, so the mean over tokens differs from the mean over batches."""
    last = [(row["tokens"], row["loss_nats"]) for row in rows(finished_run, "eval") if row["step"] == 12]
    test = [(row["tokens"], row["loss_nats"]) for row in rows(finished_run, "test")]
    assert len({tokens for tokens, _ in last}) == 2
    for name, pairs in (("valid", last), ("test", test)):
        mean = sum(tokens * loss for tokens, loss in pairs) / sum(tokens for tokens, _ in pairs)
        assert record["final"][f"{name}_loss_nats"] == pytest.approx(mean)
    assert record["final"]["train_loss_nats"] == rows(finished_run, "train")[-1]["loss_nats"]


def test_provenance_is_taken_at_the_start(data, tmp_path, monkeypatch):
    """Files may be edited during training; the record describes the code that was loaded."""
    commit, train = "before", stage.train

    def train_while_somebody_edits(*arguments):
        nonlocal commit
        commit = "after"
        return train(*arguments)

    monkeypatch.setattr(stage, "train", train_while_somebody_edits)
    monkeypatch.setattr(provenance, "_git", lambda *_: commit)
    monkeypatch.setattr(provenance, "git_state", functools.cache(provenance.git_state.__wrapped__))
    assert train_run(RUN, data, tmp_path)["git"]["commit"] == "before"


def git(folder, *arguments):
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_the_commit_is_from_the_repository_of_the_package(tmp_path, monkeypatch):
    state = provenance.git_state.__wrapped__
    rows, code = tmp_path / "results" / "runs.csv", tmp_path / "own" / "code.py"
    for path in (rows, code):
        path.parent.mkdir()
        path.write_text("before\n")
    monkeypatch.setattr(provenance, "__file__", str(code))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "somebody's own work")
    assert state() == {"commit": None, "dirty_hash": None}
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "and the package")
    rows.write_text("after\n")
    assert re.fullmatch(r"[0-9a-f]{40}", state()["commit"])
    assert state()["dirty_hash"] is None
    code.write_text("after\n")
    assert state()["dirty_hash"]


def test_an_interrupted_run_has_rows_but_no_record(data, finished_run, tmp_path, monkeypatch):
    interrupt_run(monkeypatch, 3, RUN, data, tmp_path)
    assert not (tmp_path / "run.json").exists()
    for name in ("train", "eval"):
        assert rows(tmp_path, name) == [row for row in rows(finished_run, name) if row["step"] <= 3]
        assert rows(tmp_path, name)
