"""Growth of Pattention layers in user modules."""

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from test_growth import PARENT
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune

from formerlab.errors import UserError
from formerlab.growth.modules import grow
from formerlab.layers import Pattention
from formerlab.layers.pattention import PattentionLayer
from formerlab.models import Translator

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TOKENS = torch.arange(12).reshape(2, 6) % 11
DECODER = PARENT.model_copy(update={"layers": 2})


class Net(nn.Module):
    """A network of a user: PyTorch layers, two of our layers, and an unrelated attribute named `spec`."""

    def __init__(self):
        super().__init__()
        self.spec = "mine"
        self.first = Pattention(tokens=12).build(8, 16)
        self.last = nn.Sequential(nn.Linear(16, 8), nn.GELU(), Pattention(tokens=10, init="neox").build(8, 8, layers=4))
        self.again = self.first

    def forward(self, x):
        return self.last(self.first(x)) + self.last(self.again(-x))


def net():
    torch.manual_seed(0)
    return Net().double()


def test_a_grown_copy_computes_the_same_function_and_its_new_tokens_learn():
    model = net()
    model.last[2].keys.requires_grad_(False)
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    grown = grow(model.eval(), factor=3)
    assert type(grown) is Net
    assert not grown.training
    assert grown.again is grown.first
    assert (token_counts(model), token_counts(grown)) == ([12, 10], [36, 30])
    torch.testing.assert_close(grown(X), model(X), rtol=0, atol=1e-12)
    assert not grown.last[2].keys.requires_grad
    grown(X).square().sum().backward()
    assert grown.first.keys.grad[12:].ne(0).any(dim=1).all()
    assert model.first.keys.grad is None
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    torch.testing.assert_close(grow(grown)(X), model(X), rtol=0, atol=1e-12)


def token_counts(model):
    return [len(layer.keys) for layer in model.modules() if isinstance(layer, PattentionLayer)]


def test_only_the_selected_layers_grow():
    grown = grow(net(), tokens={"last.2": 11})
    assert token_counts(grown) == [12, 11]


class Classifier(nn.Module):
    """A formerlab decoder inside a user's module with a head."""

    def __init__(self, spec):
        super().__init__()
        self.body = spec.build(1)
        self.head = Pattention(tokens=5).build(11, 3)

    def forward(self, tokens):
        return self.head(self.body(tokens).mean(dim=1))


def test_a_decoder_inside_a_user_module_grows_with_its_spec():
    model = Classifier(DECODER).double()
    grown = grow(model)
    torch.testing.assert_close(grown(TOKENS), model(TOKENS), rtol=0, atol=1e-12)
    assert grown.body.spec.projection == Pattention(tokens=12, tau=math.sqrt(6))
    assert grown.body.spec.feedforward == Pattention(tokens=20, tau=math.sqrt(10))
    assert grown.body.spec.params() == sum(weight.numel() for weight in grown.body.parameters())


def test_a_translator_grows_too():
    spec = Translator(
        vocabulary=11, layers=1, width=8, heads=2, context=8, dropout=0.0, feedforward=Pattention(tokens=4)
    )
    model = spec.build(1).double().eval()
    grown = grow(model)
    real = torch.ones_like(TOKENS, dtype=torch.bool)
    torch.testing.assert_close(grown(TOKENS, real, TOKENS), model(TOKENS, real, TOKENS), rtol=0, atol=1e-12)
    assert grown.spec.feedforward == Pattention(tokens=8, tau=2.0)


def unsupported_net(change):
    model = net()
    if change == "pruned":
        prune.random_unstructured(model.first, "values", 0.5)
    else:
        model.other = Pattention(tokens=12).build(8, 16)
        model.other.keys = model.first.keys
    return model


def wrapped_model():
    from formerlab.integrations.huggingface import FormerlabConfig, FormerlabForCausalLM

    return FormerlabForCausalLM(FormerlabConfig(spec=DECODER.to_dict()))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Linear(2, 2), {}, "cannot grow a Linear: it has no Pattention layer"),
        (net(), {"tokens": {"first": 3}}, "cannot grow first from 12 tokens to 3: growth never removes tokens"),
        (net(), {"tokens": {"second": 30}}, "cannot grow second: the Pattention layers of this module are first, last"),
        (net(), {"factor": 0.5}, "cannot grow by factor=0.5: use a finite number of at least 1, because growth never"),
        (net(), {"factor": math.inf}, "cannot grow by factor=inf: use a finite number of at least 1"),
        (net(), {"factor": "2"}, "cannot grow by factor=2: use a finite number of at least 1"),
        (unsupported_net("shared"), {}, "cannot grow other: its keys are tied to first"),
        (unsupported_net("pruned"), {}, "cannot grow first: its values are reparametrized or sharded"),
        (wrapped_model(), {}, "cannot grow a FormerlabForCausalLM: its config also stores the sizes; grow its decoder"),
        (Classifier(DECODER), {"tokens": {"body.mixer": 20}}, "cannot grow body.mixer alone: it belongs to a model"),
    ],
)  # fmt: skip
def test_unsupported_modules_are_refused_in_one_line(model, options, message):
    with pytest.raises(UserError) as caught:
        grow(model, **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_loading_a_state_with_another_tau_is_refused():
    grown = grow(Pattention(tokens=48).build(8, 16), factor=2)
    with pytest.raises(RuntimeError, match=r"build with tau=6\.928"):
        Pattention(tokens=96).build(8, 16).load_state_dict(grown.state_dict())
    assert grown.state_dict(destination=OrderedDict()).keys() == {"keys", "values"}  # without `_metadata`
    same = Pattention(tokens=96, tau=grown.tau).build(8, 16)
    same.load_state_dict(grown.state_dict())
    x = torch.randn(4, 8)
    assert torch.equal(same(x), grown(x))


@pytest.fixture
def process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_models_wrapped_by_ddp_or_fsdp_are_refused(process_group):
    wrapped = DistributedDataParallel(net())
    for model in (wrapped, nn.Sequential(wrapped)):
        with pytest.raises(UserError, match=r"cannot grow a DistributedDataParallel: .* grow model.module and wrap"):
            grow(model)
    sharded = fully_shard(net(), mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(UserError, match=r"cannot grow a FSDPModule: .* grow the model before fully_shard"):
        grow(sharded)
    with pytest.raises(UserError, match=r"cannot grow a FullyShardedDataParallel: .* before it is wrapped"):
        grow(type("FullyShardedDataParallel", (nn.Sequential,), {})(net()))


def test_other_wrappers_use_the_grown_weights():
    wrapped = grow(nn.DataParallel(net()))
    output = wrapped(X)
    with torch.no_grad():
        next(layer for layer in wrapped.modules() if isinstance(layer, PattentionLayer)).values.mul_(2)
    assert not torch.equal(wrapped(X), output)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 100}, r"cannot grow to tokens=100; name the layers, tokens=\{'first': \.\.\.\}"),
        ({"tokens": {"first": 14.0}}, r"cannot grow first to 14\.0 tokens; write a whole number"),
        ({"tokens": {"first": True}}, "cannot grow first to True tokens"),
        ({"factor": 3, "tokens": {"first": 14}}, "cannot grow by factor=3 to tokens=.*; give one of them"),
        ({"factor": "2"}, "cannot grow by factor=2: "),
        ({"factor": float("nan")}, "cannot grow by factor=nan: "),
        ({"factor": 1.01}, r"cannot grow first by factor=1\.01: the count stays 12; use a larger factor"),
    ],
)  # fmt: skip
def test_invalid_sizes_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        grow(net(), **options)


def test_numpy_sizes_are_accepted():
    assert token_counts(grow(net(), tokens={"first": np.int64(14)})) == [14, 10]
    assert token_counts(grow(net(), factor=np.float32(1.5))) == [18, 15]
