"""A released model under cache policies, for `make released`: accuracy and loss by budget."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from pandas import DataFrame

from formerlab.report.panel import Panel, sheet
from formerlab.report.pruning import NAMES
from formerlab.report.style import SETTINGS


def summarised(means: Sequence[Mapping[str, Any]], questions: int) -> DataFrame:
    """Return a row per policy and budget: the accuracy in percent with its 95 % interval, and the loss in nats.

    `means` are those of `run_sweep` with equally many questions of every kind and one text; `questions` counts all.
    """
    rows = []
    for row in means:
        (loss,) = (value for name, value in row.items() if name.endswith(" loss"))
        right = [100 * float(value) for name, value in row.items() if name.endswith(" acc")]
        mean = sum(right) / len(right)
        half = 1.96 * math.sqrt(mean * (100 - mean) / questions)
        policy = f"decay {row['alpha']:g}" if row["policy"] == "decay" else str(row["policy"])
        ends = {"accuracy_percent": mean, "accuracy_percent_low": mean - half, "accuracy_percent_high": mean + half}
        rows.append({"source": "ours", "policy": policy, "budget": row["budget"]} | ends | {"loss_nats": loss})
    return DataFrame(rows)


def picture(rows: DataFrame, chance: float, title: str, path: Path) -> None:
    """Draw accuracy and loss against the budget as .png and .pdf; the whole cache is a line over all budgets."""
    kinds = rows["policy"].str.split().str[0]
    series = [name.replace(kind, NAMES[kind]) for name, kind in zip(rows["policy"], kinds, strict=True)]
    data = rows.assign(kind=kinds, series=series, percent=(100 * rows["budget"]).where(kinds != "full"))
    panel = partial(
        Panel, "percent", by="series", name="legend", style="kind", xlabel="budget (%)", ticks="{:g}".format
    )
    with matplotlib.rc_context(SETTINGS):
        drawn = sheet(
            panel("accuracy_percent", title=title, ylabel="accuracy (%)", zero=chance),
            panel("loss_nats", title="smaller is better", ylabel="loss (nats a token)"),
        )(data)
        for ending in ("png", "pdf"):
            drawn.savefig(path.with_suffix(f".{ending}"), dpi=150)
