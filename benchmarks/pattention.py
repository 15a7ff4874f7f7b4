"""Time and memory of Pattention beside a plain MLP of the same shape, and of a Tokenformer beside its Transformer.

    python benchmarks/pattention.py                    # everything, about ten minutes on 2 cores
    python benchmarks/pattention.py --only layer --no-compile --rounds 15

(a) is a bias-free Linear-GELU-Linear of the same shape, the floor; (b) is the formula as the official code writes it.
Variants take turns within a round, in another order every round; a ratio is taken within its round. Printed are the
median over rounds and its 95 % interval by order statistics. `saved` counts the bytes kept for the backward pass
without inputs and parameters, each storage once. All variants run in one process with the allocator told to keep its
memory; otherwise half of what is measured is the price of fresh pages.
"""

import argparse
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from loops import Loop
from rounds import Bar, report, rounds_of, saved_bytes, setting
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
"""The seconds of every variant, round by round, and the bytes that it keeps for its backward pass."""


def mlp(x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Map with (a), the floor."""
    return F.linear(F.gelu(F.linear(x, keys)), values.T)


def formula(x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Map with (b): norm, division, multiplication and GeLU one after the other."""
    products = F.linear(x, keys)
    normed = products / torch.norm(products, p=2, dim=-1, keepdim=True) * math.sqrt(products.shape[-1])
    return F.linear(F.gelu(normed), values.T)


def ours(x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Map as the layer of this project does."""
    return lean_pattention(x, keys, values, math.sqrt(len(keys)))


def precise(precision: str, device: str):
    """Return the context in which a variant runs."""
    return torch.autocast(device, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def measure_layers(shape: tuple[int, int, int], precision: str, options: argparse.Namespace) -> Measured:
    """Measure forward and backward of one layer."""
    tokens, d, n = shape
    generator = torch.Generator().manual_seed(0)

    def drawn(rows: int, columns: int, std: float) -> Tensor:
        return (torch.randn(rows, columns, generator=generator) * std).to(options.device)

    given = [drawn(tokens, d, 1.0), drawn(n, d, d**-0.5), drawn(n, d, n**-0.5)]
    given = [tensor.requires_grad_() for tensor in given]
    grad = drawn(tokens, d, 1.0)
    layers: dict[str, Layer] = {"(a) MLP": mlp, "(b) formula": formula, "ours": ours}
    if not options.no_compile:
        torch._dynamo.reset()
        compiled = partial(torch.compile, fullgraph=True, dynamic=False)
        layers |= {f"{name}, compiled": compiled(layer) for name, layer in layers.items()}

    def forward(layer: Layer) -> Tensor:
        with precise(precision, options.device):
            return layer(*given)

    def step(layer: Layer) -> None:
        y = forward(layer)
        y.backward(grad.to(y.dtype))
        for tensor in given:
            tensor.grad = None

    seconds = rounds_of({name: partial(step, layer) for name, layer in layers.items()}, options.rounds, options.device)
    return seconds, {name: [saved_bytes(partial(forward, layer), given)] for name, layer in layers.items()}


def measure_steps(precision: str, options: argparse.Namespace) -> Measured:
    """Measure whole training steps of two models with 9.4 M parameters beside their embeddings."""
    common = {"vocabulary": 1024, "layers": 12, "width": 256, "heads": 4, "context": STEP_SHAPE[1]}
    plain = {"norm": LayerNorm(gain=False, bias=False), "projection": Pattention(tokens=192)}
    transformer = Decoder(**common, norm=plain["norm"], projection=Linear(), feedforward=Mlp())
    tokenformer = Decoder(**common, **plain, feedforward=Pattention(tokens=768))
    assert transformer.params() == tokenformer.params()
    text = torch.randint(1024, (STEP_SHAPE[0], STEP_SHAPE[1] + 1), generator=torch.Generator().manual_seed(0))
    text = text.to(options.device)
    models = {"Transformer": transformer, "Tokenformer": tokenformer}
    built = {name: spec.build(0).to(options.device) for name, spec in models.items()}

    def loss(model: nn.Module) -> Tensor:
        with precise(precision, options.device):
            return F.cross_entropy(model(text[:, :-1]).float().flatten(0, 1), text[:, 1:].flatten())

    steps = {name: Loop(model, loss, AdamW().build(model)) for name, model in built.items()}
    seconds = rounds_of(steps, options.rounds, options.device)
    given = {name: [*model.parameters(), *model.buffers()] for name, model in built.items()}
    return seconds, {name: [saved_bytes(partial(loss, model), given[name])] for name, model in built.items()}


def report_both(title: str, measured: Measured, yardstick: Callable[[str], str], bars: list[Bar]) -> None:
    """Print a table of times and one of bytes, and which bars are met."""
    for numbers, quantity, unit in zip(measured, ("time", "memory"), ("ms", "MB"), strict=True):
        report(f"{title}, {quantity}", numbers, yardstick, [bar for bar in bars if bar.quantity == quantity], unit)


def layer_bars(compiled: bool) -> list[Bar]:
    """Return the bounds that one layer is held to, in float32."""
    mode = ", compiled" if compiled else ""
    return [
        Bar(f"ours{mode}", f"(a) MLP{mode}", 1.06 if compiled else 1.18),
        Bar(f"ours{mode}", f"(b) formula{mode}", 1.0),
        Bar(f"ours{mode}", f"(a) MLP{mode}", 0.501, "memory"),  # half, and one number per row of n
    ]


def main() -> None:
    """Measure and print."""
    keep_memory()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=("layer", "step"))
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(setting(options.threads, options.device))
    print(f"{options.rounds} rounds")
    for precision in PRECISIONS:
        modes = [False] if options.no_compile else [False, True]
        bars = [bar for mode in modes for bar in layer_bars(mode)] if precision == "float32" else []
        for shape in SHAPES if options.only != "step" else ():
            title = f"tokens {shape[0]}, d {shape[1]}, n {shape[2]}, {precision}"
            own_mode = lambda name: "(a) MLP, compiled" if name.endswith("compiled") else "(a) MLP"  # noqa: E731
            report_both(title, measure_layers(shape, precision, options), own_mode, bars)
        if options.only != "layer":
            bars = [Bar("Tokenformer", "Transformer", 1.07), Bar("Tokenformer", "Transformer", 1.0, "memory")]
            title = f"training step, 12 layers, d 256, batch x context {STEP_SHAPE}, {precision}"
            report_both(title, measure_steps(precision, options), lambda name: "Transformer", bars)
    print(f"\nload at the end {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
