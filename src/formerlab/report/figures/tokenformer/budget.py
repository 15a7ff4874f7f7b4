"""Tokenformer minus Transformers of equal width and parameters, at several budgets of tokens."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.budgets import difference, published_difference
from formerlab.report.budgets import draw as draw_budgets
from formerlab.report.drawings import Plot
from formerlab.report.published import published
from formerlab.report.rates import last_losses
from formerlab.report.runs import held_out, held_out_losses
from formerlab.report.style import BLACK, ORANGE, Look
from formerlab.results.read import Results

STUDY = "tokenformer"
OURS = "matched"
RIVALS = {"modern": Look(ORANGE, "D"), "classic": Look(BLACK, "o")}


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return rows of Tokenformer minus each rival, by budget, both at their best rate by the validation loss."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return DataFrame()
    best = _best(losses, last_losses(results, STUDY, runs))
    rows = []
    for (arm, tokens), run in best.items():
        if arm in RIVALS and (OURS, tokens) in best:
            ours = best[OURS, tokens]
            shared = {"series": f"minus {arm} Transformer", "tokens": tokens, "run": ours, "rival": run}
            rows += difference(held_out(losses, ours), held_out(losses, run), **shared)
    if rows:
        rows.append(published_difference(_published_gap(), "third party, 124M parameters"))
    return DataFrame(rows)


def _published_gap() -> float:
    """Return the gap that the perplexities of a third party mean, against a modern Transformer, in nats."""
    rows = published("zzox531/nlp_tokenformer").query("metric == 'perplexity'")
    perplexities = rows.set_index("model")["value"].astype(float)
    return float(np.log(perplexities["TokenFormer"] / perplexities["Transformer"]))


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


def draw(rows: DataFrame) -> Figure:
    """Draw a line for each rival."""
    looks = {f"minus {arm} Transformer": look for arm, look in RIVALS.items()}
    notes = [
        "Each model at the rate, of those run, with the lowest validation loss. Above zero the Tokenformer is worse."
    ]
    return draw_budgets(rows, looks, "Tokenformer minus Transformer\n(nats per token)", notes)


tokenformer_gap = Plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("matched-*", "modern-*", "classic-*", "long-matched-*", "long-modern-*", "long-classic-*"),
    needs=("long-matched-*",),
    caption=(
        "Held-out loss of a Tokenformer minus that of Transformers of equal width and parameters, against the tokens "
        "that each saw, every run with its own full schedule; a modern Transformer (RMSNorm, SwiGLU) and a classic "
        "one. Differences are paired by seed. To see: whether the gap shrinks, stays or changes its sign as both train "
        "longer. The published line is a third party's, against a modern Transformer at 124M parameters."
    ),
    data=data,
    draw=draw,
)
