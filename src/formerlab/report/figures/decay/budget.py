"""Loss against cache budget for each eviction policy (Decay article; A2SF, arXiv:2407.20485, Fig 5)."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.names import data_set
from formerlab.report.panel import Panel, Style, setting, sheet
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
from formerlab.report.runs import missing_note
from formerlab.report.style import look
from formerlab.results.read import Results

STUDY = "decay"
POLICIES_BUDGET = ("local", "streaming_llm", "h2o", "spatten", "decay")
"""Those of the article, and StreamingLLM; decay_baselines draws the others."""
ARTICLE_ALONE = ("local", "spatten")
"""Policies that decay_budget shows, and decay_baselines does not."""


def budget_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return one configuration per policy of the article at every budget, and Decay with half of it recent.

    `part` is mean, or seed.
    """
    table = configurations(results, STUDY, runs)
    table = with_seeds(results, STUDY, with_half_recent(table[table["policy"].isin(["full", *POLICIES_BUDGET])]))
    records = results.runs(STUDY, runs).to_dict("records")
    texts = {
        record["run"]: data_set(record["data.name"], record.get("spec.released"), results.scale) for record in records
    }
    sizes = results.rows("prune.csv", STUDY, runs).groupby("run")["tokens"].max()
    return table.assign(text=table["run"].map(texts), window_tokens=table["run"].map(sizes))


def with_half_recent(table: DataFrame) -> DataFrame:
    """Return one configuration per policy, and Decay with half of the budget for recent tokens, as H2O divides it."""
    main = main_configurations(table)
    alphas = main.loc[main["policy"] == "decay", "alpha"].unique()
    split = table[(table["policy"] == "decay") & (table["recent"] == 0.5) & table["alpha"].isin(alphas)]
    return pd.concat([main, split]).drop_duplicates(CONFIGURATION, ignore_index=True)


def style_of_policy(name: str, rows: DataFrame) -> Style:
    """Return the style of one configuration."""
    policy, recent = rows["policy"].iloc[0], rows["recent"].iloc[0]
    return dict(zip(("color", "marker"), look("Decay, half recent" if (policy, recent) == ("decay", 0.5) else policy),
                    strict=True))  # fmt: skip


def draw_budget(data: DataFrame) -> Figure:
    """Draw one panel per run, a line per policy, on a logarithmic axis."""
    rows = data[data["policy"] != "full"]
    first = rows["run"].str.startswith(RELEASED_RUNS)
    rows = rows.assign(percent=100 * rows["realised_budget"])
    notes = [
        *interval_notes(data),
        "Budgets are those realised; points of different policies are moved sideways so that no bar hides another.",
        *missing_note([NAMES.get(name, name) for name in data["policy"]], [NAMES[name] for name in _WANTED]),
    ]
    panel = Panel("percent", "increase_nats", by="configuration", each="run", title=_setting_and_windows, log="y",
                  xlabel="kept tokens, realised budget (%)", style=style_of_policy,
                  ylabel="loss above that of the whole\ncache (nats per token)")  # fmt: skip
    return sheet(panel, notes=notes, columns=1, height=1.9)(
        pd.concat([rows[first], rows[~first]]).drop(columns="seeds")
    )


def _setting_and_windows(rows: DataFrame) -> str:
    first = rows.dropna(subset="windows").iloc[0]
    known = setting(rows) or first["text"]
    return f"{known}: {first['windows']:.0f} windows of {first['window_tokens']:.0f} tokens"


_WANTED = ("full", "local", "h2o", "spatten", "decay")

decay_budget = Plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder*", "released-*", "wikitext-*", "long-*"),
    caption=(
        "Held-out loss of a decoder above that with the whole cache, against the share of tokens that its cache "
        "keeps, for each eviction policy, on a logarithmic axis. Each text and length of windows has a panel; budgets "
        "are the realised ones, and the query's own key comes on top of them. To see: which policy stays lowest as "
        "the budget shrinks, and whether the bars of two policies part. Decay is drawn at the published alpha of 0.2 "
        "where that was run, as published and with half of the budget for recent tokens, as H2O divides it. SpAtten's "
        "rule sees later queries, which no real decoder cache can. No perplexities were published."
    ),
    data=budget_data,
    draw=draw_budget,
)


def baselines_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return one configuration per policy at every budget, and Decay with half of it recent.

    `part` is mean, or seed.
    """
    table = configurations(results, STUDY, runs)
    return with_seeds(results, STUDY, with_half_recent(table[~table["policy"].isin(ARTICLE_ALONE)]))


def draw_baselines(data: DataFrame) -> Figure:
    """Draw a panel per run and budget; its rows are policies, the one that loses least on top."""
    rows = data[data["policy"] != "full"]
    order = rows[rows["part"] == "mean"].groupby("configuration")["increase_nats"].mean().rank()
    sizes = [f"{size_of(budget)} of the tokens kept" for budget in rows["budget"]]
    several = rows["run"].nunique() > 1
    cells = [f"{run}: {size}" if several else size for run, size in zip(rows["run"], sizes, strict=True)]
    rows = rows.assign(cell=cells, place=rows["configuration"].map(order)).sort_values(["run", "budget", "place"])
    panel = Panel("increase_nats", "configuration", by="configuration", kind="forest", each="cell", zero=0.0, far=3.0,
                  xlabel="loss above the whole cache's (nats per token)", style=style_of_policy)  # fmt: skip
    return sheet(panel, notes=interval_notes(data))(rows.drop(columns="seeds"))


decay_baselines = Plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Held-out loss above that with the whole cache (line), for what is used today and for the other algorithms "
        "called H2O, all evicting step by step; a panel per budget. Random is the floor; Ideal, which takes the best "
        "keys of each row anew and so is no cache, the bound. Decay is drawn as published and, like H2O, with half of "
        "the budget for recent tokens. To see: which rules that need no accumulated score come near Decay. The "
        "official mask with global statistics sees later queries, so no cache has its loss. StreamingLLM is run with "
        "the positions of the text and with those within the cache. Bars: 95 % interval of the paired difference; a "
        "number with an arrow is a loss to the right of the panel."
    ),
    data=baselines_data,
    draw=draw_baselines,
)
