"""Do the three ideas add up? Ours alone: arXiv:2410.23168 x arXiv:2402.02622 x arXiv:2407.20485."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.combined import PRUNED, cells, contrasts, levels
from formerlab.report.drawings import Plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.style import BLACK, BLUE, GREY, SKY, VERMILION
from formerlab.results.read import Results

_LOOKS = {
    "Linear, plain": (BLACK, "o"),
    "Linear, DWA": (GREY, "s"),
    "Pattention, plain": (BLUE, "^"),
    "Pattention, DWA": (SKY, "D"),
}


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per cell and per contrast, then the same of every `seed`."""
    by_seed = cells(results, runs)
    if not by_seed:
        return DataFrame()
    parts = [(by_seed, np.nan), *(({seed: found}, float(seed)) for seed, found in by_seed.items())]
    frames = [frame.assign(seed=seed) for some, seed in parts for frame in (levels(some), contrasts(some))]
    return pd.concat(frames, ignore_index=True).assign(source="ours")


def draw(data: DataFrame) -> Figure:
    """Draw what the models lose and the contrasts of that; below, for each policy, what pruning costs and the same."""
    data = data.assign(part=data["seed"].notna().map({True: "seed", False: "mean"}))
    named = data["name"].str.extract(f"({'|'.join(PRUNED.values())})")[0].fillna("whole")
    rows = data.assign(family=data["policy"].where(data["kind"].eq("cell"), named), effect="interaction")
    rows = rows.assign(effect=rows["effect"].where(rows["kind"] != "main", "main effect"))
    forest = partial(Panel, y="name", kind="forest", zero=0.0, xlabel="nats per token")
    contrast = partial(forest, "effect_nats", by="name", style=lambda _, rows: {
        "color": BLACK if rows["kind"].eq("main").all() else VERMILION, "marker": "o"})  # fmt: skip
    panels = [
        Panel("loss_nats", "name", by="name", kind="forest", where={"family": "full"}, style=_LOOKS,
              title="{setting}: loss, whole cache", xlabel="held-out loss (nats per token)"),
        contrast(where={"family": "whole"}, title="Effects (black) and interaction"),
    ]  # fmt: skip
    for policy, name in PRUNED.items():
        panels.append(forest("cost_nats", by="name", where={"family": policy}, style=_LOOKS,
                             title=f"Loss that {name} adds at 40 % of the tokens"))  # fmt: skip
        panels.append(contrast(where={"family": name}, title=f"Mean of that (black) and interactions with {name}"))
    return sheet(*panels)(rows)


combined_effects = Plot(
    reads=("prune.csv", "run.json"),
    runs=("*",),
    caption=(
        "Parameters as tokens, averages over depth and a pruned cache together. Linear or Pattention x plain or DWA x "
        "Full, H2O or Decay (alpha 0.2, no recent part) at 40 % of the tokens, at equal tokens and about equal "
        "parameters. Above: held-out loss with the whole cache. Below: what each policy costs each model. Right: the "
        "factorial contrasts, paired by seed, below zero is better. To see: an interaction whose bar crosses zero "
        "gives no sign that one idea changes what another brings, at this precision. Eleven intervals are not "
        "corrected for their number. No paper combines the three; nothing is published."
    ),
    data=data,
    draw=draw,
)
