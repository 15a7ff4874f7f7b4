"""Items of gpu.py: time, memory and compilation of training steps, which `train()` itself runs."""

import argparse
import fcntl
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from formerlab.data.pairs.streams import PairStream
from formerlab.layers import DepthWeightedAverage, Identity, LayerNorm, Pattention
from formerlab.models import Decoder, Translator
from formerlab.plan.cost import memory_bytes
from formerlab.plan.hardware import TABLE, Hardware
from formerlab.tasks import LanguageModeling, Translation
from formerlab.training.loop import Hooks, train
from formerlab.training.run import Run
from formerlab.training.state import State

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
Lines = Iterator[str]
Options = argparse.Namespace


def full_or_rehearsal(full: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes `full` on a GPU, otherwise `full` updated with `small`, the sizes of a rehearsal."""
    return full if GPU else full | small


def wait() -> None:
    """Synchronise with the GPU."""
    if GPU:
        torch.cuda.synchronize()


class Clock:
    """Records the time before every step of `train()`.

    Processes compile in parallel, but only one measures at a time.
    """

    def __init__(self, lock: Any) -> None:
        self.times, self.lock = [time.perf_counter()], lock

    def __call__(self) -> None:
        """Record the time; return None, so that training continues."""
        wait()
        if len(self.times) == 2:  # after the first step, which includes compilation
            self.compiled_s = time.perf_counter() - self.times[0]
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            if GPU:
                torch.cuda.reset_peak_memory_stats()
        self.times.append(time.perf_counter())


def measure_case(label: str, run: Run, data: Any, lock: Path) -> str:
    """Run twelve steps; return a line with time and memory of a step, and the time until the end of the first step.

    Tokens are counted without padding.
    """
    built: Any = run.model.build(0).to(DEVICE)
    with open(lock, "a") as file:
        clock = Clock(file)
        run = run.model_copy(update={"steps": 12, "evaluate_every": 12, "log_every": 100})
        train(run, State(built, run.optimizer.build(built)), data, data, Hooks(lambda state: None, clock, float("inf")))
    steps = [1000 * (end - start) for start, end in zip(clock.times[3:-1], clock.times[4:], strict=True)]
    ms = statistics.median(steps)
    tokens = mean_tokens(run, data, range(2, 2 + len(steps)))
    peak = f"{torch.cuda.max_memory_allocated() / 1e9:.1f}" if GPU else "unknown"
    planned = memory_bytes(run, Hardware(**TABLE["H100"])) / 1e9
    return (
        f"{label}: {ms:.1f} ms per step ({min(steps):.1f} to {max(steps):.1f}), "
        f"{tokens / ms:.1f} k tokens/s, "
        f"{peak} GB (planned {planned:.1f}), first step done after {clock.compiled_s:.0f} s"
    )


def mean_tokens(run: Run, data: Any, steps: range) -> float:
    """Return the mean number of tokens that a step predicts, without padding, over these steps (from 0)."""
    return statistics.mean(run.task.step_counts(run.model, data, run.seed, step)[0] for step in steps)


def language_run(model: Decoder, **task: Any) -> tuple[Run, Any]:
    """Return a compiled run in bfloat16 and a stream of random tokens."""
    settings = {"compile": True, "precision": "bfloat16", "task": LanguageModeling(context=model.context, **task)}
    run = Run(study="benchmark", name="case", model=model, **settings)
    return run, np.random.default_rng(0).integers(0, model.vocabulary, 1_000_000).astype(np.uint16)


def side_by_side(item: str, cases: dict[str, dict[str, str]], options: Options) -> Lines:
    """Start one process of the item per case, with the environment variables of the case.

    Without a GPU the cases run one after another, because parallel compilation on a few cores would exceed the time.
    """
    script = str(Path(__file__).with_name("gpu.py"))
    command = [sys.executable, script, "--item", item, "--out", str(options.out), "--case"]
    started = {}
    for name, variables in cases.items():
        started[name] = subprocess.Popen([*command, name], env=os.environ | variables)
        if not GPU:
            started[name].wait()
    for name, process in started.items():
        if status := process.wait():
            yield f"{name}: failed with status {status}, see gpu.log"


def tokenformer(options: Options) -> Lines:
    """Yield the step times of the 354M Tokenformer, and then the kernels that take the most time.

    There are two cases: inductor's default kernels, and its multi-kernels.
    """
    if options.case is None:
        cases = {"as usual": {}, "multi-kernels": {"TORCHINDUCTOR_MULTI_KERNEL": "1"}}
        yield from side_by_side("tokenformer", cases, options)
        return
    full = {"vocabulary": 50304, "layers": 12, "width": 768, "heads": 12, "context": 1024}
    size = full_or_rehearsal(full, {"vocabulary": 5030, "layers": 1, "width": 72, "context": 102})
    tokens, batch = full_or_rehearsal({"tokens": 2140, "batch": 32}, {"tokens": 214, "batch": 3}).values()
    pattention_layers = {"projection": Pattention(tokens=tokens), "feedforward": Pattention(tokens=4 * tokens)}
    model = Decoder(**size, norm=LayerNorm(gain=False, bias=False), **pattention_layers)
    run, stream = language_run(model, batch=batch, valid_windows=batch)
    yield measure_case(options.case, run, stream, options.out / "turn.lock")
    if options.case == "as usual":
        activities, key = [ProfilerActivity.CPU], "self_cpu_time_total"
        if GPU:
            activities, key = [ProfilerActivity.CUDA], "self_device_time_total"
        with profile(activities=activities) as profiler:
            yield measure_case("the same, profiled", run, stream, options.out / "profiled.lock")
        events = profiler.key_averages()
        total = sum(getattr(event, key) for event in events)
        for event in sorted(events, key=lambda event: -getattr(event, key))[:10]:
            yield f"{getattr(event, key) / total:7.1%} {event.key[:90]}"


def depth(options: Options) -> Lines:
    """Yield the step times of a plain decoder and DenseFormers of 48 blocks, with static and dynamic shapes.

    With `dynamic`, validation with another batch size makes shapes symbolic.
    """
    mixers = {"plain": Identity(), "4x5": DepthWeightedAverage(dilation=4, period=5), "1x1": DepthWeightedAverage()}
    if options.case is None:
        cases = {f"{name}, {shapes}": {} for shapes in ("static", "dynamic") for name in mixers}
        yield from side_by_side("depth", cases, options)
        return
    name, shapes = options.case.split(", ")
    if shapes == "dynamic":
        LanguageModeling.dynamic_shapes = None
    full = {"vocabulary": 50304, "layers": 48, "width": 768, "heads": 12, "context": 256}
    size = full_or_rehearsal(full, {"vocabulary": 5030, "layers": 5, "width": 72, "context": 25})
    batch, windows = full_or_rehearsal({"batch": 40, "windows": 64}, {"batch": 4, "windows": 6}).values()
    run, stream = language_run(Decoder(**size, depth=mixers[name]), batch=batch, valid_windows=windows)
    yield measure_case(options.case, run, stream, options.out / "turn.lock")


def translator(options: Options) -> Lines:
    """Yield the step time of the base translator (arXiv:1706.03762) with at most 25000 source and 25000 target
    tokens per step, including padding.
    """
    full = {"vocabulary": 37000, "layers": 6, "width": 512, "tokens": 25000}
    size = full_or_rehearsal(full, {"vocabulary": 3700, "layers": 1, "width": 56, "tokens": 2500})
    task = Translation(tokens=size.pop("tokens"), valid_pairs=1)
    random = np.random.default_rng(0)
    sentences = (random.integers(1, size["vocabulary"], length) for length in random.integers(10, 40, 40_000))
    tokens = np.concatenate([ids for sentence in sentences for ids in (sentence, [0])])
    pairs = PairStream(tokens.astype(np.uint16), 0)
    model = Translator(**size, heads=8, context=64, dropout=0.1)
    run = Run(study="benchmark", name="translator", model=model, task=task, precision="bfloat16")
    yield measure_case("base", run, pairs, options.out / "turn.lock")
