"""Width growth of a Transformer by two forms of Net2Net and by HyperCloning, the baselines of Tokenformer's growth.

A unit is a channel of the residual stream, an attention head (with a constant number of channels) or a hidden unit of a
feed-forward network.

- net2net_pad is the form in Tokenformer's comparison (arXiv:2410.23168, eq. 13). The old matrix becomes the top left
  block of the new matrix, and all other entries have initial values. The function changes.
- net2net (arXiv:1511.05641, section 2.3 and Algorithm 1) copies random units. Its authors sample with replacement; this
  implementation samples every unit once before it samples a unit again.
- hypercloning (arXiv:2409.12903, section 3, symmetric expansion) copies all units in order, for integer factors only.

Layers that read copied units divide their weights by the number of copies. net2net and hypercloning preserve the
function if the width grows by an integer factor, because the mean and variance in each norm then do not change; hidden
units of net2net may grow by any factor. A tied embedding cannot be divided, so the gain and bias of the final norm are
divided, which requires a gain. HyperCloning's code scales the tied head by a constant.

Without noise, copies have equal gradients and stay equal. `noise` is the standard deviation of Gaussian noise as a
fraction of the new matrix's RMS. The mean of the noise over all copies of an input is then subtracted, so the function
does not change (the noisy expansion of arXiv:2409.12903, where 10 dB corresponds to noise = 0.32).
"""

import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from formerlab.errors import UserError
from formerlab.layers.linear import Linear
from formerlab.layers.mlp import Mlp
from formerlab.layers.position import Sinusoidal
from formerlab.models.decoder import Decoder, DecoderModel
from formerlab.seeding import mixed_seed

WidthMethod = Literal["net2net_pad", "net2net", "hypercloning"]
Units = Literal["channels", "heads", "hidden"]
Seeds = Callable[[str], int]
"""Maps the name of a random sample to its seed."""
MATRICES: dict[str, tuple[Units, Units]] = {
    **dict.fromkeys(("query", "key", "value"), ("heads", "channels")),
    "output": ("channels", "heads"),
    **dict.fromkeys(("inner", "gate"), ("hidden", "channels")),
    "outer": ("channels", "hidden"),
}
"""Units of the outputs and of the inputs, by linear layer."""
Dimension = tuple[int, Units]
DIMENSIONS: dict[str, tuple[Dimension, Dimension | None]] = {
    **dict.fromkeys(("embedding", "position.rows"), ((1, "channels"), None)),
    **dict.fromkeys(("norm.gain", "norm.bias"), ((0, "channels"), None)),
    **{f"{name}.weight": ((0, writes), (1, reads)) for name, (writes, reads) in MATRICES.items()},
    **{f"{name}.bias": ((0, writes), None) for name, (writes, _) in MATRICES.items()},
}
"""Maps the suffix of a weight's name to (dimension, units) of its outputs and of its inputs (None for vectors and
embeddings). `_grown_weight` handles all other weights."""


def check_width(parent: Decoder, child: Decoder, method: WidthMethod) -> None:
    """Raise UserError if the method cannot grow the layers, positions, depth mixer or sizes of the parent."""
    for name in ("projection", "feedforward"):
        layer = getattr(child, name)
        if not isinstance(layer, Linear | Mlp):
            raise UserError(f"cannot grow {name}.kind={layer.kind} by method={method}; use method=tokens")
    if unsupported := [name for name in ("key_heads", "query_key_norm") if getattr(child, name) is not None]:
        raise UserError(f"cannot grow a model with {unsupported[0]} by method={method}; leave {unsupported[0]} out")
    d_head = parent.width // parent.heads
    if child.heads * d_head != child.width:
        sizes = f"width={parent.width}, heads={parent.heads} into width={child.width}, heads={child.heads}"
        raise UserError(f"cannot grow {sizes}: every head keeps {d_head} channels; change heads as well")
    for name, old, new in _widths(parent, child):
        if new < old:
            raise UserError(f"cannot grow {name}={old} into {new}: growth never reduces a size; use at least {old}")
        if method == "hypercloning" and new % old:
            remedy = f"hypercloning needs a multiple of {old}; use one, or method=net2net"
            raise UserError(f"cannot grow {name}={old} into {new}: {remedy}")
    _check_copies(parent, child, method)


def _check_copies(parent: Decoder, child: Decoder, method: WidthMethod) -> None:
    """Raise UserError if channels of this model cannot be copied."""
    if child.width == parent.width or method == "net2net_pad":
        return
    mixer = child.depth
    if mixer.params(1, child.width) != mixer.params(1, parent.width):
        raise UserError(f"cannot grow depth.kind={mixer.kind} by {method}: its size depends on width; use net2net_pad")
    if isinstance(child.position, Sinusoidal):
        raise UserError(f"cannot grow position.kind=sinusoidal by {method}: its channels are fixed; use net2net_pad")
    if child.tied and not child.final_norm.gain:
        settings = f"cannot grow by method={method} with tied=true and final_norm.gain=false"
        raise UserError(f"{settings}: copies would multiply the logits; set gain=true or tied=false")


def widen(
    model: DecoderModel, parent_state: dict[str, Tensor], parent: Decoder, method: WidthMethod, noise: float, seed: int
) -> None:
    """Write a parent's weights into the wider model: W_new[i, j] = W_old[s(i), s(j)] / c(s(j)), or W_old as the top
    left block (arXiv:1511.05641, Algorithm 1; arXiv:2409.12903, section 3; block: arXiv:2410.23168, eq. 13).

    Unit i is a copy of the parent's unit s(i), which has c(s(i)) copies. With net2net_pad, the other entries keep the
    values of `model`.
    """
    seeds = functools.partial(mixed_seed, seed)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            old = parent_state[name]
            if method == "net2net_pad":
                weight[tuple(slice(size) for size in old.shape)] = old
            else:
                weight.copy_(_grown_weight(name, old, model.spec, parent, method, noise, seeds))


def _grown_weight(
    name: str, old: Tensor, child: Decoder, parent: Decoder, method: WidthMethod, noise: float, seeds: Seeds
) -> Tensor:
    block = name.split(".")[1] if name.startswith("blocks.") else ""

    def sources(units: Units) -> Tensor:
        return _sources(units, parent, child, method, seeds(f"{units} {block if units != 'channels' else ''}"))

    channels = sources("channels")
    undo_scale = (child.width / parent.width) ** 0.5 if child.logit_scale == "inverse_sqrt_width" else 1.0
    if name == "head":
        return _copy_inputs(old, 1, channels, noise, seeds(f"noise {name}")) * undo_scale
    dimensions = next((dimensions for ending, dimensions in DIMENSIONS.items() if name.endswith(ending)), None)
    if dimensions is None:
        return old
    (dimension, units), inputs = dimensions
    new = old.index_select(dimension, sources(units).to(old.device))
    if inputs is not None:
        dimension, units = inputs
        new = _copy_inputs(new, dimension, sources(units), noise, seeds(f"noise {name}"))
    if name.startswith("final_norm.") and child.tied:
        new = new / _copies(channels).to(new) * undo_scale
    return new


def _copy_inputs(weight: Tensor, dimension: int, sources: Tensor, noise: float, seed: int) -> Tensor:
    """Copy inputs of a matrix and divide their weights by the number of copies; noise sums to zero over copies."""
    sources, copies = sources.to(weight.device), _copies(sources).to(weight)
    new = weight.index_select(dimension, sources) / copies
    if noise:
        normal = torch.randn(new.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(new)
        sums = torch.zeros_like(weight).index_add_(dimension, sources, normal)
        new = new + noise * new.square().mean().sqrt() * (normal - sums.index_select(dimension, sources) / copies)
    return new


def _sources(units: Units, parent: Decoder, child: Decoder, method: WidthMethod, seed: int) -> Tensor:
    """Return the index of the parent's unit for every channel, head channel or hidden unit of the child."""
    index = ("channels", "heads", "hidden").index(units)
    _, old, new = _widths(parent, child)[index]
    repeats = -(-new // old)
    orders = [torch.arange(old)] * repeats
    if method == "net2net":
        generator = torch.Generator().manual_seed(seed)
        orders[1:] = [torch.randperm(old, generator=generator) for _ in range(repeats - 1)]
    sources = torch.cat(orders)[:new]
    if units != "heads":
        return sources
    d_head = parent.width // parent.heads
    return (sources[:, None] * d_head + torch.arange(d_head)).flatten()


def _widths(parent: Decoder, child: Decoder) -> list[tuple[str, int, int]]:
    """Return (key, parent's size, child's size) of every size that can grow."""
    widths = [("width", parent.width, child.width), ("heads", parent.heads, child.heads)]
    if isinstance(parent.feedforward, Mlp) and isinstance(child.feedforward, Mlp):
        hidden = [spec.feedforward.width(spec.width) for spec in (parent, child) if isinstance(spec.feedforward, Mlp)]
        widths.append(("feedforward.hidden", hidden[0], hidden[1]))
    return widths


def _copies(sources: Tensor) -> Tensor:
    return torch.bincount(sources)[sources]
