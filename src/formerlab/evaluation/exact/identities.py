"""Check identities of the papers on untrained models; most checks return the largest deviation."""

import functools
import itertools
import math

import numpy as np
import torch
from torch.nn import functional as F

from formerlab.cache import Decay, PrunedCache, Simulation
from formerlab.cache.simulation import SimulatedLayer
from formerlab.growth.modules import grow
from formerlab.growth.stage import TauRule
from formerlab.layers import DepthWeightedAverage, Identity, LayerNorm, Pattention
from formerlab.layers.position import Learned, Rotary, sinusoids
from formerlab.layers.score import l2_gelu
from formerlab.models.decoder import Decoder


def sinusoid_linear_shift() -> dict[str, float]:
    """Compare PE(p + k) with M_k PE(p), where M_k rotates by the angles k w_i (arXiv:1706.03762, section 3.5)."""
    width, positions, shifts = 512, 1024, 64
    table = sinusoids(positions + shifts, width).numpy()
    waves = table[:, 1::2] + 1j * table[:, 0::2]
    frequencies = 10_000.0 ** (-np.arange(0, width, 2) / width)
    worst = 0.0
    for k in range(1, shifts + 1):
        error = waves[k : k + positions] - np.exp(1j * k * frequencies) * waves[:positions]
        worst = max(worst, float(np.abs(error.real).max()), float(np.abs(error.imag).max()))
    return {"sinusoid_linear_shift": worst}


def zero_keys(tau: TauRule) -> dict[str, float]:
    """Double the number of parameter tokens of a model; the new keys are zero.

    `tau` is sqrt (from the new number of tokens) or keep (the parent's value). Returns the largest change of a logit,
    divided by the standard deviation of the logits. With tau = "keep", also returns the gradient norm of the new keys
    at the first step.
    """
    spec = Decoder(
        vocabulary=97, layers=3, width=32, heads=4, context=24, embedding_std=0.5,
        norm=LayerNorm(gain=False, bias=False), projection=Pattention(tokens=24), feedforward=Pattention(tokens=96),
    )  # fmt: skip
    tokens = torch.randint(97, (4, 24), generator=torch.Generator().manual_seed(2))
    model = spec.build(0).double()
    grown = grow(model, 2, "zero", tau, seed=1)
    with torch.no_grad():
        original, logits = model(tokens), grown(tokens)
    loss = F.cross_entropy(grown(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    squares = 0.0
    for name, weight in grown.named_parameters():
        if name.endswith("keys") and weight.grad is not None:
            squares += float((weight.grad[model.state_dict()[name].shape[0] :] ** 2).sum())
    numbers = {f"growth_zero_keys_tau_{tau}_relative": float((logits - original).abs().max() / original.std())}
    return numbers | ({"gradient_norm_new_keys": math.sqrt(squares)} if tau == "keep" else {})


def scale_invariance() -> dict[str, float]:
    """Scale the inputs, or all keys, of a Pattention layer, and return the largest relative change of its output."""
    layer = Pattention(tokens=32).build(16, 16).double()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randn(8, 16, dtype=torch.float64)
        layer.reset_parameters()
        expected, worst = layer(x), 0.0
        for factor in (1e-2, 0.3, 7.0, 1e2):
            with_scaled_inputs = layer(x * factor)
            keys = layer.keys.clone()
            layer.keys.mul_(factor)
            for output in (with_scaled_inputs, layer(x)):
                worst = max(worst, float((output - expected).abs().max() / expected.abs().max()))
            layer.keys.copy_(keys)
    return {"pattention_scale_invariance_relative": worst}


def jacobian() -> dict[str, float]:
    """Compare the Jacobian of arXiv:2410.23168, Appendix A, with automatic differentiation.

    dS_i/dA_j = gelu'(Z_i) (1 / sqrt(n)) (1 / ||A||) (n [i = j] - Z_i Z_j) with Z = sqrt(n) A / ||A||, S = gelu(Z).
    """
    worst = 0.0
    for n in (4, 16, 64, 256):
        a = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        automatic = torch.func.jacrev(functools.partial(l2_gelu, tau=math.sqrt(n)))(a)
        z = math.sqrt(n) * a / a.norm()
        slope = torch.func.vmap(torch.func.grad(F.gelu))(z)
        formula = slope[:, None] / (math.sqrt(n) * a.norm()) * (n * torch.eye(n, dtype=torch.float64) - z[:, None] * z)
        worst = max(worst, float((automatic - formula).abs().max()))
    return {"pattention_jacobian": worst}


def averages_at_start() -> dict[str, float]:
    """Compare the initial logits of a model with and without depth-weighted averages (arXiv:2402.02622)."""
    tokens, norm = torch.randint(97, (2, 16), generator=torch.Generator().manual_seed(2)), LayerNorm(bias=False)
    worst = 0.0
    for k, p in ((1, 1), (4, 1), (4, 5), (12, 1)):
        plain, dense = (
            Decoder(vocabulary=97, layers=24, width=32, heads=4, norm=norm, final_norm=norm, depth=mixer).build(0)
            for mixer in (Identity(), DepthWeightedAverage(dilation=k, period=p))
        )
        dense.load_state_dict(plain.state_dict(), strict=False)
        with torch.no_grad():
            worst = max(worst, float((plain(tokens) - dense(tokens)).abs().max()))
    return {"dwa_identity_at_start": worst}


def age_bias() -> dict[str, float]:
    """Return the score of the oldest token divided by the score of the newest, under uniform causal attention.

    No key is evicted. The query at position q gives 1 / (q + 1) to every key, and S <- alpha S + p.
    """
    numbers = {}
    for alpha, length in ((1.0, 256), (1.0, 4096), (0.2, 4096), (0.5, 4096), (0.8, 4096)):
        scores = torch.zeros(length, dtype=torch.float64)
        for q in range(length):
            scores[: q + 1] = alpha * scores[: q + 1] + 1 / (q + 1)
        numbers[f"age_ratio_alpha_{alpha:g}_length_{length}"] = float(scores[0] / scores[-1])
    return numbers


def simulation_equals_eviction() -> dict[str, float]:
    """Compare the logits and the retained keys of simulated and real eviction."""
    sizes = {"vocabulary": 31, "layers": 2, "width": 16, "heads": 4, "context": 24, "embedding_std": 0.5}
    models = (
        Decoder(**sizes, position=Rotary()),
        Decoder(**sizes, position=Learned()),
        Decoder(**sizes, projection=Pattention(tokens=8), feedforward=Pattention(tokens=32)),
    )
    tokens = torch.randint(31, (2, 20), generator=torch.Generator().manual_seed(2))
    policies = Decay(alpha=0.2), Decay(alpha=0.5), Decay(alpha=1.0, recent=0.5), Decay(alpha=0.95, recent=0.5)
    worst, different = 0.0, 0
    for spec, policy, budget in itertools.product(models, policies, (4, 8)):
        model, cache, layers = spec.build(0).double(), PrunedCache(policy, budget), dict[int, SimulatedLayer]()
        with torch.no_grad():
            simulated = model(tokens, attend=Simulation(policy, budget, observe=layers.__setitem__))
            for position in range(tokens.shape[1]):
                real = model(tokens[:, position : position + 1], attend=cache, start=position)
                worst = max(worst, float((real[:, 0] - simulated[:, position]).abs().max()))
                for layer, simulated_layer in layers.items() if position + 1 < tokens.shape[1] else ():
                    visible = simulated_layer.visible[:, :, position + 1, : position + 1]  # keys for the next query
                    retained = torch.zeros_like(visible).scatter(-1, cache.kept(layer), value=True)
                    different += not torch.equal(retained, visible)
    return {"simulated_against_real_eviction": worst, "cases_with_different_kept_sets": float(different)}
