"""The fast path of averages over depth: what its graph keeps, and which backward passes it bears."""

import pytest
import torch

from formerlab.layers import DepthWeightedAverage, LastK
from formerlab.layers.initial import initialise

LAYERS = 8
SHAPE = (2, 3, 4)


def drawn(spec, layers=LAYERS):
    mixer = spec.build(layers)
    for alpha in mixer.parameters():
        torch.nn.init.normal_(alpha)
    return mixer


def leaves(layers=LAYERS):
    return [torch.randn(SHAPE, requires_grad=True) for _ in range(layers + 1)]


def averages(mixer, streams, *, fused=True):
    mixer.fused = fused
    _, history = mixer.begin(streams[0])
    return [mixer.mix(i, x, history) for i, x in enumerate(streams[1:], start=1)]


def both(mixer, streams, loss, wanted):
    """Return the gradients of a loss of [Y_1, ...] on the fast path and on the plain one."""
    return [
        torch.autograd.grad(
            loss(averages(mixer, streams, fused=fused)), wanted, allow_unused=True, materialize_grads=True
        )
        for fused in (True, False)
    ]


def test_gradients_of_some_inputs_only():
    mixer, streams = drawn(DepthWeightedAverage()), leaves()
    for wanted in ([streams[5]], [streams[0]], [mixer.alphas["4"]], [streams[3], mixer.alphas["8"]]):
        torch.testing.assert_close(*both(mixer, streams, lambda ys: sum((y**2).sum() for y in ys), wanted))


def test_a_graph_can_be_walked_twice_from_different_ends():
    mixer, streams = drawn(DepthWeightedAverage()), leaves()
    wanted = [*streams[:3], *mixer.parameters()]
    ys = averages(mixer, streams)
    losses = [(ys[-1] ** 2).sum(), (ys[2] ** 3).sum(), (ys[-1] ** 2).sum()]
    results = [
        torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True, materialize_grads=True)
        for loss in losses
    ]
    torch.testing.assert_close(results[0], results[2])
    expected = both(mixer, streams, lambda ys: (ys[2] ** 3).sum(), wanted)[1]
    torch.testing.assert_close(results[1], expected)


def test_frozen_weights_ask_for_no_products_and_save_nothing():
    mixer, streams = drawn(DepthWeightedAverage()), leaves()
    mixer.requires_grad_(False)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        averages(mixer, streams)
    assert saved == []
    torch.testing.assert_close(*both(mixer, streams, lambda ys: sum((y**2).sum() for y in ys), streams))


@pytest.mark.parametrize(
    ("dilation", "period", "kept"),
    [(1, 1, 25), (4, 5, 15), (4, 4, 7), (2, 1, 25)],
)
def test_each_output_that_an_average_reads_is_saved_once(dilation, period, kept):
    """Of 24 blocks: all outputs and X_0 for 1x1, 15 of 25 for 4x5, only multiples of 4 for 4x4."""
    mixer, streams = drawn(DepthWeightedAverage(dilation=dilation, period=period), 24), leaves(24)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        averages(mixer, streams)
    assert len(saved) == len(set(saved)) == kept
    assert set(saved) <= {x.data_ptr() for x in streams}


def test_outputs_are_let_go_after_their_last_reader():
    mixer = LastK(outputs=3, embedding="never").build(LAYERS)
    initialise(mixer, 0)
    _, history = mixer.begin(torch.randn(SHAPE))
    with torch.no_grad():
        sizes = []
        for i in range(1, LAYERS + 1):
            mixer.mix(i, torch.randn(SHAPE), history)
            sizes.append(sorted(history.kept))
    assert sizes[:4] == [[1], [1, 2], [2, 3], [3, 4]]
    assert sizes[-1] == []


def test_a_second_derivative_is_refused_and_the_plain_path_has_it():
    mixer, streams = drawn(DepthWeightedAverage()), leaves()
    (gradient,) = torch.autograd.grad((averages(mixer, streams)[-1] ** 3).sum(), streams[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
    (gradient,) = torch.autograd.grad(
        (averages(mixer, streams, fused=False)[-1] ** 3).sum(), streams[0], create_graph=True
    )
    gradient.sum().backward()
    assert streams[0].grad is not None
