"""What averages over depth gain over the plain stack, at several budgets of tokens."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.budgets import difference, published_difference
from formerlab.report.budgets import draw as draw_budgets
from formerlab.report.depth import plains
from formerlab.report.drawings import Plot
from formerlab.report.runs import DENSEFORMER, held_out, held_out_losses
from formerlab.report.style import BLUE, GREEN, ORANGE, PURPLE, VERMILION, Look
from formerlab.results.read import Results

STUDY = "denseformer"
PUBLISHED = float(np.log(18.61 / 17.84))
"""Of 1x1 at 48 blocks (arXiv:2402.02622, Table 1), nats."""
_LOOKS = tuple(map(Look, (BLUE, VERMILION, GREEN, ORANGE, PURPLE), "s^DvP"))


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return rows of plain minus DenseFormer, by depth and budget."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return DataFrame()
    plain_of, rows = plains(losses), []
    of_dense = losses[losses["variant"].str.startswith(DENSEFORMER)].drop_duplicates("run")
    for record in of_dense.sort_values(["layers", "variant", "tokens"]).to_dict("records"):
        run, plain = record["run"], plain_of.get(record["run"])
        if plain is not None:
            shared = {
                "series": f"{record['variant']}, {record['layers']:.0f} blocks",
                "tokens": float(record["tokens"]),
            }
            gained = difference(held_out(losses, plain), held_out(losses, run), **shared, run=run, plain=plain)
            rows += gained
    if rows:
        rows.append(published_difference(PUBLISHED, "1x1 at 48 blocks (Table 1)"))
    return DataFrame(rows)


def draw(rows: DataFrame) -> Figure:
    """Draw a line for each depth."""
    names = list(rows.loc[rows["source"] == "ours", "series"].unique())
    looks = {name: _LOOKS[place % len(_LOOKS)] for place, name in enumerate(names)}
    note = "Above zero the DenseFormer is better."
    return draw_budgets(rows, looks, "plain minus DenseFormer\n(nats per token)", [note])


denseformer_gain = Plot(
    reads=("test.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa depth.dilation=1 depth.period=1", "long-plain-*", "long-dwa-1x1-*"),
    needs=("long-dwa-1x1-*",),
    caption=(
        "Held-out loss of the plain Transformer minus that of DenseFormer 1x1 of the same depth, against the tokens "
        "that each saw, every run with its own full schedule (arXiv:2402.02622). Differences are paired by seed. To "
        "see: whether the gain lasts when both train longer, or only makes the first steps easier."
    ),
    data=data,
    draw=draw,
)
