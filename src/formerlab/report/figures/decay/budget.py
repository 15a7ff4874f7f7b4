"""Loss against cache budget for each eviction policy (Decay article; A2SF, arXiv:2407.20485, Fig 5)."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from formerlab.report.drawings import plot
from formerlab.report.names import data_set
from formerlab.report.panel import Panel, sheet
from formerlab.report.pruning import (
    CONFIGURATION,
    NAMES,
    RELEASED_RUNS,
    configurations,
    interval_notes,
    main_configurations,
    size_of,
    with_seeds,
)
from formerlab.results.read import Results

STUDY = "decay"
ARTICLE = ("local", "h2o", "spatten", "decay")
"""Policies of the article; decay_budget shows StreamingLLM too, decay_baselines all others but ARTICLE_ALONE."""
ARTICLE_ALONE = ("local", "spatten")


def with_half_recent(results: Results, table: DataFrame) -> DataFrame:
    """Return one configuration per policy, and Decay with half of the budget for recent tokens, as H2O divides it.

    Below them are their seeds.
    """
    main = main_configurations(table)
    alphas = main.loc[main["policy"] == "decay", "alpha"].unique()
    split = table[(table["policy"] == "decay") & (table["recent"] == 0.5) & table["alpha"].isin(alphas)]
    return with_seeds(results, STUDY, pd.concat([main, split]).drop_duplicates(CONFIGURATION, ignore_index=True))


def looks(rows: DataFrame) -> "Series[str]":
    """Return the name by which each configuration is looked up."""
    return rows["policy"].mask(rows["policy"].eq("decay") & rows["recent"].eq(0.5), "Decay, half recent")


def draw_budget(data: DataFrame) -> Figure:
    """Draw one panel per run, a line per policy, on a logarithmic axis."""
    rows = data.assign(
        percent=100 * data["realised_budget"], look=looks(data), first=~data["run"].str.startswith(RELEASED_RUNS)
    )
    rows = rows[rows["policy"] != "full"].sort_values("first", kind="stable").drop(columns="seeds")
    panel = Panel("percent", "increase_nats", by="configuration", each="run", log="y", style="look",
                  title="{setting}: {windows:.0f} windows of {window_tokens:.0f} tokens",
                  xlabel="kept tokens, realised budget (%)",
                  ylabel="loss above that of the whole\ncache (nats per token)")  # fmt: skip
    return sheet(panel, notes=interval_notes(data), wanted=[NAMES[name] for name in ARTICLE], columns=1, height=1.9)(
        rows
    )


@plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder*", "released-*", "wikitext-*", "long-*"),
    draw=draw_budget,
)
def decay_budget(results: Results, runs: Sequence[str]) -> DataFrame:
    """Held-out loss of a decoder above that with the whole cache, against the share of tokens that its cache keeps, for
    each eviction policy, on a logarithmic axis. Each text and length of windows has a panel; budgets are the realised
    ones, moved sideways where a bar would hide another; the query's own key comes on top. To see: which policy stays
    lowest as the budget shrinks, and whether the bars of two policies part. Decay is drawn at the published alpha of
    0.2 where that was run, as published and with half of the budget for recent tokens, as H2O divides it. SpAtten's
    rule sees later queries, which no real decoder cache can. No perplexities were published.
    """
    table = configurations(results, STUDY, runs)
    table = with_half_recent(results, table[table["policy"].isin(["full", "streaming_llm", *ARTICLE])])
    texts = {
        record["run"]: data_set(record["data.name"], record.get("spec.released"), results.scale)
        for record in results.runs(STUDY, runs).to_dict("records")
    }
    sizes = results.rows("prune.csv", STUDY, runs).groupby("run")["tokens"].max()
    return table.assign(text=table["run"].map(texts), window_tokens=table["run"].map(sizes))


def draw_baselines(data: DataFrame) -> Figure:
    """Draw a panel per run and budget; its rows are policies, the one that loses least on top."""
    rows = data[data["policy"] != "full"]
    order = rows[rows["part"] == "mean"].groupby("configuration")["increase_nats"].mean().rank()
    sizes = rows["budget"].map(lambda budget: f"{size_of(budget)} of the tokens kept")
    cells = rows["run"] + ": " + sizes if rows["run"].nunique() > 1 else sizes
    rows = rows.assign(cell=cells, order=rows["configuration"].map(order), look=looks(rows))
    panel = Panel("increase_nats", "configuration", by="configuration", kind="forest", each="cell", zero=0.0, far=1.5,
                  xlabel="loss above the whole cache's (nats per token)", style="look")  # fmt: skip
    rows = rows.sort_values(["run", "budget", "order"]).drop(columns="seeds")
    return sheet(panel, notes=interval_notes(data))(rows)


@plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder", "released-*"),
    draw=draw_baselines,
)
def decay_baselines(results: Results, runs: Sequence[str]) -> DataFrame:
    """Held-out loss above that with the whole cache (line), for what is used today and for the other algorithms called
    H2O, all evicting step by step; a panel per budget. Random is the floor; Ideal, which takes the best keys of each
    row anew and so is no cache, the bound. Decay is drawn as published and, like H2O, with half of the budget for
    recent tokens. To see: which rules that need no accumulated score come near Decay. The official mask with global
    statistics sees later queries, so no cache has its loss. StreamingLLM is run with the positions of the text and with
    those within the cache. Bars: 95 % interval of the paired difference; a number with an arrow is a loss to the right
    of the panel.
    """
    table = configurations(results, STUDY, runs)
    return with_half_recent(results, table[~table["policy"].isin(ARTICLE_ALONE)])
