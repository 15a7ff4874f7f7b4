"""Run `snakemake --lint` and fail if it gives advice that is not in DECLINED."""

import subprocess
import sys
from collections.abc import Iterator

DECLINED = {
    "Specify a conda environment or container for each rule.",  # all rules share the environment of requirements.lock
}


def findings(text: str) -> Iterator[tuple[str, str]]:
    """Yield each piece of advice as (location, advice)."""
    location = ""
    for line in text.splitlines():
        if line.startswith("Lints for "):
            location = line.removeprefix("Lints for ").rstrip(":")
        elif line.startswith("    * "):
            yield location, line.removeprefix("    * ").rstrip(":")


def main() -> int:
    """Print advice that is not in DECLINED, and return 1 if there is any."""
    result = subprocess.run([sys.executable, "-m", "snakemake", "--lint"], capture_output=True, text=True)
    advice = list(findings(result.stdout + result.stderr))
    if result.returncode and not advice:
        print(result.stdout + result.stderr, file=sys.stderr)
        return result.returncode
    remaining = [f"{location}: {finding}" for location, finding in advice if finding not in DECLINED]
    print("\n".join(remaining) or f"workflow: good ({len(advice)} declined, see {sys.argv[0]})")
    return 1 if remaining else 0


if __name__ == "__main__":
    sys.exit(main())
