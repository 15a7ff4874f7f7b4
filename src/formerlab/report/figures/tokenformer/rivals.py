"""A Tokenformer and its rivals: the gap by budget, and growth in width (arXiv:2410.23168, Fig 7, Table 8)."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.figures.denseformer.gain import forest_of_differences
from formerlab.report.panel import Panel, sheet
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.rates import last_losses
from formerlab.report.runs import differences, held_out, held_out_losses, minus, published_difference, summary
from formerlab.report.tokenformer import METHODS, STAGES, before_growth, by_step, means
from formerlab.results.read import Results

STUDY = "tokenformer"
OURS, RIVALS = "matched", ("modern", "classic")


def _best(losses: DataFrame, validation: dict[str, float]) -> dict[tuple[str, float], str]:
    """Return, by arm and tokens, the run with the lowest validation loss at its end, the mean over seeds."""
    found: dict[tuple[str, float], dict[str, float]] = {}
    for run, group in losses.groupby("run"):
        for arm in (OURS, *RIVALS):
            if any(fnmatchcase(str(run), pattern) for pattern in (f"{arm}-*", f"long-{arm}-*")):
                mean = float(np.mean([validation[name] for name in group["id"]]))
                if not np.isnan(mean):
                    found.setdefault((arm, float(group["tokens"].iloc[0])), {})[str(run)] = mean
    return {key: min(runs, key=lambda run: runs[run]) for key, runs in sorted(found.items())}


@plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("matched-*", "modern-*", "classic-*", "long-matched-*", "long-modern-*", "long-classic-*"),
    needs=("long-matched-*",),
    draw=forest_of_differences("Tokenformer minus Transformer (nats per token)"),
)
def tokenformer_gap(results: Results, runs: Sequence[str]) -> DataFrame:
    """Held-out loss of a Tokenformer minus that of Transformers of equal width and parameters, for each number of
    tokens seen, every run with its own full schedule; a modern Transformer (RMSNorm, SwiGLU) and a classic one. Each
    model has the rate, of those run, with the lowest validation loss. Differences are paired by seed; above zero the
    Tokenformer is worse. To see: whether the gap shrinks, stays or changes its sign as both train longer. The published
    line is a third party's, against a modern Transformer at 124M parameters.
    """
    losses = held_out_losses(results, STUDY, runs)
    best, rows = _best(losses, last_losses(results, STUDY, runs)), []
    for (arm, tokens), run in best.items():
        if arm in RIVALS and (OURS, tokens) in best:
            ours = best[OURS, tokens]
            shared = {"series": f"minus {arm} Transformer", "tokens": tokens, "run": ours, "rival": run}
            rows += differences(held_out(losses, ours), held_out(losses, run), **shared)
    theirs = published("zzox531/nlp_tokenformer").query("metric == 'perplexity'").set_index("model")["value"]
    gap = float(np.log(float(theirs["TokenFormer"]) / float(theirs["Transformer"])))
    rows += [published_difference(gap, "third party, 124M parameters")] * bool(rows)
    return DataFrame(rows)


_PRINTED = {
    "TokenFormer": "Tokenformer",
    "Net2Net (Transformer)": "Net2Net by padding",
    "HyperCloning (Transformer)": "HyperCloning",
}


def gains(losses: DataFrame) -> DataFrame:
    """Return how much lower the held-out loss of each stage is than before growth, paired by seed, in nats.

    `part` is `gain` for the mean, `seed` for a row per seed.
    """
    frames = []
    for method, (_, pattern) in METHODS.items():
        start = held_out(losses, before_growth(losses, method))
        for size in STAGES:
            run = pattern.format(size=size)
            gained = minus(start, held_out(losses, run))
            if len(gained):
                rows = gained.rename("gain_nats").reset_index().assign(run=run)
                frames.append(summary(rows, "gain_nats", ["run"]).assign(method=method, size=size))
    found = pd.concat(frames, ignore_index=True) if frames else DataFrame(columns=["part"])
    return found.assign(part=found["part"].replace("mean", "gain"))


def published_gains() -> DataFrame:
    """Return the gains that the perplexities of Table 8 mean."""
    table = published(PAPER, "Table 8").query("metric == 'perplexity'")
    rows = []
    for name, group in table.groupby(table["model"].str.rsplit(" ", n=1).str[0], sort=False):
        values = group["value"].astype(float).to_list()
        for size, model, value in zip(STAGES, group["model"].to_list()[1:], values[1:], strict=True):
            shared = {"source": "published", "part": "gain", "method": _PRINTED[str(name)]}
            rows.append(shared | {"run": model, "size": size, "gain_nats": float(np.log(values[0] / value))})
    return DataFrame(rows).assign(gain_nats_low=np.nan, gain_nats_high=np.nan)


_stage = partial(Panel, "size", "gain_nats", by="method", zero=0.0, xlabel="stage", ticks="{:.0f}".format,
                 name="legend")  # fmt: skip


@plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("tokenformer-1", "transformer-1", "long-*-chosen", "grown-random-sqrt-[23]", "net2net-*", "hypercloning-*"),
    needs=("net2net-*", "hypercloning-*"),
    draw=sheet(
        Panel("step", "loss_nats", by="method", kind="band", where={"part": "curve"}, title="First stage",
              name="legend", xlabel="step of the stage", ylabel="validation loss (nats)"),
        _stage(where={"part": ["gain", "seed"], "source": "ours"}, title="Gain over the own start",
               ylabel="loss before growth minus loss after"),
        _stage(where={"part": "gain", "source": "published"}, title="Table 8"),
        wanted=list(METHODS), columns=3,
    ),
)  # fmt: skip
def tokenformer_rivals(results: Results, runs: Sequence[str]) -> DataFrame:
    """Growing a Tokenformer by tokens against growing a Transformer in width, after Fig. 7 and Table 8 of Tokenformer
    (arXiv:2410.23168). Left: validation loss of the first stage, from before its first step. Middle: what the held-out
    loss has gained on the family's own model before growth, after each stage, because the starts differ. To see: whose
    line lies highest has gained most from growing. Right: the same gains out of the published perplexities. Padding is
    the form of Net2Net that the paper used; Net2Net (2015) and HyperCloning copy units and keep the function where the
    factor is whole.
    """
    losses = held_out_losses(results, STUDY, runs)
    curves = means(by_step(results, runs))
    first = {pattern.format(size=2): method for method, (_, pattern) in METHODS.items()}
    curves = curves[curves["run"].isin(first)].assign(part="curve")
    curves["method"] = curves["run"].map(first)
    return pd.concat([curves, gains(losses), published_gains()], ignore_index=True)
