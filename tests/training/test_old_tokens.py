"""Old parameter tokens that train slower than new ones, or not at all; and runs that grow in width."""

import pytest
import torch
from safetensors.torch import load_file
from small_runs import MODEL, TOKENFORMER, bits, interrupted, rows, small, trained
from torch import nn

from formerlab.growth.tokens import Growth, grown_spec, hold_old_tokens
from formerlab.layers import Mlp, Pattention
from formerlab.training.optimizer import AdamW

OLD, NEW, WIDTH = 3, 2, 4


class Tokens(nn.Module):
    """Keys with old rows and new ones, and a parameter that growth does not touch."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.keys = nn.Parameter(torch.randn(OLD + NEW, WIDTH, dtype=torch.float64, generator=generator))
        self.embedding = nn.Parameter(torch.randn(OLD, WIDTH, dtype=torch.float64, generator=generator))


def stepped(module, optimizer, steps=6):
    """Take steps with gradients that do not depend on the weights."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        weights = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in module.parameters()]
        loss = sum((weight * parameter).sum() for weight, parameter in zip(weights, module.parameters(), strict=True))
        loss.backward()
        yield nn.utils.get_total_norm(p.grad for p in module.parameters()).item()
        optimizer.step()
        optimizer.zero_grad()


def held(old_tokens):
    module = Tokens()
    optimizer = AdamW(lr=0.02, weight_decay=0.3).build(module)
    parent = {"keys": module.keys[:OLD].detach().clone(), "embedding": module.embedding.detach().clone()}
    hold_old_tokens(optimizer, module, parent, old_tokens)
    return module, optimizer, parent


def test_a_part_of_the_rate_is_adamw_at_that_rate():
    """The oracle keeps old rows as a parameter of their own, in a group with a quarter of the learning rate."""
    module, optimizer, parent = held(0.25)
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


def test_frozen_rows_keep_their_bits_and_count_in_no_norm():
    module, optimizer, parent = held("freeze")
    plain = Tokens()
    free = list(stepped(plain, AdamW(lr=0.02, weight_decay=0.3).build(plain)))
    norms = list(stepped(module, optimizer))
    assert torch.equal(module.keys[:OLD], parent["keys"])
    assert torch.equal(module.keys[OLD:], plain.keys[OLD:])
    assert torch.equal(module.embedding, plain.embedding)
    assert all(norm < other for norm, other in zip(norms, free, strict=True))
    assert optimizer.state[module.keys]["exp_avg"][:OLD].eq(0).all()


def child(growth):
    wanted = TOKENFORMER.model_copy(update={"projection": Pattention(tokens=8), "feedforward": Pattention(tokens=14)})
    model = grown_spec(TOKENFORMER, wanted, growth)
    return small(name="child", model=model, init="parent", growth=growth)


@pytest.fixture(scope="module")
def parent(data, tmp_path_factory):
    """Return the folder of the finished parent; to be read, not changed."""
    out = tmp_path_factory.mktemp("parent")
    trained(small(name="parent", model=TOKENFORMER), data, out)
    return out


@pytest.mark.parametrize("old_tokens", ["freeze", 0.1])
def test_a_run_that_holds_old_tokens_resumes_to_the_same_bits(old_tokens, parent, data, tmp_path, monkeypatch):
    run = child(Growth(old_tokens=old_tokens))
    trained(run, data, tmp_path / "once", parent)
    interrupted(monkeypatch, 5, run, data, tmp_path / "often", parent)
    trained(run, data, tmp_path / "often", parent)
    assert bits(tmp_path / "often") == bits(tmp_path / "once")
    old, new = (load_file(folder / "weights.safetensors") for folder in (parent, tmp_path / "once"))
    for name, weight in old.items():
        held_back = name.endswith((".keys", ".values")) and old_tokens == "freeze"
        assert torch.equal(new[name][: len(weight)], weight) == held_back


@pytest.mark.parametrize("method", ["net2net_pad", "net2net", "hypercloning"])
def test_a_transformer_grows_in_width_as_a_run(method, data, tmp_path, monkeypatch):
    trained(small(name="parent", model=MODEL), data, tmp_path / "parent")
    growth = Growth(method=method, noise=0.0 if method == "net2net_pad" else 0.1)
    wanted = MODEL.model_copy(update={"width": 32, "heads": 4, "feedforward": Mlp(hidden=128)})
    run = small(name="child", model=grown_spec(MODEL, wanted, growth), init="parent", growth=growth)
    trained(run, data, tmp_path / "once", tmp_path / "parent")
    interrupted(monkeypatch, 5, run, data, tmp_path / "often", tmp_path / "parent")
    trained(run, data, tmp_path / "often", tmp_path / "parent")
    assert bits(tmp_path / "often") == bits(tmp_path / "once")
    start = [row["loss_nats"] for row in rows(tmp_path / "once", "eval") if row["step"] == 0]
    before = [row["loss_nats"] for row in rows(tmp_path / "parent", "eval") if row["step"] == 12]
    assert (start == pytest.approx(before, rel=1e-5)) == (method != "net2net_pad")
