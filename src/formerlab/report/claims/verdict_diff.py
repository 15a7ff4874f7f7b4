"""Verdicts that changed between two states of the rows: two files claims.csv side by side."""

from pathlib import Path

import pandas as pd
from pandas import DataFrame

from formerlab.errors import UserError

_KEY = ["claim", "item"]
_READ = (*_KEY, "kind", "verdict", "ours")
ABSENT = "not registered"


def read_verdicts(path: Path) -> DataFrame:
    """Return the rows of a claims.csv. Raises UserError where it is not such a file."""
    try:
        rows = pd.read_csv(path, dtype=str)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]}); name a claims.csv") from None
    if missing := [column for column in _READ if column not in rows]:
        raise UserError(f"{path}: lacks the column '{missing[0]}'; name a claims.csv, which claims --out writes")
    return rows


def changed(then: DataFrame, now: DataFrame) -> DataFrame:
    """Return a row per claim and item whose verdict is another: claim, item, kind, then, now, and both numbers.

    A claim, or an item, that one of them lacks counts as not registered there.
    """
    both = [rows[list(_READ)].fillna("").drop_duplicates(_KEY) for rows in (then, now)]
    table = both[0].merge(both[1], on=_KEY, how="outer", suffixes=("_then", "_now"))
    table["kind"] = table["kind_now"].fillna(table["kind_then"])
    table = table.rename(columns={"verdict_then": "then", "verdict_now": "now"}).fillna({"then": ABSENT, "now": ABSENT})
    shown = (
        table[table["then"] != table["now"]]
        .fillna("")
        .sort_values(["kind", "claim", "item"], ascending=[False, True, True])
    )
    return shown[[*_KEY, "kind", "then", "now", "ours_then", "ours_now"]].reset_index(drop=True)


def text(then: DataFrame, now: DataFrame) -> str:
    """Return the changes for a terminal, measured and exact claims counted apart."""
    found = changed(then, now)
    lines = []
    for kind in ("measured", "exact"):
        claims = {str(name) for rows in (then, now) for name in rows.loc[rows["kind"] == kind, "claim"]}
        others = found.loc[found["kind"] == kind, "claim"].nunique()
        lines.append(f"Of {len(claims)} {kind} claims {others} have another verdict.")
    shown = found[["claim", "item", "then", "now", "ours_now"]]
    return " ".join(lines) + (
        f"\n\n{shown.to_string(index=False, justify='left', max_colwidth=60)}" if len(shown) else ""
    )
