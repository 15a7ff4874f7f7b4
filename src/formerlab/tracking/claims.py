"""What MLflow is told about the claims of a study: verdicts as tags, counts and corrected p as metrics."""

from collections import Counter
from pathlib import Path

import pandas as pd

FILES = ("claims.csv", "claims.html")
"""What the command `claims` leaves in the folder of the figures."""
LONGEST_TAG = 5000


def claim_files(figures: Path) -> list[Path]:
    """Return the files with the verdicts, as far as they exist."""
    return [path for name in FILES if (path := figures / name).exists()]


def claim_tags(figures: Path, study: str) -> tuple[dict[str, str], dict[str, float]]:
    """Return tags and metrics of the study's claims; none before they were judged.

    `claim.<id>` is the verdict in a word (withdrawn: with its reason), `claim.<id>.ours` what was found, and
    `claim.<id>.changed` marks a younger criterion; `claims/<kind>/<verdict>` counts, exact and measured apart.
    """
    path = figures / FILES[0]
    if not path.exists():
        return {}, {}
    rows = pd.read_csv(path).drop_duplicates("claim")
    rows = rows[rows["claim"].str.startswith(f"{study}-")]
    shown = rows["outcome"].where(rows["outcome"] != "withdrawn", rows["verdict"])
    tags = {f"claim.{claim}": word[:LONGEST_TAG] for claim, word in zip(rows["claim"], shown, strict=True)}
    for column in ("ours", "changed"):
        found = rows[rows[column].notna()]
        tags |= {
            f"claim.{c}.{column}": text[:LONGEST_TAG] for c, text in zip(found["claim"], found[column], strict=True)
        }
    words = Counter(zip(rows["kind"], rows["outcome"], strict=True))
    metrics = {f"claims/{kind}/{word.replace(' ', '_')}": float(count) for (kind, word), count in words.items()}
    corrected = rows[rows["holm_p"].notna()]
    metrics |= {f"claims/{c}/holm_p": float(p) for c, p in zip(corrected["claim"], corrected["holm_p"], strict=True)}
    return tags, metrics
