"""Retained keys (Decay article, Fig 3)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.panel import Panel, layout
from formerlab.report.studies.pruning import budget_text, first_model_rows, label_and_sort
from formerlab.report.style import BLACK
from formerlab.results.read import Results

STUDY = "decay"
POLICIES = ("local", "h2o", "decay")
WANTED = ("Ideal", "Local", "H2O", "Decay 0.2", "Decay 0.8")


def _masks_note(rows: DataFrame) -> list[str]:
    layer, head = rows[["layer", "head"]].iloc[0]
    return [f"cache of {budget_text(rows['budget'].min())}; first {rows['key'].max() + 1} tokens of the held-out text, "
            f"layer {layer + 1}, head {head + 1}; colour: seen, by Ideal too; pale: seen, but not by Ideal; black: not "
            "seen, but by Ideal; percentage: of the keys that Ideal sees, those that the policy sees too."]  # fmt: skip


def _finish_mask(axes: Axes, rows: DataFrame) -> None:
    """Mark the keys of Ideal that the policy evicted."""
    missed = rows[rows["_ideal"] & rows["_seen"].eq(0)]
    axes.scatter(missed["key"], missed["query"], marker="s", s=2.4, color=BLACK, linewidths=0)
    axes.set_xticks(range(0, len(rows["key"].unique()), 16))


def draw_masks(data: DataFrame) -> Figure:
    """Draw a panel per policy at the smallest budget: the WANTED configurations, and all policies of other kinds."""
    kinds = data["policy"].str.split().str[0]
    rank = data["configuration"].map({name: place for place, name in enumerate(WANTED)})
    data = data.assign(_rank=rank.fillna(len(WANTED)), _style=kinds, _seen=data["kept"].map(list))
    data = data[data["budget"].eq(data["budget"].min()) & (rank.notna() | ~kinds.isin(["ideal", *POLICIES]))]
    cells = data.assign(key=data["kept"].map(lambda kept: range(len(kept)))).explode(["key", "_seen"])
    ideal = cells[cells["policy"].eq("ideal")].set_index(["query", "key"])["_seen"].eq("1")
    cells["_ideal"] = [ideal.get(cell, False) for cell in zip(cells["query"], cells["key"], strict=True)]
    seen = cells["_seen"].eq("1")
    cells["_shared"] = (seen & cells["_ideal"]).groupby(cells["configuration"]).transform("sum") / max(ideal.sum(), 1)
    cells["_title"] = cells["configuration"] + cells["_shared"].map(": {:.0%}".format).str.replace("%", " %")
    cells["_seen"] = seen.astype(float).where(cells["_ideal"] | ~seen, 0.3)
    panel = Panel("key", "query", by="_seen", kind="heat", facet="_title", xlabel="key (token)",
                  ylabel="query (token)", share_y=True, finish=_finish_mask)  # fmt: skip
    return layout(panel, notes=_masks_note, columns=5, height=1.2, order="_rank configuration")(cells)


@plot(reads="prune_mask_dumps.csv", runs="decoder released-*", draw=draw_masks)
def decay_masks(results: Results, runs: list[str]) -> DataFrame:
    """Keys (across) that each query (down) sees in one head of one trained decoder, at equal budgets; after Fig. 3 of
    the Decay article. All policies select from the attention of the same unpruned pass. Each query also sees its own
    key. Ideal selects the best keys for each query separately, which no cache can do. Black in another panel: a key of
    Ideal that the policy does not see. The plain sum was not run; the CSV also has larger budgets. To see: vertical
    lines are keys that a policy retains for long, the diagonal are recent keys. H2O retains early keys once it has
    them; a small alpha evicts them.
    """
    rows = first_model_rows(results.rows("prune_mask_dumps.csv", STUDY, runs))
    rows = rows[rows["seed"] == rows["seed"].min()]
    return label_and_sort(rows).sort_values(["budget", "query"], kind="stable").assign(source="ours")
