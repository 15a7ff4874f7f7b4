"""What every study that trains has: its curves of training, and the search for its rates."""

from collections.abc import Sequence

from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.rates import at_the_edge, searches, told_apart
from formerlab.report.runs import seed_notes
from formerlab.results.read import Results
from formerlab.statistics import weighted_means


@plot(studies="transformer tokenformer denseformer decay combined vision", reads="eval.csv", draw=sheet(
    Panel("step", "loss_nats", by="family", kind="band", each="panel", log="xy", style="variant",
          xlabel="training step", ylabel="validation loss (nats)"),
    height=2.2
))  # fmt: skip
def curves(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Training curves: validation loss against the training step, the mean over seeds, for every run of the study; both
    axes are logarithmic. Each depth, and what starts from a parent, has a panel. To see: whether curves still fall
    where training ends, and whether one that is lower at the end was so from early on.
    """
    rows = results.rows("eval.csv", study, runs)
    by_seed = weighted_means(rows[rows["split"].eq("valid") & rows["step"].gt(0)], ["run", "seed", "step"])
    means = by_seed.groupby(["run", "step"], sort=False).agg(loss_nats="mean", seeds="size").reset_index()
    known = {record["run"]: record for record in results.records() if record["study"] == study}
    told = told_apart([known[run] for run in means["run"].unique()], results.scale)
    means = means.assign(source="ours").merge(told.assign(run=means["run"].unique()))
    return means.sort_values(["panel", "run", "step"])


def _notes(rows: DataFrame) -> list[str]:
    edges, gone = at_the_edge(rows), rows[rows["part"].eq("mean") & rows["diverged"].gt(0)]
    diverged = ", ".join(f"{name} at {rate:g}" for name, rate in zip(gone["family"], gone["lr"], strict=True))
    return [
        *seed_notes(rows.drop(columns="diverged")),
        f"At the edge of the grid, so a better rate may lie beyond it: {'; '.join(edges)}." if edges else "",
        f"Diverged, and not drawn: {diverged}." if diverged else "",
    ]


@plot(studies="transformer tokenformer denseformer vision", reads="eval.csv", varied="optimizer.lr", draw=sheet(
    Panel("lr", "loss_nats", by="family", each="panel", log="x", ring="chosen", style="variant",
          xlabel="peak learning rate", ylabel="validation loss at the end (nats)", ticks="{:.2g}".format),
    notes=_notes, height=1.7
))  # fmt: skip
def rates(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Search for the rates of the study: validation loss at the end of training, in nats per token, target token or
    image, against the peak learning rate, for every model whose rate was searched: runs that differ in nothing else.
    Each depth, and what starts from a parent, has a panel; the best rate is ringed. To see: each ringed rate has a
    higher and a lower one beside it in the grid; where it has not, the last sentence says so, and no comparison at that
    rate is fair.
    """
    return searches(results, runs, study=study)
