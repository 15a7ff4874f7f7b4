"""What can be counted of a step without a GPU, against what the plan counts."""

import jaxtyping
import pytest
from estimates import BARE, TIME, counted_bytes, tracked_bytes
from variation import settings

from formerlab.layers.block import activation_elements
from formerlab.layers.depth.attention_residuals import AttentionResiduals
from formerlab.layers.depth.manifold_hyper_connections import ManifoldHyperConnections
from formerlab.layers.depth.union import DepthMixer
from formerlab.models import Decoder
from formerlab.models.vision import VisionTransformer
from formerlab.plan.memory import memory_bytes
from formerlab.tasks import Classification, LanguageModeling
from formerlab.training.run import Run

WIDTH = 64
PLAIN = Decoder(vocabulary=32, width=WIDTH, heads=2, context=TIME)
NAMES = ("identity", "gains", "connect_to_last", "static_hyper_connections")
MODELS = {
    mixer.kind: PLAIN.model_copy(update={"depth": mixer}) for mixer in settings(DepthMixer) if mixer.kind in NAMES
}
MODELS["manifold"] = PLAIN.model_copy(update={"depth": ManifoldHyperConnections(iterations=4)})


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_block_keeps_what_the_plan_counts(name):
    spec = MODELS[name]
    four, two = (counted_bytes(spec.model_copy(update={"layers": layers}), moved=False)[0] for layers in (4, 2))
    planned = 2 * activation_elements(WIDTH, spec.projection, spec.feedforward, spec.depth)
    assert planned == pytest.approx((four - two) / 2, rel=0.1)


def test_mixers_move_bytes_in_the_order_of_their_hours():
    mixers = MODELS["identity"].depth, MODELS["gains"].depth, AttentionResiduals()
    specs = [PLAIN.model_copy(update={"depth": mixer, "layers": 2}) for mixer in mixers]
    planned = [spec.mixing_flops(1) for spec in specs]
    moved = [counted_bytes(spec)[1] for spec in specs]
    assert planned == sorted(planned)
    assert moved == sorted(set(moved))


TASK = LanguageModeling(context=128, batch=64)
SEEN = VisionTransformer(image=32, patch=4, layers=4, width=192, heads=3)
STEPS = {
    "decoder": Run(
        study="s", name="n", model=Decoder(vocabulary=512, layers=4, width=256, heads=4, context=128), task=TASK
    ),
    "vision": Run(study="s", name="n", model=SEEN, task=Classification(batch=64)),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_takes_the_memory_of_the_plan(name):
    run = STEPS[name].model_copy(update={"precision": "bfloat16"})
    assert 0.8 < tracked_bytes(run) / memory_bytes(run, BARE) < 1.2
