"""Everything that a GPU is wanted for, in a programme of some nine minutes that prints every number when it has it.

    python benchmarks/gpu.py [--seconds 560] [--only pruning decoding] [--out FOLDER]

An item (gpu_kernels.py, gpu_steps.py) has a process of its own and a share of the time; what it leaves over goes to the
items after it. An item that fails or has no time left says so. Models that are compiled are compiled side by side.
FOLDER gets the lines (gpu.txt), the errors (gpu.log) and what the tests say (tests.log). Without a GPU the programme
rehearses itself: a tenth of the sizes, without inductor and without kernels.
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

SHARES = {
    "ceilings": 15,
    "tests": 60,
    "pruning": 90,
    "tokenformer": 120,
    "depth": 130,
    "decoding": 80,
    "stops": 40,
    "translator": 25,
}
"""Seconds of the items on a GPU, in their order."""


def main() -> None:
    """Run the items, each within its share of the time that is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=sum(SHARES.values()))
    parser.add_argument("--only", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument("--out", type=Path, default=Path(), help="where the files go; default: here")
    parser.add_argument("--item", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.item:
        measure(options)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    with open(options.out / "gpu.txt", "a") as file, open(options.out / "gpu.log", "a") as errors:

        def say(line: str) -> None:
            print(line, flush=True)
            print(line, file=file, flush=True)

        for place, item in enumerate(options.only):
            share = SHARES[item] / sum(SHARES[name] for name in options.only[place:])
            run_item(item, share * max(0.0, end - time.monotonic()), options.out, say, errors)


def run_item(item: str, limit: float, out: Path, say: Callable[[str], None], errors: Any) -> None:
    """Run an item in a process group of its own for `limit` seconds at most; say its lines, and how it ended."""
    words = [sys.executable, __file__, "--item", item, "--seconds", f"{limit:.0f}", "--out", str(out)]
    began = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    stopped = threading.Timer(limit, partial(os.killpg, process.pid, signal.SIGKILL))
    stopped.start()
    assert process.stdout is not None
    for line in process.stdout:
        say(f"{item:12}{line.rstrip()}")
    status = process.wait()
    stopped.cancel()
    ends = {0: "done", -signal.SIGKILL: "out of time"}
    took = f"{time.monotonic() - began:.0f} of {limit:.0f} s"
    say(f"{item:12}{ends.get(status, f'failed with status {status}, see gpu.log')} after {took}")


def measure(options: argparse.Namespace) -> None:
    """Print the lines of an item as they come."""
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
