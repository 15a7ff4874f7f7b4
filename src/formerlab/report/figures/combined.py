"""Do the three ideas add up? Studied here only: arXiv:2410.23168 x arXiv:2402.02622 x arXiv:2407.20485."""

from functools import partial

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.tables.combined import PRUNED, cells, contrasts, levels
from formerlab.results.read import Results

_panel = partial(Panel, y="name", by="name", kind="forest", zero=0.0, xlabel="nats per token")


def _of_policy(policy: str, name: str) -> tuple[Panel, Panel]:
    return (
        _panel("cost_nats", where={"_family": policy}, title=f"Loss that {name} adds at 40 % of the tokens"),
        _panel("effect_nats", where={"_family": name}, style="kind",
               title=f"Mean of that (black) and interactions with {name}"),
    )  # fmt: skip


@plot(reads="prune.csv", draw=sheet(
    _panel("loss_nats", where={"_family": "full"}, zero=None, title="{setting}: loss, whole cache"),
    _panel("effect_nats", where={"_family": "whole"}, style="kind", title="Effects (black) and interaction"),
    *_of_policy("h2o", "H2O"),
    *_of_policy("decay", "Decay")
))  # fmt: skip
def combined_effects(results: Results, runs: list[str]) -> DataFrame:
    """Parameter tokens, averages over depth and a pruned cache together. Linear or Pattention x plain or DWA x Full,
    H2O or Decay (alpha 0.2, no recent part) at 40 % of the tokens, at equal training tokens and about equal parameters.
    Left: held-out loss with the full cache, and the loss that each policy adds. Right: the factorial contrasts, paired
    by seed; below zero is better. To see: an interaction whose bar crosses zero shows no sign, at this precision, that
    one idea changes the effect of another. The eleven intervals are not corrected for their number. No paper combines
    the three.
    """
    found = cells(results, runs)
    if found.empty:
        return DataFrame()
    parts = [(found, np.nan), *((found.loc[[seed]], float(seed)) for seed in found.index)]
    frames = [frame.assign(seed=seed) for some, seed in parts for frame in (levels(some), contrasts(some))]
    found = pd.concat(frames, ignore_index=True).assign(source="ours")
    named = found["name"].str.extract(f"({'|'.join(PRUNED.values())})")[0].fillna("whole")
    return found.assign(_family=found["policy"].where(found["kind"].eq("cell"), named))
