"""A diverged run has finite rows and weights, and the test loss of a uniform guess."""

import json
import math
from itertools import count

import pytest
import torch
from safetensors.torch import load_file
from small_runs import RUN, TOKENFORMER, VOCABULARY, hashes, interrupt_run, rows, small, train_run

from formerlab.errors import UserError
from formerlab.growth.stage import Growth
from formerlab.tasks import LanguageModeling
from formerlab.training import loop
from formerlab.training import step as stepping
from formerlab.training.load import load
from formerlab.training.optimizer import AdamW
from formerlab.training.runtime import StopRequest
from formerlab.training.schedule import Constant

DIVERGING = small(optimizer=AdamW(lr=10.0, weight_decay=1.0), schedule=Constant(), steps=40, log_every=1)
"""Weight decay multiplies the weights by 1 - lr weight_decay = -9 per step, until a value overflows."""


@pytest.fixture(scope="module")
def diverged(data, tmp_path_factory):
    """Return the folder of a diverged run with a checkpoint per step; tests must not change it."""
    out = tmp_path_factory.mktemp("diverged")
    train_run(DIVERGING, data, out, checkpoint_seconds=0)
    return out


def record_of(out):
    def refuse(name):
        raise AssertionError(f"{name} is not valid JSON")

    return json.loads((out / "run.json").read_text(), parse_constant=refuse)


def test_a_diverged_run_records_finite_rows_and_the_loss_of_a_uniform_guess(diverged, finished_run):
    record = record_of(diverged)
    step = record["diverged_at_step"]
    assert record["status"] == "diverged"
    assert 5 < step < 12
    assert (record["tokens"], record["flops"]) == ((step - 1) * 4 * 8, DIVERGING.flops // 40 * (step - 1))
    assert [row["step"] for row in rows(diverged, "train")] == list(range(1, step))
    assert {row["step"] for row in rows(diverged, "eval")} == {0, 5}
    for name in ("train", "eval"):
        assert all(math.isfinite(cell) for row in rows(diverged, name) for cell in row.values() if cell != "valid")
    actual, full = rows(diverged, "test"), rows(finished_run, "test")
    assert {row["loss_nats"] for row in actual} == {math.log(VOCABULARY)}
    assert [(row["window"], row["tokens"]) for row in actual] == [(row["window"], row["tokens"]) for row in full]
    assert record["final"]["test_loss_nats"] == pytest.approx(math.log(VOCABULARY))
    checkpoint = torch.load(diverged / "checkpoint" / "last.pt", weights_only=True)["state"]
    assert checkpoint["step"] == step - 1


def test_a_resumed_run_diverges_in_the_same_step_with_identical_bits(diverged, data, tmp_path, monkeypatch):
    interrupt_run(monkeypatch, 3, DIVERGING, data, tmp_path)
    train_run(DIVERGING, data, tmp_path)
    assert hashes(tmp_path) == hashes(diverged)


def test_growing_from_a_diverged_run_is_refused(data, tmp_path):
    parent = small(
        name="parent", model=TOKENFORMER, **{key: getattr(DIVERGING, key) for key in ("optimizer", "schedule", "steps")}
    )
    assert train_run(parent, data, tmp_path / "parent")["status"] == "diverged"
    child = small(name="child", model=TOKENFORMER, init="parent", growth=Growth())
    with pytest.raises(UserError, match=r"study/child/seed3: init=parent diverged; change its settings \(lower"):
        train_run(child, data, tmp_path / "child", tmp_path / "parent")


@pytest.fixture(params=[False, True], ids=["at once", "late"])
def late(request, monkeypatch):
    """Read the results of steps immediately, as on a CPU, or only at logged steps, as on a GPU."""
    if request.param:
        monkeypatch.setattr(stepping, "reads_without_sync", lambda device: False)
    return request.param


def test_late_reads_give_the_same_step_and_weights(diverged, data, tmp_path, monkeypatch):
    monkeypatch.setattr(stepping, "reads_without_sync", lambda device: False)
    rare = DIVERGING.model_copy(update={"log_every": 100, "evaluate_every": 100})
    assert train_run(rare, data, tmp_path)["diverged_at_step"] == record_of(diverged)["diverged_at_step"]
    assert record_of(tmp_path)["tokens"] == record_of(diverged)["tokens"]
    assert [row["step"] for row in rows(tmp_path, "train")] == [1]
    actual, expected = (load_file(out / "weights.safetensors") for out in (tmp_path, diverged))
    assert all(torch.equal(actual[name], weight) for name, weight in expected.items())


def test_a_stop_request_before_the_divergence_check_gives_a_diverged_run(data, tmp_path, monkeypatch):
    monkeypatch.setattr(stepping, "reads_without_sync", lambda device: False)
    rare, checks = DIVERGING.model_copy(update={"log_every": 100, "evaluate_every": 100}), count()
    monkeypatch.setattr(StopRequest, "__call__", lambda self: "a test" if next(checks) == 20 else None)
    record = train_run(rare, data, tmp_path)
    assert 5 < record["diverged_at_step"] < 12


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_loss_changes_no_weights(bad, late, data, tmp_path, monkeypatch):
    """The sixth training loss is NaN or infinity. The run ends with the weights after five steps."""
    loss, calls = LanguageModeling.losses, []

    def broken(task, model, windows):
        calls.extend([1] if model.training else [])
        return (loss(task, model, windows)[0] * (bad if len(calls) == 6 else 1),)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModeling, "losses", broken)
        record = train_run(RUN, data, tmp_path / "broken")
    assert (record["status"], record["diverged_at_step"]) == ("diverged", 6)
    interrupt_run(monkeypatch, 5, RUN, data, tmp_path / "stopped")
    good = torch.load(tmp_path / "stopped" / "checkpoint" / "last.pt", weights_only=True)["state"]["model"]
    actual = load_file(tmp_path / "broken" / "weights.safetensors")
    assert all(torch.equal(actual[name], weight) for name, weight in good.items())


@pytest.mark.parametrize("step", [0, 5, 12])
def test_a_non_finite_validation_loss_is_divergence(step, data, tmp_path, monkeypatch):
    validate = loop._validate

    def broken(run, model, state, batches):
        with monkeypatch.context() as patch:
            if state.step == step:
                patch.setattr(LanguageModeling, "losses", lambda *_: (torch.tensor(math.nan),))
            return validate(run, model, state, batches)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_validate", broken)
        record = train_run(RUN, data, tmp_path)
    assert (record["status"], record["diverged_at_step"]) == ("diverged", step)
    assert {row["step"] for row in rows(tmp_path, "eval")} == {s for s in (0, 5, 10, 12) if s < step}
    assert record_of(tmp_path)["final"]["valid_loss_nats"] is None or step > 0


def test_weights_that_overflow_between_logged_steps_are_never_saved(late, data, tmp_path, monkeypatch):
    """Weights are checked at logged steps and before saving; the next loss reveals overflow at other steps."""
    take = stepping.Steps.take

    def overflowing(steps):
        take(steps)
        if steps.state.step == 3:  # the fourth step
            steps.model.embedding.data.fill_(math.inf)

    monkeypatch.setattr(stepping.Steps, "take", overflowing)
    record = train_run(small(log_every=100, evaluate_every=100), data, tmp_path, checkpoint_seconds=0)
    assert (record["status"], record["diverged_at_step"]) == ("diverged", 5)
    saved = torch.load(tmp_path / "checkpoint" / "last.pt", weights_only=True)["state"]
    assert saved["step"] == 3
    assert all(weight.isfinite().all() for weight in saved["model"].values())


def test_loading_the_weights_of_a_diverged_run_is_refused(diverged):
    message = rf"diverged in step {record_of(diverged)['diverged_at_step']}; choose a run that"
    with pytest.raises(UserError, match=message):
        load(diverged)
