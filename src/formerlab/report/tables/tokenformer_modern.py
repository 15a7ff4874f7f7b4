"""A Tokenformer against Transformers of today and of GPT-2's time, each at its best learning rate."""

import numpy as np
from pandas import DataFrame

from formerlab.report.figures._runs import by_run, held_out_losses
from formerlab.report.figures._tokenformer import at_step, by_step, held_out, minus
from formerlab.report.tables._paired import ends
from formerlab.results.read import Results

STUDY = "tokenformer"
READS = ("eval.csv", "test.csv", "run.json")
RUNS = ("modern-*", "classic-*", "matched-*")
CAPTION = (
    "A Tokenformer from scratch (matched) beside a Transformer with RMSNorm, SwiGLU and full rotary positions "
    "(modern) and one with LayerNorm, GeLU, biases and the Tokenformer's positions (classic): equal parameters but "
    "for the embedding, equal tokens, the same three learning rates. Tokenformer minus best: the Tokenformer's "
    "held-out loss at its own best rate minus this arm's at its best, paired by seed, with its 95 % Student t "
    "interval over seeds; above zero, the Tokenformer is worse. Public reports by third parties have it 0.024 nats "
    "(perplexity 15.86 against 15.49, 124M) and 0.15 bits per byte (17M, feed-forward only) above a modern "
    "Transformer. The rate is chosen by the validation loss at the last step, for all arms alike."
)


def table(results: Results) -> DataFrame:
    """Return a row per arm and learning rate, the best rate of each arm marked."""
    losses = held_out_losses(results, STUDY, RUNS)
    if losses.empty:
        return DataFrame(columns=["source"])
    rates = losses.drop_duplicates("run").set_index("run")["spec.optimizer.lr"]
    points = by_run(losses)
    points["arm"] = points["run"].str.partition("-")[0]
    curves = by_step(results, RUNS)
    points["validation"] = [np.mean(list(at_step(curves, run, None).values())) for run in points["run"]]
    best = points.loc[points.groupby("arm")["validation"].idxmin()].set_index("arm")["run"].to_dict()
    rows = []
    for row in points.sort_values(["arm", "loss_nats"]).to_dict("records"):
        run, arm = str(row["run"]), str(row["arm"])
        keys = ("parameters_non_embedding", "flops", "loss_nats", "loss_nats_low", "loss_nats_high", "perplexity")
        line = {"source": "ours", "run": run, "learning_rate": rates[run], "best": "best" if best[arm] == run else ""}
        line |= {key: row[key] for key in keys}
        if best[arm] == run and arm != "matched" and "matched" in best:
            line |= ends("tokenformer_minus_best_nats", minus(held_out(losses, best["matched"]), held_out(losses, run)))
        rows.append(line | {"seeds": row["seeds"], "diverged": row["diverged"] or None})
    return DataFrame(rows)
