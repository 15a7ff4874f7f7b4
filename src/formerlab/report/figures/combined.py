"""Do the three ideas add up? Studied here only: arXiv:2410.23168 x arXiv:2402.02622 x arXiv:2407.20485."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import estimate, held_out_losses
from formerlab.report.style import GREY, NARROW
from formerlab.report.tables.combined import (
    INTERACTION,
    PAIRS,
    PRUNED,
    STUDY,
    cells,
    contrasts,
    effects_on_loss,
    levels,
)
from formerlab.results.read import Results
from formerlab.statistics import student

_MORE = "Decay minus H2O"


def _shrink_markers(axes: Axes, rows: DataFrame) -> None:
    """Draw markers that hide no interval."""
    for line in axes.get_lines():
        line.set_markersize(3)


def _minus_h2o(pruned: DataFrame) -> DataFrame:
    """Return the mean of the four models' loss with Decay minus the loss with H2O: a row over seeds, then a row per
    seed.
    """
    if pruned.empty:
        return DataFrame()
    decay, h2o = (DataFrame(pruned.xs(policy, axis=1, level="policy")) for policy in ("decay", "h2o"))
    values = (decay - h2o).mean(axis=1)
    seeds = DataFrame({"seed": values.index.astype(float), "cost_nats": values.to_numpy()})
    mean = DataFrame([estimate("cost_nats", student(values)) | {"seeds": len(values)}])
    return pd.concat([mean, seeds]).assign(kind="difference", name=_MORE, policy=_MORE, source="ours")


@plot(reads="test.csv prune.csv", draw=layout(
    Panel("effect_nats", "_label", by="_label", kind="forest", where={"kind": "effect"}, zero=0.0,
          title="Loss with minus loss without", xlabel="nats per token (left is better)"),
    Panel("cost_nats", "_label", by="_policy", kind="forest", where={"policy": [*PRUNED, _MORE]}, zero=0.0,
          name="legend", title="Cache of 40 % minus full", xlabel="nats per token (left is better)",
          finish=_shrink_markers),
    width=NARROW, columns=1
))  # fmt: skip
def combined_effects(results: Results, runs: list[str]) -> DataFrame:
    """Parameter tokens, averages over depth and a pruned cache together, at equal training tokens and about equal
    parameters. Above: the change of the held-out loss by averages, in models with linear layers and with parameter
    tokens, and by parameter tokens, without and with averages, on the whole test text. The interaction is the
    difference between the two effects of averages, which equals the difference between the two effects of parameter
    tokens. Below: the loss that H2O and Decay (alpha 0.2, no recent tokens) add with 40 % of the tokens, on fewer
    windows, and Decay minus H2O, averaged over the four models; the x axis has another range. Differences are paired by
    seed. To see: if the interval of the interaction includes zero, these seeds do not show that one change alters the
    effect of the other. The intervals are not corrected for multiple comparisons. No paper combines the three.
    """
    effects, pruned = effects_on_loss(held_out_losses(results, STUDY, runs)), cells(results, runs)
    selections = (
        [(pruned, np.nan), *((pruned.loc[[seed]], float(seed)) for seed in pruned.index)] if len(pruned) else []
    )
    frames = [frame.assign(seed=seed) for losses, seed in selections for frame in (levels(losses), contrasts(losses))]
    if not (frames := [*frames, *([effects] if len(effects) else [])]):
        return DataFrame()
    rows = pd.concat(frames, ignore_index=True).assign(source="ours")
    mean = rows[rows["name"].isin(PRUNED.values())]  # the main effect of a policy is its mean cost
    policies = mean["name"].map({label: policy for policy, label in PRUNED.items()})
    mean = mean.rename(columns=lambda name: name.replace("cost_", "_").replace("effect_", "cost_"))
    mean = mean.assign(name="mean of the four", policy=policies)
    rows = pd.concat([rows, mean.loc[:, ~mean.columns.str.startswith("_")], _minus_h2o(pruned)], ignore_index=True)
    styles, no_method = {name: style for name, (_, _, style) in PAIRS.items()}, [INTERACTION, _MORE]
    return rows.assign(
        _policy=rows["policy"].map(PRUNED | {_MORE: _MORE}),
        _color=rows["name"].map(dict.fromkeys(no_method, GREY)),
        _marker=rows["name"].map(dict.fromkeys(no_method, "D")),
        _label=rows["name"].str.replace(", ", ",\n").str.replace(" with", "\nwith"),
        _style=rows["name"].map(styles).fillna(rows["policy"]),
    )
