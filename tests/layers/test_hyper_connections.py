"""Hyper-Connections match the equations of their papers, and special cases match simpler mixers."""

import pytest
import torch
from hypothesis import given, settings, strategies
from pydantic import ValidationError
from test_depth import WIDTH, built, inputs, stack

from formerlab.layers import DynamicHyperConnections, ManifoldHyperConnections, SkipsWithGains, StaticHyperConnections
from formerlab.layers.depth.manifold_hyper_connections import sinkhorn_knopp
from formerlab.models import Decoder, Translator
from formerlab.training.optimizer import AdamW

KINDS = (StaticHyperConnections, DynamicHyperConnections, ManifoldHyperConnections)
every_kind = pytest.mark.parametrize("kind", KINDS)
LAYERS = 3


def static_reference(mixer, index, streams):
    """Return A_m (n x 1), A_r (n x n) and B (1 x n) of eq. 1 in arXiv:2409.19606."""
    del streams
    weights = mixer.static[index - 1]
    return weights[:, :1], weights[:, 1:-1], weights[:, -1:].T


def dynamic_reference(mixer, index, streams):
    """Return A_m, A_r and B of eq. 10-13 in arXiv:2409.19606."""
    n = len(streams)
    normed = (streams - streams.mean(1, keepdim=True)) / (streams.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    w_m, w_r, w_beta = mixer.dynamic[index - 1].T.split((1, n, 1), dim=1)
    s_alpha, s_beta = mixer.scale[index - 1]
    a_m, a_r, b = static_reference(mixer, index, streams)
    return (
        s_alpha * torch.tanh(normed @ w_m) + a_m,
        s_alpha * torch.tanh(normed @ w_r) + a_r,
        s_beta * torch.tanh(normed @ w_beta).T + b,
    )


def manifold_reference(mixer, index, streams):
    """Return A_m, A_r and B by eq. 7-9 of arXiv:2512.24880. The transposed residual matrix replaces A_r."""
    n = len(streams)
    flat = streams.reshape(1, -1)
    normed = flat / (flat.square().mean() + 1e-5).sqrt()
    phi = mixer.dynamic[index - 1].T.split((n, n, n * n), dim=1)
    biases = mixer.static[index - 1].split((n, n, n * n))
    pre, post, res = (a * (normed @ p) + b for a, p, b in zip(mixer.scale[index - 1], phi, biases, strict=True))
    matrix = res.reshape(n, n).exp()
    for _ in range(mixer.spec.iterations):
        matrix = matrix / matrix.sum(0, keepdim=True)
        matrix = matrix / matrix.sum(1, keepdim=True)
    return 1 / (1 + torch.exp(-pre)).T, matrix.T, 2 / (1 + torch.exp(-post))


REFERENCES = dict(zip(KINDS, (static_reference, dynamic_reference, manifold_reference), strict=True))


@every_kind
@pytest.mark.parametrize("streams", [1, 2, 4])
def test_a_stack_matches_the_equations(kind, streams):
    mixer = built(kind(streams=streams), LAYERS, perturbed=True).double()
    x, updates = inputs(LAYERS, dtype=torch.float64)
    actual = stack(mixer, x, updates)[-1]
    for batch, time in ((0, 0), (1, 2)):
        hidden = x[batch, time].expand(streams, WIDTH)
        for index, update in enumerate(updates, start=1):
            a_m, a_r, b = REFERENCES[kind](mixer, index, hidden)
            read = (hidden.T @ a_m)[:, 0]
            hidden = b.T @ (update[batch, time] * read)[None] + a_r.T @ hidden
        torch.testing.assert_close(actual[batch, time], hidden.sum(0))


def tiny(depth):
    return Decoder(vocabulary=11, layers=3, width=8, heads=2, context=6, depth=depth).build(3).double()


def test_one_stream_reduces_to_skips_with_gains():
    static, gains = (built(spec, LAYERS) for spec in (StaticHyperConnections(streams=1), SkipsWithGains()))
    with torch.no_grad():
        gains.gains.copy_(torch.randn(2 * LAYERS))
        for weights, gain in zip(static.static, gains.gains, strict=True):
            weights[0, 1] = gain
    x, updates = inputs(LAYERS)
    torch.testing.assert_close(stack(static, x, updates), stack(gains, x, updates))


sizes = strategies.integers(1, 6)
seeds = strategies.integers(0, 2**31)


def logits_of(n, seed, size=3.0):
    return size * torch.randn(2, 3, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30, deadline=None)
@given(sizes, seeds)
def test_the_residual_matrix_is_doubly_stochastic(n, seed):
    matrix = sinkhorn_knopp(logits_of(n, seed), 2000)
    assert (matrix >= 0).all()
    torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 3, n, dtype=torch.float64))
    torch.testing.assert_close(matrix.sum(-2), torch.ones(2, 3, n, dtype=torch.float64), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(sinkhorn_knopp(matrix.log(), 1), matrix, rtol=1e-3, atol=1e-3)


def test_exponents_do_not_overflow():
    logits = 1000.0 + logits_of(4, seed=1).float()
    torch.testing.assert_close(sinkhorn_knopp(logits, 20), sinkhorn_knopp(logits - 1000.0, 20), rtol=1e-3, atol=1e-4)


@every_kind
def test_static_weights_have_no_weight_decay_and_translators_are_refused(kind):
    model = tiny(kind())
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = AdamW(weight_decay=0.1).build(model).param_groups
    undecayed = {names[parameter] for group in groups if not group["weight_decay"] for parameter in group["params"]}
    assert {name for name in undecayed if name.startswith("mixer.")} == {f"mixer.static.{index}" for index in range(6)}
    with pytest.raises(ValidationError, match=r"depth.kind=\w+_hyper_connections is not supported"):
        Translator(depth=kind())


@pytest.mark.parametrize("streams", [2, 4])
def test_the_residual_matrix_changes_more_with_the_mixing_start_than_with_the_identity_start(streams):
    """The initial residual matrix is computed from the initial bias b.

    All rows and columns of exp(b) have the same sum, so Sinkhorn-Knopp returns exp(b) divided by this sum.
    """
    tokens, inputs, changes = torch.arange(6)[None], torch.randn(1, 1, streams, 8, dtype=torch.float64), {}
    for start, bias in (("identity", 4.0), ("mixing", 1.0)):
        model = tiny(ManifoldHyperConnections(streams=streams, start=start))
        first, optimizer = model.mixer.connections(5, inputs)[1].detach(), AdamW(lr=1e-2).build(model)
        odds = torch.tensor(2 * bias, dtype=torch.float64).exp()
        torch.testing.assert_close(first[0, 0].diagonal(), (odds / (odds + streams - 1)).expand(streams))
        torch.testing.assert_close(first.sum(-1), torch.ones_like(first[..., 0]))
        for _ in range(10):
            model(tokens, targets=tokens.flip(1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        changes[start] = (model.mixer.connections(5, inputs)[1] - first).abs().max().item()
    assert changes["mixing"] > 10 * changes["identity"]
