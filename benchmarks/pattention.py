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
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**28),
}
if __name__ == "__main__" and any(os.environ.get(key) != value for key, value in ALLOCATOR.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)  # malloc reads them at its start

import torch  # noqa: E402 (after the allocator's settings)
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from formerlab.layers import LayerNorm, Linear, Mlp, Pattention  # noqa: E402
from formerlab.layers.pattention_function import lean_pattention  # noqa: E402
from formerlab.models import Decoder  # noqa: E402
from formerlab.training.optimizer import AdamW  # noqa: E402
from formerlab.training.provenance import device_name  # noqa: E402

SHAPES = ((4096, 256, 1024), (2048, 768, 3072))  # tokens of text, d, parameter tokens
STEP_SHAPE = (8, 256)  # batch, context
PRECISIONS = ("float32", "bfloat16")

Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Bar:
    """A bound on a ratio to a variant that is its yardstick; met when the ratio's interval reaches it."""

    variant: str
    yardstick: str
    bound: float
    quantity: str = "time"


@dataclass
class Measured:
    """What one variant took, round by round, and what it keeps for its backward pass."""

    seconds: list[float]
    saved: int


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


def saved_bytes(forward: Callable[[], Tensor], given: Iterable[Tensor]) -> int:
    """Return the bytes that `forward` keeps for its backward pass, beyond what it was given."""
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()
    del output
    return sum(kept.values())


def synchronise(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def rounds_of(steps: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, list[float]]:
    """Return the seconds of every step, round by round; steps take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for index in range(rounds + 1):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            synchronise(device)
            start = time.perf_counter()
            steps[name]()
            synchronise(device)
            if index:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return seconds


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return median and its 95 % interval: the order statistics that cover it with at least that probability."""
    ordered, n = sorted(values), len(values)
    outside, rank = 0.0, 0
    while 2 * (outside + math.comb(n, rank) / 2**n) <= 0.05:
        outside += math.comb(n, rank) / 2**n
        rank += 1
    rank = max(rank, 1)
    return statistics.median(values), ordered[rank - 1], ordered[n - rank]


def measure_layers(shape: tuple[int, int, int], precision: str, options: argparse.Namespace) -> dict[str, Measured]:
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
    return {
        name: Measured(seconds[name], saved_bytes(partial(forward, layer), given)) for name, layer in layers.items()
    }


def measure_steps(precision: str, options: argparse.Namespace) -> dict[str, Measured]:
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
    optimizers = {name: AdamW().build(model) for name, model in built.items()}

    def loss(model: nn.Module) -> Tensor:
        with precise(precision, options.device):
            return F.cross_entropy(model(text[:, :-1]).float().flatten(0, 1), text[:, 1:].flatten())

    def step(name: str) -> None:
        loss(built[name]).backward()
        nn.utils.clip_grad_norm_(built[name].parameters(), 1.0)
        optimizers[name].step()
        optimizers[name].zero_grad(set_to_none=True)

    seconds = rounds_of({name: partial(step, name) for name in built}, options.rounds, options.device)
    return {
        name: Measured(seconds[name], saved_bytes(partial(loss, model), [*model.parameters(), *model.buffers()]))
        for name, model in built.items()
    }


def report(title: str, measured: dict[str, Measured], yardstick: Callable[[str], str], bars: list[Bar]) -> None:
    """Print a table, and which bars are met."""
    print(f"\n### {title}\n\n| variant | ms | ratio | 95 % interval | saved MB | ratio |\n|---|---|---|---|---|---|")
    for name, own in measured.items():
        base = measured[yardstick(name)]
        middle, low, high = ratio(own, base)
        milliseconds = 1e3 * statistics.median(own.seconds)
        print(
            f"| {name} | {milliseconds:.1f} | {middle:.3f} | {low:.3f} to {high:.3f} "
            f"| {own.saved / 1e6:.2f} | {own.saved / base.saved:.4f} |"
        )
    for bar in bars:
        own, base = measured[bar.variant], measured[bar.yardstick]
        low = ratio(own, base)[1] if bar.quantity == "time" else own.saved / base.saved
        verdict = "met" if low <= bar.bound else "MISSED"
        print(f"\n{verdict}: {bar.quantity} of {bar.variant} at most {bar.bound} x {bar.yardstick} ({low:.4f})")


def ratio(own: Measured, base: Measured) -> tuple[float, float, float]:
    """Return the ratio of times within rounds: median and interval."""
    return interval([a / b for a, b in zip(own.seconds, base.seconds, strict=True)])


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=("layer", "step"))
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings = " ".join(f"{key}={value}" for key, value in ALLOCATOR.items())
    print(f"{device_name(torch.device(options.device))}, {options.threads} threads, torch {torch.__version__}")
    print(f"{options.rounds} rounds; {settings}; load {os.getloadavg()[0]:.2f}", end="")
    for precision in PRECISIONS:
        modes = [False] if options.no_compile else [False, True]
        bars = [bar for mode in modes for bar in layer_bars(mode)] if precision == "float32" else []
        for shape in SHAPES if options.only != "step" else ():
            title = f"tokens {shape[0]}, d {shape[1]}, n {shape[2]}, {precision}"
            own_mode = lambda name: "(a) MLP, compiled" if name.endswith("compiled") else "(a) MLP"  # noqa: E731
            report(title, measure_layers(shape, precision, options), own_mode, bars)
        if options.only != "layer":
            bars = [Bar("Tokenformer", "Transformer", 1.07), Bar("Tokenformer", "Transformer", 1.0, "memory")]
            title = f"training step, 12 layers, d 256, batch x context {STEP_SHAPE}, {precision}"
            report(title, measure_steps(precision, options), lambda name: "Transformer", bars)
    print(f"\nload at the end {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
