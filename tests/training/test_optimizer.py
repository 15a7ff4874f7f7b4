"""AdamW for language and image models, and Muon: weight decay, learning rates, equality with torch."""

import pytest
import torch

from formerlab.errors import UserError
from formerlab.layers import DepthWeightedAverage, Learned, Linear, Mlp
from formerlab.models import Decoder, VisionTransformer
from formerlab.training.optimizer import AdamW, LayerwiseAdamW, Muon

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


def test_the_error_of_muon_without_torch_support_has_the_required_version(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(UserError, match=r"muon needs torch 2\.9 or newer, this is 2\."):
        Muon().build(DECODER.build())


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_muon_matches_torch_on_block_matrices_and_adamw_on_other_parameters(tmp_path):
    """The optimizer is saved and loaded after two steps. A step with found_inf = 1 changes no weights."""
    model, twin = DECODER.build(), DECODER.build()
    spec = Muon(lr=0.02, weight_decay=0.3, momentum=0.9)
    optimizer = spec.build(model)
    inside = [p for name, p in twin.named_parameters() if name.startswith("blocks.") and p.ndim == 2]
    outside = {name: p for name, p in twin.named_parameters() if not name.startswith("blocks.") or p.ndim == 1}
    decays = {True: [], False: []}
    for name, p in outside.items():
        decays[p.ndim == 2 or name.startswith("mixer.")].append(p)
    groups = [{"params": decays[True]}, {"params": decays[False], "weight_decay": 0.0}]
    adamw = {"lr": 0.02, "betas": (0.9, 0.95), "weight_decay": 0.3, "fused": True}
    reference = [
        torch.optim.Muon(inside, 0.02, 0.3, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, **adamw),
    ]
    for step in range(4):
        if step == 2:
            torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
            optimizer = spec.build(model)
            optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt"))
        for ours, other in zip(model.parameters(), twin.parameters(), strict=True):
            ours.grad = torch.randn_like(ours)
            other.grad = ours.grad.clone()
        for each in (optimizer, *reference):
            each.step()
        assert all(map(torch.equal, model.parameters(), twin.parameters()))
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
