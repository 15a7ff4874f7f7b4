"""Zero-shot accuracy under pruning, by suite and by alpha of Decay (Decay article, Fig 4 and Table 2)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.figures.decay.loss import ALPHA_LABEL, mark_alpha
from formerlab.report.panel import Panel, layout
from formerlab.report.published import DECAY, published
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
from formerlab.report.style import BLACK, GREY, NARROW, VERMILION, ink
from formerlab.report.tables.cells import claim_verdicts, claim_words
from formerlab.results.read import Results

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


_MEAN = "mean of five"


def _task(task: str) -> str:
    label = task_label(task).removesuffix(" (local)")
    return _MEAN if label in (MEAN_LABEL, "average") else label


def _accuracy_notes(rows: DataFrame) -> list[str]:
    ours = rows[rows["source"] == "ours"]
    sizes = " or ".join(dict.fromkeys(ours["budget"].map(budget_text)))
    measured = " to ".join(sorted(set((100 * ours["realised_budget"].dropna()).map("{:.1f}".format))))
    questions = " to ".join(dict.fromkeys(f"{count:.0f}" for count in rows["questions"].agg(["min", "max"])))
    of_mean = ours.loc[ours["_name"].eq(_MEAN), "questions"].max()
    mean = f" (mean of five: {of_mean:.0f})" if of_mean > 0 else ""
    return [
        f"cache of {sizes}{f' ({measured} % over all sets)' * bool(measured)}; {pruning_sample(rows)}, {questions} "
        f"questions{mean}; bars: 95 % interval, paired by question."
    ]


_CLAIM = "decay-beats-h2o"
REGAINED_FRACTION = 0.17
"""Fraction of H2O's accuracy drop that Decay must regain to meet the claim."""


def _mark_sets(axes: Axes, rows: DataFrame) -> None:
    """Print the mean in bold with its interval, print sets at chance level in grey, and draw a line
    between the sets of the article and other sets.
    """
    labels = axes.get_yticklabels()
    first = rows[rows["_minus_h2o_limit"].notna()]
    for label in labels:
        label.set_fontweight("bold" if label.get_text() == _MEAN else "normal")
        label.set_color(ink("#8C8C8C") if label.get_text().endswith("(chance)") else BLACK)
    unpublished = [
        name not in set(rows.loc[rows["source"].eq("published"), "_name"]) for name in map(Text.get_text, labels)
    ]
    if any(unpublished) and not all(unpublished):
        axes.axhline(sum(unpublished) - 0.5, color=GREY, linewidth=0.6)
    for value, low, high in first[[f"_{name}" for name in expand_columns("minus_h2o[]")]].to_numpy(dtype=float)[:1]:
        words = f"{_MEAN}\n{value:z.1f} [{low:z.1f}, {high:z.1f}]"
        words = words.replace("-", "\N{MINUS SIGN}")
        axes.set_yticks(axes.get_yticks(), [words if text == _MEAN else text for text in map(Text.get_text, labels)])


_draw_accuracy = layout(
    Panel("_minus_h2o", "_name", by="_model", kind="forest", zero=0.0, where={"_panel": "pair"}, name="legend",
          title="Decay minus H2O", xlabel="accuracy (points;\nright: Decay is better)", finish=_mark_sets),
    Panel("_difference", "_name", by="_arm", kind="forest", zero=0.0, where={"_panel": "level"},
          title="Mean of five minus full cache (vermilion: H2O, green: Decay)", xlabel="accuracy (points)"),
    notes=_accuracy_notes, wanted=("H2O", "Decay"), columns=1, width=NARROW, order="source run _order"
)  # fmt: skip


def draw_accuracy(data: DataFrame) -> Figure:
    """Draw Decay minus H2O for all models above, and the policies minus the full cache below."""
    markers = data["_model"].map({"LLaMA-2-7B-chat": "D", "OPT-2.7B": "p"}).fillna("s")
    names = data["_model"] + data["source"].eq("published").map({True: " (published)", False: ""})
    data = data.assign(_marker=markers, _short=data["_model"], _model=names)
    pairs = data[data["policy"].eq("decay") | data["source"].eq("published") & data["series"].eq("Decay")]
    levels = data[data["_name"].eq(_MEAN)].dropna(subset="_series").query("_series != 'Local'")
    models = levels["_short"].str.replace("-Instruct", "")
    levels = levels.assign(_panel="level", _name=models, _arm=levels["_series"] + ", " + models)
    pairs = pairs.assign(_panel="pair", _name=pairs["_name"].str.replace(", ", ",\n", n=1))
    return _draw_accuracy(pd.concat([pairs, levels], ignore_index=True))


@plot(reads="prune_questions.csv", runs="decoder* released-*", draw=draw_accuracy)
def decay_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Zero-shot accuracy of pruned caches, after Fig. 4a and Table 2 of the Decay article. Hollow: the article's
    values, from other models and questions. H2O (half recent) and Decay 0.2 (none recent) retain 40 % of the tokens, or
    the nearest budget. Sets below the line are not in the article; the mean of three sets on which H2O costs more was
    chosen after the result. The suites are read from local files, with our own prompts; the released model has weights
    in 4 bits. The article gives no intervals, and no alpha for LLaMA-2-7B-chat. Dashed: a quarter of the article's
    effect, scaled to the accuracy that H2O loses here; green: meets the claim. (chance): with the full cache our model
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
    verdict = claim_verdicts(results, STUDY, _CLAIM)[_CLAIM].word
    return rows.assign(
        verdict=limit.notna().map({True: verdict, False: None}),
        _claims=claim_words(results, STUDY, {_CLAIM: "Decay beats H2O"}),
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


_ALPHA_CLAIMS = {
    "decay-small-alpha-better": "small alpha is better",
    "decay-past-helps-beyond-last-row": "alpha 0.2 beats alpha 0",
}
"""Claims on the mean of the suites, with their short labels in the figure."""


def _describe_set(axes: Axes, rows: DataFrame) -> None:
    """Mark the published alpha, and keep all bars within the limits."""
    mark_alpha(axes, rows)
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.05 * rows["_minus_h2o_high"].max()))
    axes.text(1.05, 0, "H2O", ha="right", va="bottom", color=ink(VERMILION), fontsize=7)


_draw_alpha_accuracy = layout(
    Panel("alpha", "_minus_h2o", by="_series", facet="_title", zero=0.0, name="legend", same_limits="y", share_y=True,
          style="policy",
          xlabel=ALPHA_LABEL, ylabel="accuracy minus H2O\n(points; above 0:\nDecay is better)", finish=_describe_set),
    notes=lambda rows: [
        f"cache of {budget_text(rows['budget'].min(), ' of the tokens')}; {pruning_sample(rows)}; bars "
        "and band: 95 % interval of the difference to H2O (zero), paired by question."
    ],
    columns=3, height=1.9, order="_order"
)  # fmt: skip


@plot(reads="prune_questions.csv", runs="decoder released-*", draw=_draw_alpha_accuracy)
def decay_alpha_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Accuracy against the decay factor alpha, minus the accuracy of H2O (half recent) at the same budget; after Fig.
    4b and 4c of the Decay article, whose points exist only as an image. Decay reserves no budget for recent tokens.
    Bars: 95 % interval of each alpha, paired by question. Sets on which the model guesses with the full cache show
    nothing about pruning and are in the CSV only. To see: which bars exclude zero, and whether the accuracy of one
    alpha differs from the accuracy of another by more than the bars. The best point of a curve is a biased estimate;
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
    accuracy = (
        table["task"].map(full["accuracy"]).mul(100).map("; full cache {:.0f} %".format, na_action="ignore").fillna("")
    )
    words = claim_words(results, STUDY, _ALPHA_CLAIMS)
    return table.assign(
        **(100 * table[minus_h2o]).add_prefix("_"),
        _title=names + ":\n" + questions.map("{:.0f} questions".format) + accuracy,
        verdicts=names.eq(_MEAN).map({True: words, False: ""}),
        _claims=words,
        _order=~table["task"].str.startswith(MEAN_LABEL),
        _series=policy_labels(table["policy"]).replace("Full", "full cache").where(plotted),
        _data_set="",
    )
