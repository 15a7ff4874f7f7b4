"""Depth-weighted averages (arXiv:2402.02622): index sets, counts, gradients."""

import pytest
import torch
from pydantic import ValidationError

from formerlab.kernels import weighted_sum
from formerlab.layers import DepthWeightedAverage
from formerlab.layers.initial import initialise

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


ALPHAS_1X1 = {24: 324, 48: 1224, 64: 2144, 72: 2700, 84: 3654, 90: 4185, 104: 5564}
ALPHAS_48 = {
    (2, 1): 624,
    (4, 1): 324,
    (8, 1): 174,
    (12, 1): 124,
    (4, 3): 112,
    (4, 4): 90,
    (4, 5): 62,
    (4, 8): 48,
    (4, 10): 28,
    (4, 15): 24,
    (4, 20): 17,
    (2, 2): 324,
}


@pytest.mark.parametrize(
    ("blocks", "dilation", "period", "alphas"),
    [(blocks, 1, 1, count) for blocks, count in ALPHAS_1X1.items()]
    + [(48, k, p, count) for (k, p), count in ALPHAS_48.items()],
)
def test_counts_of_alphas(blocks, dilation, period, alphas):
    spec = DepthWeightedAverage(dilation=dilation, period=period)
    assert spec.params(blocks) == alphas
    assert sum(alpha.numel() for alpha in spec.build(blocks).parameters()) == alphas


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


@every_pattern
@every_path
def test_gradients_are_those_of_finite_differences(dilation, period, path, choose):
    layers = 6 if period == 1 else 2 * period
    module = Averaged(choose(drawn(DepthWeightedAverage(dilation=dilation, period=period), layers), path))
    streams = [torch.randn(1, 1, 1, dtype=torch.float64, requires_grad=True) for _ in range(layers + 1)]
    names, alphas = zip(*module.named_parameters(), strict=True)

    def mixed(*tensors):
        parameters = dict(zip(names, tensors[len(streams) :], strict=True))
        return torch.func.functional_call(module, parameters, tensors[: len(streams)])

    assert torch.autograd.gradcheck(mixed, (*streams, *alphas))


@every_path
def test_every_path_starts_at_the_identity_to_the_bit(path, choose):
    mixer = choose(DepthWeightedAverage().build(12), path)
    initialise(mixer, 0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        streams = [torch.randn(2, 3, 4).to(dtype) for _ in range(13)]
        assert all(map(torch.equal, Averaged(mixer)(*streams), streams[1:]))


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


def test_a_period_that_does_not_divide_the_depth_leaves_the_last_blocks_unmixed():
    mixer = DepthWeightedAverage(period=5).build(BLOCKS)
    for alpha in mixer.parameters():
        torch.nn.init.normal_(alpha)
    streams = [torch.randn(1, 1, 4) for _ in range(BLOCKS + 1)]
    _, history = mixer.begin(streams[0])
    mixed = [mixer.mix(i, x, history) for i, x in enumerate(streams[1:], start=1)]
    assert all(mixed[i - 1] is streams[i] for i in (46, 47, 48))
    assert not torch.equal(mixed[45 - 1], streams[45])


@every_path
def test_the_stored_history_is_raw_and_never_copied(path, choose):
    mixer = choose(DepthWeightedAverage().build(4), path)
    initialise(mixer, 0)
    streams = [torch.randn(1, 1, 4) for _ in range(4)]
    _, history = mixer.begin(streams[0])
    for i, x in enumerate(streams[1:], start=1):
        mixer.mix(i, x, history)
    kept = history if path == "loop" else history.kept.values()
    assert all(one is x for one, x in zip(kept, streams, strict=True))


def test_weights_name_destination_and_source():
    mixer = DepthWeightedAverage(dilation=2, period=2).build(4)
    initialise(mixer, 0)
    with torch.no_grad():
        mixer.alphas["4"][1] = -0.5
    assert mixer.weights() == [(2, 0, 0.0), (2, 2, 1.0), (4, 0, 0.0), (4, 2, -0.5), (4, 4, 1.0)]


@pytest.mark.parametrize("wrong", [{"dilation": 0}, {"period": 0}, {"period": -1}, {"dilation": 1.5}])
def test_dilation_and_period_are_positive_whole_numbers(wrong):
    (key,) = wrong
    with pytest.raises(ValidationError, match=key):
        DepthWeightedAverage(**wrong)
