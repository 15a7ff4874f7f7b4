"""What figure and table of decoding share: speed and bytes of every cache at every length, from decode.csv."""

from collections.abc import Sequence

import numpy as np
from pandas import DataFrame

from formerlab.report.figures._pruning import ordered
from formerlab.results.read import Results

FILE = "decode.csv"
_POINT = ["run", "sequences", "length"]
_ARM = ["policy", "alpha", "recent", "budget"]


def decoding(results: Results, study: str, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, number of sequences, cache and length: medians and quartiles over the repetitions.

    `tokens_per_s` counts the tokens of all sequences. `speed_ratio` is the speed divided by that of our whole cache in
    the same repetition, `cache_share` the bytes of keys and values divided by those of that cache.
    """
    rows = results.rows_of_study(FILE, study)
    rows = rows[rows["run"].isin(results.runs(study, runs)["run"])]
    if rows.empty:
        return DataFrame(columns=["source"])
    full = rows[rows["policy"] == "full"].set_index([*_POINT, "repetition"])
    rows = rows.join(full[["time_s", "cache_bytes"]].add_suffix("_full"), on=[*_POINT, "repetition"])
    rows["tokens_per_s"] = rows["sequences"] / rows["time_s"]
    rows["speed_ratio"] = rows["time_s_full"] / rows["time_s"]
    rows["cache_share"] = rows["cache_bytes"] / rows["cache_bytes_full"]
    table = []
    for key, group in rows.groupby([*_POINT, *_ARM], sort=False, dropna=False):
        row = dict(zip([*_POINT, *_ARM], key, strict=True))
        for name in ("tokens_per_s", "speed_ratio"):
            low, middle, high = np.quantile(group[name], (0.25, 0.5, 0.75))
            row |= {name: middle, f"{name}_low": low, f"{name}_high": high}
        row |= {name: float(group[name].median()) for name in ("cache_bytes", "book_bytes", "cache_share")}
        table.append(row | {"repetitions": len(group)})
    found = ordered(DataFrame(table)).assign(source="ours")
    found["arm"] = [_with_budget(arm, budget) for arm, budget in zip(found["arm"], found["budget"], strict=True)]
    return found.sort_values(["run", "sequences", "length"], kind="stable", ignore_index=True)


def _with_budget(arm: str, budget: float) -> str:
    return arm if budget == 1.0 else f"{arm}, {size_of(budget)}"


def size_of(budget: float) -> str:
    """Return what a reader calls the budget of a pruned cache."""
    return f"{100 * budget:g} %" if budget < 1 else f"{budget:g} entries"
