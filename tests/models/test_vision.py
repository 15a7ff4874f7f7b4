"""The Vision Transformer: equality with timm, parameter counts, depth mixers and drop path."""

import re

import pytest
import torch
from torch import nn

from formerlab.layers import LayerNorm, Linear, Mlp, Pattention, Rotary
from formerlab.layers.depth.union import DepthMixer
from formerlab.models.published import PUBLISHED
from formerlab.models.vision import DropPath, VisionTransformer
from tests.variation import counted_flops, counted_params, defaults, label, perturb

pytest.importorskip("formerlab.integrations.timm")
timm = pytest.importorskip("timm")

SIZES = {"image": 16, "patch": 4, "channels": 3, "classes": 5, "layers": 3, "width": 24, "heads": 3}
PATTENTION = {"projection": Pattention(tokens=10), "feedforward": Pattention(tokens=14)}


def images(count=2, side=16, channels=3):
    return torch.randn(count, channels, side, side)


def from_timm(state, spec):
    """Return the weights of timm's ViT under our names; timm has one matrix for queries, keys and values."""
    modules = {"patch_embed.proj": "patch_embed", "norm": "final_norm", "head": "head"}
    modules |= {"norm1": "attention_norm", "norm2": "feedforward_norm", "attn.proj": "attention.output"}
    modules |= {"mlp.fc1": "feedforward.inner", "mlp.fc2": "feedforward.outer"}
    renamed = {"class_token.token": state.pop("cls_token").reshape(spec.width)}
    renamed["position.rows"] = state.pop("pos_embed").reshape(spec.context, spec.width)
    for name, weight in state.items():
        block, timm_name, kind = re.fullmatch(r"(blocks\.\d+\.|)(.*)\.(\w+)", name).groups()
        if timm_name == "attn.qkv":
            thirds = zip(("query", "key", "value"), weight.chunk(3), strict=True)
            renamed |= {f"{block}attention.{part}.{kind}": third for part, third in thirds}
        else:
            gain = "norm" in timm_name and kind == "weight"
            renamed[f"{block}{modules[timm_name]}.{'gain' if gain else kind}"] = weight
    return renamed


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_timm_gives_the_same_logits_and_features(pool):
    oracle = timm.create_model(
        "vit_tiny_patch16_224", img_size=64, num_classes=7, depth=3, global_pool=pool, fc_norm=False
    )
    spec = VisionTransformer(
        image=64, classes=7, layers=3, width=192, heads=3, pool="token" if pool == "token" else "average"
    )
    model = spec.build().eval()
    model.load_state_dict(from_timm(perturb(oracle.eval()).state_dict(), spec))
    x = images(side=64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), oracle(x))
        torch.testing.assert_close(model.forward_features(x), oracle.forward_features(x))


MODELS = [
    VisionTransformer(**SIZES),
    VisionTransformer(**SIZES, **PATTENTION, norm=LayerNorm(gain=False, bias=False)),
    VisionTransformer(**SIZES, projection=Linear(), feedforward=Mlp(activation="swiglu"), pool="average"),
    *(VisionTransformer(**SIZES, depth=mixer) for mixer in defaults(DepthMixer)),
]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("spec", MODELS, ids=label)
def test_closed_forms_match_pytorch_counts(spec):
    model = spec.build()
    assert counted_params(model) == spec.params()
    outside_blocks = ("patch_embed", "class_token", "position", "head")
    inner = sum(p.numel() for name, p in model.named_parameters() if not name.startswith(outside_blocks))
    assert inner == spec.params(embedding=False)
    assert counted_flops(model, images(1))["Global"] == spec.flops()


def test_drop_path_drops_whole_images_and_keeps_the_mean():
    torch.manual_seed(0)
    layer = DropPath(0.25)
    update = torch.ones(4000, 2, 3)
    out = layer(update)
    not_dropped = out[:, 0, 0] > 0
    assert torch.equal(out, torch.where(not_dropped, 1 / 0.75, 0.0)[:, None, None].expand_as(out))
    assert abs(not_dropped.float().mean() - 0.75) < 0.03
    assert torch.equal(layer.eval()(update), update)


def test_inconsistent_sizes_are_refused():
    for wrong, text in (
        ({"patch": 5}, "patch=5 does not divide"),
        ({"heads": 5}, "heads=5 does not divide"),
        ({"position": Rotary(fraction=0.1)}, "2 rotated channels per head: width=24, heads=3, position.fraction=0.1"),
    ):
        with pytest.raises(ValueError, match=text):
            VisionTransformer(**{**SIZES, **wrong})
    with pytest.raises(ValueError, match=r"\(3, 8, 8\), but the model needs \(3, 16, 16\)"):
        VisionTransformer(**SIZES).build()(images(side=8))


def small(name="tokenformer_base_patch16_224", **options):
    """Build a registered model of small size."""
    tokens = {"kind": "pattention", "tokens": 8}
    sizes = {"width": 24, "heads": 3, "layers": 3, "patch": 4, "img_size": 16}
    return timm.create_model(name, **sizes, projection=tokens, feedforward=tokens, **options)


def test_timm_creates_the_models_with_its_options():
    with torch.device("meta"):
        specs = {timm.create_model(name).spec for name in timm.list_models("tokenformer_*", module="timm")}
    assert specs == {spec for name, spec in PUBLISHED.items() if name.startswith("tokenformer-") and "16" in name}
    model = small(num_classes=4, in_chans=1, drop_path_rate=0.1, global_pool="avg")
    assert model(images(channels=1)).shape == (2, 4)
    assert model.spec.drop_path == 0.1
    assert (model.num_classes, model.global_pool, model.num_features) == (4, "avg", 24)
    assert model.pretrained_cfg["input_size"] == (3, 224, 224)
    assert small(num_classes=0)(images()).shape == (2, 24)
    model.reset_classifier(3, "avg")
    tokens = model.forward_features(images(channels=1))
    assert model.forward_head(tokens).shape == (2, 3)
    torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), tokens[:, 1:].mean(1))
    assert isinstance(model.get_classifier(), nn.Linear)


def test_timm_groups_parameters_by_depth():
    from timm.optim import param_groups_layer_decay

    model = small(depth={"kind": "dwa"})
    groups = param_groups_layer_decay(model, 0.05, model.no_weight_decay(), layer_decay=0.5)
    scale = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    assert scale[id(model.head.weight)] == 1.0
    assert scale[id(model.final_norm.gain)] == scale[id(next(model.mixer.parameters()))] == 0.5
    assert scale[id(model.blocks[0].attention.query.keys)] == 0.125
    assert scale[id(model.patch_embed.weight)] == scale[id(model.position.rows)] == 0.0625
    assert decay[id(model.position.rows)] == decay[id(model.class_token.token)] == 0.0
    assert decay[id(model.patch_embed.weight)] == 0.05


def test_unsupported_options_of_timm_are_refused():
    small(drop_rate=0.0)  # the default of timm's scripts
    for options in ({"drop_rate": 0.1}, {"global_pool": "max"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}[:=]"):
            small(**options)
