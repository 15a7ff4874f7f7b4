"""Retained keys (Decay article, Fig 3)."""

from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.panel import Panel, layout
from formerlab.report.studies.pruning import budget_text, first_model_rows, label_and_sort
from formerlab.results.read import Results

STUDY = "decay"
POLICIES = ("local", "h2o", "decay")
WANTED = ("Ideal", "Local", "H2O", "Decay 0.2", "Decay 0.8")


def _masks_note(rows: DataFrame) -> list[str]:
    layer, head = rows[["layer", "head"]].iloc[0]
    return [f"cache of {budget_text(rows['budget'].min())}; first {rows['key'].max() + 1} tokens of the held-out text, "
            f"layer {layer + 1}, head {head + 1}; colour: the query sees the key."]  # fmt: skip


def draw_masks(data: DataFrame) -> Figure:
    """Draw a panel per policy at the smallest budget: the WANTED configurations, and all policies of other kinds."""
    kinds = data["policy"].str.split().str[0]
    rank = data["configuration"].map({name: place for place, name in enumerate(WANTED)})
    data = data.assign(_rank=rank.fillna(len(WANTED)), _style=kinds, _seen=data["kept"].map(list))
    data = data[data["budget"].eq(data["budget"].min()) & (rank.notna() | ~kinds.isin(["ideal", *POLICIES]))]
    cells = data.assign(key=data["kept"].map(lambda kept: range(len(kept)))).explode(["key", "_seen"])
    panel = Panel("key", "query", by="_seen", kind="heat", facet="configuration", xlabel="key (token)",
                  ylabel="query (token)", share_y=True,
                  finish=lambda axes, rows: axes.set(xticks=range(0, len(rows["key"].unique()), 16)))  # fmt: skip
    return layout(panel, notes=_masks_note, columns=5, height=1.1, order="_rank configuration")(cells)


@plot(reads="prune_mask_dumps.csv", runs="decoder released-*", draw=draw_masks)
def decay_masks(results: Results, runs: list[str]) -> DataFrame:
    """Keys (across) that each query (down) sees in one head of one trained decoder, at equal budgets; after Fig. 3 of
    the Decay article. All policies select from the attention of the same unpruned pass. Each query also sees its own
    key. Ideal selects the best keys for each query separately, which no cache can do. The plain sum was not run; the
    CSV also has larger budgets. To see: vertical lines are keys that a policy retains for long, the diagonal are recent
    keys. H2O retains early keys once it has them; a small alpha evicts them.
    """
    rows = first_model_rows(results.rows("prune_mask_dumps.csv", STUDY, runs))
    rows = rows[rows["seed"] == rows["seed"].min()]
    return label_and_sort(rows).sort_values(["budget", "query"], kind="stable").assign(source="ours")
