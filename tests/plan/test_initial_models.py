"""Initial loss, initial embedding and rotary fraction of the decoders of every scale that trains models.

Models of the small scales start at the loss of a uniform distribution and rotate all channels. Models of the large
scales have the published initial embedding and rotary fraction.
"""

import math

import pytest
import torch
from fixtures.checkout import ROOT
from torch.nn import functional as F

from formerlab.layers.position import Rotary
from formerlab.plan.resolve import resolve_study
from formerlab.plan.sources import read_sources

LANGUAGE = ["tokenformer", "denseformer", "decay", "combined"]


def decoders(scale):
    """Return one run for each decoder of a scale."""
    sources = read_sources(ROOT, {"scale": scale, "studies": LANGUAGE})
    runs = [run for study in LANGUAGE for run in resolve_study(study, sources)]
    return list({run.model.fingerprint(): run for run in runs}.values())


@torch.no_grad()
def initial_loss(model):
    """Return the loss of an untrained model on random tokens."""
    tokens = torch.randint(model.vocabulary, (4, 33), generator=torch.Generator().manual_seed(0))
    logits = model.build(0).eval()(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


@pytest.mark.parametrize("scale", ["smoke", "laptop", "pilot", "overnight"])
def test_small_models_start_at_the_uniform_loss_and_rotate_all_channels(scale):
    for run in decoders(scale):
        uniform = math.log(run.model.vocabulary)
        assert initial_loss(run.model) == pytest.approx(uniform, rel=0.05), run.id
        assert not isinstance(run.model.position, Rotary) or run.model.position.fraction == 1, run.id


@pytest.mark.parametrize("scale", ["workstation", "paper"])
def test_large_models_start_as_published(scale):
    runs = decoders(scale)
    assert {run.model.embedding_std for run in runs} == {0.02}
    assert {run.model.position.fraction for run in runs if run.study == "tokenformer"} == {0.25, 1.0}
