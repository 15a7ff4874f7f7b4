"""What every study that trains has: its curves of training, and the search for its rates."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.rates import at_the_edge, names_apart, panel_of, searches, variant_of
from formerlab.results.read import Results
from formerlab.statistics import weighted_means

_LINES = ("-", "--", ":", "-.")


def told_apart(rows: DataFrame) -> DataFrame:
    """Return rows that say how each family is drawn: the second of one kind in a panel is dashed and hollow."""
    known = rows[["panel", "variant", "family"]].drop_duplicates()
    nth = known.groupby(["panel", "variant"]).cumcount()
    line = [_LINES[number % len(_LINES)] for number in nth]
    known = known.assign(linestyle=line, markerfacecolor=nth.gt(0).map({True: "white", False: None}))
    return rows.merge(known, on=["panel", "variant", "family"], how="left")


def draw_curves(data: DataFrame) -> Figure:
    """Draw a panel for each depth and start, a curve for each run."""
    panel = Panel("step", "loss_nats", by="family", kind="band", each="panel", log="xy", style="variant",
                  xlabel="training step", ylabel="validation loss (nats)")  # fmt: skip
    return sheet(panel, height=2.2)(told_apart(data))


@plot(
    studies=("transformer", "tokenformer", "denseformer", "decay", "combined", "vision"),
    reads=("eval.csv", "run.json"),
    runs=("*",),
    draw=draw_curves,
)
def curves(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Training curves: validation loss against the training step, the mean over seeds, for every run of the study; both
    axes are logarithmic. Each depth, and what starts from a parent, has a panel. To see: whether curves still fall
    where training ends, and whether one that is lower at the end was so from early on.
    """
    rows = results.rows("eval.csv", study, runs)
    by_seed = weighted_means(rows[rows["split"].eq("valid") & rows["step"].gt(0)], ["run", "seed", "step"])
    means = by_seed.groupby(["run", "step"], sort=False).agg(["mean", "size"]).reset_index()
    means.columns = pd.Index(["run", "step", "loss_nats", "seeds"])
    firsts = {record["run"]: record for record in results.records() if record["study"] == study}
    firsts = {run: firsts[run] for run in means["run"].unique()}
    panels = {run: panel_of(record, results.scale) for run, record in firsts.items()}
    variants = {run: variant_of(record) for run, record in firsts.items()}
    told = dict(zip(firsts, names_apart([*firsts.values()], results.scale), strict=True))
    known = {"panel": panels, "variant": variants, "family": told}
    means = means.assign(source="ours", **{name: means["run"].map(values) for name, values in known.items()})
    return means.sort_values(["panel", "run", "step"])


def draw_rates(rows: DataFrame) -> Figure:
    """Draw a panel for each depth and start, a curve for each family, with its best rate ringed."""
    edges, gone = at_the_edge(rows), rows[rows["part"].eq("mean") & rows["diverged"].gt(0)]
    diverged = ", ".join(f"{name} at {rate:g}" for name, rate in zip(gone["family"], gone["lr"], strict=True))
    notes = [
        f"At the edge of the grid, so a better rate may lie beyond it: {'; '.join(edges)}." if edges else "",
        f"Diverged, and not drawn: {diverged}." if diverged else "",
    ]
    panel = Panel("lr", "loss_nats", by="family", each="panel", log="x", ring="chosen", style="variant",
                  xlabel="peak learning rate", ylabel="validation loss at the end (nats)",
                  ticks="{:.2g}".format)  # fmt: skip
    return sheet(panel, notes=notes, height=1.7)(told_apart(rows).drop(columns="diverged"))


@plot(
    studies=("transformer", "tokenformer", "denseformer", "vision"),
    reads=("eval.csv", "run.json"),
    runs=("*",),
    varied="optimizer.lr",
    draw=draw_rates,
)
def rates(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Search for the rates of the study: validation loss at the end of training, in nats per token, target token or
    image, against the peak learning rate, for every model whose rate was searched: runs that differ in nothing else.
    Each depth, and what starts from a parent, has a panel; the rate with the lowest loss is ringed. To see: each ringed
    rate has a higher and a lower one beside it in the grid; where it has not, the last sentence says so, and no
    comparison at that rate is fair.
    """
    return searches(results, runs, study=study)
