"""Do the three ideas add up? Ours alone: arXiv:2410.23168 x arXiv:2402.02622 x arXiv:2407.20485."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.combined import PRUNED, cells, contrasts, levels
from formerlab.report.drawings import Plot
from formerlab.report.panel import Panel, Style, sheet
from formerlab.report.style import BLACK, BLUE, GREY, SKY, VERMILION, Look
from formerlab.results.read import Results

STUDY = "combined"
_LOOKS = {
    "linear-plain": Look(BLACK, "o"),
    "linear-dwa": Look(GREY, "s"),
    "pattention-plain": Look(BLUE, "^"),
    "pattention-dwa": Look(SKY, "D"),
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
    cells_, effects = data[data["kind"] == "cell"], data[data["kind"] != "cell"]
    family = effects["name"].str.extract(f"({'|'.join(PRUNED.values())})")[0].fillna("whole")
    projection = cells_["run"].str.partition("-")[0]
    mixer = cells_["run"].str.endswith("dwa").astype(float)
    cells_ = cells_.assign(family=cells_["policy"], series=projection.str.capitalize(), mixer=mixer)
    rows = pd.concat([cells_, effects.assign(family=family)])
    panels = [
        Panel("mixer", "loss_nats", by="series", where={"family": "full"}, ticks=lambda x: "DWA" if x else "plain",
              title="Loss with the whole cache", xlabel="depth mixer", ylabel="held-out loss (nats per token)",
              style=lambda name, _: dict(zip(("color", "marker"), _LOOKS[f"{name.lower()}-plain"], strict=True))),
        _contrasts("whole", "Effects (black) and interactions"),
    ]  # fmt: skip
    for policy, name in PRUNED.items():
        panels.append(
            Panel("cost_nats", "name", by="name", kind="forest", where={"family": policy}, zero=0.0,
                  title=f"Cost of {name} at 40 % of the tokens", xlabel="loss added (nats per token)",
                  style=lambda _, rows: dict(zip(("color", "marker"), _LOOKS[rows["run"].iloc[0]], strict=True)))
        )  # fmt: skip
        panels.append(_contrasts(name, f"Mean cost of {name} (black) and interactions"))
    return sheet(*panels)(rows)


def _contrasts(family: str, title: str) -> Panel:
    return Panel("effect_nats", "name", by="name", kind="forest", where={"family": family}, zero=0.0, title=title,
                 xlabel="nats per token", style=_of_kind)  # fmt: skip


def _of_kind(name: str, rows: DataFrame) -> Style:
    return {"color": BLACK if rows["kind"].eq("main").all() else VERMILION, "marker": "o"}


combined_effects = Plot(
    reads=("prune.csv", "run.json"),
    runs=("*",),
    caption=(
        "Parameters as tokens, averages over depth and a pruned cache together. Linear or Pattention x plain or DWA x "
        "Full, H2O or Decay (alpha 0.2, no recent part) at 40 % of the tokens, at equal tokens and about equal "
        "parameters. Above: held-out loss with the whole cache, where parallel lines "
        "mean that Pattention and DWA add up. Below: what each policy costs each model. Right: the factorial "
        "contrasts. Every panel has a scale of its own. "
        "Below zero is better. To see: an interaction whose bar crosses zero gives no sign that one idea changes what "
        "another brings, at this precision. Eleven intervals are not corrected for their number. No paper combines the "
        "three; nothing is published."
    ),
    data=data,
    draw=draw,
)
