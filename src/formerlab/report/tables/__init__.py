"""Tables: one file each; see `formerlab.report.figures`, which lists and draws both."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formerlab.results.read import Objection


def headline(root: Path, objection: "Objection | None" = None) -> str:
    """Return the main numbers of every study in `root` (results/<tree>/<scale>) as aligned text for a terminal."""
    from formerlab.report.tables import _headline  # pandas is imported only here

    return _headline.headline(root, objection)
