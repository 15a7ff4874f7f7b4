"""Retained keys (Decay article, Fig 3)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.panel import Panel, layout
from formerlab.report.published import A2SF, published
from formerlab.report.studies.pruning import CONFIGURATION, RELEASED_RUNS, budget_text, first_model_rows, label_and_sort
from formerlab.report.style import BLACK, PUBLISHED_INK
from formerlab.report.tables.cells import claim_verdicts, claim_words
from formerlab.results.read import Results

STUDY = "decay"
POLICIES = ("local", "h2o", "decay")
_CLAIM = "decay-mask-closer-to-ideal"
WANTED = ("Ideal", "Local", "H2O", "Decay 0.2", "Decay 0.8")


def _masks_note(rows: DataFrame) -> list[str]:
    layer, head = rows[["layer", "head"]].iloc[0]
    windows = f"{rows['windows'].max():.0f}"
    return [f"cache of {budget_text(rows['budget'].min())}; first {rows['key'].max() + 1} tokens of the held-out text, "
            f"layer {layer + 1}, head {head + 1}; colour: seen by the policy and by Ideal; pale: only by the policy; "
            "black: only by Ideal; cosine: similarity of the attention to Ideal's, mean over all heads and "
            f"{windows} windows (a cosine over fewer windows names their number and is not comparable in the last "
            "digit); published: LLaMA-2-7B (alpha 0.1)."]  # fmt: skip


def _finish_mask(axes: Axes, rows: DataFrame) -> None:
    """Mark the keys of Ideal that the policy evicted, and write the cosine similarities."""
    for at, name, color in ((1.0, "cosine", BLACK), (0.78, "published", PUBLISHED_INK)):
        for value in rows[name].dropna().unique():
            words = f"{name}\n{value:.3f}"
            if name == "cosine" and rows["_fewer_windows"].iloc[0]:
                words += f"\n{rows['windows'].iloc[0]:.0f} windows"
            axes.text(1.02, at, words, color=color, ha="right", va="top", fontsize=7,
                      transform=axes.transAxes)  # fmt: skip
    missed = rows[rows["_ideal"] & rows["_seen"].eq(0)]
    axes.scatter(missed["key"], missed["query"], marker="s", s=2.4, color=BLACK, linewidths=0)
    axes.set_xticks(range(0, len(rows["key"].unique()), 16))


def draw_masks(data: DataFrame) -> Figure:
    """Draw a panel per policy at the smallest budget: the WANTED configurations, and all policies of other kinds."""
    kinds = data["policy"].str.split().str[0]
    rank = data["configuration"].map({name: rank for rank, name in enumerate(WANTED)})
    data = data.assign(_rank=rank.fillna(len(WANTED)), _style=kinds, _seen=data["kept"].map(list))
    data = data[data["budget"].eq(data["budget"].min()) & (rank.notna() | ~kinds.isin(["ideal", *POLICIES]))]
    data["_fewer_windows"] = data["windows"].lt(data["windows"].max())
    cells = data.assign(key=data["kept"].map(lambda kept: range(len(kept)))).explode(["key", "_seen"])
    ideal = cells[cells["policy"].eq("ideal")].set_index(["query", "key"])["_seen"].eq("1")
    cells["_ideal"] = [ideal.get(cell, False) for cell in zip(cells["query"], cells["key"], strict=True)]
    seen = cells["_seen"].eq("1")
    cells["_seen"] = seen.mul(0.7).where(cells["_ideal"] | ~seen, 0.25).mask(seen & cells["policy"].eq("ideal"), 1.0)
    panel = Panel("key", "query", by="_seen", kind="heat", facet="configuration", xlabel="key (token)",
                  ylabel="query (token)", share_y=True, finish=_finish_mask)  # fmt: skip
    return layout(panel, notes=_masks_note, columns=5, height=1.3, order="_rank configuration")(cells)


def _cosines(rows: DataFrame) -> DataFrame:
    """Return the mean cosine similarity to Ideal by configuration and budget, from the run with the most windows."""
    rows = rows[rows["metric"].eq("distance_to_ideal") & rows["policy"].ne("ideal")]
    means = rows.groupby(CONFIGURATION, dropna=False)["value"].agg(["mean", "size"]).reset_index()
    means = means.sort_values("size", ascending=False).drop_duplicates(CONFIGURATION[1:])
    return means.assign(cosine=1 - means["mean"], windows=means["size"])[[*CONFIGURATION[1:], "cosine", "windows"]]


@plot(reads="prune_mask_dumps.csv prune_masks.csv", runs="decoder released-* masks-*", draw=draw_masks)
def decay_masks(results: Results, runs: list[str]) -> DataFrame:
    """Keys (across) that each query (down) sees in one head of one trained decoder, at equal budgets; after Fig. 3 of
    the Decay article. The head was fixed before the run: the first head of the middle layer. All policies select from
    the attention of the same unpruned pass. Each query also sees its own key. Ideal selects the best keys for each
    query separately, which no cache can do. Cosine: similarity of the attention rows to the rows of Ideal, the mean
    over all layers, heads and windows. The registered claim uses it. It weighs keys by their attention, so Local, which
    evicts the first key, has a low cosine. Published: LLaMA-2-7B at 20 % (A2SF, arXiv:2407.20485, Table 2), for Decay
    with alpha 0.1. The CSV also has larger budgets. To see: vertical lines are keys that a policy retains for long, and
    the diagonal is recent keys. H2O retains some early keys to the end; a small alpha evicts all of them but the first.
    """
    rows = first_model_rows(results.rows("prune_mask_dumps.csv", STUDY, runs))
    rows = rows[rows["seed"] == rows["seed"].min()]
    measured = results.rows("prune_masks.csv", STUDY, runs)
    of_model = measured["run"].str.endswith(str(rows["run"].iloc[0]).removeprefix(RELEASED_RUNS))
    rows = rows.merge(_cosines(measured[of_model]), "left", CONFIGURATION[1:])
    table = published(A2SF, "Table 2").query("setting.str.contains('ratio 0.2; average')")
    values = table.set_index(table["model"].replace("A2SF(alpha=0.1)", "Decay 0.2"))["value"].astype(float)
    rows = label_and_sort(rows).sort_values(["budget", "query"], kind="stable")
    verdicts = claim_verdicts(results, STUDY, _CLAIM)
    rows["verdict"] = rows["configuration"].map({"Decay 0.2": verdicts[_CLAIM].word})
    rows["_claims"] = claim_words(verdicts, {_CLAIM: "Decay is nearer to Ideal than H2O, and H2O than Local"})
    return rows.assign(published=rows["configuration"].map(values).where(rows["budget"].eq(0.2)), source="ours")
