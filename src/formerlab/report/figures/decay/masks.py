"""Retained keys and the scores that select them (Decay article, Fig 3 and 5; A2SF, arXiv:2407.20485, Table 2)."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.figures.decay.loss import mark_alpha
from formerlab.report.panel import Panel, layout
from formerlab.report.published import A2SF, published
from formerlab.report.studies.pruning import (
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
    caches = "cache of " + data["budget"].map(budget_text)
    cells = data.assign(_panel=data["configuration"] + caches, _cache=caches, _seen=data["kept"].map(list))
    cells = cells.explode(["key", "_seen"])
    panel = Panel("key", "query", by="_seen", kind="heat", facet="_panel", title="{configuration}",
                  xlabel="key (token)", ylabel="{_cache}\nquery (token)",
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


_LEVELS = {"local": "Local", "streaming_llm": "StreamingLLM", "h2o": "H2O", "tova": "TOVA"}
_ALPHAS = {PUBLISHED_ALPHA: f"Decay {PUBLISHED_ALPHA}", 1.0: "plain sum"}
EVEN = 0.4
"""Fraction of the keys from the first 40 % of the positions if the selection is even."""
_EARLY, _DISTANCE = "early_share", "distance_to_ideal"
_bias = partial(Panel, "value", "_name", by="_name", kind="forest")
_distance = partial(_bias, log="x", xlabel="1 - cosine similarity")


@plot(reads="prune_masks.csv", runs="decoder released-* masks-*", draw=layout(
    _bias(where={"metric": _EARLY, "_cache": 0.4}, title="From the first 40 %, cache of 40 %",
          xlabel="fraction of the retained keys",
          finish=lambda axes, _: axes.axvline(EVEN, color=GREY, linestyle=":", linewidth=1)),
    _distance(where={"metric": _DISTANCE, "_cache": 0.4}, title="Distance to Ideal, cache of 40 %"),
    _distance(where={"metric": _DISTANCE, "_cache": 0.2}, title="Distance to Ideal, cache of 20 %"),
    Panel("alpha", "value", by="_curve", where={"metric": _DISTANCE, "_cache": 0.2}, title="Decay, cache of 20 %",
          log="y", name="none", xlabel="forgetting factor alpha", ylabel="1 - cosine similarity", finish=mark_alpha),
    notes=lambda rows: [f"{pruning_sample(rows)}; {rows['windows'].max():.0f} windows for Local, H2O and Decay "
                        f"{PUBLISHED_ALPHA} if they were run on them, otherwise {rows['windows'].min():.0f}; unpruned "
                        "attention; bars: 95 % interval over windows; dotted: an even selection of keys, alpha 0.2."],
    columns=2, height=1.6, order="source _rank alpha"
))  # fmt: skip
def decay_bias(results: Results, runs: list[str]) -> DataFrame:
    """Keys that a cache retains: the fraction of them from the first 40 % of the text, and the distance of the
    attention rows to the rows of the ideal selection (1 - cosine similarity), which no cache can make. Decay has no
    recent part; its plain sum is alpha 1. Dotted lines: an even selection of keys, and the published alpha of 0.2.
    Hollow: A2SF (arXiv:2407.20485, a later form of Decay), Table 2, LLaMA-2-7B at 20 %, mean of four suites; compare
    the order of its policies and not their values. To see: whether the plain sum retains the start of the text and
    Decay does not, and which policies are nearest to Ideal. The CSV has further budgets and measures.
    """
    rows = results.rows("prune_masks.csv", STUDY, runs)
    model = first_model_rows(rows)["run"].iloc[0]
    rows = mask_metrics(rows[rows["run"].eq(model) | rows["run"].str.startswith("masks-")])
    caches = {min(rows["budget"].unique(), key=lambda budget: abs(budget - wanted)): wanted for wanted in (0.2, 0.4)}
    shown = rows["policy"].ne("decay") | rows["recent"].eq(0)
    names = rows["policy"].map(_LEVELS).fillna(rows["alpha"].map(_ALPHAS)).where(shown)
    most = rows.groupby([names, "budget", "metric"])["windows"].transform("max")
    rows = rows.assign(
        _name=names.where(rows["windows"].eq(most)),
        _curve=rows["policy"].where(rows["policy"].eq("decay") & shown & rows["run"].eq(model)),
        _cache=rows["budget"].map(caches),
        _rank=names.map([*_LEVELS.values(), *_ALPHAS.values()].index, na_action="ignore"),
        _style=rows["policy"].mask(rows["alpha"].eq(1), "main"),
    )
    theirs = published(A2SF, "Table 2")
    theirs = theirs[theirs["setting"].str.contains("average")]
    names, cosine = theirs["model"].str.replace("(alpha=", " ").str.rstrip(")"), theirs["value"].astype(float)
    kinds = names.str.split().str[0].str.lower().replace("a2sf", "decay")
    theirs = DataFrame({"run": "LLaMA-2-7B", "configuration": names, "budget": 0.2, "cosine": cosine, "_cache": 0.2,
                        "source": "published", "metric": _DISTANCE, "value": 1 - cosine, "_style": kinds})  # fmt: skip
    return pd.concat([rows, theirs.assign(_name=names + ", published")], ignore_index=True)


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
              log="y", name="legend", title="Scores: {_alpha}", xlabel=position, ylabel="score (mean of attention)",
              finish=lambda axes, rows: axes.set_ylim(LOWEST, 0.1)),
        notes=lambda rows: [f"{pruning_sample(rows)}; left: means over {SMOOTHED} queries, without "
                            "intervals; middle and right: means, bands: middle 80 % of the tokens, cut at 1e-5."],
        columns=3, height=1.9,
    )(pd.concat([missed, data], ignore_index=True))  # fmt: skip


@plot(reads="prune_score_trajectories.csv", runs="decoder released-*", draw=draw_scores)
def decay_scores(results: Results, runs: list[str]) -> DataFrame:
    """Attention to important and unimportant tokens, query by query, after Fig. 5 of the Decay article (an image
    without values), from unpruned attention over layers and heads. Important tokens are the tenth of the tokens in the
    first half of the text that receive the most attention from the second half. Left: how often an important token is
    not among the best 40 % of all tokens so far, and would be evicted, as the mean over 15 queries. Middle and right:
    scores of both groups under Decay and under the plain sum, which are weighted means of the attention so far, as the
    mean and a band of the middle 80 % of tokens; the axis and the bands are cut at 0.00001. H2O has no line, because
    its protected recent tokens have no score. To see: the article expects small alphas to miss fewest important tokens.
    At the end of the text the plain sum misses fewest, but it adds up the very attention by which the important tokens
    are defined.
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
