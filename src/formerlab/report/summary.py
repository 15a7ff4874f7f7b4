"""Means over seeds with their intervals, as tidy rows that figures and tables share.

`part` is `mean`, or `seed` for a value that a mean is made of. Seeds share data and batches, so differences are paired
by seed before they are averaged.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.report.runs import ends
from formerlab.statistics import student


def summary(
    rows: DataFrame, value: str, by: Sequence[str], minus: Mapping[Hashable, str] | None = None, name: str = ""
) -> DataFrame:
    """Return the mean over seeds of a value for each group of `by`, then its values by seed.

    `rows` have one value per group and seed (`statistics.weighted_means`). `minus` names for a run the one whose value
    of the same seed is subtracted; runs that it does not name are left out. `name` is what the result is called.
    """
    name = name or value
    if minus is not None:
        level = rows.drop_duplicates(["run", "seed"]).set_index(["run", "seed"])[value]
        rows = rows[rows["run"].isin(list(minus))]
        places = list(zip(rows["run"].map(minus), rows["seed"], strict=True))
        rows = rows.assign(**{value: rows[value] - level.reindex(places).to_numpy()}).dropna(subset=value)
    means = []
    for key, group in rows.groupby([*by], sort=False, dropna=False):
        interval = student(group[value])
        means.append(dict(zip(by, key, strict=True)) | ends(name, interval) | {"seeds": interval.seeds})
    seeds = rows[[*by, "seed", value]].rename(columns={value: name}).assign(part="seed")
    found = pd.concat([DataFrame(means).assign(part="mean"), seeds], ignore_index=True)
    found.insert(0, "source", "ours")
    return found


def differences(a: Mapping[int, float], b: Mapping[int, float], **shared: Any) -> list[dict[str, Any]]:
    """Return rows of a - b by seed: one of each seed (`part` is `seed`), and their mean with Student's interval."""
    by_seed = {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}
    if not by_seed:
        return []
    common = {"source": "ours"} | shared
    rows = [common | {"part": "seed", "seed": seed, "difference_nats": value} for seed, value in by_seed.items()]
    interval = student(list(by_seed.values()))
    return [*rows, common | {"part": "mean", "seeds": interval.seeds} | ends("difference_nats", interval)]


def published_difference(nats: float, series: str) -> dict[str, Any]:
    """Return the row of a published difference, which is drawn as a line beside ours; `series` says whose it is."""
    return {"source": "published", "part": "published", "series": series, "difference_nats": nats}
