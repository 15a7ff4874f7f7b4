"""Do the three ideas add up? Ours alone: arXiv:2410.23168 x arXiv:2402.02622 x arXiv:2407.20485."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.tables.combined import PRUNED, cells, contrasts, levels
from formerlab.results.read import Results


def draw(data: DataFrame) -> Figure:
    """Draw what the models lose and the contrasts of that; below, for each policy, what pruning costs and the same."""
    named = data["name"].str.extract(f"({'|'.join(PRUNED.values())})")[0].fillna("whole")
    family = data["policy"].where(data["kind"].eq("cell"), named)
    part = data["seed"].notna().map({True: "seed", False: "mean"})
    titles = {"full": "{setting}: loss, whole cache", "whole": "Effects (black) and interaction"}
    for policy, name in PRUNED.items():
        titles[policy] = f"Loss that {name} adds at 40 % of the tokens"
        titles[name] = f"Mean of that (black) and interactions with {name}"
    panels = []
    for key, title in titles.items():
        cell = key in ("full", *PRUNED)
        value = "loss_nats" if key == "full" else "cost_nats" if cell else "effect_nats"
        panels.append(
            Panel(value, "name", by="name", kind="forest", where={"family": key}, title=title,
                  zero=None if key == "full" else 0.0, style="name" if cell else "kind", xlabel="nats per token")
        )  # fmt: skip
    return sheet(*panels)(data.assign(family=family, part=part))


@plot(
    reads=("prune.csv", "run.json"),
    runs=("*",),
    draw=draw,
)
def combined_effects(results: Results, runs: Sequence[str]) -> DataFrame:
    """Parameters as tokens, averages over depth and a pruned cache together. Linear or Pattention x plain or DWA x
    Full, H2O or Decay (alpha 0.2, no recent part) at 40 % of the tokens, at equal tokens and about equal parameters.
    Above: held-out loss with the whole cache. Below: what each policy costs each model. Right: the factorial contrasts,
    paired by seed, below zero is better. To see: an interaction whose bar crosses zero gives no sign that one idea
    changes what another brings, at this precision. Eleven intervals are not corrected for their number. No paper
    combines the three; nothing is published.
    """
    by_seed = cells(results, runs)
    if not by_seed:
        return DataFrame()
    parts = [(by_seed, np.nan), *(({seed: found}, float(seed)) for seed, found in by_seed.items())]
    frames = [frame.assign(seed=seed) for some, seed in parts for frame in (levels(some), contrasts(some))]
    return pd.concat(frames, ignore_index=True).assign(source="ours")
