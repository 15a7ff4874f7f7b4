"""How long a plan of thousands of jobs takes, and Snakemake's dry run of it.

    python benchmarks/plan.py [SEEDS]

Run it in the root of a checkout. The laptop scale has 20 jobs per seed; 250 seeds make 5 000.
"""

import json
import resource
import subprocess
import sys
import time

SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 250


def timed(name: str, words: list[str]) -> None:
    """Run a command and print its wall and processor time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    total = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("total ")]
    print(f"{name:<20} {wall:6.1f} s, {processor:6.1f} s of a core, {total[0] if total else '-'} jobs")


seeds = json.dumps(list(range(SEEDS)))
given = ["--config", "scale=laptop", f"seeds={seeds}"]
timed("plan", [sys.executable, "-m", "formerlab", "plan", "--scale", "laptop", "--set", f"seeds={seeds}"])
dry = [sys.executable, "-m", "snakemake", "-n", "--quiet", "rules", *given]
timed("plan and dry run", dry)
timed("dry run", dry)
