"""Run the benchmarks of gpu_kernels.py and gpu_steps.py on a GPU in about nine minutes.

The script prints every number as soon as it is measured.

    python benchmarks/gpu.py [--seconds 560] [--only pruning decoding] [--out FOLDER]

An item is a function of gpu_kernels.py or gpu_steps.py. Each item runs in a separate process with a fraction of the
time; later items get the unused time. If an item fails or runs out of time, a line says so. Models are compiled in
parallel. FOLDER gets the output (gpu.txt), the errors (gpu.log) and the output of the tests (tests.log). Without a GPU
the script runs as a rehearsal with much smaller sizes, without inductor and without Triton kernels.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

SECONDS = {
    "peak_rates": 15,
    "tests": 60,
    "pruning": 90,
    "tokenformer": 120,
    "depth": 130,
    "decoding": 80,
    "stops": 40,
    "translator": 25,
}
"""Seconds of each item on a GPU, in the order in which the items run."""


def main() -> None:
    """Run the items, each within its fraction of the remaining time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=sum(SECONDS.values()))
    parser.add_argument("--only", nargs="+", choices=SECONDS, default=list(SECONDS))
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the files; default: working directory")
    parser.add_argument("--item", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.item:
        measure(options)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    with open(options.out / "gpu.txt", "a") as file, open(options.out / "gpu.log", "a") as errors:

        def log(line: str) -> None:
            print(line, flush=True)
            print(line, file=file, flush=True)

        for index, item in enumerate(options.only):
            fraction = SECONDS[item] / sum(SECONDS[name] for name in options.only[index:])
            run_item(item, fraction * max(0.0, end - time.monotonic()), options.out, log, errors)


def run_item(item: str, limit: float, out: Path, log: Callable[[str], None], errors: Any) -> None:
    """Run an item in a separate process group for at most `limit` seconds; print its lines and its exit status."""
    command = [sys.executable, __file__, "--item", item, "--seconds", f"{limit:.0f}", "--out", str(out)]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    stopped = threading.Timer(limit, partial(os.killpg, process.pid, signal.SIGKILL))
    stopped.start()
    assert process.stdout is not None
    for line in process.stdout:
        log(f"{item:12}{line.rstrip()}")
    status = process.wait()
    stopped.cancel()
    ends = {0: "done", -signal.SIGKILL: "out of time"}
    took = f"{time.monotonic() - began:.0f} of {limit:.0f} s"
    log(f"{item:12}{ends.get(status, f'failed with status {status}, see gpu.log')} after {took}")


def measure(options: argparse.Namespace) -> None:
    """Run an item in this process and print its lines."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
    import gpu_steps

    if not gpu_steps.GPU:
        gpu_steps.torch.compile = partial(gpu_steps.torch.compile, backend="aot_eager")
    item = getattr(gpu_steps, options.item, None)
    if item is None:
        import gpu_kernels

        item = getattr(gpu_kernels, options.item)
    for line in item(options):
        print(line, flush=True)


if __name__ == "__main__":
    main()
