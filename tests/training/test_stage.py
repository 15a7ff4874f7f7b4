"""The stage `train`: its files, and their independence of interruptions."""

import shutil
import sys

import pytest
import torch
from fixtures.separate_process import separate_process
from safetensors.torch import load_file
from small_runs import MODEL, RUN, hashes, interrupt_run, rows, small, train_run

from formerlab.data import load_stream
from formerlab.data.manifest import read_manifest
from formerlab.files import write_record
from formerlab.layers import DepthWeightedAverage
from formerlab.results.stages import STAGES
from formerlab.tasks.window_losses import window_losses
from formerlab.training import stage
from formerlab.training.load import load_model


def test_files_of_a_finished_run(finished_run):
    assert {path.name for path in finished_run.iterdir()} == {*STAGES["train"].written}
    columns = {
        "train": "step,tokens,loss_nats,lr,grad_norm",
        "timing": "step,time_s,tokens_per_s,memory_bytes",
        "eval": "step,split,batch,tokens,loss_nats",
        "test": "window,tokens,loss_nats,document",
        "lender_test": "window,tokens,loss_nats,document",
        "depth": "step,destination,source,weight",
    }
    for name, expected in columns.items():
        header, *lines = (finished_run / f"{name}.csv").read_bytes().split(b"\n")
        assert header.decode() == expected
        assert not any(b"\r" in line for line in lines)


def test_test_rows_come_from_the_final_model(finished_run, data):
    model, _ = load_model(finished_run)
    stream = load_stream(data, "test")
    actual = rows(finished_run, "test")
    expected = window_losses(model, stream, 8, batch=4)
    names = ("window", "tokens", "loss_nats")
    assert [tuple(row[name] for name in names) for row in actual] == [row[:3] for row in expected]
    assert sum(row["tokens"] for row in actual) == len(stream) - 1
    documents = [row["document"] for row in actual]
    assert documents == sorted(documents)
    assert documents[-1] == read_manifest(data)["splits"]["test"]["documents"] - 1


def test_the_test_text_of_the_tokenizers_data_set_is_also_measured(finished_run, data, tmp_path):
    shutil.copytree(data, tmp_path / "other")
    manifest = read_manifest(data)
    spec = manifest["spec"] | {"tokenizer": {"kind": "of", "data": "other"}}
    shutil.copytree(data, tmp_path / "copy")
    write_record(tmp_path / "copy" / "manifest.json", manifest | {"spec": spec})
    train_run(RUN, tmp_path / "copy", tmp_path / "run")
    assert rows(finished_run, "lender_test") == []
    assert rows(tmp_path / "run", "lender_test") == rows(tmp_path / "run", "test") == rows(finished_run, "test")


def test_depth_rows_contain_the_mixing_weights_of_every_evaluation(finished_run, data, tmp_path):
    assert rows(finished_run, "depth") == []
    train_run(small(model=MODEL.model_copy(update={"depth": DepthWeightedAverage()})), data, tmp_path)
    weights, actual = load_file(tmp_path / "weights.safetensors"), rows(tmp_path, "depth")
    pairs = [(i, j) for i in (1, 2) for j in range(i + 1)]
    steps = sorted({row["step"] for row in rows(tmp_path, "eval")})
    assert [(row["step"], row["destination"], row["source"]) for row in actual] == [
        (s, *p) for s in steps for p in pairs
    ]
    assert [row["weight"] for row in actual[: len(pairs)]] == [float(i == j) for i, j in pairs]
    assert [row["weight"] for row in actual[-len(pairs) :]] == [
        weights[f"mixer.alphas.{i}"][j].item() for i, j in pairs
    ]


def test_a_run_stopped_twice_is_bit_identical(data, tmp_path, monkeypatch, capsys):
    run = small(precision="bfloat16", model=MODEL.model_copy(update={"dropout": 0.2}))
    uninterrupted, interrupted_run = tmp_path / "uninterrupted", tmp_path / "interrupted"
    first = train_run(run, data, uninterrupted)
    interrupt_run(monkeypatch, 0, run, data, interrupted_run)
    interrupt_run(monkeypatch, 7, run, data, interrupted_run)
    assert not (interrupted_run / "run.json").exists()
    second = train_run(run, data, interrupted_run)
    assert "last.pt after step 7" in capsys.readouterr().err
    assert hashes(interrupted_run) == hashes(uninterrupted)
    assert {path.name for path in interrupted_run.iterdir()} == {path.name for path in uninterrupted.iterdir()}
    assert second["final"] == first["final"]


def test_deterministic_runs_set_the_mode_of_torch(data, tmp_path, monkeypatch):
    modes, train = [], stage.train

    def train_and_note(*arguments):
        modes.append(torch.are_deterministic_algorithms_enabled())
        return train(*arguments)

    monkeypatch.setattr(stage, "train", train_and_note)
    for expected in (True, False):
        train_run(small(steps=1), data, tmp_path / str(expected), deterministic=expected)
    assert modes == [True, False]


def _a_resumed_run_imports_no_compiler(data, out):
    with pytest.MonkeyPatch.context() as patch:
        interrupt_run(patch, 1, small(steps=2), data, out)
    assert not {"torch._dynamo", "torch._inductor", "sympy"} & sys.modules.keys()
    train_run(small(steps=2), data, out)  # Module.to_empty imports sympy
    assert not {"torch._dynamo", "torch._inductor"} & sys.modules.keys()


def test_a_resumed_run_without_compile_imports_no_compiler(data, tmp_path):
    """torch's AdamW would import the compiler for its decorators, which takes a second. `FusedAdamW` avoids this."""
    with separate_process() as call:
        call(_a_resumed_run_imports_no_compiler, data, tmp_path)


def test_a_resumed_run_samples_no_initial_values(data, tmp_path, monkeypatch, finished_run):
    """The model is built without values, so that a process stores the weights once."""
    interrupt_run(monkeypatch, 7, RUN, data, tmp_path)

    def sampled(*_):
        raise AssertionError("values were sampled")

    monkeypatch.setattr(torch.Tensor, "normal_", sampled)
    train_run(RUN, data, tmp_path)
    assert hashes(tmp_path) == hashes(finished_run)


def test_times_accumulate_over_starts(data, tmp_path, monkeypatch):
    interrupt_run(monkeypatch, 6, RUN, data, tmp_path)
    path = tmp_path / "checkpoint" / "last.pt"
    content = torch.load(path, weights_only=True)
    assert content["state"]["wall_time_s"] > content["state"]["training_time_s"] > 0
    content["state"] |= {"wall_time_s": 5000.0, "training_time_s": 1000.0}  # longer than this test
    torch.save(content, path)
    record = train_run(RUN, data, tmp_path)
    assert record["started"] == content["state"]["started"] < record["finished"]
    assert 5000 < record["wall_time_s"] < 6000
    seconds = [row["time_s"] for row in rows(tmp_path, "timing")]
    assert 1000 < seconds[-2] < seconds[-1] == record["training_time_s"] < 2000


SECRETS = ("HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY")


def test_files_and_messages_do_not_contain_the_environment(data, tmp_path, monkeypatch, capsys):
    for name in SECRETS:
        monkeypatch.setenv(name, "s3cret-of-the-environment")
    train_run(RUN, data, tmp_path)
    assert "s3cret" not in "".join(capsys.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not any(b"s3cret" in path.read_bytes() for path in files)
