"""Retained keys (Decay article, Fig 3)."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.quantity import Quantity
from formerlab.report.marks import heat
from formerlab.report.panel import Panel, layout
from formerlab.report.published import A2SF, published
from formerlab.report.runs import estimate
from formerlab.report.studies.pruning import CONFIGURATION, RELEASED_RUNS, budget_text, first_model_rows, label_and_sort
from formerlab.report.style import BLACK, GREY
from formerlab.report.tables.cells import claim_verdicts, claim_words
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE

STUDY = "decay"
POLICIES = ("local", "h2o", "decay")
_CLAIM = "decay-mask-closer-to-ideal"
PUBLISHED_RATIO = 0.2
"""Cache budget of the published cosines."""
WANTED = ("Ideal", "Local", "H2O", "Decay 0.2", "Decay 0.8")
_CONTRASTS = {"first": ("Decay 0.2", "H2O"), "second": ("H2O", "Local")}
"""Configurations whose cosines the claim compares, by the name of the difference."""
_SHADES = {"both": "#8c8c8c", "policy only": "#d9d9d9", "Ideal only": BLACK}
"""Shades of the keys in the legend, by who sees them."""


def _masks_note(rows: DataFrame) -> list[str]:
    layer, head = rows[["layer", "head"]].iloc[0]
    return [f"cache of {budget_text(rows['budget'].min())}; first {rows['key'].max() + 1:.0f} tokens of the held-out "
            f"text, layer {layer + 1:.0f}, head {head + 1:.0f}; cosine: similarity of the attention to Ideal's, mean "
            f"over all heads and {rows['windows'].max():.0f} windows; last panel: its differences with paired 95 % "
            "intervals, where the claim asks for intervals above 0; published (hollow): LLaMA-2-7B, alpha 0.1."
            ]  # fmt: skip


def _finish_mask(axes: Axes, rows: DataFrame) -> None:
    """Mark the keys of Ideal that the policy evicted, and write the cosine similarities."""
    first = rows.iloc[0]
    few = f"\n{first['windows']:.0f} windows" * bool(first["_fewer_windows"])
    alpha = "\n(alpha 0.1)" * (first["policy"] == "decay")
    cosine = f"cosine\n{first['cosine']:.{2 if few else 3}f}{few}"  # fewer windows: fewer digits are comparable
    published = f"published{alpha}\n{first['published']:.3f}"
    for at, words, value, color in ((1.0, cosine, "cosine", BLACK), (0.72, published, "published", GREY)):
        if first[value] == first[value]:
            axes.text(1, at, words, color=color, ha="right", va="top", fontsize=7, transform=axes.transAxes)
    if first["policy"] == "ideal":
        handles = [Patch(color=color) for color in _SHADES.values()]
        axes.legend(handles, _SHADES, title="seen by", loc="upper right", borderaxespad=0, handlelength=1, fontsize=7,
                    title_fontsize=7, alignment="left")  # fmt: skip
    missed = rows.assign(_missed=(rows["_ideal"] & rows["_seen"].eq(0)).map({True: 1.0}))
    heat(axes, missed, "key", "query", "_missed", cmap=ListedColormap([BLACK]))
    axes.set_xticks(range(0, len(rows["key"].unique()), 16))


def _name_differences(axes: Axes, rows: DataFrame) -> None:
    """Write the name and the value of each difference above its mark."""
    names, ours = [label.get_text() for label in axes.get_yticklabels()], rows[rows["source"].eq("ours")]
    for name, value in ours[["_name", "difference"]].to_numpy():
        words, at = f"{name}: {value:.2g}", names.index(name)
        axes.text(0.03, at + 0.25, words, transform=axes.get_yaxis_transform(), va="bottom", fontsize=7)
    axes.set(yticks=[], ylim=(-0.4, len(names) - 0.2), xlim=(rows["difference"].min() / 2, 1))
    axes.set_xticks([], minor=True)


def draw_masks(data: DataFrame) -> Figure:
    """Draw a panel per policy at the smallest budget, for the WANTED configurations and all policies of other kinds,
    and a panel of the differences that the claim uses.
    """
    differences, data = data[data["difference"].notna()], data[data["difference"].isna()]
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
    maps = Panel("key", "query", by="_seen", kind="heat", facet="configuration", xlabel="key (token)",
                 ylabel="query (token)", share_y=True, finish=_finish_mask)  # fmt: skip
    strip = Panel("difference", "_name", by="_series", kind="forest", log="x", share_y=True, xlabel="difference (log)",
                  title="Differences of the cosines", finish=_name_differences)  # fmt: skip
    rows = pd.concat([cells, differences.assign(_rank=len(WANTED) + 1)], ignore_index=True)
    return layout(maps, strip, notes=_masks_note, columns=3, height=1.5, order="_rank configuration")(rows)


def _differences(quantities: Mapping[str, Mapping[str, Quantity | float]], published: "Series[float]") -> DataFrame:
    """Return a row per item and difference of cosines with its registered interval, and the published differences."""
    rows = []
    for item, by_name in quantities.items():
        budget = float(item.split("_")[1]) / 100
        for name, (a, b) in _CONTRASTS.items():
            value, policy = by_name.get(name), a.split()[0].lower()
            label = f"{policy.title()} minus {b}, {budget_text(budget)}"
            shared = {"configuration": label, "budget": budget, "_name": label, "_style": policy}
            if isinstance(value, Quantity):
                row = {"source": "ours", "_series": policy} | estimate("difference", value.interval(CONFIDENCE))
                rows.append(shared | row)
            if budget == PUBLISHED_RATIO:
                row = {"source": "published", "_series": f"{policy}, published"}
                rows.append(shared | row | {"difference": published[a] - published[b]})
    return DataFrame(rows, columns=[*expand_columns("source configuration budget difference[] _name _style _series")])


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
    over all layers, heads and windows; last panel: its registered differences. It weighs keys by their attention, so
    Local, which evicts the first key, has a low cosine. Published: LLaMA-2-7B at 20 % (A2SF, arXiv:2407.20485, Table
    2), for Decay with alpha 0.1. The CSV also has larger budgets. To see: vertical lines are keys that a policy retains
    for long, and the diagonal is recent keys. H2O retains some early keys to the end; a small alpha evicts all of them
    but the first.
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
    rows = rows.assign(published=rows["configuration"].map(values).where(rows["budget"].eq(PUBLISHED_RATIO)))
    differences = _differences(verdicts[_CLAIM].item_quantities, values)
    rows = rows.assign(source="ours").astype(dict.fromkeys(["seed", "layer", "head", "query"], "Int64"))
    return pd.concat([rows, differences], ignore_index=True)  # Int64, since a difference has no query
