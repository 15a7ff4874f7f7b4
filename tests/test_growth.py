"""Growth of models by parameter tokens (arXiv:2410.23168, section 3.3 and Appendix B)."""

import math

import pytest
import torch
from torch.nn import functional as F
from variation import label, settings

from formerlab.errors import UserError
from formerlab.growth.modules import grow
from formerlab.growth.optimizer import grow_optimizer_state
from formerlab.growth.stage import Growth, grow_into, grown_spec
from formerlab.layers import DepthMixer, DepthWeightedAverage, LayerNorm, Learned, Linear, Mlp, Pattention
from formerlab.layers.score import SCORES
from formerlab.models import Decoder, VisionTransformer

PARENT = Decoder(
    vocabulary=11,
    layers=3,
    width=8,
    heads=2,
    context=8,
    norm=LayerNorm(gain=False, bias=False),
    projection=Pattention(tokens=6),
    feedforward=Pattention(tokens=10),
)
IMAGES = VisionTransformer(
    **{"image": 8, "patch": 4, "channels": 1, "classes": 5, "layers": 2, "width": 8, "heads": 2},
    projection=Pattention(tokens=6),
    feedforward=Pattention(tokens=10),
)
TOKENS = torch.arange(24).reshape(3, 8) % 11
SCORES_WITH_MASS_ON_ZERO_KEYS = ("exp_l1", "softmax")


def spec(parent=PARENT, **changes):
    return Decoder.model_validate({**dict(parent), **changes})


def loss(model):
    return F.cross_entropy(model(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())


def step(model, optimizer):
    optimizer.zero_grad()
    loss(model).backward()
    optimizer.step()


def trained(parent=PARENT, steps=5):
    """Return a float64 model after some training steps, and its optimizer."""
    model = parent.build(1).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def distance(left, right):
    return (left(TOKENS) - right(TOKENS)).abs().max().item()


DEPTHS = [*settings(DepthMixer), DepthWeightedAverage(dilation=2, period=2)]
PRESERVING = [score for score in SCORES if score not in SCORES_WITH_MASS_ON_ZERO_KEYS]


@pytest.mark.parametrize(
    ("score", "depth"),
    [*(("l2_gelu", depth) for depth in DEPTHS), *((score, DEPTHS[0]) for score in PRESERVING[1:])],
    ids=label,
)
def test_zero_keys_and_tau_keep_preserve_the_function(score, depth):
    layers = {"projection": Pattention(tokens=6, score=score), "feedforward": Pattention(tokens=10, score=score)}
    model, _ = trained(spec(**layers, depth=depth, position=Learned()))
    assert distance(grow(model), model) < 1e-10


@pytest.mark.parametrize(("init", "tau"), [("zero", "sqrt"), ("random", "keep"), ("random", "sqrt")])
def test_all_other_settings_change_the_function(init, tau):
    model, _ = trained()
    assert distance(grow(model, init=init, tau=tau), model) > 1e-3


@pytest.mark.parametrize("init", ["zero", "random"])
@pytest.mark.parametrize("tau", ["keep", "sqrt"])
def test_old_rows_come_first_and_other_weights_are_copied(init, tau):
    model, _ = trained(spec(depth=DepthWeightedAverage(), position=Learned(), tied=False, final_norm=LayerNorm()))
    grown = grow(model, factor=3, init=init, tau=tau)
    old = model.state_dict()
    for name, weight in grown.state_dict().items():
        if name.endswith((".keys", ".values")):
            added = weight[len(old[name]) :]
            assert torch.equal(weight[: len(old[name])], old[name])
            assert len(added) == 2 * len(old[name])
            assert bool(added.eq(0).all()) == (name.endswith(".keys") and init == "zero")
        else:
            assert torch.equal(weight, old[name])
    assert grown.embedding.dtype == torch.float64


def replace_mixer(model):
    model.mixer = DepthWeightedAverage().build(layers=3).double()
    for alpha in model.mixer.parameters():
        alpha.detach().add_(0.3)


CHANGES = {
    "another mixer": (PARENT, replace_mixer),
    "a frozen embedding": (PARENT, lambda model: model.embedding.requires_grad_(False)),
    "fewer classes": (IMAGES, lambda model: model.reset_classifier(3)),
    "more classes": (IMAGES, lambda model: model.reset_classifier(9)),
    "no head": (IMAGES, lambda model: model.reset_classifier(0)),
    "another pool": (IMAGES, lambda model: model.reset_classifier(5, "avg")),
}


@pytest.mark.parametrize(("parent", "change"), CHANGES.values(), ids=CHANGES)
def test_growth_preserves_the_state_of_the_module(parent, change):
    model = parent.build(1).double()
    change(model)
    inputs = TOKENS if parent is PARENT else torch.randn(3, 1, 8, 8, dtype=torch.float64)
    model(inputs).sum().backward()
    grown = grow(model.eval())
    torch.testing.assert_close(grown(inputs), model(inputs), atol=1e-10, rtol=0)
    assert not grown.training
    assert [p.requires_grad for p in grown.parameters()] == [p.requires_grad for p in model.parameters()]
    assert all(parameter.grad is None for parameter in grown.parameters())


@pytest.mark.parametrize("parent", [PARENT, IMAGES], ids=label)
@pytest.mark.parametrize("init", ["random", "zero"])
def test_new_rows_match_the_rows_of_a_grown_run(parent, init):
    model = parent.build(1)
    grown = grow(model, 1.5, init, "sqrt", seed=4)
    run = grow_into(model.state_dict(), parent, grown.spec, Growth(keys=init), seed=4).state_dict()
    assert all(torch.equal(weight, run[name]) for name, weight in grown.state_dict().items())


def test_only_the_selected_layers_grow():
    grown = grow(PARENT.build(), tokens={"feedforward": 11})
    assert (grown.spec.projection.tokens, grown.spec.feedforward.tokens) == (6, 11)
    assert grown.spec.params() == sum(weight.numel() for weight in grown.parameters())
    model = spec(projection=Linear(), feedforward=Pattention(tokens=4)).build()
    assert grow(model).spec == spec(projection=Linear(), feedforward=Pattention(tokens=8, tau=2.0))


def test_repeated_growth_keeps_the_first_tau():
    model, _ = trained()
    once = grow(model)
    step(once, torch.optim.AdamW(once.parameters(), lr=0.01))
    twice = grow(once, factor=3)
    assert twice.spec.projection == Pattention(tokens=36, tau=math.sqrt(6))
    assert twice.spec.feedforward == Pattention(tokens=60, tau=math.sqrt(10))
    assert distance(twice, once) < 1e-10
    assert grow(twice, tau="sqrt").spec.projection == Pattention(tokens=72)


def test_the_next_step_with_the_carried_optimizer_equals_the_step_of_the_parent():
    """If growth preserves the function, the next step changes the old weights in the same way as in the parent."""
    model, optimizer = trained()
    grown = grow(model)
    carried = torch.optim.AdamW(grown.parameters(), lr=0.01, betas=(0.9, 0.95))
    carried.load_state_dict(grow_optimizer_state(optimizer.state_dict(), carried))
    step(model, optimizer)
    step(grown, carried)
    old = model.state_dict()
    for name, weight in grown.state_dict().items():
        torch.testing.assert_close(weight[: len(old[name])], old[name], atol=1e-10, rtol=1e-8)


def test_settings_of_initial_values_may_differ():
    child = spec(projection=Pattention(tokens=12, init="neox"), embedding_std=1.0)
    assert grown_spec(PARENT, child, Growth()) == child
    linear = spec(projection=Linear(std=0.5, scale_residual=False))
    assert grown_spec(spec(projection=Linear()), linear, Growth()) == linear


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 16}, "cannot grow width=8 into width=16: growth only adds Pattention tokens"),
        ({"projection": Linear()}, "cannot grow projection.kind=pattention into projection.kind=linear"),
        ({"depth": DepthWeightedAverage()}, "cannot grow depth.kind=identity into depth.kind=dwa"),
        ({"projection": Pattention(tokens=5)}, "cannot grow projection.tokens=6 into 5: growth never removes tokens"),
        ({"projection": Pattention(tokens=9, tau=2.0)}, "cannot grow projection with tau=2.0: the rule tau=sqrt gives"),
    ],
)
def test_incompatible_children_are_refused_in_one_line(changes, message):
    with pytest.raises(UserError) as caught:
        grown_spec(PARENT, spec(**changes), Growth())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": {"projection": 5}}, "cannot grow projection.tokens=6 into 5"),
        ({"init": "zeros"}, "cannot grow with init='zeros'; use random or zero"),
        ({"tau": "fixed"}, "cannot grow with tau='fixed'; use sqrt or keep"),
        ({"tokens": {"mlp": 50}}, "cannot grow mlp: the Pattention layers of this model are projection, feedforward"),
    ],
)
def test_invalid_arguments_of_grow_are_refused_in_one_line(options, message, unchecked_shapes):
    with pytest.raises(UserError) as caught:
        grow(PARENT.build(), **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_model_without_parameter_tokens_is_refused():
    with pytest.raises(UserError, match=r"without Pattention: projection\.kind=linear, feedforward\.kind=mlp"):
        grow(spec(projection=Linear(), feedforward=Mlp()).build())
