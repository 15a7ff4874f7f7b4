"""What zero keys, kept tau, carried moments and frozen tokens contribute (Tokenformer, arXiv:2410.23168, 3.3, 4.1)."""

from typing import Any

from pandas import DataFrame

from formerlab.report.figures._runs import held_out_losses
from formerlab.report.figures._tokenformer import FIRST, at_step, by_step, held_out, minus
from formerlab.report.tables._paired import ends
from formerlab.results.read import Results

STUDY = "tokenformer"
READS = ("eval.csv", "test.csv", "run.json")
RUNS = ("tokenformer-1", "grown-random-*-2", "grown-zero-*-2")
CAPTION = (
    "Ways to grow, at the end of the first stage, all from the same parent on the same batches (Tokenformer, "
    "arXiv:2410.23168, sections 3.3 and 4.1). Start minus parent: validation loss before the first step, minus the "
    "parent's at its end; it is zero where growth keeps the function. Loss minus published: held-out loss minus that "
    "of the published recipe (random keys, tau = sqrt(n), fresh optimizer, all tokens trained); below zero is better. "
    "In brackets: 95 % Student t interval over seeds, differences paired by seed; none with one seed. The paper has "
    "no such comparison; its author reports that frozen old tokens end slightly higher but train more stably (issue "
    "15)."
)
PUBLISHED = "grown-random-sqrt-2"


def table(results: Results) -> DataFrame:
    """Return a row per way of growing, in the order of the held-out loss."""
    losses = held_out_losses(results, STUDY, RUNS)
    grown = losses[losses["run"] != FIRST] if len(losses) else losses
    if grown.empty:
        return DataFrame(columns=["source"])
    curves = by_step(results, RUNS)
    parent, published = at_step(curves, FIRST, None), held_out(losses, PUBLISHED)
    rows = []
    for record in grown.drop_duplicates("run").to_dict("records"):
        run = record["run"]
        final = held_out(losses, run)
        rows.append(
            _choices(record)
            | ends("start_minus_parent_nats", minus(at_step(curves, run, 0), parent))
            | ends("loss_nats", final)
            | (ends("loss_minus_published_nats", minus(final, published)) if run != PUBLISHED else {})
            | {"seeds": len(final)}
        )
    return DataFrame(rows).sort_values("loss_nats", ignore_index=True)


def _choices(record: dict[Any, Any]) -> dict[str, Any]:
    old = record.get("spec.growth.old_tokens")
    slower = isinstance(old, float) and old == old  # NaN where no run of the table says anything
    return {
        "source": "ours",
        "run": record["run"],
        "keys": record["spec.growth.keys"],
        "tau": {"sqrt": "sqrt(n)", "keep": "kept"}[record["spec.growth.tau"]],
        "optimizer": {"fresh": "fresh", "carry": "carried"}[record["spec.growth.optimizer"]],
        "old_tokens": f"at {old} of the learning rate" if slower else "frozen" if old == "freeze" else "trained",
    }
