"""Do the three ideas add up? Studied here only: arXiv:2410.23168 x arXiv:2402.02622 x arXiv:2407.20485."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import by_seed, estimate, held_out_losses, subtract
from formerlab.report.tables.combined import PRUNED, STUDY, cells, contrasts, levels
from formerlab.results.read import Results
from formerlab.statistics import student

PAIRS = {
    "averages, linear layers": ("linear-plain", "linear-dwa", "DenseFormer 1x1"),
    "averages, parameter tokens": ("pattention-plain", "pattention-dwa", "DenseFormer 1x1"),
    "parameter tokens, no averages": ("linear-plain", "pattention-plain", "Tokenformer"),
    "parameter tokens, averages": ("linear-dwa", "pattention-dwa", "Tokenformer"),
}
"""Comparison to the run without a part, the run with it, and the name whose plot style it has."""
_DIFFERENCE = "difference within a pair"


def gains(losses: DataFrame) -> DataFrame:
    """Return the decrease in held-out loss that a part brings, and the difference within the two pairs of PAIRS.

    The difference is the gain beside the other part minus the gain without it, which is the same for both parts.
    """
    found = {name: subtract(by_seed(losses, old), by_seed(losses, new)) for name, (old, new, _) in PAIRS.items()}
    first, second, *_ = found.values()
    found[_DIFFERENCE] = subtract(second, first)
    rows = []
    for name, values in found.items():
        shared = {"kind": "gain", "name": name, "run": PAIRS[name][1] if name in PAIRS else "pattention-dwa"}
        if len(values):
            rows.append(shared | estimate("gain_nats", student(values)) | {"seeds": len(values)})
        rows += [shared | {"seed": seed, "gain_nats": value} for seed, value in values.items()]
    return DataFrame(rows)


@plot(reads="test.csv prune.csv", draw=layout(
    Panel("gain_nats", "_label", by="_label", kind="forest", where={"kind": "gain"}, zero=0.0,
          title="{setting}: lower loss", xlabel="nats per token (right is better)"),
    Panel("cost_nats", "_label", by="_policy", kind="forest", where={"policy": [*PRUNED]}, zero=0.0, name="legend",
          title="Loss that a cache of 40 % adds", xlabel="nats per token (left is better)")
))  # fmt: skip
def combined_effects(results: Results, runs: list[str]) -> DataFrame:
    """Parameter tokens, averages over depth and a pruned cache together, at equal training tokens and about equal
    parameters. Left: how much lower the held-out loss is with averages, and with parameter tokens in place of linear
    layers, each without and with the other, on the whole test text. Both pairs have the same difference by arithmetic.
    Right: the loss that H2O and Decay (alpha 0.2, no recent part) add with 40 % of the tokens, on fewer windows and
    another scale. Differences are paired by seed. To see: if the interval of the difference includes zero, these seeds
    do not show that one idea changes the effect of another. The intervals are not corrected for their number.
    No paper combines the three.
    """
    found = gains(held_out_losses(results, STUDY, runs))
    pruned = cells(results, runs)
    parts = [(pruned, np.nan), *((pruned.loc[[seed]], float(seed)) for seed in pruned.index)] if len(pruned) else []
    frames = [frame.assign(seed=seed) for some, seed in parts for frame in (levels(some), contrasts(some))]
    if not (frames := [*frames, *([found] if len(found) else [])]):
        return DataFrame()
    found = pd.concat(frames, ignore_index=True).assign(source="ours")
    looks = {name: style for name, (_, _, style) in PAIRS.items()} | {_DIFFERENCE: "main"}
    return found.assign(
        _policy=found["policy"].map(PRUNED),
        _label=found["name"].str.replace(", ", ",\n"),
        _look=found["name"].map(looks).fillna(found["policy"]),
    )
