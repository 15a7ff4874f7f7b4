"""What MLflow is told about the claims of a study: their verdicts, as tags."""

from pathlib import Path

import pandas as pd

FILES = ("claims.csv", "claims.html")
"""What the command `claims` leaves in the folder of the figures."""
LONGEST_TAG = 5000


def claim_tags(figures: Path, study: str) -> dict[str, str]:
    """Return the verdicts on the study's claims; nothing before they were judged.

    `claim.<id>` is the verdict in a word, `claim.<id>.ours` what was found, `claim.<id>.reason` why it is not tested,
    and `claim.<id>.changed` marks a younger criterion.
    """
    path = figures / FILES[0]
    if not path.exists():
        return {}
    rows = pd.read_csv(path).drop_duplicates("claim")
    rows = rows[rows["claim"].str.startswith(f"{study}-")]
    columns = {"": rows["outcome"], ".ours": rows["ours"], ".reason": rows["reason"], ".changed": rows["changed"]}
    return {
        f"claim.{claim}{ending}": text[:LONGEST_TAG]
        for ending, column in columns.items()
        for claim, text in zip(rows["claim"], column, strict=True)
        if isinstance(text, str)
    }
