"""Items of gpu.py: kernels, decoding, and the exit status of stopped and failed runs."""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from decoding import Transformers, measure
from gpu_steps import DEVICE, GPU, Lines, Options, full_or_rehearsal, wait
from torch.nn import functional as F

from formerlab.cache import Decay, Simulation
from formerlab.cache.engines import load_numba, load_triton
from formerlab.models import Decoder

ROOT = Path(__file__).parents[1]


def milliseconds(work: Callable[[], object], repeats: int = 15) -> float:
    """Return the median time of a call in milliseconds.

    On a GPU the call is captured in a CUDA graph, and the replay of the graph is timed, which excludes launch overhead.
    """
    for _ in range(2):
        work()
    wait()
    if GPU:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        work = graph.replay
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def peak_rates(options: Options) -> Lines:
    """Yield the peak rates of matrix products (TFLOP/s) and of copies (GB/s)."""
    n, copied = full_or_rehearsal({"n": 8192, "bytes": 2**30}, {"n": 819, "bytes": 2**26}).values()
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(n, n, dtype=dtype, device=DEVICE) for _ in range(2))
        rate = 2 * n**3 / milliseconds(partial(torch.mm, a, b)) / 1e9
        yield f"product of {n} x {n}, {dtype}: {rate:.3g} TFLOP/s"
    source = torch.empty(copied, dtype=torch.uint8, device=DEVICE)
    into = torch.empty_like(source)
    yield f"copy: {2 * copied / milliseconds(partial(into.copy_, source)) / 1e6:.0f} GB/s read and written"


def tests(options: Options) -> Lines:
    """Yield the results of the kernel tests; the tests of Knorm run first."""
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-v", "-rf", "tests/kernels/test_on_a_gpu.py", "-k"]
    end, path = time.monotonic() + options.seconds - 3, options.out.resolve() / "tests.log"
    for expression in ("Knorm", "not Knorm"):
        with open(path, "a") as log:
            began, ended = log.tell(), "ended"
            try:  # `addopts=` drops the options of pyproject.toml, because the machine may not have the type checker
                remaining = max(0.0, end - time.monotonic())
                subprocess.run([*command, expression], cwd=ROOT, stdout=log, stderr=log, timeout=remaining)
            except subprocess.TimeoutExpired:
                ended = "out of time"
        output = path.read_text()[began:]
        outcomes = ("PASSED", "FAILED", "ERROR", "SKIPPED")
        counts = {outcome: len(re.findall(rf" {outcome}\b.*%\]", output)) for outcome in outcomes}
        yield f"{expression}: {', '.join(f'{count} {outcome.lower()}' for outcome, count in counts.items())}; {ended}"
        yield from re.findall(r"^FAILED .*", output, re.MULTILINE)


BASE = {"time": 1024, "chains": 256, "d": 80, "dtype": "bfloat16", "warps": 4}
VARIATIONS: list[dict[str, Any]] = [
    {},
    *({"time": time} for time in (512, 2048)),
    {"chains": 1024},
    {"dtype": "float32"},
    {"d": 64},
    *({"warps": warps} for warps in (8, 1)),
    {"dtype": "float32", "time": 2048},
    {"chains": 1024, "time": 2048},
    {"dtype": "float32", "warps": 8},
    {"chains": 1024, "warps": 1},
]
"""Changes of BASE by descending priority."""


def pruning(options: Options) -> Lines:
    """Yield the times of a simulated pruned layer and of full attention. A chain is one (sequence, head) pair; a
    sequence has 32 heads.
    """
    engine = load_triton() if GPU else load_numba()
    for change in VARIATIONS:
        sizes = BASE | change
        length, batch = sizes["time"], sizes["chains"] // 32
        if not GPU:
            length, batch = length // 10, max(1, batch // 10)
        shape = batch, 32, length, sizes["d"]
        q, k, v = (torch.randn(shape, device=DEVICE, dtype=getattr(torch, sizes["dtype"])) for _ in range(3))

        def simulate(q: Any = q, k: Any = k, v: Any = v) -> None:
            Simulation(Decay(), 0.4, engine=engine.run)(0, q, k, v)

        label = f"{32 * batch} chains of {length} x {sizes['d']}, {sizes['dtype']}, {sizes['warps']} warps"
        try:
            with torch.inference_mode():
                full = milliseconds(partial(F.scaled_dot_product_attention, q, k, v, is_causal=True), 5)
                pruned = milliseconds(kernel_launcher(simulate, sizes["warps"]) if GPU else simulate, 5)
        except Exception as error:  # a number of warps may not compile
            yield f"{label}: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            continue
        yield f"{label}: {pruned:.3f} ms, full attention {full:.3f}, ratio {pruned / full:.2f}"


def kernel_launcher(simulate: Callable[[], object], warps: int) -> Callable[[], object]:
    """Return a function that launches only the kernel of `simulate`, with this number of warps.

    A CUDA graph cannot capture the code around the kernel.
    """
    from formerlab.kernels import pruned_attention

    starts = list[Callable[[], object]]()

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def start(*arguments: Any, **sizes: Any) -> None:
                sizes |= {"num_warps": warps, "maxnreg": pruned_attention.REGISTERS.get(warps)}
                keywords = {name: value for name, value in sizes.items() if value is not None}
                starts.append(partial(self.kernel[grid], *arguments, **keywords))
                starts[-1]()

            return start

    with patch.object(pruned_attention, "evict", Recorder(pruned_attention.evict)):
        simulate()
    return starts[0]


def decoding(options: Options) -> Lines:
    """Yield the time per decoding step (one token of every sequence), in ms.

    Our model decodes with transformers' DynamicCache, a full cache and a pruned cache, and with static steps of the
    last two. transformers' model decodes with its DynamicCache and its StaticCache; for StaticCache the first call,
    with compilation, is also timed.
    """
    size = full_or_rehearsal(
        {"prompt": 1024, "rounds": 4, "slice": 16, "vocabulary": 8192}, {"prompt": 102, "slice": 2}
    )
    for batch in (1, 16):
        settings = {"budgets": [0.4], "device": DEVICE, "compile": False, "transformers": True}
        options_of_batch = argparse.Namespace(**size, batch=batch, **settings)
        with torch.inference_mode():
            times, caches, _ = measure(options_of_batch)
        for name, seconds in times.items():
            ms = 1000 * batch * statistics.median(seconds)
            yield f"batch {batch}, {name}: {ms:.2f} ms per step, {caches[name].bytes() / 2**20:.0f} MiB"
    new_tokens = size["rounds"] * size["slice"]
    spec = Decoder(vocabulary=size["vocabulary"], layers=12, width=512, heads=8, context=size["prompt"] + new_tokens)
    model = Transformers(spec, DEVICE).model
    for batch in (1, 16):
        prompt = torch.randint(size["vocabulary"], (batch, size["prompt"]), device=DEVICE)

        def seconds(count: int, prompt: Any = prompt) -> float:
            began = time.perf_counter()
            settings = {"cache_implementation": "static", "do_sample": False, "pad_token_id": 0}
            model.generate(prompt, max_new_tokens=count, min_new_tokens=count, **settings)
            wait()
            return time.perf_counter() - began

        first = seconds(new_tokens)  # compiles
        ms = 1000 * (seconds(new_tokens) - seconds(1)) / (new_tokens - 1)
        yield f"batch {batch}, StaticCache of transformers' model: {ms:.2f} ms per step, {first:.0f} s the first time"


def stops(options: Options) -> Lines:
    """Yield exit status, time and last message of three runs.

    The first is stopped by SIGTERM, the second resumes it and is stopped again, and the third exceeds the GPU memory.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))}
    with tempfile.TemporaryDirectory() as results:
        values = [f"device={DEVICE}", f"results={results}", "tokenformer.steps=1000000"]
        run = "tokenformer/transformer-2/seed0"

        def run_command(*arguments: str, after_s: float | None = None) -> str:
            """Run a command, send SIGTERM `after_s` seconds after its stage has started, and describe how it ended."""
            overrides = [word for value in values for word in ("--set", value)]
            command = [sys.executable, "-m", "formerlab", *arguments, "--scale", "smoke", *overrides]
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
            began = time.monotonic()
            if after_s is not None:
                note = Path(results, "live/smoke", run, ".train.state.json")
                while process.poll() is None and '"running"' not in (note.read_text() if note.exists() else ""):
                    time.sleep(0.1)
                time.sleep(after_s)
                process.terminate()
                began = time.monotonic()
            errors = process.communicate()[1].strip().splitlines() or [""]
            return f"status {process.returncode} after {time.monotonic() - began:.1f} s: {errors[-1]}"

        run_command("data", "text")
        yield f"SIGTERM: {run_command('train', run, after_s=6)}"
        yield f"SIGTERM again, after it resumed: {run_command('train', run, after_s=6)}"
        if not GPU:
            yield "out of memory: not tried without a GPU"
            return
        large = {"task.context": 8192, "model.context": 8192, "model.width": 64, "task.batch": 4096}
        values += [f"tokenformer.{key}={value}" for key, value in (large | {"task.valid_windows": 1}).items()]
        yield f"out of memory: {run_command('train', 'tokenformer/tokenformer-1/seed0')}"
