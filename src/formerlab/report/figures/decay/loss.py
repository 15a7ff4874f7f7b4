"""Loss by cache budget, policy and alpha of Decay (Decay article, Fig 4b, 4c; A2SF, arXiv:2407.20485, Fig 5)."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.arms import registered_arms
from formerlab.report.claims.registry import read_claim
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.claims.verdict import evaluate
from formerlab.report.names import RELEASED_NAMES
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import estimate
from formerlab.report.studies import policy_comparison, pruning
from formerlab.report.style import GREY
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE

STUDY = "decay"
ARTICLE = ("local", "h2o", "spatten", "decay")
"""Policies of the article. decay_budget adds StreamingLLM; decay_baselines has all policies except ARTICLE_ALONE."""
ARTICLE_ALONE = ("local", "spatten")


def with_half_recent(results: Results, table: DataFrame) -> DataFrame:
    """Return one configuration per policy, and Decay with half of the budget for recent tokens, as in H2O.

    Rows of single seeds follow.
    """
    main = pruning.main_configurations(table)
    alphas = main.loc[main["policy"] == "decay", "alpha"].unique()
    half_recent = table[(table["policy"] == "decay") & (table["recent"] == 0.5) & table["alpha"].isin(alphas)]
    configurations = pd.concat([main, half_recent]).drop_duplicates(pruning.CONFIGURATION, ignore_index=True)
    return pruning.with_seeds(results, STUDY, configurations)


def style_keys(rows: DataFrame) -> "Series[str]":
    """Return the key of the plot style of each row."""
    return rows["policy"].mask(rows["policy"].eq("decay") & rows["recent"].eq(0.5), "Decay 0.2, half recent")


@plot(reads="prune.csv", runs="decoder* released-* wikitext-* long-*", draw=layout(
    Panel("_percent", "increase_nats", by="_pruned", facet="run", log="y",
          title="{setting}: {windows:.0f} windows of {window_tokens:.0f} tokens",
          xlabel="measured cache size (% of the tokens)",
          ylabel="loss minus full cache\n(nats per token)"),
    notes=lambda rows: [f"{pruning.interval_notes(rows)[0][:-1]}; marks of equal budgets are shifted sideways."],
    wanted=[pruning.POLICY_LABELS[name] for name in ARTICLE if name != "spatten"], columns=1, height=1.7,
    order="_after"
))  # fmt: skip
def decay_budget(results: Results, runs: list[str]) -> DataFrame:
    """Increase in the held-out loss of a decoder with a pruned cache, against the fraction of retained tokens, for each
    eviction policy. Cache sizes are measured, and the query's own key comes on top. Policies with the same budget are
    plotted side by side. Decay has the published alpha of 0.2 if that was run, once as published and once with half of
    the budget for recent tokens, as in H2O. SpAtten is in the CSV alone, because its rule sees later queries, which no
    real decoder cache can. No perplexities were published. To see: which policy has the lowest loss as the budget
    shrinks, and whether the bars of two policies separate.
    """
    table = pruning.configurations(results, STUDY, runs)
    table = with_half_recent(results, table[table["policy"].isin(["full", "streaming_llm", *ARTICLE])])
    texts = pruning.text_labels(results, STUDY, runs)
    sizes = results.rows("prune.csv", STUDY, runs).groupby("run")["tokens"].max()
    table = table.assign(text=table["run"].map(texts), window_tokens=table["run"].map(sizes), _style=style_keys(table))
    return table.assign(
        _percent=100 * table["realised_budget"],
        _pruned=table["configuration"].mask(table["policy"].isin(["full", "spatten"])),
        _after=~table["run"].str.startswith(pruning.RELEASED_RUNS),
    )


@plot(reads="prune.csv", runs="decoder released-*", draw=layout(
    Panel("increase_nats", "_pruned", by="_pruned", kind="forest", facet="_cell", zero=0.0, outlier_factor=1.5,
          share_y=True, xlabel="loss minus full cache\n(nats per token)"),
    notes=pruning.interval_notes, columns=3, order="run budget _rank"
))  # fmt: skip
def decay_baselines(results: Results, runs: list[str]) -> DataFrame:
    """Caches in current use, and the other algorithms called H2O, against the full cache (line): increase in held-out
    loss with step-by-step eviction, and a panel per budget. Random is the baseline. Ideal is the bound: it selects the
    best keys for each query anew, which no cache can do. Decay is shown as published and, like H2O, with half of the
    budget for recent tokens. The official mask with global statistics sees later queries, so no cache has its loss.
    StreamingLLM is run with positions in the text and with positions in the cache. To see: which rules without an
    accumulated score come near Decay.
    """
    table = pruning.configurations(results, STUDY, runs)
    rows = with_half_recent(results, table[~table["policy"].isin(ARTICLE_ALONE)])
    sizes = rows["budget"].map(pruning.budget_text)
    rank = rows[rows["part"] == "mean"].groupby("configuration")["increase_nats"].mean().rank()
    return rows.assign(
        _cell=rows["run"] + ": " + sizes if rows["run"].nunique() > 1 else "Cache of " + sizes,
        _pruned=rows["configuration"].mask(rows["policy"] == "full"),
        _rank=rows["configuration"].map(rank),
        _style=style_keys(rows),
    )


COMPARED_POLICIES = ("Decay 0.95, half recent", "Decay 0.2", "TOVA", "Random, protected")
"""The policies of `decay_league`."""


CLAIM = "decay-score-beats-protected-random"
CLAIMED = 0.25
"""Fraction of the difference between random eviction and Decay that the claim asks for."""


def protected_minus_decay(results: Results) -> DataFrame:
    """Return the loss of protected random eviction minus the loss of Decay by budget, the limit of the claim, and
    the loss difference in percent of the difference between random eviction and Decay.
    """
    claim, arms = read_claim(CLAIM), registered_arms(CLAIM, results.scale)
    rows = []
    for item in evaluate(claim, ClaimRows(results, STUDY, arms), {}, results.scale).items:
        if "m" in item.quantities:
            arm, gap = arms.for_item(item.item)["decay"], item.quantities["effect"].interval(CONFIDENCE)
            row = {"run": str(arm.run).partition("-")[2], "budget": arm.budget, "gap_nats_limit": item.quantities["m"]}
            rows.append(row | estimate("gap_nats", gap))
    table = DataFrame(rows, columns=["run", "budget", "gap_nats_limit", *expand_columns("gap_nats[]")])
    percent = table[expand_columns("gap_nats[]")].mul(100 * CLAIMED / table["gap_nats_limit"], axis=0)
    return table.join(percent.add_prefix("_")).assign(_claim="Random, protected")


def _draw_limit(axes: Axes, rows: DataFrame) -> None:
    axes.axhline(100 * CLAIMED, color=GREY, linestyle="--", linewidth=1)
    words, place = f"claim: at least {100 * CLAIMED:.0f} %", axes.get_yaxis_transform()
    axes.text(0.98, 100 * CLAIMED, words, transform=place, ha="right", va="bottom", color=GREY, fontsize=7)
    axes.set_ylim(0, 32)


_of_budget = partial(Panel, "_percent", log="x", ticks="{:.0f}".format, xlabel="cache (% of the tokens)")


@plot(reads="prune.csv", runs="released-* random-* novels-* tight-* league-*", needs="league-*", draw=layout(
    _of_budget("minus_h2o_nats", by="configuration", facet="_panel", zero=0.0, name="legend", same_limits="y",
               share_y=True, where={"configuration": [*COMPARED_POLICIES]}, ylabel="loss minus H2O\n(nats per token)"),
    _of_budget("_gap_nats", by="_claim", name="none", title="The claim, novels",
               ylabel="(protected - Decay 0.2) /\n(random - Decay 0.2) in %", finish=_draw_limit),
    notes=lambda rows: [f"{rows['run'].dropna().replace(RELEASED_NAMES).iloc[0]}; bars: 95 % intervals of paired "
                        "differences, over novels or windows of books; marks of one budget are shifted sideways."],
    columns=3, height=1.9, order="_row budget"
))  # fmt: skip
def decay_league(results: Results, runs: list[str]) -> DataFrame:
    """Which policy at which budget: loss minus the loss with H2O (zero) at the same budget, with step-by-step eviction.
    All policies of a budget hold equally many bytes. The number after Decay is its alpha; half recent means that half
    of the budget is for recent keys, as in H2O. Random, protected keeps the first 4 keys and gives a quarter of the
    budget to recent keys. Two policies are paired on the windows that both read. Right: a score must beat protected
    random eviction; the claim asks for a quarter of the difference between unprotected random eviction and Decay
    (dashed). The interval is of the numerator. The CSV also has random eviction without protection, and the
    percentage of hidden numbers that each policy finds (decides: no for a task on which the full cache finds less
    than half). To see: below which budget a policy beats H2O, and how far protection alone goes.
    """
    table = policy_comparison.losses(results, STUDY, runs)
    most = table.groupby("text")["windows"].transform("max").map(", {:.0f} windows".format)
    texts = table.groupby("text")["budget"].transform("nunique")  # the text with the most budgets is first
    table = table.assign(_panel=table["text"] + most, _row=-texts)
    table = table[table["configuration"].isin([*COMPARED_POLICIES, "H2O", "Random"])]
    found = policy_comparison.needles(results)
    found = found[found["budget"] == pruning.PUBLISHED_BUDGET]
    found = found[found["configuration"].isin([*COMPARED_POLICIES, "H2O", "SnapKV", "Random", "Full"])]
    rows: DataFrame = pd.concat([table, found, protected_minus_decay(results).assign(_row=0)], ignore_index=True)
    styles = rows["policy"].map(pruning.scorer, na_action="ignore").fillna("random")
    return rows.assign(
        source="ours",
        _percent=100 * rows["budget"].astype(float),
        _style=styles.mask(rows["configuration"] == COMPARED_POLICIES[0], COMPARED_POLICIES[0]),
    )


def mark_alpha(axes: Axes, rows: DataFrame) -> None:
    """Mark the published alpha on the axis."""
    axes.axvline(pruning.PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    axes.set(xlim=(-0.04, 1.04), xticks=np.linspace(0, 1, 6))


def draw_alpha(data: DataFrame) -> Figure:
    """Draw a panel of Decay minus H2O per run and budget."""
    cells = data.loc[data["policy"] == "decay", ["run", "budget"]].drop_duplicates()
    sizes = "Cache of " + cells["budget"].map(pruning.budget_text)
    cells = cells.assign(_cell=cells["run"] + ": " + sizes if cells["run"].nunique() > 1 else sizes)
    return layout(
        Panel("alpha", pruning.MINUS_H2O, by="_series", style="policy", facet="_cell", where={"policy": "decay"},
              name="none", xlabel="decay factor alpha", ylabel="loss, Decay minus H2O\n(nats per token)", zero=0.0,
              outlier_factor=2.0, finish=mark_alpha),
        notes=lambda rows: [pruning.interval_notes(rows)[0].replace("full cache", "loss of H2O (zero)")],
        columns=min(3, len(cells)), height=1.8
    )(data.merge(cells, on=["run", "budget"]))  # fmt: skip


@plot(reads="prune.csv", runs="decoder* released-*", draw=draw_alpha)
def decay_alpha(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss with Decay without a recent part, minus the loss with H2O (half recent) at the same budget and on
    the same windows, against the decay factor alpha, for each budget; after Fig. 4b and 4c of the Decay article,
    which show accuracies. alpha 0 retains the keys that the last query attended to, alpha 1 is the plain sum; dotted:
    the published alpha of 0.2. Each alpha has its own 95 % interval. The CSV also has the perplexities. To see: where
    the curve is lowest, and which bars exclude zero; below zero, Decay is better.
    """
    table = pruning.configurations(results, STUDY, runs)
    decay = table[table["policy"] == "decay"]
    least = decay.groupby(["run", "budget"])["recent"].transform("min")
    decay = decay[(decay["recent"] == least) | decay["recent"].isna()]
    decay = decay[decay.groupby(["run", "budget"])["alpha"].transform("nunique") > 1]
    if decay.empty:
        return decay
    others = pruning.main_configurations(table[table["policy"].isin(["full", "h2o"])])
    others = others[(others["policy"] == "full") | others["budget"].isin(decay["budget"])]
    differences = pruning.decay_minus_h2o(results, STUDY, runs)
    table = pd.concat([others, decay], ignore_index=True).merge(differences, on=pruning.CONFIGURATION, how="left")
    return table.assign(_series=pruning.policy_labels(table["policy"]))
