"""Fast implementation of averages over depth.

Y_i = sum over j in S_i of alpha_ij X_j. If the sum is written as a Python loop, autograd accumulates dX_j one
destination at a time and materialises a full-size product for every alpha. Here, X_0 and every X_j that an average
reads have one autograd node each. Its backward pass runs when all dY_q with q >= j are computed. It computes at once

    dX_j = sum over q of alpha_qj dY_q        and        d alpha_qj = <dY_q, X_j>  for every q with j in S_q.

Each node takes a scalar signal from the previous node and returns a signal for the next node. Autograd therefore visits
the nodes in reverse order, and ends at the node of X_0. Each node saves only its X_j.
"""

import functools
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from formerlab.kernels.weighted_sum import Scalar, weighted_sum, weighted_sum_and_products
from formerlab.layers.autocast import without_autocast
from formerlab.layers.depth.identity import Stream

Signal = Float[Tensor, ""]
Flat = Float[Tensor, " weights"]
LAUNCH_BOUND = 2**17
"""Largest number of elements in a residual stream for which kernel launches take most of the time on a GPU."""


class Layout:
    """Indices of the mixing weights, which are stored in one vector, destination after destination."""

    def __init__(self, sources: dict[int, list[int]]) -> None:
        self.sources = sources
        self.offsets: dict[int, int] = {}
        """Index of the first weight of each destination."""
        self.readers: dict[int, list[tuple[int, int]]] = {}
        """Maps each source to the pairs (destination, weight index) of the averages that read it, ascending."""
        self.size = 0
        for destination, read_sources in sources.items():
            self.offsets[destination] = self.size
            for source in read_sources:
                self.readers.setdefault(source, []).append((destination, self.size))
                self.size += 1


class FusedHistory:
    """The history of one forward pass: the block outputs that later averages read."""

    def __init__(self, layout: Layout, weights: Flat, x: Stream) -> None:
        self.layout, self.backward = layout, BackwardState(layout, weights)
        self.stored: dict[int, Stream] = {0: x} if 0 in layout.readers else {}
        self.signal: Signal | None = None
        if torch.is_grad_enabled():
            self.signal = EmbeddingNode.apply(x, weights, self.backward)  # type: ignore[no-untyped-call]

    def mix(self, index: int, x: Stream) -> Stream:
        """Return Y_index and store X_index until the last average that reads it."""
        readers = self.layout.readers
        if index not in readers:
            return x
        self.stored[index] = x
        if self.signal is None:
            mixed = self.average(index)
        else:
            mixed, self.signal = BlockNode.apply(x, self.signal, self, index)  # type: ignore[no-untyped-call]
        for source in self.layout.sources.get(index, []):
            if readers[source][-1][0] == index:  # the last reader
                del self.stored[source]
        return mixed

    def average(self, index: int) -> Stream:
        """Return Y_index from the stored outputs."""
        if index not in self.layout.sources:
            return self.stored[index]
        sources, first = self.layout.sources[index], self.layout.offsets[index]
        streams, end = [self.stored[j] for j in sources], first + len(sources)
        if self.signal is None and streams[0].device.type != "cpu" and streams[0].numel() <= LAUNCH_BOUND:
            return _stacked_sum(streams, self.backward.flat_weights[first:end])
        return weighted_sum(streams, self.backward.weights[first:end])


def _stacked_sum(streams: list[Stream], weights: Flat) -> Stream:
    """Return the weighted sum with a constant number of kernel launches; the sum is at least float32."""
    compute_dtype = torch.promote_types(streams[0].dtype, torch.float32)
    with without_autocast(weights):
        total = torch.mv(torch.stack(streams).flatten(1).to(compute_dtype).T, weights.to(compute_dtype))
    return total.to(streams[0].dtype).view_as(streams[0])


class BackwardState:
    """The mixing weights, and the state of a backward pass that the nodes of one graph share."""

    def __init__(self, layout: Layout, weights: Flat) -> None:
        self.layout, self.flat_weights = layout, weights.detach()
        self.needs_weight_gradient = weights.requires_grad and torch.is_grad_enabled()
        self.gradients: dict[int, Tensor] = {}
        """dY_q of the destinations visited so far in this backward pass."""
        self.products: dict[int, Scalar] = {}
        """<dY_q, X_j>, by the index of the weight."""

    @functools.cached_property
    def weights(self) -> list[Scalar]:
        """Floats on the CPU; tensors on other devices, to avoid a synchronisation."""
        weights = self.flat_weights
        return weights.tolist() if weights.device.type == "cpu" else list(weights.unbind())

    def source_gradient(
        self, index: int, x: Stream | None, gradient: Stream | None, signal: Signal | None
    ) -> Stream | None:
        """Return dX_index, or None if no gradient reaches X_index. Store <dY_q, x> in `products`.

        `gradient` is dY_index.
        """
        if signal is None:  # the first node of a backward pass: clear the state of an earlier pass
            self.gradients.clear()
            self.products.clear()
        direct = gradient if index not in self.layout.sources else None
        if gradient is not None and direct is None:
            self.gradients[index] = gradient.contiguous()
        readers = [(q, weight) for q, weight in self.layout.readers.get(index, []) if q in self.gradients]
        if not readers:
            return direct
        gradients = [self.gradients[q] for q, _ in readers]
        weights = [self.weights[weight] for _, weight in readers]
        out, products = weighted_sum_and_products(gradients, weights, x, direct)
        self.products.update(zip((weight for _, weight in readers), products, strict=False))
        for q, _ in readers:
            if self.layout.sources[q][0] == index:  # no earlier source needs this gradient
                del self.gradients[q]
        return out

    def weight_gradient(self) -> Flat | None:
        """Return the gradient of all weights, or None if they are frozen."""
        if not self.needs_weight_gradient:
            return None
        products, weights = [self.products.get(index, 0.0) for index in range(self.layout.size)], self.flat_weights
        self.products.clear()
        if weights.device.type == "cpu":
            return torch.tensor(products, dtype=weights.dtype)
        return torch.stack([torch.as_tensor(product, device=weights.device) for product in products]).to(weights)


class EmbeddingNode(Function):
    """The node of X_0. Backward: dX_0 and the gradient of all weights."""

    @staticmethod
    def forward(ctx: Any, x: Stream, weights: Flat, state: BackwardState) -> Signal:
        """Return the first signal."""
        ctx.state = state
        ctx.save_for_backward(x if state.needs_weight_gradient and 0 in state.layout.readers else None)
        ctx.set_materialize_grads(False)
        return torch.zeros((), device=x.device)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, signal: Signal | None) -> tuple[Stream | None, Flat | None, None]:
        (x,) = ctx.saved_tensors
        return ctx.state.source_gradient(0, x, None, signal), ctx.state.weight_gradient(), None


class BlockNode(Function):
    """The node of X_j. Forward: Y_j. Backward: dX_j and the gradients of all weights alpha_qj that multiply X_j."""

    @staticmethod
    def forward(ctx: Any, x: Stream, signal: Signal, history: FusedHistory, index: int) -> tuple[Stream, Signal]:
        """Return Y_index and the next signal."""
        ctx.state, ctx.index = history.backward, index
        ctx.save_for_backward(x if history.backward.needs_weight_gradient else None)
        ctx.set_materialize_grads(False)
        return history.average(index), torch.zeros((), device=x.device)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Stream | None, signal: Signal | None) -> tuple[Any, ...]:
        """Return dX_index and the gradient of the incoming signal."""
        (x,) = ctx.saved_tensors
        grad_signal = torch.zeros((), device=ctx.state.flat_weights.device)
        return ctx.state.source_gradient(ctx.index, x, gradient, signal), grad_signal, None, None
