"""Runs that grow from a finished run, and old parameter tokens that train more slowly or are frozen."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file
from small_runs import MODEL, TOKENFORMER, hashes, interrupt_run, rows, small, train_run
from torch import nn

from formerlab.data import load_stream
from formerlab.errors import UserError
from formerlab.growth.optimizer import limit_old_tokens
from formerlab.growth.stage import Growth, grown_spec
from formerlab.layers import Mlp, Pattention
from formerlab.tasks.task import DataPosition
from formerlab.training.loop import Hooks, train
from formerlab.training.optimizer import AdamW
from formerlab.training.schedule import Constant
from formerlab.training.state import State

PARENT = small(name="parent", model=TOKENFORMER)


def child(growth, tokens=(8, 14), **changes):
    expected = TOKENFORMER.model_copy(
        update={"projection": Pattention(tokens=tokens[0]), "feedforward": Pattention(tokens=tokens[1])}
    )
    model = grown_spec(TOKENFORMER, expected, growth)
    return small(**{"name": "child", "model": model, "init": "parent", "growth": growth, **changes})


FUNCTION_PRESERVING_CHILD = child(Growth(keys="zero", tau="keep"))


@pytest.fixture(scope="module")
def parent(data, tmp_path_factory):
    """Return the folder of the finished parent; tests must not change it."""
    out = tmp_path_factory.mktemp("parent")
    train_run(PARENT, data, out, keep_optimizer=True)
    return out


def losses(out, step):
    return [row["loss_nats"] for row in rows(out, "eval") if row["step"] == step]


def test_a_grown_run_starts_at_its_parents_loss_and_accumulates_flops(parent, data, tmp_path):
    first = json.loads((parent / "run.json").read_text())
    second = train_run(FUNCTION_PRESERVING_CHILD, data, tmp_path / "child", parent)
    assert losses(tmp_path / "child", 0) == pytest.approx(losses(parent, 12), rel=1e-6)
    assert losses(tmp_path / "child", 12) != losses(parent, 12)
    assert second["init"] == {"id": "study/parent/seed3", "weights_sha256": first["weights_sha256"]}
    grown = grown_spec(FUNCTION_PRESERVING_CHILD.model, FUNCTION_PRESERVING_CHILD.model, Growth(tau="keep"))
    run = small(name="grandchild", model=grown, init="child", growth=Growth(tau="keep"))
    third = train_run(run, data, tmp_path / "grandchild", tmp_path / "child")
    assert [first["flops_cumulative"], second["flops_cumulative"], third["flops_cumulative"]] == [
        PARENT.flops,
        PARENT.flops + FUNCTION_PRESERVING_CHILD.flops,
        PARENT.flops + FUNCTION_PRESERVING_CHILD.flops + run.flops,
    ]


TOKENS = {"optimizer=carry": {"optimizer": "carry"}, "frozen": {"old_tokens": "freeze"}}
TOKENS |= {"slow": {"old_tokens": 0.1}}
WIDTHS = {method: {"method": method} for method in ("net2net_pad", "net2net", "hypercloning")}


@pytest.mark.parametrize("growth", (TOKENS | WIDTHS).values(), ids=TOKENS | WIDTHS)
def test_a_resumed_grown_run_is_bit_identical(growth, parent, data, tmp_path, monkeypatch):
    """Frozen rows do not change. Net2Net and HyperCloning start at the parent's loss; Net2Net with padding does not."""
    method = growth.get("method")
    if method is None:
        run = child(Growth(**growth))
    else:
        parent = tmp_path / "parent"
        train_run(small(name="parent", model=MODEL), data, parent)
        grows = Growth(method=method, noise=0.0 if method == "net2net_pad" else 0.1)
        expected = MODEL.model_copy(update={"width": 32, "heads": 4, "feedforward": Mlp(hidden=128)})
        run = small(name="child", model=grown_spec(MODEL, expected, grows), init="parent", growth=grows)
    train_run(run, data, tmp_path / "uninterrupted", parent)
    interrupt_run(monkeypatch, 5, run, data, tmp_path / "interrupted", parent)
    train_run(run, data, tmp_path / "interrupted", parent)
    assert hashes(tmp_path / "interrupted") == hashes(tmp_path / "uninterrupted")
    if method is not None:
        starts_at_parent_loss = losses(tmp_path / "uninterrupted", 0) == pytest.approx(losses(parent, 12), rel=1e-5)
        assert starts_at_parent_loss == (method != "net2net_pad")
    if "old_tokens" in growth:
        old, new = (load_file(folder / "weights.safetensors") for folder in (parent, tmp_path / "uninterrupted"))
        for name, weight in old.items():
            frozen = name.endswith((".keys", ".values")) and growth["old_tokens"] == "freeze"
            assert torch.equal(new[name][: len(weight)], weight) == frozen


def test_carry_continues_with_the_parents_moments(parent, data, tmp_path):
    """Without new tokens, the child continues from the parent's state."""
    run = child(Growth(tau="keep", optimizer="carry"), tokens=(6, 10), schedule=Constant(), steps=3)
    train_run(run, data, tmp_path, parent)
    model = run.model.build()
    model.load_state_dict(load_file(parent / "weights.safetensors"))
    state = State(model, run.optimizer.build(model))
    state.optimizer.load_state_dict(torch.load(parent / "optimizer.pt", weights_only=True))
    hooks = Hooks(lambda state: None, lambda: None, math.inf)
    ended = DataPosition(chain_steps=12, steps=12)
    train(run, state, load_stream(data, "train"), load_stream(data, "valid"), hooks, ended)
    actual = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(actual[name], weight) for name, weight in state.model.state_dict().items())


def test_a_damaged_parent_is_refused(parent, data, tmp_path):
    parent_copy, carrying = shutil.copytree(parent, tmp_path / "parent"), child(Growth(optimizer="carry"))
    (parent_copy / "optimizer.pt").unlink()
    with pytest.raises(UserError, match=r"optimizer.pt: .+; train study/parent/seed3 again to write this file"):
        train_run(carrying, data, tmp_path / "child", parent_copy)
    train_run(small(name="parent", model=TOKENFORMER, seed=4), data, tmp_path / "other")
    shutil.copy(tmp_path / "other" / "weights.safetensors", parent_copy)
    with pytest.raises(UserError, match=r"weights.safetensors: differs from weights_sha256 in run.json; delete this"):
        train_run(FUNCTION_PRESERVING_CHILD, data, tmp_path / "child", parent_copy)
    with pytest.raises(UserError, match=r"study/child/seed3: init=parent is not finished, .+run.json is missing; tra"):
        train_run(FUNCTION_PRESERVING_CHILD, data, tmp_path / "child", tmp_path / "nowhere")


def test_a_checkpoint_of_another_parent_is_superseded_and_a_result_refused(parent, data, tmp_path, monkeypatch, capsys):
    train_run(small(name="parent", model=TOKENFORMER, steps=3), data, tmp_path / "other")
    interrupt_run(monkeypatch, 4, FUNCTION_PRESERVING_CHILD, data, tmp_path / "child", tmp_path / "other")
    train_run(FUNCTION_PRESERVING_CHILD, data, tmp_path / "child", parent)
    assert "checkpoint of another run (init is " in capsys.readouterr().err
    with pytest.raises(UserError, match=r"result of another run \(init is \w+, expected \w+\)"):
        train_run(FUNCTION_PRESERVING_CHILD, data, tmp_path / "child", tmp_path / "other")


def test_a_run_continues_without_growth(parent, data, tmp_path):
    run = small(name="child", model=TOKENFORMER, init="parent")
    record = train_run(run, data, tmp_path / "child", parent)
    assert losses(tmp_path / "child", 0) == losses(parent, 12)
    assert losses(tmp_path / "child", 12) != losses(parent, 12)
    assert record["flops_cumulative"] == 2 * record["flops"]
    with pytest.raises(UserError, match=r"cannot continue training: norm\.gain is False in"):
        train_run(small(name="other", model=MODEL, init="parent"), data, tmp_path / "other", parent)


OLD, NEW, WIDTH = 3, 2, 4


class Tokens(nn.Module):
    """Keys with old and new rows, and a parameter that does not grow."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.keys = nn.Parameter(torch.randn(OLD + NEW, WIDTH, dtype=torch.float64, generator=generator))
        self.embedding = nn.Parameter(torch.randn(OLD, WIDTH, dtype=torch.float64, generator=generator))


def stepped(module, optimizer, steps=6):
    """Take steps with gradients that do not depend on the weights; yield the gradient norm before each step."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        weights = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in module.parameters()]
        loss = sum((weight * parameter).sum() for weight, parameter in zip(weights, module.parameters(), strict=True))
        loss.backward()
        yield nn.utils.get_total_norm(p.grad for p in module.parameters()).item()
        optimizer.step()
        optimizer.zero_grad()


def limited(old_tokens):
    """Return `Tokens`, their optimizer with limited updates of old tokens, and the weights of the parent."""
    module = Tokens()
    optimizer = AdamW(lr=0.02, weight_decay=0.3).build(module)
    parent = {"keys": module.keys[:OLD].detach().clone(), "embedding": module.embedding.detach().clone()}
    limit_old_tokens(optimizer, module, parent, old_tokens)
    return module, optimizer, parent


def test_old_tokens_with_a_fraction_of_the_learning_rate_match_adamw_with_that_rate():
    """In the reference, old rows are a separate parameter with a quarter of the learning rate."""
    module, optimizer, parent = limited(0.25)
    plain = Tokens()
    old, new = (nn.Parameter(part.clone()) for part in plain.keys.detach().split((OLD, NEW)))
    settings = {"betas": (0.9, 0.95), "weight_decay": 0.3}
    oracle = torch.optim.AdamW(
        [{"params": [old], "lr": 0.25 * 0.02}, {"params": [new, plain.embedding], "lr": 0.02}], **settings
    )
    for _ in zip(stepped(module, optimizer), stepped(plain, torch.optim.SGD(plain.parameters(), lr=0.0)), strict=True):
        old.grad, new.grad = plain.keys.grad.split((OLD, NEW))
        oracle.step()
    torch.testing.assert_close(module.keys.detach(), torch.cat((old, new)).detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(module.embedding, plain.embedding, rtol=1e-12, atol=1e-12)
    assert not torch.equal(module.keys[:OLD], parent["keys"])


def test_frozen_rows_are_bit_identical_and_excluded_from_the_gradient_norm():
    module, optimizer, parent = limited("freeze")
    plain = Tokens()
    free = list(stepped(plain, AdamW(lr=0.02, weight_decay=0.3).build(plain)))
    norms = list(stepped(module, optimizer))
    assert torch.equal(module.keys[:OLD], parent["keys"])
    assert torch.equal(module.keys[OLD:], plain.keys[OLD:])
    assert torch.equal(module.embedding, plain.embedding)
    assert all(norm < other for norm, other in zip(norms, free, strict=True))
    assert optimizer.state[module.keys]["exp_avg"][:OLD].eq(0).all()
