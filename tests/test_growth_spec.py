"""What growth allows, asked of the specs alone, and how it refuses the rest."""

import math

import pytest
import torch
from test_growth import PARENT

from formerlab.errors import UserError
from formerlab.growth.tokens import Growth, grow, grow_into, grown_spec
from formerlab.layers import DepthWeightedAverage, LayerNorm, Linear, Mlp, Pattention
from formerlab.models import Decoder


def spec(**changes):
    return Decoder.model_validate({**dict(PARENT), **changes})


def test_what_only_draws_initial_values_may_differ():
    child = spec(projection=Pattention(tokens=12, init="neox"), embedding_std=1.0)
    assert grown_spec(PARENT, child, Growth()) == child
    linear = spec(projection=Linear(std=0.5, scale_residual=False))
    assert grown_spec(spec(projection=Linear()), linear, Growth()) == linear


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 16}, "cannot grow width=8 into width=16: growth only adds Pattention tokens"),
        ({"layers": 4}, "cannot grow layers=3 into layers=4"),
        ({"vocabulary": 12}, "cannot grow vocabulary=11 into vocabulary=12"),
        ({"projection": Linear()}, "cannot grow projection.kind=pattention into projection.kind=linear"),
        ({"depth": DepthWeightedAverage()}, "cannot grow depth.kind=identity into depth.kind=dwa"),
        ({"norm": LayerNorm()}, "cannot grow norm.gain=False into norm.gain=True"),
        ({"projection": Pattention(tokens=6, score="exp_l1")}, "cannot grow projection.score=l2_gelu into"),
        ({"projection": Pattention(tokens=5)}, "cannot grow projection.tokens=6 into 5: growth never removes tokens"),
        ({"projection": Pattention(tokens=9, tau=2.0)}, "cannot grow projection with tau=2.0: the rule tau=sqrt gives"),
    ],
)
def test_another_child_is_refused_in_one_line(changes, message):
    with pytest.raises(UserError) as caught:
        grown_spec(PARENT, spec(**changes), Growth())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 0.5}, "cannot grow by factor=0.5: growth never removes tokens; use a factor of at least 1"),
        ({"factor": math.nan}, "cannot grow by factor=nan"),
        ({"factor": math.inf}, "cannot grow by factor=inf"),
        ({"tokens": {"projection": 5}}, "cannot grow projection.tokens=6 into 5"),
        ({"tokens": {"mlp": 50}}, "cannot grow mlp: the Pattentions of this model are projection, feedforward"),
    ],
)
def test_a_wrong_wish_is_refused_in_one_line(options, message):
    with pytest.raises(UserError) as caught:
        grow(PARENT.build(), **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_model_without_parameter_tokens_is_refused():
    with pytest.raises(UserError, match=r"without Pattention: projection\.kind=linear, feedforward\.kind=mlp"):
        grow(spec(projection=Linear(), feedforward=Mlp()).build())


def test_weights_of_another_model_are_refused():
    child = spec(projection=Pattention(tokens=12))
    state = PARENT.build().state_dict()
    grow_into(state, PARENT, child, Growth(), 0)
    missing = {name: weight for name, weight in state.items() if name != "blocks.1.attention.key.keys"}
    for wrong in (missing, {**state, "extra": torch.zeros(1)}, child.build().state_dict()):
        with pytest.raises(UserError, match=r"cannot grow weights that are not the parent's: .* has shape .* says"):
            grow_into(wrong, PARENT, child, Growth(), 0)
