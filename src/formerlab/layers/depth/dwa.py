"""Depth-weighted averages of DenseFormer, and their module."""

from typing import Literal

import torch
from torch import Tensor, nn

from formerlab.layers.autocast import func_transform_active
from formerlab.layers.depth.fused_dwa import FusedHistory, Layout
from formerlab.layers.depth.identity import DepthSpec, Mixer, Stream, append, check_index
from formerlab.spec import Layers


class Averages(DepthSpec):
    """Base of the mixers Y_i = sum over j in S_i of alpha_ij X_j."""

    def sources_by_block(self, layers: int) -> dict[int, list[int]]:
        """Return {i: S_i} for every mixed block i (from 1). Keys and sources are in ascending order; S_i contains i."""
        raise NotImplementedError

    @property
    def initial_weights(self) -> tuple[float, float]:
        """Initial parameters of earlier outputs and of the block's own output.

        They are weights, or logits in `SoftmaxAverage`. The default gives Y_i = X_i.
        """
        return 0.0, 1.0

    def bytes_moved(self, layers: int, width: int) -> int:
        """Each pair (i, j) causes three float32 reads: X_j in the forward sum, X_j for dalpha_ij, and dY_i for dX_j."""
        return 3 * 4 * sum(map(len, self.sources_by_block(layers).values())) * width


class Dilated(Averages):
    """Base of the mixers with S_i = {j <= i : i - j is a multiple of k} for blocks i that p divides."""

    dilation: Layers = 1
    """k: average every k-th earlier output."""
    period: Layers = 1
    """p: average after every p-th block."""

    def sources_by_block(self, layers: int) -> dict[int, list[int]]:
        destinations = range(self.period, layers + 1, self.period)
        return {i: list(range(i % self.dilation, i + 1, self.dilation)) for i in destinations}

    def saved_elements(self, width: int) -> int:
        """Each average saves one float32 vector per token, counted as two bfloat16 elements per channel."""
        return 2 * width // self.period


class DepthWeightedAverage(Dilated):
    """Y_i = sum over j in S_i of alpha_ij X_j, S_i = {j <= i : i - j is a multiple of k}, if p divides i; otherwise
    Y_i = X_i (arXiv:2402.02622, section 3).

    k is the dilation and p is the period. X_0 is the embedded tokens, and X_j is the output of block j before
    averaging. The alphas are unconstrained scalars. They start at alpha_ii = 1 and alpha_ij = 0, so the model starts
    bit-identical to the plain Transformer.
    """

    kind: Literal["dwa"] = "dwa"


class DepthWeightedAverageLayer(Mixer, of=Averages):
    """The module of `Averages` with static weights.

    The loop in `mix` supports torch.compile, torch.func and second derivatives; `fused_dwa.py` is faster. Sums are at
    least float32, and the result has the dtype of x.
    """

    fused: bool = True
    """Use `fused_dwa.py`, except under torch.compile and torch.func. Second derivatives need fused = False."""

    def __init__(self, layers: int, width: int | None, spec: Averages) -> None:
        super().__init__()
        sources, self.initial_weights, self.layers = spec.sources_by_block(layers), spec.initial_weights, layers
        self.layout = Layout(sources)
        self.alphas = nn.ParameterDict({str(i): nn.Parameter(torch.empty(len(js))) for i, js in sources.items()})
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for alpha in self.alphas.values():
            alpha.fill_(self.initial_weights[0])
            alpha[-1] = self.initial_weights[1]

    def mixing_weights(self, destination: int) -> Tensor:
        """Return the mixing weights of Y_destination, one per source."""
        alpha: Tensor = self.alphas[str(destination)]
        return alpha

    def begin(self, x: Stream) -> "tuple[Stream, FusedHistory | list[Stream]]":
        if self.fused and self.layout.sources and not (torch.compiler.is_compiling() or func_transform_active()):
            return x, FusedHistory(self.layout, torch.cat([self.mixing_weights(i) for i in self.layout.sources]), x)
        return x, [x]

    def mix(self, index: int, x: Stream, history: "FusedHistory | list[Stream]") -> Stream:
        check_index("block", index, self.layers)
        if isinstance(history, FusedHistory):
            return history.mix(index, x)
        append(index, x, history)
        if index not in self.layout.sources:
            return x
        compute_dtype = torch.promote_types(x.dtype, torch.float32)
        weights = self.mixing_weights(index).to(compute_dtype)
        mixed = weights[-1] * x.to(compute_dtype)
        for weight, j in zip(weights[:-1], self.layout.sources[index][:-1], strict=True):
            mixed = mixed + weight * history[j].to(compute_dtype)
        return mixed.to(x.dtype)

    @torch.no_grad()
    def weights(self) -> list[tuple[int, int, float]]:
        return [
            (i, j, alpha)
            for i, js in self.layout.sources.items()
            for j, alpha in zip(js, self.mixing_weights(i).tolist(), strict=True)
        ]
