"""Mixing weights that start to learn late (arXiv:2402.02622, Table 5)."""

import re

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._depth import gains, published_table
from formerlab.results.read import Results

STUDY = "denseformer"
READS = ("test.csv", "run.json")
RUNS = ("plain-*", "dwa-4x5-*", "late-*")
CAPTION = (
    "Held-out loss where the mixing weights of DenseFormer 4x5 wait at the identity for a share of the steps, "
    "after Table 5 of DenseFormer (arXiv:2402.02622). Gain is the loss of the plain Transformer minus that of the "
    "run, paired by seed, with its 95 % interval. Kept is the mean gain as a share of that of the run whose "
    "weights learn from the first step. The paper gives no intervals for delayed starts; its shares are "
    "recomputed in nats."
)
_COLUMNS = (
    *("source", "run", "layers", "start_share", "perplexity", "perplexity_low", "perplexity_high", "loss_nats"),
    *("gain_nats", "gain_nats_low", "gain_nats_high", "interval", "kept", "seeds"),
)


def table(results: Results) -> DataFrame:
    """Return a row per start, from the first step to never, for each depth; then Table 5."""
    ours = gains(results, STUDY, RUNS)
    if len(ours):
        ours = ours.assign(start_share=ours["run"].map(_shares(results)))
        late = set(ours.loc[ours["setting"] == "late", "layers"])
        ours = ours[ours["layers"].isin(late)].sort_values(["layers", "start_share"])
        immediate = ours[ours["run"].str.startswith("dwa-")].set_index("layers")
        if "gain_nats" in ours:
            ours["kept"] = ours["gain_nats"] / ours["layers"].map(immediate["gain_nats"])
    return pd.concat([ours, _published()], ignore_index=True).reindex(columns=list(_COLUMNS))


def _shares(results: Results) -> dict[str, float]:
    """Return, by run, the share of the steps after which its mixing weights start to learn: 1 where there are none."""
    runs = results.runs(STUDY, RUNS).drop_duplicates("run").set_index("run")
    starts = runs.get("spec.optimizer.mixing_start_step", pd.Series(0.0, runs.index)).fillna(0.0)
    shares = (starts / runs["spec.steps"]).mask(runs["spec.model.depth.kind"] == "identity", 1.0)
    return {str(run): float(share) for run, share in shares.items()}


def _published() -> DataFrame:
    rows = published_table("Table 5")
    found = [re.search(r"N=(\w+)", setting) for setting in rows["setting"]]
    steps = [40_000.0 if match is None or match[1] == "never" else float(match[1]) for match in found]
    rows = rows.assign(run=rows["model"], layers=48.0, start_share=np.array(steps) / 40_000)
    rows["gain_nats"] = np.log(rows["perplexity"].max() / rows["perplexity"])
    return rows.assign(kept=rows["gain_nats"] / rows["gain_nats"].max())
