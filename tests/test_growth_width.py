"""Growth in width by two forms of Net2Net and by HyperCloning, and which of them preserve the function."""

import pytest
import torch
from test_growth import distance
from variation import counted_params, label, perturb, settings

from formerlab.errors import UserError
from formerlab.growth.stage import Growth, grow_into, grown_spec
from formerlab.layers import (
    DepthMixer,
    DepthWeightedAverage,
    LayerNorm,
    Linear,
    Mlp,
    Norm,
    Position,
    RMSNorm,
    Sinusoidal,
)
from formerlab.models import Decoder

PARENT = Decoder(
    vocabulary=11,
    layers=2,
    width=12,
    heads=2,
    context=8,
    projection=Linear(bias=True),
    feedforward=Mlp(bias=True, hidden=20),
)
PRESERVING = ("net2net", "hypercloning")


def spec(parent=PARENT, **changes):
    return Decoder.model_validate({**dict(parent), **changes})


def wider(parent, factor, hidden=None):
    """Return the parent's spec with width, heads and, unless `hidden` is given, hidden units multiplied by `factor`."""
    feedforward = parent.feedforward
    if isinstance(feedforward, Mlp):
        units = feedforward.width(parent.width)
        feedforward = feedforward.model_copy(update={"hidden": hidden or int(units * factor)})
    changes = {"width": int(parent.width * factor), "heads": int(parent.heads * factor), "feedforward": feedforward}
    return spec(parent, **changes)


def random_model(parent):
    """Return a float64 model with random weights, including gains, biases and mixing weights."""
    return perturb(parent.build(0).double(), 0.3)


def grown(model, child, seed=5, **growth):
    return grow_into(model.state_dict(), model.spec, child, Growth(**growth), seed)


@pytest.mark.parametrize("method", PRESERVING)
@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": False},
        {"tied": False, "logit_scale": "inverse_sqrt_width", "final_norm": LayerNorm(gain=False, bias=False)},
        {"logit_scale": "inverse_sqrt_width", "final_norm": RMSNorm()},
        {"norm": RMSNorm(gain=False), "projection": Linear(), "feedforward": Mlp(activation="swiglu")},
    ],
    ids=str,
)
def test_integer_factors_keep_the_function(method, noise, factor, changes):
    model = random_model(spec(**changes))
    assert distance(grown(model, wider(model.spec, factor), method=method, noise=noise), model) < 1e-10


WIDTH_INDEPENDENT = [mixer for mixer in settings(DepthMixer) if mixer.params(3, 8) == mixer.params(3, 16)]
WIDTH_DEPENDENT = [mixer for mixer in settings(DepthMixer) if mixer not in WIDTH_INDEPENDENT]


@pytest.mark.parametrize("method", PRESERVING)
@pytest.mark.parametrize(
    "changes",
    [
        *({"norm": norm} for norm in settings(Norm)),
        *({"position": position} for position in settings(Position) if position.kind != "sinusoidal"),
        *({"depth": depth} for depth in [*WIDTH_INDEPENDENT, DepthWeightedAverage(dilation=2)]),
        *({"feedforward": Mlp(activation=activation, hidden=5)} for activation in ("gelu", "relu", "swiglu")),
    ],
    ids=lambda changes: "-".join(str(label(part)) for part in changes.values()),
)
def test_every_kind_of_layer_is_supported(method, changes):
    model = random_model(spec(**changes))
    assert distance(grown(model, wider(model.spec, 2), method=method), model) < 1e-10


@pytest.mark.parametrize("changes", [{"position": Sinusoidal()}, *({"depth": mixer} for mixer in WIDTH_DEPENDENT)])
def test_unsupported_layers_are_refused(changes):
    model, ((name, layer),) = random_model(spec(**changes)), changes.items()
    with pytest.raises(UserError, match=f"cannot grow {name}.kind={layer.kind} by (method=)?net2net"):
        grown(model, wider(model.spec, 2), method="net2net")


def test_padding_copies_the_old_matrix_to_the_top_left_block():
    """Eq. 13 of arXiv:2410.23168. The first heads are the old heads."""
    model, child = random_model(PARENT), wider(PARENT, 1.5)
    new, fresh, old = grown(model, child, method="net2net_pad").state_dict(), child.build(5).state_dict(), 0
    for name, weight in model.state_dict().items():
        corner = tuple(slice(size) for size in weight.shape)
        assert torch.equal(new[name][corner], weight)
        outside = torch.ones(new[name].shape, dtype=torch.bool)
        outside[corner] = False
        assert torch.equal(new[name][outside], fresh[name].double()[outside])
        old += weight.numel()
    assert old < counted_params(child.build())


def test_hypercloning_matches_the_papers_block_matrix():
    model = random_model(PARENT)
    old, new = model.state_dict(), grown(model, wider(PARENT, 2), method="hypercloning").state_dict()
    for name in (
        "blocks.1.attention.query.weight",
        "blocks.0.attention.output.weight",
        "blocks.1.feedforward.outer.weight",
    ):
        halved = old[name] / 2
        torch.testing.assert_close(new[name], torch.cat([torch.cat([halved, halved], 1)] * 2, 0), atol=0, rtol=0)
    for name in ("blocks.0.attention.output.bias", "blocks.1.feedforward_norm.gain"):
        assert torch.equal(new[name], old[name].repeat(2))
    assert torch.equal(new["embedding"], old["embedding"].repeat(1, 2))
    assert torch.equal(new["final_norm.gain"], old["final_norm.gain"].repeat(2) / 2)


def test_each_channel_occurs_two_or_three_times_after_net2net():
    """Columns of the embedding are channels. The seed selects the copied channels. Copies follow all old channels."""
    model = random_model(PARENT)
    child = wider(PARENT, 2.5, hidden=20)
    first, same_seed, other_seed = (grown(model, child, seed, method="net2net").embedding for seed in (5, 5, 6))
    assert torch.equal(first, same_seed)
    assert not torch.equal(first, other_seed)
    assert torch.equal(first[:, :12], model.embedding)
    copies = (first[:, :, None] == model.embedding[:, None, :]).all(0).sum(0)
    assert copies.tolist().count(2) == 6
    assert copies.tolist().count(3) == 6


def test_noise_sums_to_zero_over_copies():
    model = random_model(PARENT)
    name = "blocks.0.attention.key.weight"
    plain, noisy = (grown(model, wider(PARENT, 3), method="hypercloning", noise=n).state_dict()[name] for n in (0, 0.4))
    assert not torch.allclose(plain, noisy)
    torch.testing.assert_close(noisy.unflatten(1, (3, 12)).sum(1), plain.unflatten(1, (3, 12)).sum(1))
    spread = (noisy - plain).square().mean().sqrt() / plain.square().mean().sqrt()
    assert spread.item() == pytest.approx(0.4 * (2 / 3) ** 0.5, rel=0.15)


NO_GAIN = spec(final_norm=LayerNorm(gain=False))


@pytest.mark.parametrize(
    ("method", "parent", "child", "message"),
    [
        ("hypercloning", PARENT, spec(width=24), "cannot grow width=12, heads=2 into width=24, heads=2: every head"),
        ("hypercloning", PARENT, wider(PARENT, 1.5), "cannot grow width=12 into 18: hypercloning needs a m"),
        ("net2net", PARENT, wider(PARENT, 0.5), "cannot grow width=12 into 6: growth never reduces a size"),
        ("net2net", PARENT, spec(layers=3), "cannot grow layers=2 into layers=3: net2net only adds width"),
        (
            "hypercloning",
            NO_GAIN,
            wider(NO_GAIN, 2),
            "cannot grow by method=hypercloning with tied=true and final_norm",
        ),
        ("tokens", PARENT, wider(PARENT, 2), "cannot grow width=12 into width=24: growth only adds Pattention tokens"),
    ],
)
def test_sizes_that_a_method_does_not_support_are_refused_in_one_line(method, parent, child, message):
    with pytest.raises(UserError) as caught:
        grown_spec(parent, child, Growth(method=method))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "growth", [{"method": "hypercloning", "keys": "zero"}, {"method": "net2net_pad", "noise": 0.1}, {"noise": 0.1}]
)
def test_settings_without_effect_are_refused(growth):
    with pytest.raises(ValueError, match=list(growth)[-1]):
        Growth(**growth)
