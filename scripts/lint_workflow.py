"""`snakemake --lint` without the advice that this workflow declines on purpose; fails if any other is left."""

import subprocess
import sys
from collections.abc import Iterator

DECLINED = {
    "Specify a conda environment or container for each rule.",  # all rules share the environment of requirements.lock
}


def findings(text: str) -> Iterator[tuple[str, str]]:
    """Yield each piece of advice as where and what."""
    where = ""
    for line in text.splitlines():
        if line.startswith("Lints for "):
            where = line.removeprefix("Lints for ").rstrip(":")
        elif line.startswith("    * "):
            yield where, line.removeprefix("    * ").rstrip(":")


def main() -> int:
    """Print the findings that count."""
    done = subprocess.run([sys.executable, "-m", "snakemake", "--lint"], capture_output=True, text=True)
    found = list(findings(done.stdout + done.stderr))
    if done.returncode and not found:
        print(done.stdout + done.stderr, file=sys.stderr)
        return done.returncode
    counting = [f"{where}: {what}" for where, what in found if what not in DECLINED]
    print("\n".join(counting) or f"workflow: good ({len(found)} declined, see {sys.argv[0]})")
    return 1 if counting else 0


if __name__ == "__main__":
    sys.exit(main())
