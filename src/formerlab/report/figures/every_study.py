"""What every study that trains has: its curves of training, and the search for its rates."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.panel import Panel, Style, hollow, sheet
from formerlab.report.rates import at_the_edge, names_apart, panel_of, searches, variant_of
from formerlab.report.style import look
from formerlab.results.read import Results
from formerlab.statistics import weighted_means

_LINES = ("-", "--", ":", "-.")


def curves_data(results: Results, runs: Sequence[str], *, study: str) -> DataFrame:
    """Return the validation loss of every run and evaluated step, the mean over its seeds, after the first step."""
    rows = results.rows("eval.csv", study, runs)
    by_seed = weighted_means(rows[rows["split"].eq("valid") & rows["step"].gt(0)], ["run", "seed", "step"])
    means = by_seed.groupby(["run", "step"], sort=False).agg(["mean", "size"]).reset_index()
    means.columns = pd.Index(["run", "step", "loss_nats", "seeds"])
    firsts = {record["run"]: record for record in results.records() if record["study"] == study}
    firsts = {run: firsts[run] for run in means["run"].unique()}
    told = dict(zip(firsts, names_apart([*firsts.values()], results.scale), strict=True))
    panels = {run: panel_of(record, results.scale) for run, record in firsts.items()}
    variants = {run: variant_of(record) for run, record in firsts.items()}
    known = {"panel": panels, "variant": variants, "family": told}
    means = means.assign(source="ours", **{name: means["run"].map(values) for name, values in known.items()})
    return means.sort_values(["panel", "run", "step"])


def _told_apart(name: str, rows: DataFrame) -> Style:
    """Return the look of a family's kind; the second of one kind in a panel is dashed and hollow."""
    colour, marker = look(str(rows["variant"].iloc[0]))
    nth = int(rows["nth"].iloc[0])
    return {"color": colour, "marker": marker, "linestyle": _LINES[nth % len(_LINES)]} | hollow(nth)


def numbered(rows: DataFrame) -> DataFrame:
    """Return rows with `nth`, the number of each family among those of its kind in its panel."""
    known = rows[["panel", "variant", "family"]].drop_duplicates()
    return rows.merge(known.assign(nth=known.groupby(["panel", "variant"]).cumcount()), on=[*known], how="left")


def draw_curves(data: DataFrame) -> Figure:
    """Draw a panel for each depth and start, a curve for each run."""
    panel = Panel("step", "loss_nats", by="family", kind="band", each="panel", log="xy", style=_told_apart,
                  xlabel="training step", ylabel="validation loss (nats)")  # fmt: skip
    return sheet(panel, height=2.2)(numbered(data))


curves = Plot(
    studies=("transformer", "tokenformer", "denseformer", "decay", "combined", "vision"),
    reads=("eval.csv", "run.json"),
    runs=("*",),
    caption=(
        "Training curves: validation loss against the training step, the mean over seeds, for every run of the study; "
        "both axes are logarithmic. Each depth, and what starts from a parent, has a panel. To see: whether curves "
        "still fall where training ends, and whether one that is lower at the end was so from early on."
    ),
    data=curves_data,
    draw=draw_curves,
)


def draw_rates(rows: DataFrame) -> Figure:
    """Draw a panel for each depth and start, a curve for each family, with its best rate ringed."""
    edges, gone = at_the_edge(rows), rows[rows["part"].eq("mean") & rows["diverged"].gt(0)]
    diverged = ", ".join(f"{name} at {rate:g}" for name, rate in zip(gone["family"], gone["lr"], strict=True))
    notes = [
        "Ringed: the rate with the lowest validation loss.",
        f"At the edge of the grid, so a better rate may lie beyond it: {'; '.join(edges)}." if edges else "",
        f"Diverged, and not drawn: {diverged}." if diverged else "",
    ]
    panel = Panel("lr", "loss_nats", by="family", each="panel", log="x", ring="chosen", style=_told_apart,
                  xlabel="peak learning rate", ylabel="validation loss at the end (nats)",
                  ticks="{:.2g}".format)  # fmt: skip
    return sheet(panel, notes=notes, height=1.7)(numbered(rows).drop(columns="diverged"))


rates = Plot(
    studies=("transformer", "tokenformer", "denseformer", "vision"),
    reads=("eval.csv", "run.json"),
    runs=("*",),
    varied="optimizer.lr",
    caption=(
        "Search for the rates of the study: validation loss at the end of training, in nats per token, target token or "
        "image, against the peak learning rate, for every model whose rate was searched: runs that differ in nothing "
        "else. Each depth, and what starts from a parent, has a panel. To see: each ringed rate has a higher and a "
        "lower one beside it in the grid; where it has not, the last sentence says so, and no comparison at that rate "
        "is fair."
    ),
    data=searches,
    draw=draw_rates,
)
