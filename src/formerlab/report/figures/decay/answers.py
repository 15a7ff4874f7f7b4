"""Zero-shot accuracy under pruning, by suite and by alpha of Decay (Decay article, Fig 4 and Table 2)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.quantity import Quantity
from formerlab.report.columns import with_interval
from formerlab.report.figures.decay.loss import ALPHA_LABEL, mark_alpha
from formerlab.report.panel import Panel, layout
from formerlab.report.published import DECAY, published
from formerlab.report.runs import estimate
from formerlab.report.studies.pruning import (
    budget_text,
    first_model_rows,
    is_published_setting,
    model_label,
    nearest_budget_rows,
    policy_labels,
    pruning_sample,
)
from formerlab.report.studies.questions import (
    COSTLY,
    MEAN_LABEL,
    SUITES,
    accuracies,
    chance_accuracy,
    load_answers,
    task_label,
)
from formerlab.report.style import BLACK, ink
from formerlab.report.tables.cells import ClaimVerdict, claim_verdicts, claim_words
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE

STUDY = "decay"
ENDS = ("difference", "difference_low", "difference_high")


def published_accuracies() -> DataFrame:
    """Return the accuracies of the article by model, configuration and task.

    A published model is named `... Decay 0+40 alpha=0.2`, with the percentages of recent and of selected tokens.
    """
    rows = published(DECAY, "Fig 4a", "Table 2")
    fields = rows["model"].str.extract(r"(\S+) (\S+)(?: (\d+)\+(\d+))?(?: alpha=([\d.]+))?")
    recent, selected = fields[2].astype(float), fields[3].astype(float)
    table = DataFrame({"run": fields[0], "series": fields[1], "task": rows["metric"].str.removesuffix("_acc")})
    table = table.assign(budget=((recent + selected) / 100).fillna(1.0), recent=recent / (recent + selected),
                         alpha=fields[4].astype(float), accuracy=rows["value"].astype(float) / 100,
                         source="published")  # fmt: skip
    full = table[table["series"] == "Full"].set_index(["run", "task"])["accuracy"].rename("full")
    table = table.join(full, on=["run", "task"])
    return table.assign(difference=table["accuracy"] - table["full"]).drop(columns="full")


_MEAN, _THREE = "mean of five", "mean of three"


def _task(task: str) -> str:
    label = task_label(task).removesuffix(" (local)")
    return _MEAN if label in (MEAN_LABEL, "average") else label


def _accuracy_notes(rows: DataFrame) -> list[str]:
    ours = rows[rows["source"] == "ours"]
    sizes = " or ".join(dict.fromkeys(ours["budget"].map(budget_text)))
    measured = " and ".join(dict.fromkeys((100 * ours["_size"].dropna()).map("{:.1f}".format)))
    questions = " to ".join(dict.fromkeys(f"{count:.0f}" for count in rows["questions"].agg(["min", "max"])))
    of_mean = ours.loc[ours["_name"].eq(_MEAN), "questions"].max()
    mean = f" (mean of five: {of_mean:.0f})" if of_mean > 0 else ""
    return [
        f"cache of {sizes}{f' (measured: {measured} % in the mean of five)' * bool(measured)}; {pruning_sample(rows)}, "
        f"{questions} questions{mean}; bars: 95 % interval, paired by question; green: meets the claim."
    ]


_CLAIM, _HALF_CLAIM = "decay-beats-h2o", "decay-halves-the-pruning-loss"
_CLAIMS = {_CLAIM: "Decay beats H2O", _HALF_CLAIM: "it loses less than half of H2O's loss"}
REGAINED_FRACTION = 0.17
"""Fraction of H2O's accuracy drop that Decay must regain to meet the claim."""


def _mark_sets(axes: Axes, rows: DataFrame) -> None:
    """Print the mean in bold with its interval, and sets at chance level in grey."""
    names, first = [label.get_text() for label in axes.get_yticklabels()], rows[rows["_minus_h2o_limit"].notna()]
    words = {}
    for value, low, high in first[[f"_{name}" for name in expand_columns("minus_h2o[]")]].to_numpy(dtype=float)[:1]:
        words[_MEAN] = f"{_MEAN}\n{with_interval(value, low, high, 'z.1f')}"
    axes.set_yticks(axes.get_yticks(), [words.get(name, name) for name in names])
    for name, label in zip(names, axes.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if name == _MEAN else "normal")
        label.set_color(ink("#8C8C8C") if name.endswith("(chance)") else BLACK)


_pairs = partial(
    Panel, "_minus_h2o", "_name", by="_model", kind="forest", zero=0.0, name="legend",
    xlabel="points (right: Decay is better)", finish=_mark_sets,
)  # fmt: skip
_draw_accuracy = layout(
    _pairs(where={"_panel": "pair"}, title="Accuracy, Decay minus H2O"),
    Panel("_difference", "_name", by="_arm", kind="forest", zero=0.0, where={"_panel": "level"},
          title="Mean of five, minus full cache", xlabel="points (triangle: H2O, square: Decay)"),
    _pairs(where={"_panel": "other"}, title="The same, other sets"),
    Panel("_excess", "_name", by="_model", kind="forest", zero=0.0, where={"_panel": "excess"},
          title="Lost accuracy minus half of H2O's", xlabel="points (left: less than half)"),
    notes=_accuracy_notes, wanted=("H2O", "Decay"), order="source run _order"
)  # fmt: skip


def draw_accuracy(data: DataFrame) -> Figure:
    """Draw at the left Decay minus H2O for all models, and at the right the policies minus the full cache and the
    excess of Decay's loss over half of H2O's.
    """
    markers = data["_model"].map({"LLaMA-2-7B-chat": "D", "OPT-2.7B": "p"}).fillna("s")
    data = data.assign(_marker=markers, _model=data["_model"].str.replace("-Instruct", ""))
    pairs = data[data["policy"].eq("decay") | data["source"].eq("published") & data["series"].eq("Decay")]
    levels = data[data["_name"].eq(_MEAN)].dropna(subset="_series").query("_series != 'Local'")
    levels = levels.assign(_panel="level", _name=levels["_model"], _arm=levels["_series"] + ", " + levels["_model"],
                           _marker=levels["_series"].str.startswith("H2O").map({True: "v", False: "s"}))  # fmt: skip
    excess = pairs[pairs["_name"].eq(_MEAN)].assign(_panel="excess")
    in_article = pairs["_name"].isin(pairs.loc[pairs["source"].eq("published"), "_name"])
    pairs = pairs.assign(_panel=in_article.map({True: "pair", False: "other"}),
                         _name=pairs["_name"].mask(pairs["_name"].str.startswith("mean of ARC"), _THREE))  # fmt: skip
    return _draw_accuracy(pd.concat([pairs, levels, excess], ignore_index=True))


@plot(reads="prune_questions.csv", runs="decoder* released-*", draw=draw_accuracy)
def decay_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Zero-shot accuracy of pruned caches, after Fig. 4a and Table 2 of the Decay article. Hollow: the article's
    values, from other models and questions. H2O (half recent) and Decay 0.2 (none recent) retain 40 % of the tokens, or
    the nearest budget. Other sets: not in the article; the mean of three (ARC-e, SciQ, BLiMP, on which H2O
    costs more) was chosen after the result. The suites are read from local files, with our own prompts; the released
    model has weights in 4 bits. The article gives no intervals, and no alpha for LLaMA-2-7B-chat. Dashed line: a
    quarter of the article's effect, scaled to the accuracy that H2O loses here. (chance): with the full cache our model
    is not above guessing, so the suite shows nothing about pruning. To see: whether the interval of the mean of five
    suites excludes zero. The CSV has each suite minus the full cache.
    """
    rows = load_answers(results, STUDY, runs)
    chosen = nearest_budget_rows(rows[is_published_setting(rows) | rows["policy"].isin(["local", "full"])])
    table = accuracies(chosen, against=("full", "h2o"), averaged=(SUITES, COSTLY))
    table = table.assign(series=policy_labels(table["policy"]), chance=table["task"].map(chance_accuracy(rows)))
    ends = expand_columns("minus_h2o[]")
    rows = pd.concat([table[[*table.columns.drop(ends), *ends]], published_accuracies()], ignore_index=True)
    of_h2o = rows[rows["series"].eq("H2O")].set_index(["run", "task"])["accuracy"]
    published = rows["source"].eq("published")
    keys = pd.MultiIndex.from_frame(rows.loc[published, ["run", "task"]])
    rows.loc[published, "minus_h2o"] = rows.loc[published, "accuracy"] - of_h2o.reindex(keys).to_numpy()
    suites = [MEAN_LABEL, f"{MEAN_LABEL} (local)", "average", *SUITES, *(f"{suite}_local" for suite in SUITES)]
    full = rows["series"].eq("Full")
    at_chance = set(rows.loc[full & rows["low"].le(rows["chance"]), "task"].map(_task))
    names, ours = rows["task"].map(_task), rows["source"].eq("ours")
    lost = rows["run"].map(
        -100 * rows[ours & rows["policy"].eq("h2o") & names.eq(_MEAN)].set_index("run")["difference"]
    )
    limit = (REGAINED_FRACTION * lost).where(ours & names.eq(_MEAN) & rows["policy"].eq("decay"))
    verdicts = claim_verdicts(results, STUDY, *_CLAIMS)
    rows = rows.assign(**_excess(verdicts[_HALF_CLAIM], rows, names.eq(_MEAN)))
    return rows.assign(
        verdict=limit.notna().map({True: verdicts[_CLAIM].word, False: None}),
        _claims=claim_words(verdicts, _CLAIMS),
        _size=np.where(names.eq(_MEAN) & ours & rows["policy"].eq("decay"), _mean_cache_size(chosen), np.nan),
        _minus_h2o_limit=limit,
        _minus_h2o_met=np.inf,
        **(100 * rows[[*ENDS, *ends]]).add_prefix("_"),
        _name=names + names.isin(at_chance).map({True: " (chance)", False: ""}),
        _order=rows["task"].map({task: number for number, task in enumerate(suites)}) + 20 * names.isin(at_chance),
        _model=rows["run"].map(model_label),
        _series=rows["series"].mask(full),
        _style=rows["series"].str.lower(),
        _data_set="",
    )


def _mean_cache_size(chosen: DataFrame) -> float:
    """Return the measured cache size of Decay as a fraction of the tokens, over the questions of five suites."""
    suites = chosen[chosen["policy"].eq("decay") & chosen["task"].str.removesuffix("_local").isin(SUITES)]
    return float(suites["realised_budget"].mean())


def _excess(verdict: ClaimVerdict, rows: DataFrame, is_mean: "pd.Series[bool]") -> dict[str, Any]:
    """Return the columns of the accuracy that Decay loses minus half of what H2O loses, in the mean of five suites: the
    fraction `excess` with its registered interval, and points for the figure.
    """
    decay = is_mean & rows["series"].str.startswith("Decay", na=False)
    lost = -rows[is_mean & rows["series"].eq("H2O")].drop_duplicates("run").set_index("run")["difference"]
    excess = (-rows["difference"] - rows["run"].map(lost) / 2).where(decay)
    ours, effect = decay & rows["source"].eq("ours"), verdict.quantities.get("excess")
    columns = {"excess": excess, "excess_low": excess * np.nan, "excess_high": excess * np.nan}
    if isinstance(effect, Quantity):
        ends = estimate("excess", effect.interval(CONFIDENCE))
        columns = {name: values.mask(ours, ends[name]) for name, values in columns.items()}
    limits = {"_excess_limit": excess.where(ours) * 0, "_excess_met": -np.inf}
    return columns | {f"_{name}": 100 * values for name, values in columns.items()} | limits


_ALPHA_CLAIMS = {
    "decay-small-alpha-better": "small alpha is better",
    "decay-past-helps-beyond-last-row": "alpha 0.2 beats alpha 0",
    "decay-best-alpha-depends-on-task": "an alpha for each set is better",
    "decay-h2o-needs-recent-window": "H2O beats alpha 1, which reserves no recent tokens",
}
"""Claims on the mean of the suites, with their short labels in the figure."""
_ALPHA_CONTRASTS = {
    "decay-small-alpha-better": ("0.1 to 0.3 minus 0.7 to 0.9", 0.0),
    "decay-past-helps-beyond-last-row": ("0.2 minus 0", 0.0),
    "decay-best-alpha-depends-on-task": ("by set minus one for all", 0.0025),
}
"""Alphas that a claim compares, and the smallest difference that counts; a quantity `m` of the claim replaces it."""


def _finish_curve(axes: Axes, rows: DataFrame) -> None:
    """Mark the published alpha, and set round ticks."""
    mark_alpha(axes, rows)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))


def _write_intervals(axes: Axes, rows: DataFrame) -> None:
    """Write each registered difference and its verdict to the right of its bar."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    left, right = rows["_contrast_low"].min() - 0.2, rows["_contrast_high"].max()
    for name, verdict, *values in rows[["_name", "verdict", *expand_columns("_contrast[]")]].to_numpy():
        words = f"{name}\n{with_interval(values[0], values[1], values[2], '.1f')}: {verdict}"
        axes.text(right + 0.2, names.index(name), words, va="center", fontsize=7)
    axes.set(xlim=(left, left + 2.3 * (right - left)), yticks=[], xticks=(-1, 0, 1))


_curve = partial(
    Panel, "alpha", "_minus_h2o", by="_series", facet="_title", zero=0.0, name="legend", style="policy",
    xlabel=ALPHA_LABEL, ylabel="accuracy minus H2O\n(points; above 0:\nDecay is better)", finish=_finish_curve,
)  # fmt: skip
_draw_alpha_accuracy = layout(
    _curve(where={"_panel": "mean"}),
    Panel("_contrast", "_name", by="_series", kind="forest", where={"_panel": "contrast"}, zero=0.0, style="policy",
          title="Claims: mean of five, difference of alphas", share_y=True,
          xlabel="accuracy (points; green: meets the claim)", finish=_write_intervals),
    _curve(where={"_panel": "set"}, same_limits="y", share_y=True),
    notes=lambda rows: [
        f"cache of {budget_text(rows['budget'].min(), ' of the tokens')}; {pruning_sample(rows)}; bars "
        "and band: 95 % interval of the difference to H2O (zero), paired by question; n: questions; arrow: full cache, "
        "above the axis; a bar that includes zero does not meet a claim."
    ],
    columns=2, height=1.25, order="_order"
)  # fmt: skip


@plot(reads="prune_questions.csv", runs="decoder released-*", draw=_draw_alpha_accuracy)
def decay_alpha_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Accuracy against the decay factor alpha, minus the accuracy of H2O (half recent) at the same budget; after Fig.
    4b and 4c of the Decay article, whose points exist only as an image. Decay reserves no budget for recent tokens.
    Bars: 95 % interval of each alpha, paired by question. Sets on which the model guesses with the full cache show
    nothing about pruning and are in the CSV only. Second panel: the differences of the claims, each with its own paired
    interval, which is shorter than the intervals of both alphas suggest; an alpha for each set is chosen on the other
    half of the questions. To see: which bars exclude zero. The best point of a curve is a biased estimate;
    decay_tasks_table chooses alpha on one half of the questions and evaluates it on the other half.
    """
    rows = first_model_rows(load_answers(results, STUDY, runs))
    without_recent = rows["policy"].eq("decay") & rows["recent"].eq(0)
    counts = rows[without_recent].groupby("budget")["alpha"].nunique()
    if counts.empty or counts.max() < 2:
        return DataFrame()
    half = rows["policy"].eq("h2o") & rows["recent"].eq(0.5)
    chosen = rows[(without_recent | half) & rows["budget"].eq(float(str(counts.idxmax()))) | rows["policy"].eq("full")]
    table, minus_h2o = accuracies(chosen, against=("full", "h2o")), expand_columns("minus_h2o[]")
    table = table[[*table.columns.drop(minus_h2o), *minus_h2o]]
    table = table.assign(chance=table["task"].map(chance_accuracy(rows)))
    full = table[table["policy"] == "full"].set_index("task")
    at_chance = set(full.index[full["low"] <= full["chance"]])
    at_chance = at_chance if at_chance < {*table["task"]} else set()
    plotted = table.groupby("task")["accuracy"].transform("max").gt(0) & table["policy"].ne("h2o")
    plotted &= ~table["task"].isin(at_chance)
    names, questions = table["task"].map(_task), table.groupby("task")["questions"].transform("max")
    of_full = ", full cache {:.0f}\N{NO-BREAK SPACE}%".format
    accuracy = table["task"].map(full["accuracy"]).mul(100).map(of_full, na_action="ignore").fillna("")
    verdicts = claim_verdicts(results, STUDY, *_ALPHA_CLAIMS)
    words, is_mean = claim_words(verdicts, _ALPHA_CLAIMS), names.eq(_MEAN)
    curves = table.assign(
        _panel=is_mean.map({True: "mean", False: "set"}),
        **(100 * table[minus_h2o]).add_prefix("_"),
        _title=names + questions.map(" (n = {:.0f})".format) + accuracy,
        verdicts=is_mean.map({True: words, False: ""}),
        _claims=words,
        _order=~table["task"].str.startswith(MEAN_LABEL),
        _series=policy_labels(table["policy"]).replace("Full", "full cache").where(plotted),
        _data_set="",
    )
    return pd.concat([curves, _contrasts(verdicts, curves)], ignore_index=True)


def _contrasts(verdicts: Mapping[str, ClaimVerdict], curves: DataFrame) -> DataFrame:
    """Return a row per claim of `verdicts` with its registered difference, its interval and its limit."""
    rows, decay = [], curves[curves["policy"].eq("decay") & curves["_series"].notna()].iloc[0]
    shared = {name: decay[name] for name in ("run", "source", "policy", "_series", "_claims", "_data_set")}
    for claim, (name, smallest) in _ALPHA_CONTRASTS.items():
        effect, least = ({"m": smallest, **verdicts[claim].quantities}.get(key) for key in ("effect", "m"))
        if isinstance(effect, Quantity):
            ends = estimate("contrast", effect.interval(CONFIDENCE))
            limit = least.interval(CONFIDENCE).mean if isinstance(least, Quantity) else least
            points = {f"_{end}": 100 * value for end, value in (ends | {"contrast_limit": limit}).items()}
            row = {"_panel": "contrast", "_name": name, "claim": claim, "verdict": verdicts[claim].word}
            rows.append(shared | row | {"_contrast_met": np.inf, "_order": True} | ends | points)
    return DataFrame(rows)
