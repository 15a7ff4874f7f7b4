"""Depth-weighted averages (arXiv:2402.02622): index sets, counts, gradients."""

import pytest
import torch

from formerlab.kernels import weighted_sum
from formerlab.layers import DepthWeightedAverage

BLOCKS = 48


def index_set(i, k):
    """S_i = { j <= i : j = i (mod k) }, straight from the definition."""
    return [j for j in range(i + 1) if (i - j) % k == 0]


@pytest.mark.parametrize(
    ("dilation", "period", "sees_x0"),
    [
        (1, 1, list(range(1, 49))),
        (2, 1, list(range(2, 49, 2))),
        (4, 5, [20, 40]),
        (4, 4, list(range(4, 49, 4))),
        (12, 1, [12, 24, 36, 48]),
        (4, 15, []),
    ],
)
def test_index_sets_and_where_the_embedding_enters(dilation, period, sees_x0):
    spec = DepthWeightedAverage(dilation=dilation, period=period)
    destinations = spec.destinations(BLOCKS)
    assert destinations == [i for i in range(1, BLOCKS + 1) if i % period == 0]
    for i in destinations:
        assert spec.sources(i) == index_set(i, dilation)
    assert [i for i in destinations if 0 in spec.sources(i)] == sees_x0


def reference(spec, streams, alphas):
    """Y_i = sum over S_i of alpha_ij X_j from stacked lists (section 3), with no history kept."""
    mixed = []
    for i, x in enumerate(streams[1:], start=1):
        if i % spec.period == 0:
            stacked = torch.stack([streams[j] for j in index_set(i, spec.dilation)])
            mixed.append(torch.tensordot(alphas[str(i)], stacked, dims=1))
        else:
            mixed.append(x)
    return mixed


PATTERNS = [(1, 1), (2, 1), (4, 5), (4, 4), (3, 2), (12, 1), (4, 15)]
every_pattern = pytest.mark.parametrize(("dilation", "period"), PATTERNS)
every_path = pytest.mark.parametrize("path", ["native", "eager", "loop"])


@pytest.fixture
def choose(monkeypatch):
    """Make mixers take one path of the three."""

    def choose(mixer, path):
        mixer.fused = path != "loop"
        if path == "eager":
            monkeypatch.setattr(weighted_sum, "_kernel", lambda: None)
        elif path == "native" and weighted_sum.path() != "native":
            pytest.skip("no C++ compiler")
        return mixer

    return choose


class Averaged(torch.nn.Module):
    """(X_0, X_1, ...) -> (Y_1, Y_2, ...)."""

    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, *streams):
        _, history = self.mixer.begin(streams[0])
        return tuple(self.mixer.mix(i, x, history) for i, x in enumerate(streams[1:], start=1))


def drawn(spec, layers):
    mixer = spec.build(layers).double()
    for alpha in mixer.parameters():
        torch.nn.init.normal_(alpha)  # negative weights too
    return mixer


@every_pattern
@every_path
def test_values_and_gradients_are_those_of_the_list_reference(dilation, period, path, choose):
    spec = DepthWeightedAverage(dilation=dilation, period=period)
    mixer = choose(drawn(spec, 16), path)
    streams = [torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(17)]
    mixed = Averaged(mixer)(*streams)
    expected = reference(spec, streams, mixer.alphas)
    wanted = [*streams, *mixer.parameters()]
    weights = [torch.randn_like(x) for x in mixed]
    gradients, expected_gradients = (
        torch.autograd.grad(
            sum((w * y).sum() for w, y in zip(weights, ys, strict=True)),
            wanted,
            allow_unused=True,  # 4x5 reads X_0 in Y_20, 4x15 never
            materialize_grads=True,
        )
        for ys in (mixed, expected)
    )
    torch.testing.assert_close(list(mixed), expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-12, rtol=1e-12)


@every_path
def test_half_precision_streams_are_summed_in_single_precision(path, choose):
    spec = DepthWeightedAverage()
    mixer = choose(drawn(spec, 16), path)
    streams = [torch.randn(2, 3, 4).bfloat16().requires_grad_() for _ in range(17)]
    alphas = {name: alpha.float() for name, alpha in mixer.alphas.items()}
    expected = reference(spec, [x.detach().float() for x in streams], alphas)
    mixed = Averaged(mixer)(*streams)
    for one, other in zip(mixed, expected, strict=True):
        torch.testing.assert_close(one, other.bfloat16(), rtol=0.0, atol=other.abs().max().item() / 256)
