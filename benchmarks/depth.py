"""Time and memory of averages over depth beside the plain stack, and beside other ways to write them.

    python benchmarks/depth.py                            # everything, some ten minutes on 2 cores
    python benchmarks/depth.py --only alone --rounds 21

Ways: `ours` (gathered gradients, native kernel), `ours, eager` (the same without a compiler), `loop` (x = x + alpha
X_j), `stack` (torch.stack and einsum), `official` (the released package, where `import denseformer` works; it knows
float32 only). Blocks, weights and batch are the same for all; only the mixer is exchanged. Variants take turns within a
round, in another order every round; a ratio is taken within its round. Printed are the median over rounds and its 95 %
interval by order statistics. `alone` is forward and backward of the mixing, with x + 1 for a block. `saved` counts the
bytes kept for the backward pass without parameters, each storage once; `peak` is that of a process of its own (resident
memory; on a GPU allocated memory); `decode` is one sequence, token by token with cached keys and values.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from rounds import Bar, ratio, rounds_of, saved_bytes, setting
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.cache import KVCache
from formerlab.kernels import weighted_sum as nary
from formerlab.kernels.native import keep_memory
from formerlab.layers import DepthWeightedAverage
from formerlab.layers.depth.dwa import DepthWeightedAverageLayer
from formerlab.layers.depth.identity import History, Mixer, Stream
from formerlab.layers.initial import initialise
from formerlab.models import Decoder
from formerlab.models.decoder import DecoderModel
from formerlab.training.cost import peak_memory_bytes
from formerlab.training.optimizer import AdamW

WIDTH, CONTEXT, BATCH, VOCABULARY = 256, 256, 8, 1024
PATTERNS = {"1x1": DepthWeightedAverage(), "4x5": DepthWeightedAverage(dilation=4, period=5)}
PARTS = ("step", "alone", "saved", "peak", "decode")
DECODED = 32  # tokens


BARS = {
    "step": [Bar("1x1 ours", "plain", 1.03), Bar("4x5 ours", "plain", 1.00)],  # the latter: not separable
    "alone": [Bar("1x1 ours", "1x1 loop", 0.60), Bar("4x5 ours", "4x5 loop", 0.85)],
    "saved": [Bar("1x1 ours", "plain", 1.065, "memory"), Bar("4x5 ours", "plain", 1.015, "memory")],
}


class Stacked(DepthWeightedAverageLayer):
    """All sources copied into one tensor, for one einsum."""

    def begin(self, x: Stream) -> tuple[Stream, History]:
        """Keep X_0."""
        return x, [x]

    def mix(self, index: int, x: Stream, history: History) -> Stream:
        """Return Y_index."""
        history.append(x)
        if index not in self.layout.table:
            return x
        sources = torch.stack([history[j] for j in self.layout.table[index]])
        return torch.einsum("j,jbtd->btd", self.row(index), sources)


class Official(Mixer):
    """The module of the released package, behind our interface."""

    def __init__(self, layers: int, spec: DepthWeightedAverage) -> None:
        super().__init__()
        from denseformer import DWAModules

        self.modules_of_package = DWAModules(layers, spec.dilation, spec.period)

    def begin(self, x: Stream) -> tuple[Stream, History]:
        """Give X_0 to the package's buffers."""
        self.modules_of_package.init_accumulators(x)
        return x, None

    def mix(self, index: int, x: Stream, history: History) -> Stream:
        """Return Y_index."""
        return self.modules_of_package(x, block_idx=index - 1)


class Eager(DepthWeightedAverageLayer):
    """Ours without the native kernel."""


def variants(blocks: int, device: str) -> dict[str, Mixer]:
    """Return all mixers, away from the identity, so that no weight is zero."""
    mixers: dict[str, Mixer] = {"plain": Mixer()}
    for name, spec in PATTERNS.items():
        table = spec.table(blocks)
        mixers[f"{name} ours"] = spec.build(blocks)
        mixers[f"{name} ours, eager"] = Eager(table)
        mixers[f"{name} loop"] = spec.build(blocks)
        mixers[f"{name} loop"].fused = False
        mixers[f"{name} stack"] = Stacked(table)
        if find_spec("denseformer"):
            mixers[f"{name} official"] = Official(blocks, spec)
    for mixer in mixers.values():
        initialise(mixer, 0)
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.02)
    return {name: mixer.to(device) for name, mixer in mixers.items()}


@contextmanager
def path_of(mixer: Mixer) -> Iterator[None]:
    """Let an eager variant run without the kernel."""
    kernel = nary._kernel
    if isinstance(mixer, Eager):
        nary._kernel = lambda: None
    try:
        yield
    finally:
        nary._kernel = kernel


class Bench:
    """One model whose mixer is exchanged."""

    def __init__(self, blocks: int, device: str) -> None:
        spec = Decoder(vocabulary=VOCABULARY, layers=blocks, width=WIDTH, heads=4, context=CONTEXT)
        self.blocks, self.device = blocks, device
        self.model: DecoderModel = spec.build(0).to(device)
        self.mixers = variants(blocks, device)
        generator = torch.Generator().manual_seed(0)
        self.text = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=generator).to(device)
        self.stream = torch.randn(BATCH, CONTEXT, WIDTH, generator=generator).to(device).requires_grad_()
        self.optimizers: dict[str, torch.optim.Optimizer] = {}

    def loss(self, name: str) -> Tensor:
        """Return the training loss of a variant."""
        self.model.mixer = self.mixers[name]
        with path_of(self.model.mixer):
            logits = self.model(self.text[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), self.text[:, 1:].flatten())

    def step(self, name: str) -> None:
        """Take one training step."""
        loss = self.loss(name)
        if name not in self.optimizers:
            self.optimizers[name] = AdamW(lr=1e-5).build(self.model)
        with path_of(self.mixers[name]):
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers[name].step()
        self.optimizers[name].zero_grad(set_to_none=True)

    def alone(self, name: str) -> None:
        """Mix forward and backward, with x + 1 for every block."""
        mixer = self.mixers[name]
        with path_of(mixer):
            x, history = mixer.begin(self.stream)
            for index in range(1, self.blocks + 1):
                x = mixer.mix(index, x + 1, history)
            x.backward(torch.ones_like(x))
        self.stream.grad = None
        mixer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def decode(self, name: str) -> None:
        """Feed tokens one by one."""
        self.model.mixer = self.mixers[name]
        cache = KVCache()
        with path_of(self.model.mixer):
            for position in range(DECODED):
                self.model(self.text[:1, position : position + 1], attend=cache, start=position)

    def saved(self, name: str) -> int:
        """Return the bytes kept for the backward pass of a training step."""
        given = [*self.model.parameters(), *self.mixers[name].parameters(), self.text]
        return saved_bytes(partial(self.loss, name), given)


def measured(part: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the numbers of every variant: seconds round by round, or bytes."""
    if part == "peak":
        return {name: [_peak_of(name, options)] for name in variants(options.blocks, "cpu")}
    bench = Bench(options.blocks, options.device)
    names = [name for name in bench.mixers if part != "alone" or name != "plain"]
    if options.variants:
        chosen = {*options.variants, *(yardstick(part, name) for name in options.variants)}
        names = [name for name in names if name in chosen]
    if part == "saved":
        return {name: [bench.saved(name)] for name in names}
    run: Callable[[str], None] = getattr(bench, part)
    return rounds_of({name: partial(run, name) for name in names}, options.rounds, options.device)


def _peak_of(name: str, options: argparse.Namespace) -> int:
    command = [sys.executable, str(Path(__file__).resolve()), "--peak-of", name, "--device", options.device]
    command += ["--blocks", str(options.blocks), "--threads", str(options.threads)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(name: str, options: argparse.Namespace) -> None:
    """Take a few steps in this process, and print the most memory it held."""
    bench = Bench(options.blocks, options.device)
    for _ in range(3):
        bench.step(name)
    print(peak_memory_bytes(options.device))


def yardstick(part: str, name: str) -> str:
    """Return what a variant is measured against."""
    return f"{name.split()[0]} loop" if part == "alone" else "plain"


def report(part: str, numbers: dict[str, list[float]]) -> None:
    """Print a table, and which bars are met."""
    in_bytes = part in ("saved", "peak")
    unit, factor = ("MB", 1e-6) if in_bytes else ("ms", 1e3 / (DECODED if part == "decode" else 1))
    print(f"\n### {part}\n\n| variant | {unit} | ratio | 95 % interval | to |\n|---|---|---|---|---|")
    for name, own in numbers.items():
        base = yardstick(part, name)
        middle, low, high = ratio(own, numbers[base])
        spread = "" if in_bytes else f"{low:.3f} to {high:.3f}"
        print(f"| {name} | {factor * statistics.median(own):.2f} | {middle:.3f} | {spread} | {base} |")
    print()
    for bar in BARS.get(part, []):
        if bar.variant in numbers:
            print(bar.verdict(ratio(numbers[bar.variant], numbers[bar.yardstick])))


def main() -> None:
    """Measure and print."""
    keep_memory()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--blocks", type=int, help="default: 24, on a GPU 48")
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated; default: all")
    parser.add_argument("--variants", nargs="+", help='these and their yardsticks, for example "1x1 ours"')
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.blocks = options.blocks or (48 if options.device == "cuda" else 24)
    torch.set_num_threads(options.threads)
    if options.peak_of:
        print_peak(options.peak_of, options)
        return
    kernel = nary.path() if options.device == "cpu" else "eager (the native kernel is for the CPU)"
    print(setting(options.threads, options.device))
    print(f"{options.blocks} blocks, width {WIDTH}, {BATCH} x {CONTEXT} tokens, float32; path of `ours`: {kernel}")
    print(f"{options.rounds} rounds")
    if not find_spec("denseformer"):
        print("the official package is not installed (pip install git+https://github.com/epfml/DenseFormer)")
    for part in options.only or PARTS:
        report(part, measured(part, options))
    print(f"\nload at the end {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
