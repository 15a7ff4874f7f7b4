"""Runs that grow from a finished one."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file
from small_runs import MODEL, TOKENFORMER, bits, interrupted, rows, small, trained

from formerlab.data import load_stream
from formerlab.errors import UserError
from formerlab.growth.tokens import Growth, grown_spec
from formerlab.layers import Pattention
from formerlab.tasks.task import Place
from formerlab.training.loop import Hooks, train
from formerlab.training.schedule import Constant
from formerlab.training.state import State

PARENT = small(name="parent", model=TOKENFORMER)


def child(growth, tokens=(8, 14), **changes):
    wanted = TOKENFORMER.model_copy(
        update={"projection": Pattention(tokens=tokens[0]), "feedforward": Pattention(tokens=tokens[1])}
    )
    model = grown_spec(TOKENFORMER, wanted, growth)
    return small(**{"name": "child", "model": model, "init": "parent", "growth": growth, **changes})


KEEPING = child(Growth(keys="zero", tau="keep"))


@pytest.fixture(scope="module")
def parent(data, tmp_path_factory):
    """Return the folder of the finished parent; to be read, not changed."""
    out = tmp_path_factory.mktemp("parent")
    trained(PARENT, data, out, keep_optimizer=True)
    return out


def losses(out, step):
    return [row["loss_nats"] for row in rows(out, "eval") if row["step"] == step]


def test_zero_keys_and_the_old_tau_start_at_the_parents_loss(parent, data, tmp_path):
    trained(KEEPING, data, tmp_path, parent)
    assert losses(tmp_path, 0) == pytest.approx(losses(parent, 12), rel=1e-6)
    assert losses(tmp_path, 12) != losses(parent, 12)


def test_the_record_names_the_parent_and_adds_its_cost_up_the_chain(parent, data, tmp_path):
    first = json.loads((parent / "run.json").read_text())
    second = trained(KEEPING, data, tmp_path / "child", parent)
    assert second["init"] == {"id": "study/parent/seed3", "weights_sha256": first["weights_sha256"]}
    grown = grown_spec(KEEPING.model, KEEPING.model, Growth(tau="keep"))
    run = small(name="grandchild", model=grown, init="child", growth=Growth(tau="keep"))
    third = trained(run, data, tmp_path / "grandchild", tmp_path / "child")
    assert [first["flops_cumulative"], second["flops_cumulative"], third["flops_cumulative"]] == [
        PARENT.flops,
        PARENT.flops + KEEPING.flops,
        PARENT.flops + KEEPING.flops + run.flops,
    ]


@pytest.mark.parametrize("optimizer", ["fresh", "carry"])
def test_a_grown_run_resumes_to_the_same_bits(optimizer, parent, data, tmp_path, monkeypatch):
    run = child(Growth(optimizer=optimizer))
    trained(run, data, tmp_path / "once", parent)
    interrupted(monkeypatch, 5, run, data, tmp_path / "often", parent)
    trained(run, data, tmp_path / "often", parent)
    assert bits(tmp_path / "often") == bits(tmp_path / "once")


def test_carry_goes_on_with_the_parents_moments(parent, data, tmp_path):
    """With no new tokens at all, the child is the parent's state, trained further."""
    run = child(Growth(tau="keep", optimizer="carry"), tokens=(6, 10), schedule=Constant(), steps=3)
    trained(run, data, tmp_path, parent)
    model = run.model.build()
    model.load_state_dict(load_file(parent / "weights.safetensors"))
    state = State(model, run.optimizer.build(model))
    state.optimizer.load_state_dict(torch.load(parent / "optimizer.pt", weights_only=True))
    hooks = Hooks(lambda state: None, lambda: None, math.inf)
    ended = Place(chain_steps=12, steps=12)
    train(run, state, load_stream(data, "train"), load_stream(data, "valid"), hooks, ended)
    found = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(found[name], weight) for name, weight in state.model.state_dict().items())


@pytest.fixture
def own(parent, tmp_path):
    """Return a copy of the parent that a test may damage."""
    return shutil.copytree(parent, tmp_path / "parent")


def test_a_parent_that_is_not_finished_is_named(data, tmp_path):
    with pytest.raises(
        UserError, match=r"study/child/seed3: init=parent is not finished, .+run.json is missing; train"
    ):
        trained(KEEPING, data, tmp_path / "child", tmp_path / "nowhere")


def test_a_parent_whose_weights_changed_is_named(own, data, tmp_path):
    trained(small(name="parent", model=TOKENFORMER, seed=4), data, tmp_path / "other")
    shutil.copy(tmp_path / "other" / "weights.safetensors", own)
    with pytest.raises(
        UserError, match=r"weights.safetensors: not the weights that run.json describes; train study/pa"
    ):
        trained(KEEPING, data, tmp_path / "child", own)


def test_a_parent_that_kept_no_optimizer_is_named(own, data, tmp_path):
    (own / "optimizer.pt").unlink()
    with pytest.raises(UserError, match=r"optimizer.pt: .+; train study/parent/seed3 again, which then keeps it"):
        trained(child(Growth(optimizer="carry")), data, tmp_path / "child", own)


def test_a_checkpoint_or_result_from_another_parent_is_refused(parent, data, tmp_path, monkeypatch):
    trained(small(name="parent", model=TOKENFORMER, steps=3), data, tmp_path / "other")
    interrupted(monkeypatch, 4, KEEPING, data, tmp_path / "child", parent)
    with pytest.raises(UserError, match=r"checkpoint of another run \(init \w+ there, \w+ here\)"):
        trained(KEEPING, data, tmp_path / "child", tmp_path / "other")
    trained(KEEPING, data, tmp_path / "child", parent)
    with pytest.raises(UserError, match=r"result of another run \(init \w+ there, \w+ here\)"):
        trained(KEEPING, data, tmp_path / "child", tmp_path / "other")


def test_a_run_goes_on_without_growth(parent, data, tmp_path):
    run = small(name="child", model=TOKENFORMER, init="parent")
    record = trained(run, data, tmp_path / "child", parent)
    assert losses(tmp_path / "child", 0) == losses(parent, 12)
    assert losses(tmp_path / "child", 12) != losses(parent, 12)
    assert record["flops_cumulative"] == 2 * record["flops"]
    with pytest.raises(UserError, match=r"cannot go on from norm\.gain=False with"):
        trained(small(name="other", model=MODEL, init="parent"), data, tmp_path / "other", parent)
