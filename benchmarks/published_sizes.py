"""Training at published sizes on a GPU: speed, model FLOPs utilisation (MFU), and memory compared with the plan.

    python benchmarks/published_sizes.py [--sizes 124M 354M] [--variants ours] [--rounds 11]

A step has one micro-batch of the scale `paper`, compiled in bfloat16. `train()` itself runs it: batch, forward,
backward, clipping, AdamW. The baseline is a compiled model of nanoGPT's architecture in a plain loop (`loops.py`). A
round runs every variant once; the order rotates from round to round. A ratio compares times of the same round. MFU
is the model's FLOP/s divided by the peak, which is measured here with bfloat16 matrix products.
"""

import statistics
from functools import partial

import numpy as np
import torch
from loops import Gpt, Loop, OurLoop, windows
from timing import Target, begin, interleaved_seconds, option_parser, report
from torch.nn import functional as F

from formerlab.evaluation.timing.timing import peak_bytes
from formerlab.layers import LayerNorm, Pattention
from formerlab.models import Decoder
from formerlab.plan.cost import memory_bytes
from formerlab.plan.hardware import TABLE, Hardware
from formerlab.tasks import LanguageModeling
from formerlab.tasks.task import TRAINING_PASSES
from formerlab.training.provenance import matmul_flops_per_s, model_flops_utilisation
from formerlab.training.run import Run

COMMON = {"vocabulary": 50304, "context": 1024}
NARROW = COMMON | {"layers": 12, "width": 768, "heads": 12}
SIZES = {
    "124M": (NARROW, 576, 64),
    "354M": (COMMON | {"layers": 24, "width": 1024, "heads": 16}, 2140, 32),
}
"""Sizes of the Transformer, parameter tokens per projection of the Tokenformer (arXiv:2410.23168, Table 9), and windows
per micro-batch."""
PLAIN, OURS, OUR_TOKENFORMER = "plain loop", "ours", "ours, Tokenformer"


class Benchmark:
    """The variants of one size. A variant is built before its first step."""

    def __init__(self, size, tokens, batch, device):
        self.size, self.device = size, device
        pattention_layers = {"projection": Pattention(tokens=tokens), "feedforward": Pattention(tokens=4 * tokens)}
        tokenformer = Decoder(**NARROW, norm=LayerNorm(gain=False, bias=False), **pattention_layers)
        self.models = {PLAIN: Decoder(**size), OURS: Decoder(**size), OUR_TOKENFORMER: tokenformer}
        self.task = LanguageModeling(context=size["context"], batch=batch, valid_windows=1)
        self.stream = np.random.default_rng(0).integers(0, size["vocabulary"], 4_000_000).astype(np.uint16)
        self.steps = {}

    def step(self, name):
        """Run a step of a variant."""
        if name not in self.steps:
            settings = {"device": self.device, "compile": True, "precision": "bfloat16"}
            self.steps[name] = (
                Loop(torch.compile(Gpt(**self.size).to(self.device)), self.plain_loss)
                if name == PLAIN
                else OurLoop(self.models[name], self.task, self.stream, **settings)
            )
        self.steps[name]()

    def plain_loss(self, model):
        """Return the loss of the plain loop on a new batch."""
        x, y = windows(self.stream, self.task.batch, self.task.context, self.device)
        with torch.autocast(self.device, torch.bfloat16):
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def peak_bytes(self, name):
        """Return the peak bytes of a variant after its compilation."""
        allocated = torch.cuda.memory_allocated()
        self.step(name)
        torch.cuda.synchronize()
        state = torch.cuda.memory_allocated() - allocated
        return state + peak_bytes(partial(self.step, name), torch.device(self.device))

    def planned_bytes(self, name):
        """Return the bytes that the plan estimates for a step without compilation."""
        run = Run(study="benchmark", name="planned", model=self.models[name], task=self.task, precision="bfloat16")
        return memory_bytes(run, Hardware(**TABLE["H100"]))


def main():
    """Print for each size a table of times, whether the target is met, and a table of speed and memory."""
    parser = option_parser(__doc__, rounds=11)
    parser.set_defaults(device="cuda")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument(
        "--variants", nargs="+", choices=(PLAIN, OURS, OUR_TOKENFORMER), default=[PLAIN, OURS, OUR_TOKENFORMER]
    )
    options = parser.parse_args()
    peak = matmul_flops_per_s("cuda", "bfloat16")
    begin(options, f"peak {peak / 1e12:.0f} TFLOP/s")
    for size in options.sizes:
        benchmark = Benchmark(*SIZES[size], "cuda")
        task, models = benchmark.task, benchmark.models
        peaks = {name: benchmark.peak_bytes(name) for name in options.variants}
        steps = {name: partial(benchmark.step, name) for name in options.variants}
        seconds = interleaved_seconds(steps, options.rounds, "cuda")
        targets = [Target(OURS, PLAIN, 1.05)] if {OURS, PLAIN} <= steps.keys() else []
        title = f"{size}, {task.batch} windows of {task.context} tokens"
        report(title, seconds, lambda name: options.variants[0], targets)
        print("\n| variant | tokens/s | MFU | peak memory, GB | planned, GB |\n|---|---|---|---|---|")
        for name, times in seconds.items():
            step_s, flops = statistics.median(times), TRAINING_PASSES * task.step_flops(models[name])
            fraction, planned = model_flops_utilisation(flops, step_s, peak), benchmark.planned_bytes(name)
            speed = task.step_tokens / step_s
            print(f"| {name} | {speed:.0f} | {fraction:.3f} | {1e-9 * peaks[name]:.1f} | {1e-9 * planned:.1f} |")


if __name__ == "__main__":
    main()
