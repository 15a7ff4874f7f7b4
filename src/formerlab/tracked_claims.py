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

    `claim.<id>` is the verdict in a word, `claim.<id>.ours` what was found; `claims/<verdict>` counts them.
    """
    path = figures / FILES[0]
    if not path.exists():
        return {}, {}
    rows = pd.read_csv(path).drop_duplicates("claim")
    rows = rows[rows["claim"].str.startswith(f"{study}-")]
    words = {str(claim): _word(verdict) for claim, verdict in zip(rows["claim"], rows["verdict"], strict=True)}
    tags = {f"claim.{claim}": word for claim, word in words.items()}
    found = rows[rows["ours"].notna()]
    tags |= {
        f"claim.{claim}.ours": ours[:LONGEST_TAG] for claim, ours in zip(found["claim"], found["ours"], strict=True)
    }
    metrics = {f"claims/{word.replace(' ', '_')}": float(count) for word, count in Counter(words.values()).items()}
    corrected = rows[rows["holm_p"].notna()]
    metrics |= {f"claims/{c}/holm_p": float(p) for c, p in zip(corrected["claim"], corrected["holm_p"], strict=True)}
    return tags, metrics


def _word(verdict: str) -> str:
    """Return `holds` of `holds at overnight (provisional)`."""
    return verdict.partition(" at ")[0]
