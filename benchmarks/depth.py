"""Time and memory of depth-weighted averages, compared with a plain stack and with a simple loop.

    python benchmarks/depth.py                            # everything, about ten minutes on 2 cores
    python benchmarks/depth.py --only alone --rounds 21

Implementations: on a CPU, `ours` calls one native kernel per average in the forward pass and one per earlier output in
the backward pass; on a GPU, it adds the tensors one by one in torch. `loop` computes x = x + alpha X_j in Python. All
variants have the same blocks, weights and batch; only the mixer differs. A round runs every variant once; the order
rotates from round to round. A ratio compares times of the same round. The benchmark prints the median over rounds and
its 95 % interval by order statistics. `step` is a training step. `alone` is the forward and backward pass of the mixer,
where every block is replaced by x + 1. `saved` counts the bytes of saved activations, excluding parameters and input
tokens.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from timing import Target, begin, interleaved_seconds, option_parser, report, saved_bytes
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.kernels import weighted_sum
from formerlab.kernels.native import keep_memory
from formerlab.layers import DepthWeightedAverage
from formerlab.layers.depth.identity import Mixer
from formerlab.layers.initialization import initialise
from formerlab.models import Decoder
from formerlab.models.decoder import DecoderModel
from formerlab.training.optimizer import AdamW

WIDTH, CONTEXT, BATCH, VOCABULARY = 256, 256, 8, 1024
PATTERNS = {"1x1": DepthWeightedAverage(), "4x5": DepthWeightedAverage(dilation=4, period=5)}
QUANTITIES = ("step", "alone", "saved")


TARGETS = {
    "step": [Target("1x1 ours", "plain", 1.03), Target("4x5 ours", "plain", 1.00)],
    "alone": [Target("1x1 ours", "1x1 loop", 0.60), Target("4x5 ours", "4x5 loop", 0.85)],
    "saved": [Target("1x1 ours", "plain", 1.065, "memory"), Target("4x5 ours", "plain", 1.015, "memory")],
}


def variants(blocks: int, device: str) -> dict[str, Mixer]:
    """Return all mixers by name. Noise is added to their weights, so that no weight is zero."""
    mixers: dict[str, Mixer] = {"plain": Mixer()}
    for name, spec in PATTERNS.items():
        mixers[f"{name} ours"] = spec.build(blocks)
        mixers[f"{name} loop"] = spec.build(blocks)
        mixers[f"{name} loop"].fused = False
    for mixer in mixers.values():
        initialise(mixer, 0)
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.02)
    return {name: mixer.to(device) for name, mixer in mixers.items()}


class Bench:
    """A model whose mixer is replaced by the mixer of each variant."""

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
        logits = self.model(self.text[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), self.text[:, 1:].flatten())

    def step(self, name: str) -> None:
        """Run one training step of a variant."""
        loss = self.loss(name)
        if name not in self.optimizers:
            self.optimizers[name] = AdamW(lr=1e-5).build(self.model)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers[name].step()
        self.optimizers[name].zero_grad(set_to_none=True)

    def alone(self, name: str) -> None:
        """Run the forward and backward pass of a mixer, where every block is replaced by x + 1."""
        mixer = self.mixers[name]
        x, history = mixer.begin(self.stream)
        for index in range(1, self.blocks + 1):
            x = mixer.mix(index, x + 1, history)
        x.backward(torch.ones_like(x))
        self.stream.grad = None
        mixer.zero_grad(set_to_none=True)

    def saved(self, name: str) -> int:
        """Return the bytes of the saved activations of a training step."""
        parameters_and_text = [*self.model.parameters(), *self.mixers[name].parameters(), self.text]
        return saved_bytes(partial(self.loss, name), parameters_and_text)


def measure(quantity: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of every variant and round; for `saved`, the bytes of every variant."""
    bench = Bench(options.blocks, options.device)
    names = [name for name in bench.mixers if quantity != "alone" or name != "plain"]
    if options.variants:
        chosen = {*options.variants, *(baseline(quantity, name) for name in options.variants)}
        names = [name for name in names if name in chosen]
    if quantity == "saved":
        return {name: [bench.saved(name)] for name in names}
    run: Callable[[str], None] = getattr(bench, quantity)
    return interleaved_seconds({name: partial(run, name) for name in names}, options.rounds, options.device)


def baseline(quantity: str, name: str) -> str:
    """Return the name of the variant with which a variant is compared."""
    return f"{name.split()[0]} loop" if quantity == "alone" else "plain"


def main() -> None:
    """Print tables, and whether each target is met."""
    keep_memory()
    parser = option_parser(__doc__, rounds=11)
    parser.add_argument("--blocks", type=int, help="default: 24, on a GPU 48")
    parser.add_argument("--only", choices=QUANTITIES, action="append", help="may be repeated; default: all")
    parser.add_argument("--variants", nargs="+", help='only these and their baselines, such as "1x1 ours"')
    options = parser.parse_args()
    options.blocks = options.blocks or (48 if options.device == "cuda" else 24)
    kernel = (
        weighted_sum.sums_implementation() if options.device == "cpu" else "eager (the native kernel is for the CPU)"
    )
    begin(options, f"{options.blocks} blocks, width {WIDTH}, {BATCH} x {CONTEXT} tokens, float32; `ours`: {kernel}")
    for quantity in options.only or QUANTITIES:
        unit = "MB" if quantity == "saved" else "ms"
        report(quantity, measure(quantity, options), partial(baseline, quantity), TARGETS[quantity], unit)


if __name__ == "__main__":
    main()
