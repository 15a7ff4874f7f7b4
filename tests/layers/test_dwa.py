"""Depth-weighted averages (arXiv:2402.02622): index sets, gradients, and saved tensors of the fused implementation."""

import pytest
import torch

from formerlab.kernels import weighted_sum
from formerlab.layers import DepthWeightedAverage, LastK
from formerlab.layers.initialization import initialise

BLOCKS = 48


def index_set(i, k):
    """Return S_i = { j <= i : j = i (mod k) }."""
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
def test_index_sets_and_use_of_the_embedding(dilation, period, sees_x0):
    spec = DepthWeightedAverage(dilation=dilation, period=period)
    sources_by_block = spec.sources_by_block(BLOCKS)
    assert sources_by_block == {i: index_set(i, dilation) for i in range(1, BLOCKS + 1) if i % period == 0}
    assert [i for i, sources in sources_by_block.items() if 0 in sources] == sees_x0


def reference(spec, streams, alphas):
    """Return Y_i = sum over S_i of alpha_ij X_j from stacked lists (section 3)."""
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
    """Make mixers use one of the three implementations."""

    def choose(mixer, path):
        mixer.fused = path != "loop"
        if path == "eager":
            monkeypatch.setattr(weighted_sum, "_kernel", lambda: None)
        elif path == "native" and weighted_sum.sums_implementation() != "native":
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


def random_mixer(spec, layers):
    mixer = spec.build(layers).double()
    for alpha in mixer.parameters():
        torch.nn.init.normal_(alpha)  # includes negative weights
    return mixer


@every_pattern
@every_path
def test_values_and_gradients_match_the_list_reference(dilation, period, path, choose):
    spec = DepthWeightedAverage(dilation=dilation, period=period)
    mixer = choose(random_mixer(spec, 16), path)
    streams = [torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(17)]
    mixed = Averaged(mixer)(*streams)
    expected = reference(spec, streams, mixer.alphas)
    leaf_tensors = [*streams, *mixer.parameters()]
    weights = [torch.randn_like(x) for x in mixed]
    gradients, expected_gradients = (
        torch.autograd.grad(
            sum((w * y).sum() for w, y in zip(weights, ys, strict=True)),
            leaf_tensors,
            allow_unused=True,  # 4x15 never reads X_0
            materialize_grads=True,
        )
        for ys in (mixed, expected)
    )
    torch.testing.assert_close(list(mixed), expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-12, rtol=1e-12)


LAYERS, SHAPE = 8, (2, 3, 4)


def single(layers=LAYERS, **pattern):
    return random_mixer(DepthWeightedAverage(**pattern), layers).float()


def leaves(layers=LAYERS):
    return [torch.randn(SHAPE, requires_grad=True) for _ in range(layers + 1)]


def averages(mixer, streams, *, fused=True):
    mixer.fused = fused
    return Averaged(mixer)(*streams)


def gradients_of_both(mixer, streams, loss, tensors):
    """Return the gradients of a loss of [Y_1, ...] by the fused and by the plain implementation."""
    return [
        torch.autograd.grad(
            loss(averages(mixer, streams, fused=fused)), tensors, allow_unused=True, materialize_grads=True
        )
        for fused in (True, False)
    ]


def test_gradients_of_a_subset_of_the_inputs():
    mixer, streams = single(), leaves()
    for tensors in ([streams[5]], [streams[0]], [mixer.alphas["4"]], [streams[3], mixer.alphas["8"]]):
        fused, plain = gradients_of_both(mixer, streams, lambda ys: sum((y**2).sum() for y in ys), tensors)
        torch.testing.assert_close(fused, plain)


def test_backward_runs_twice_from_different_outputs():
    mixer, streams = single(), leaves()
    tensors = [*streams[:3], *mixer.parameters()]
    ys = averages(mixer, streams)
    losses = [(ys[-1] ** 2).sum(), (ys[2] ** 3).sum(), (ys[-1] ** 2).sum()]
    results = [
        torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True, materialize_grads=True)
        for loss in losses
    ]
    torch.testing.assert_close(results[0], results[2])
    expected = gradients_of_both(mixer, streams, lambda ys: (ys[2] ** 3).sum(), tensors)[1]
    torch.testing.assert_close(results[1], expected)


def test_frozen_mixing_weights_save_no_tensors():
    mixer, streams = single(), leaves()
    mixer.requires_grad_(False)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        averages(mixer, streams)
    assert saved == []
    fused, plain = gradients_of_both(mixer, streams, lambda ys: sum((y**2).sum() for y in ys), streams)
    torch.testing.assert_close(fused, plain)


@pytest.mark.parametrize(("dilation", "period", "saved_outputs"), [(1, 1, 25), (4, 5, 15), (4, 4, 7), (2, 1, 25)])
def test_each_output_that_an_average_reads_is_saved_once(dilation, period, saved_outputs):
    """Of the 25 tensors X_0 to X_24, 1x1 saves all, 4x5 saves 15, and 4x4 saves those with an index divisible by 4."""
    mixer, streams = single(24, dilation=dilation, period=period), leaves(24)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        averages(mixer, streams)
    assert len(saved) == len(set(saved)) == saved_outputs
    assert set(saved) <= {x.data_ptr() for x in streams}


def test_outputs_are_freed_after_the_last_average_that_reads_them():
    mixer = LastK(outputs=3, embedding="never").build(LAYERS)
    initialise(mixer, 0)
    _, history = mixer.begin(torch.randn(SHAPE))
    with torch.no_grad():
        sizes = []
        for i in range(1, LAYERS + 1):
            mixer.mix(i, torch.randn(SHAPE), history)
            sizes.append(sorted(history.stored))
    assert sizes[:4] == [[1], [1, 2], [2, 3], [3, 4]]
    assert sizes[-1] == []


def test_a_traced_model_contains_the_average():
    """A trace cannot contain a C++ kernel, so tracing uses the torch implementation."""

    class Stack(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
            self.mixer = DepthWeightedAverage().build(layers=3)

        def forward(self, x):
            x, history = self.mixer.begin(x)
            for index, block in enumerate(self.blocks, start=1):
                x = self.mixer.mix(index, block(x), history)
            return x

    torch.manual_seed(0)
    model, (first, second) = Stack(), torch.randn(2, 1, 5, 4)
    with torch.no_grad():
        for weights in model.mixer.parameters():
            weights.normal_()
        torch.testing.assert_close(torch.jit.trace(model, first)(second), model(second))
