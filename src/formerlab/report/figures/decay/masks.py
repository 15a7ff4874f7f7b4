"""Retained keys and the scores that select them (Decay article, Fig 3 and 5; A2SF, arXiv:2407.20485, Table 2)."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.figures.decay.loss import mark_alpha
from formerlab.report.panel import Panel, layout
from formerlab.report.published import A2SF, published
from formerlab.report.studies.pruning import (
    MASK_METRICS,
    PUBLISHED_ALPHA,
    budget_text,
    first_model_rows,
    label_and_sort,
    mask_metrics,
    pruning_sample,
)
from formerlab.report.style import GREEN, GREY, PINK
from formerlab.results.read import Results

STUDY = "decay"
WANTED = ("Ideal", "Local", "H2O", "Decay, alpha 0.2", "Decay, alpha 0.8")


def _masks_note(rows: DataFrame) -> list[str]:
    layer, head, seed = rows[["layer", "head", "seed"]].iloc[0]
    return [f"First {rows['key'].max() + 1} tokens of the held-out text, layer {layer + 1}, head {head + 1}, seed "
            f"{seed}. Each query also sees its own key."]  # fmt: skip


def draw_masks(data: DataFrame) -> Figure:
    """Draw a row of panels per budget: the WANTED configurations, and all policies of other kinds."""
    kinds = data["policy"].str.split().str[0]
    rank = data["configuration"].map({name: place for place, name in enumerate(WANTED)})
    data = data.assign(
        _rank=rank.fillna(len(WANTED)), _style=kinds, key=data["kept"].map(lambda kept: range(len(kept)))
    )
    data = data[rank.notna() | ~kinds.isin(["ideal", "local", "h2o", "decay"])]
    title = data["configuration"] + ": cache of " + data["budget"].map(budget_text)
    cells = data.assign(_title=title, _seen=data["kept"].map(list)).explode(["key", "_seen"])
    panel = Panel("key", "query", by="_seen", kind="heat", facet="_title", xlabel="key (token)", ylabel="query (token)",
                  share_y=True)  # fmt: skip
    return layout(panel, notes=_masks_note, columns=5, height=1.0, order="budget _rank configuration")(cells)


@plot(reads="prune_mask_dumps.csv", runs="decoder released-*", draw=draw_masks)
def decay_masks(results: Results, runs: list[str]) -> DataFrame:
    """Keys (across) that each query (down) sees in one head of one trained decoder, at equal budgets; after Fig. 3 of
    the Decay article. All policies select from the attention of the same unpruned pass. Ideal selects the best keys for
    each query separately, which no cache can do. To see: vertical lines are keys that a policy retains for long, the
    diagonal are recent keys. H2O retains early keys once it has them; a small alpha evicts them.
    """
    rows = first_model_rows(results.rows("prune_mask_dumps.csv", STUDY, runs))
    rows = rows[rows["seed"] == rows["seed"].min()]
    return label_and_sort(rows).sort_values(["budget", "query"], kind="stable").assign(source="ours")


_UNITS = {"early_share": "fraction of the\nretained keys", "early_share_10": "fraction of the\nretained keys",
          "mean_position": "mean position\n(0: first, 1: last)"}  # fmt: skip
LEVELS = {"h2o": "H2O", "local": "Local", "streaming_llm": "StreamingLLM", "tova": "TOVA", "decay": "Decay"}
"""Labels of the compared policies, by kind. The first word of a published name gives the kind of a published policy."""


def _mark_even(axes: Axes, rows: DataFrame) -> None:
    mark_alpha(axes, rows)
    if (even := MASK_METRICS[rows["metric"].iloc[0]][1]) is not None:
        axes.axhline(even, color=GREY, linestyle=":", linewidth=1)


@plot(reads="prune_masks.csv", runs="decoder released-*", draw=layout(
    *(
        Panel("alpha", "value", by="_series", where={"metric": metric, "source": "ours"}, title=heading, name="legend",
              log="y" * metric.startswith("distance"), xlabel="forgetting factor alpha", finish=_mark_even,
              ylabel=_UNITS.get(metric, "1 - cosine similarity"))
        for metric, (heading, _) in MASK_METRICS.items()
    ),
    Panel("value", "_series", by="_series", kind="forest", where={"source": "published"}, title="Distance to Ideal",
          log="x", xlabel="1 - cosine similarity"),
    notes=lambda rows: [f"All panels: cache of {budget_text(rows['budget'].iloc[0], ' of the tokens')}; n = 1 model, "
                        f"{rows['windows'].max():.0f} windows, unpruned attention; bars and bands: 95 % interval over "
                        "windows; dotted: alpha 0.2, and an even selection of keys."],
    columns=3, height=1.8, order="alpha"
))  # fmt: skip
def decay_bias(results: Results, runs: list[str]) -> DataFrame:
    """Keys that a cache of 20 % (or the nearest budget) retains, against the forgetting factor alpha of Decay without a
    recent part. A policy without alpha is a level at the same budget. The panels show the fraction of the retained keys
    that are among the first 40 % and 10 % of the positions, their mean position (0 is the first, 1 the last), and 1 -
    cosine similarity between the attention rows and the ideal rows, with and without position 0, an attention sink that
    alone determines the cosine. Dotted lines: vertical, the published alpha of 0.2; horizontal, the value of an even
    selection of keys. The last panel is published: A2SF (arXiv:2407.20485), Table 2, LLaMA-2-7B at 20 %, mean of four
    suites; compare the order of its policies and not their values. To see: whether the plain sum (alpha 1) retains the
    start of the text and small alphas do not, and which policies are nearest to Ideal.
    """
    rows = mask_metrics(first_model_rows(results.rows("prune_masks.csv", STUDY, runs)))
    published_rows = published(A2SF, "Table 2")
    published_rows = published_rows[published_rows["setting"].str.contains("average")]
    names, cosine = (
        published_rows["model"].str.replace("(", " (").str.replace("=", " "),
        published_rows["value"].astype(float),
    )
    published_rows = DataFrame({"run": "LLaMA-2-7B", "configuration": names, "budget": 0.2, "cosine": cosine,
                        "source": "published", "metric": "distance_to_ideal", "value": 1 - cosine})  # fmt: skip
    nearest = min(rows["budget"].unique(), key=lambda budget: abs(budget - 0.2))
    plotted = rows["budget"].eq(nearest) & (rows["policy"].ne("decay") | rows["recent"].eq(0))
    rows = rows.assign(_series=rows["policy"].map(LEVELS).where(plotted), _style=rows["policy"])
    kinds = (
        published_rows["configuration"].str.split().str[0].str.lower().replace("a2sf", "decay")
    )  # a later form of it
    return pd.concat(
        [rows, published_rows.assign(_series=published_rows["configuration"], _style=kinds)], ignore_index=True
    )


LOWEST = 1e-5
"""Lower limit of plotted bands of scores, because the axis is logarithmic."""


_GROUPS = {"important": PINK, "unimportant": GREY}
SMOOTHED = 15
"""Number of queries over which missed tokens are averaged."""


def draw_scores(data: DataFrame) -> Figure:
    """Draw a panel of missed tokens with a line per alpha, and a panel of scores for Decay and for the plain sum."""
    important = data[data["group"] == "important"]
    smooth = important.groupby("alpha")["missed"].transform(lambda rows: rows.rolling(SMOOTHED, min_periods=1).mean())
    lines = important["alpha"].map({PUBLISHED_ALPHA: "-", 1: "--", 0: ":"}).fillna("-.")
    missed = important.assign(_of_alpha=important["_alpha"], _missed=100 * smooth, _color=GREEN, _linestyle=lines,
                              _marker="", alpha=-1)  # fmt: skip
    data = data.assign(_linestyle=data["group"].map({"unimportant": "--"}), _color=data["group"].map(_GROUPS))
    position = "query (token)"
    return layout(
        Panel("query", "_missed", by="_of_alpha", kind="band", title="Missed: important, but not in the best 40 %",
              xlabel=position, ylabel="missed (%)"),
        Panel("query", "_value", by="group", kind="band", where={"alpha": [PUBLISHED_ALPHA, 1]}, facet="_alpha",
              log="y", name="legend", title="Scores: {_alpha}", xlabel=position, ylabel="score (sum of attention)",
              finish=lambda axes, rows: axes.set_ylim(LOWEST, 0.1)),
        notes=lambda rows: [f"{pruning_sample(rows)}; left: means over {SMOOTHED} queries, without "
                            "intervals; right: means, bands: middle 80 % of the tokens."],
        columns=3, height=1.9,
    )(pd.concat([missed, data], ignore_index=True))  # fmt: skip


@plot(reads="prune_score_trajectories.csv", runs="decoder released-*", draw=draw_scores)
def decay_scores(results: Results, runs: list[str]) -> DataFrame:
    """Attention to important and unimportant tokens, query by query, after Fig. 5 of the Decay article (an image
    without values), from unpruned attention over layers and heads. Important tokens are the tenth of the tokens in the
    first half of the text that receive the most attention from the second half. Left: how often an important token is
    not among the best 40 % of all tokens so far, and would be evicted, as the mean over 15 queries. Right: scores of
    both groups under Decay and under the plain sum, as the mean and a band of the middle 80 % of tokens, cut at
    0.00001. To see: the article expects small alphas to miss fewest important tokens. At the end of the text the plain
    sum misses fewest, but it adds up the very attention by which the important tokens are defined.
    """
    rows = first_model_rows(results.rows("prune_score_trajectories.csv", STUDY, runs))
    keys = ["run", "group", "alpha", "query"]
    means = rows.groupby(keys, as_index=False)[["mean", "low", "high", "missed"]].mean()
    names = {PUBLISHED_ALPHA: "\n(Decay)", 1: "\n(plain sum)"}
    return means.assign(
        seeds=rows["seed"].nunique(),
        source="ours",
        _alpha=means["alpha"].map("alpha {:g}".format) + means["alpha"].map(names).fillna(""),
        _value=means["mean"],
        _value_low=means["low"].clip(lower=LOWEST),
        _value_high=means["high"],
    )
