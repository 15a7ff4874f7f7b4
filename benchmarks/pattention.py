"""Time and memory of Pattention (against an MLP of the same shape) and of a Tokenformer (against a Transformer).

    python benchmarks/pattention.py                    # everything, about ten minutes on 2 cores
    python benchmarks/pattention.py --only layer --no-compile --rounds 15

(a), the baseline, is a bias-free Linear-GELU-Linear of the same shape; (b) is the formula as in the official code. A
round runs every variant once; the order rotates from round to round. A ratio compares times of the same round. The
benchmark prints the median over rounds and its 95 % interval by order statistics. Memory is the bytes of saved
activations, without parameters; for a layer, also without its inputs. All variants run in one process whose allocator
keeps freed memory. Otherwise page faults would take half of the measured time.
"""

import argparse
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from loops import Loop
from timing import Target, begin, interleaved_seconds, option_parser, report, saved_bytes
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.kernels.native import keep_memory
from formerlab.layers import LayerNorm, Linear, Mlp, Pattention
from formerlab.layers.pattention import lean_pattention
from formerlab.models import Decoder
from formerlab.training.optimizer import AdamW

SHAPES = ((4096, 256, 1024), (2048, 768, 3072))  # tokens of text, d, parameter tokens
STEP_SHAPE = (8, 256)  # batch, context
PRECISIONS = ("float32", "bfloat16")

Layer = Callable[[Tensor, Tensor, Tensor], Tensor]
Measured = tuple[dict[str, list[float]], dict[str, list[float]]]
"""The seconds of every variant and round, and the bytes of saved activations of every variant."""


def mlp(x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the output of (a), the baseline."""
    return F.linear(F.gelu(F.linear(x, keys)), values.T)


def formula(x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the output of (b): norm, division, multiplication and GeLU as separate operations."""
    products = F.linear(x, keys)
    normed = products / torch.norm(products, p=2, dim=-1, keepdim=True) * math.sqrt(products.shape[-1])
    return F.linear(F.gelu(normed), values.T)


def ours(x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the output of our layer."""
    return lean_pattention(x, keys, values, math.sqrt(len(keys)))


def autocast(precision: str, device: str):
    """Return the autocast context of a precision."""
    return torch.autocast(device, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def measure_layers(shape: tuple[int, int, int], precision: str, options: argparse.Namespace) -> Measured:
    """Measure the forward and backward pass of one layer."""
    tokens, d, n = shape
    generator = torch.Generator().manual_seed(0)

    def sample(rows: int, columns: int, std: float) -> Tensor:
        return (torch.randn(rows, columns, generator=generator) * std).to(options.device)

    inputs = [sample(tokens, d, 1.0), sample(n, d, d**-0.5), sample(n, d, n**-0.5)]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    grad = sample(tokens, d, 1.0)
    layers: dict[str, Layer] = {"(a) MLP": mlp, "(b) formula": formula, "ours": ours}
    if not options.no_compile:
        torch._dynamo.reset()
        compiled = partial(torch.compile, fullgraph=True, dynamic=False)
        layers |= {f"{name}, compiled": compiled(layer) for name, layer in layers.items()}

    def forward(layer: Layer) -> Tensor:
        with autocast(precision, options.device):
            return layer(*inputs)

    def step(layer: Layer) -> None:
        y = forward(layer)
        y.backward(grad.to(y.dtype))
        for tensor in inputs:
            tensor.grad = None

    seconds = interleaved_seconds(
        {name: partial(step, layer) for name, layer in layers.items()}, options.rounds, options.device
    )
    return seconds, {name: [saved_bytes(partial(forward, layer), inputs)] for name, layer in layers.items()}


def measure_steps(precision: str, options: argparse.Namespace) -> Measured:
    """Measure whole training steps of two models with 9.4 M parameters without embeddings."""
    common = {"vocabulary": 1024, "layers": 12, "width": 256, "heads": 4, "context": STEP_SHAPE[1]}
    tokenformer_layers = {"norm": LayerNorm(gain=False, bias=False), "projection": Pattention(tokens=192)}
    transformer = Decoder(**common, norm=tokenformer_layers["norm"], projection=Linear(), feedforward=Mlp())
    tokenformer = Decoder(**common, **tokenformer_layers, feedforward=Pattention(tokens=768))
    assert transformer.params() == tokenformer.params()
    text = torch.randint(1024, (STEP_SHAPE[0], STEP_SHAPE[1] + 1), generator=torch.Generator().manual_seed(0))
    text = text.to(options.device)
    models = {"Transformer": transformer, "Tokenformer": tokenformer}
    built = {name: spec.build(0).to(options.device) for name, spec in models.items()}

    def loss(model: nn.Module) -> Tensor:
        with autocast(precision, options.device):
            return F.cross_entropy(model(text[:, :-1]).float().flatten(0, 1), text[:, 1:].flatten())

    steps = {name: Loop(model, loss, AdamW().build(model)) for name, model in built.items()}
    seconds = interleaved_seconds(steps, options.rounds, options.device)
    weights = {name: [*model.parameters(), *model.buffers()] for name, model in built.items()}
    return seconds, {name: [saved_bytes(partial(loss, model), weights[name])] for name, model in built.items()}


def report_both(title: str, measured: Measured, baseline: Callable[[str], str], targets: list[Target]) -> None:
    """Print a table of times and a table of bytes, and whether each target is met."""
    for numbers, quantity, unit in zip(measured, ("time", "memory"), ("ms", "MB"), strict=True):
        of_quantity = [target for target in targets if target.quantity == quantity]
        report(f"{title}, {quantity}", numbers, baseline, of_quantity, unit)


def layer_targets(compiled: bool) -> list[Target]:
    """Return the targets of one layer in float32."""
    mode = ", compiled" if compiled else ""
    return [
        Target(f"ours{mode}", f"(a) MLP{mode}", 1.06 if compiled else 1.18),
        Target(f"ours{mode}", f"(b) formula{mode}", 1.0),
        Target(f"ours{mode}", f"(a) MLP{mode}", 0.501, "memory"),  # half of (a), plus one saved norm per token
    ]


def main() -> None:
    """Print tables, and whether each target is met."""
    keep_memory()
    parser = option_parser(__doc__, rounds=11)
    parser.add_argument("--only", choices=("layer", "step"))
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    begin(options)
    for precision in PRECISIONS:
        modes = [False] if options.no_compile else [False, True]
        targets = [target for mode in modes for target in layer_targets(mode)] if precision == "float32" else []
        for shape in SHAPES if options.only != "step" else ():
            title = f"tokens {shape[0]}, d {shape[1]}, n {shape[2]}, {precision}"
            same_mode = lambda name: "(a) MLP, compiled" if name.endswith("compiled") else "(a) MLP"  # noqa: E731
            report_both(title, measure_layers(shape, precision, options), same_mode, targets)
        if options.only != "layer":
            targets = [Target("Tokenformer", "Transformer", 1.07), Target("Tokenformer", "Transformer", 1.0, "memory")]
            title = f"training step, 12 layers, d 256, batch x context {STEP_SHAPE}, {precision}"
            report_both(title, measure_steps(precision, options), lambda name: "Transformer", targets)


if __name__ == "__main__":
    main()
