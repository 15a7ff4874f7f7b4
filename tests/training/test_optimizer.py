"""AdamW for language and image models: weight decay and learning rates."""

import pytest

from formerlab.layers import DepthWeightedAverage, Learned, Linear, Mlp
from formerlab.models import Decoder, VisionTransformer
from formerlab.training.optimizer import AdamW, LayerwiseAdamW

DECODER = Decoder(
    vocabulary=11,
    layers=2,
    width=8,
    heads=2,
    context=6,
    position=Learned(),
    projection=Linear(bias=True),
    feedforward=Mlp(bias=True, activation="swiglu"),
    depth=DepthWeightedAverage(),
    tied=False,
)
IMAGE_MODEL = VisionTransformer(
    **{"image": 8, "patch": 4, "channels": 1, "classes": 3, "layers": 2, "width": 8, "heads": 2},
    depth=DepthWeightedAverage(),
)
every_optimizer = pytest.mark.parametrize(("kind", "model_spec"), [(AdamW, DECODER), (LayerwiseAdamW, IMAGE_MODEL)])


def split_by_decay(spec, model):
    """Return the names of the decayed parameters and of all others."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = {True: set(), False: set()}
    for group in spec.build(model).param_groups:
        groups[group["weight_decay"] > 0] |= {names[parameter] for parameter in group["params"]}
    return groups[True], groups[False]


@every_optimizer
@pytest.mark.parametrize("mixing", [True, False])
def test_weight_decay_by_parameter_group(mixing, kind, model_spec):
    decayed, undecayed = split_by_decay(kind(decay_mixing=mixing), model_spec.build())
    alphas = {name for name in decayed | undecayed if name.startswith("mixer.")}
    vectors = {name for name in decayed | undecayed if "bias" in name or "norm" in name}
    exempt = {"class_token.token", "position.rows"} if model_spec is IMAGE_MODEL else set()
    assert undecayed == vectors | exempt | (set() if mixing else alphas)
    outer = {"patch_embed.weight", "head.weight"} if model_spec is IMAGE_MODEL else {"embedding", "head"}
    assert (len(alphas), outer < decayed) == (2, True)


@every_optimizer
@pytest.mark.parametrize(("step", "trained"), [(0, False), (2, False), (3, True)])
def test_mixing_weights_train_from_mixing_start_step_at_their_learning_rate(step, trained, kind, model_spec):
    """The settings depend only on the step."""
    model = model_spec.build()
    spec = kind(lr=0.1, mixing_lr_factor=0.25, mixing_start_step=3)
    optimizer = spec.build(model)
    for any_step in (5, 0, step):
        spec.prepare(model, optimizer, any_step, factor=0.5)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            mixing = names[parameter].startswith("mixer.")
            assert (group["lr"], parameter.requires_grad) == ((0.0125, trained) if mixing else (0.05, True))
