"""Loss by cache budget, policy and alpha of Decay (Decay article, Fig 4b, 4c; A2SF, arXiv:2407.20485, Fig 5)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from formerlab.report.catalogue import plot
from formerlab.report.names import data_set_label
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import estimate
from formerlab.report.studies import pruning
from formerlab.report.style import GREY
from formerlab.results.read import Results
from formerlab.statistics import over_examples

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


def looks(rows: DataFrame) -> "Series[str]":
    """Return the key of the plot style of each row."""
    return rows["policy"].mask(rows["policy"].eq("decay") & rows["recent"].eq(0.5), "Decay, half recent")


@plot(reads="prune.csv", runs="decoder* released-* wikitext-* long-*", draw=layout(
    Panel("_percent", "increase_nats", by="_pruned", each="run", log="y",
          title="{setting}: {windows:.0f} windows of {window_tokens:.0f} tokens",
          xlabel="measured cache size (% of the tokens)",
          ylabel="loss above that of the full\ncache (nats per token)"),
    notes=pruning.interval_notes, wanted=[pruning.POLICY_LABELS[name] for name in ARTICLE], columns=1, height=1.9,
    order="_after"
))  # fmt: skip
def decay_budget(results: Results, runs: list[str]) -> DataFrame:
    """Increase in the held-out loss of a decoder with a pruned cache, against the fraction of retained tokens, for each
    eviction policy. Cache sizes are measured, and the query's own key comes on top. Policies with the same budget are
    plotted side by side. Decay has the published alpha of 0.2 if that was run, once as published and once with half of
    the budget for recent tokens, as in H2O. The rule of SpAtten sees later queries, which no real decoder cache can. No
    perplexities were published. To see: which policy has the lowest loss as the budget shrinks, and whether the bars of
    two policies separate.
    """
    table = pruning.configurations(results, STUDY, runs)
    table = with_half_recent(results, table[table["policy"].isin(["full", "streaming_llm", *ARTICLE])])
    texts = {
        record["run"]: data_set_label(record["data.name"], record.get("spec.released"), results.scale)
        for record in results.runs(STUDY, runs).to_dict("records")
    }
    sizes = results.rows("prune.csv", STUDY, runs).groupby("run")["tokens"].max()
    table = table.assign(text=table["run"].map(texts), window_tokens=table["run"].map(sizes), _look=looks(table))
    return table.assign(
        _percent=100 * table["realised_budget"],
        _pruned=table["configuration"].mask(table["policy"] == "full"),
        _after=~table["run"].str.startswith(pruning.RELEASED_RUNS),
    )


@plot(reads="prune.csv", runs="decoder released-*", draw=layout(
    Panel("increase_nats", "_pruned", by="_pruned", kind="forest", each="_cell", zero=0.0, far=1.5, once=True,
          xlabel="nats per token"),
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
    sizes = rows["budget"].map(pruning.budget_text) + " of the tokens"
    rank = rows[rows["part"] == "mean"].groupby("configuration")["increase_nats"].mean().rank()
    return rows.assign(
        _cell=rows["run"] + ": " + sizes if rows["run"].nunique() > 1 else "Added loss, " + sizes,
        _pruned=rows["configuration"].mask(rows["policy"] == "full"),
        _rank=rows["configuration"].map(rank),
        _look=looks(rows),
    )


NEEDLES = ("needle_single.csv", "needle_multikey.csv")
"""Rows of `formerlab answer-tasks` on the model of the league, files of the scale."""
FLOOR = 50.0
"""`long_context.FLOOR` in percent. A test compares them: an import would make figures stale with the data code."""


def needles(results: Results) -> DataFrame:
    """Return the percentage of needles that a policy finds, by task and budget, with its interval over examples.

    The full cache is beside every budget. Tasks in which it finds less than half decide nothing and are left out.
    """
    files, found = [results.rows_of(file, "") for file in NEEDLES], []
    if all(rows.empty for rows in files):
        return files[0]
    rows = pd.concat(files, ignore_index=True)
    rows = rows[rows["metric"] == "string_match"]
    keys = [*pruning.CONFIGURATION[1:], "task"]
    for key, group in rows.groupby(keys, sort=False, dropna=False):
        values = over_examples(100 * group["value"].to_numpy(dtype=float)[None])
        found.append(dict(zip(keys, key, strict=True)) | estimate("found_percent", values) | {"examples": len(group)})
    table = pruning.label_and_sort(DataFrame(found).assign(run=""))
    full = table[table["policy"] == "full"]
    full = full[full["found_percent"] >= FLOOR]
    pruned = table[table["policy"].ne("full") & table["task"].isin(full["task"])]
    pruned = pruned.assign(_budget=pruned["budget"])
    beside = full.merge(pruned[["task", "_budget"]].drop_duplicates(), on="task")
    shown = pd.concat([beside, pruned], ignore_index=True)
    task = shown["task"].str.rpartition("_")[0].str.replace("_", " ").str.capitalize()
    return shown.assign(
        _task=task + " at " + shown["_budget"].map(pruning.budget_text) + ", n = " + shown["examples"].astype(str)
    )


@plot(reads="prune.csv", runs="random-* league-*", needs="league-*", draw=layout(
    Panel("increase_nats", "configuration", by="configuration", kind="forest", each="_cell", zero=0.0, far=1.5,
          xlabel="nats per token"),
    Panel("found_percent", "configuration", by="configuration", kind="forest", each="_task", xlabel="found (%)"),
    notes=pruning.interval_notes, columns=2, order="_budget _rank"
))  # fmt: skip
def decay_league(results: Results, runs: list[str]) -> DataFrame:
    """Which policy at which budget: loss above that of the full cache (line) on windows of novels, and needles found in
    a text of 512 tokens, with step-by-step eviction (SnapKV reads the prompt unpruned). All policies of a panel hold
    equally many bytes. Hollow: a policy that divides the same total among heads or layers. Random with protected tokens
    (4 first, a quarter of the budget recent) is the baseline that a score must beat; Ideal is the bound that no cache
    reaches. The loss of each policy is paired with the full cache on the windows that all policies of the panel read,
    nearly every window from another novel. Needles are scored as in RULER; only tasks of which the full cache finds at
    least half are shown. To see: whether the bars of two policies separate, and how much of the distance to Ideal a
    divided budget recovers.
    """
    table, found = pruning.league(results, STUDY, runs), needles(results)
    sizes, count = table["budget"].map(pruning.budget_text), table["windows"].map("{:.0f}".format)
    cells = "Added loss at " + sizes + ", " + count + " windows"
    rows = pd.concat([table.assign(_cell=cells, _budget=table["budget"]), found], ignore_index=True)
    rows = rows.reindex(columns=[*dict.fromkeys([*rows, "found_percent", "_task"])])
    return rows.assign(
        source="ours",
        _rank=rows["increase_nats"].fillna(-rows["found_percent"]),
        _look=rows["policy"].map(pruning.scorer),
        _markerfacecolor=rows["policy"].str.contains("(", regex=False).map({True: "white", False: None}),
    )


def mark_alpha(axes: Axes, rows: DataFrame) -> None:
    """Mark the published alpha on the axis."""
    axes.axvline(pruning.PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    axes.set(xlim=(-0.04, 1.04), xticks=np.linspace(0, 1, 6))


def level_with_h2o(rows: DataFrame, name: str) -> "Series[bool]":
    """Return for each row whether the interval of its difference to H2O includes 0."""
    return ~((rows[f"{name}_low"] > 0) | (rows[f"{name}_high"] < 0))  # true as well if H2O was not run


def draw_alpha(data: DataFrame) -> Figure:
    """Draw a panel per run and budget, in which the full cache of the run is a line."""
    cells = data.loc[data["policy"] == "decay", ["run", "budget"]].drop_duplicates()
    sizes = [f"budget {pruning.budget_text(budget)}{' of the tokens' * (budget <= 1)}" for budget in cells["budget"]]
    cells = cells.assign(_cell=cells["run"] + ": " + sizes if cells["run"].nunique() > 1 else sizes)
    full = data[data["policy"] == "full"].merge(cells[["run", "_cell"]], on="run")
    rows = pd.concat([data.merge(cells, on=["run", "budget"]), full], ignore_index=True)
    panel = Panel("alpha", "perplexity", by="_series", each="_cell", xlabel="forgetting factor alpha", empty="_level",
                  ylabel="perplexity", style="policy", far=2.0, finish=mark_alpha)  # fmt: skip
    return layout(panel, notes=pruning.interval_notes, wanted=("Full", "H2O"))(rows)


@plot(reads="prune.csv", runs="decoder* released-*", draw=draw_alpha)
def decay_alpha(results: Results, runs: list[str]) -> DataFrame:
    """Held-out perplexity against the forgetting factor alpha of Decay without a recent part, for each budget; after
    Fig. 4b and 4c of the Decay article, which show accuracies. Lines are the full cache and H2O (half recent) at the
    same budget. alpha 0 retains the keys that the last query attended to, alpha 1 is the plain sum; dotted: the
    published alpha of 0.2. A filled point means that the 95 % interval of the difference between Decay and H2O on the
    same windows excludes 0, each alpha by itself. Bars show the difference to the full cache, so their overlap says
    nothing about Decay against H2O. To see: where the curve is lowest, and which of its points are filled.
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
    return table.assign(_series=pruning.policy_labels(table["policy"]), _level=level_with_h2o(table, pruning.MINUS_H2O))
