"""Tables of the pruning study (Decay, Jo and Shin 2024; A2SF, arXiv:2407.20485)."""

import re

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.quantity import Examples
from formerlab.report.names import RELEASED_NAMES, TABLE_LABELS
from formerlab.report.published import DECAY, published_rows
from formerlab.report.runs import estimate
from formerlab.report.studies import policy_comparison, pruning, questions
from formerlab.report.studies.pruning import CONFIGURATION, label_and_sort, paired_losses
from formerlab.report.studies.questions import (
    DIFFERENCES,
    LOCAL_SUFFIX,
    MEAN_LABEL,
    SUITES,
    accuracies,
    load_answers,
    task_label,
)
from formerlab.report.studies.two_fold import choose_alphas, chosen_answers, half_indices, split_halves
from formerlab.report.tables.blocks import side_by_side
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE, over_examples

STUDY = "decay"
PERCENT = " (%) ↑"


def _model(run: str) -> str:
    """Return the label of the released model in which the name of a run ends, or the name."""
    return next((label for name, label in RELEASED_NAMES.items() if run.endswith(name)), run)


def _of_model(rows: DataFrame) -> DataFrame:
    """Return rows with the model of each run in the first column; published runs are `<model> <policy>`."""
    if "task" in rows:
        rows = rows.assign(task=rows["task"].str.removesuffix(" (local)"))
    if rows["source"].eq("ours").all():
        return DataFrame({"model": rows["run"].map(_model)}).join(rows)
    words = rows["run"].str.partition(" ")
    if words[2].str.contains(r"^Full|^H2O|^Decay").all():
        rows = rows.assign(configuration=words[2])
        return DataFrame({"model": words[0]}).join(rows.drop(columns="run"))
    return rows.rename(columns={"run": "model"})


def _by_budget(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the loss that pruning adds in the main run, with a row per policy and a column per budget."""
    rows = pruning.first_model_rows(rows)
    heading, full, pruned = _model(rows["run"].iloc[0]), rows["policy"].eq("full"), rows["policy"].ne("full")
    if not full.any() or not pruned.any():
        return {heading: rows}
    budgets = rows.loc[pruned, "budget"]
    labels = {size: f"loss minus Full at {pruning.budget_text(size)} (nats) ↓" for size in sorted(budgets.unique())}
    table = side_by_side(rows[pruned], "configuration", budgets.map(labels), "increase_nats", labels.values())
    heading += f", perplexity {rows.loc[full, 'perplexity'].iloc[0]:.1f} with the full cache"
    return {heading: table.assign(seeds=rows["seeds"].iloc[0], windows=rows["windows"].iloc[0])}


@table(reads="prune.csv", readers=_by_budget,
       columns="source run configuration policy -alpha -recent budget realised_budget perplexity -loss_nats "
               "increase_nats[] seeds windows")  # fmt: skip
def decay_table(results: Results, runs: list[str]) -> DataFrame:
    """How much loss every eviction policy adds at every cache budget. A budget is the percentage of the tokens whose
    keys and values the cache keeps. Cells are the loss per token with the pruned cache minus the loss with the full
    cache on the same windows of test text; lower is better. In brackets: 95 % interval over windows, and over seeds if
    there are at least two; with one seed it is about this model alone. "Recent" is the fraction of the budget that is
    reserved for the last tokens (for H2O, half); Ideal sees the future. The CSV has all runs, with perplexities and
    measured cache sizes; decay_suites_table has accuracies.
    """
    return pruning.configurations(results, STUDY, runs)


def _published(names: dict[str, str], factor: float) -> DataFrame:
    """Return the accuracies of the article under other names, divided by a factor."""
    by, names = ("model", "setting"), {"model": "run", "setting": "configuration"} | names
    wide = published_rows(DECAY, "Fig 4a", "Table 2", by=by, names=names)
    wide[[*names.values()][2:]] /= factor
    return wide[[*names.values()]]


_CONDITIONS = {
    pruning.RELEASED_RUNS: "all questions",
    "budgets-": "100 questions of each set, smaller budgets",
    "leading-": "100 questions of each set, an end-of-text token before every prompt",
    "shots-": "five examples in the prompt",
}
"""Prefix of a run to the condition of its questions."""


def _heading(name: str) -> str:
    """Return the heading of a column of accuracies, such as `ARC-e (%) ↑` for `arc_easy_leading_local (acc)`."""
    task, _, metric = name.partition(" (")
    label = task_label(re.sub("_5_shots|_leading|_acc$", "", task.removesuffix(LOCAL_SUFFIX)))
    plain = metric.startswith(("acc)", "published)"))
    return label + (PERCENT if plain else f" ({metric.partition(')')[0]}, %) ↑") + "_se" * name.endswith("_se")


def _in_percent(rows: DataFrame) -> DataFrame:
    """Return rows with accuracies in percent, without the columns that no row has."""
    scores = [str(name) for name in rows if re.search(r" \((acc|published)", str(name))]
    scaled = rows.assign(**{name: 100 * rows[name] for name in scores}).dropna(axis=1, how="all")
    return scaled.rename(columns=lambda name: _heading(name) if name in scores else name)


def _by_condition(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the accuracies of one configuration per policy, in a block per condition, or the published ones."""
    blocks = {}
    for run, of_run in rows.groupby("run", sort=False):
        prefix = next((prefix for prefix in _CONDITIONS if str(run).startswith(prefix)), None)
        if prefix is None:
            continue
        guess = of_run["configuration"] == questions.CHANCE
        shown = pd.concat([pruning.main_configurations(of_run[~guess]), of_run[guess]], ignore_index=True)
        blocks[f"{_model(str(run))}, {_CONDITIONS[prefix]}"] = _in_percent(shown)
    order = [heading for words in _CONDITIONS.values() for heading in blocks if heading.endswith(words)]
    return {heading: blocks[heading] for heading in order} or _in_percent(_of_model(rows))


@table(reads="prune_questions.csv", readers=_by_condition,
       published=lambda: _published(
           {name: f"{name} (published)" for name in (*(f"{suite}_acc" for suite in SUITES), "average")}, 100
       ))  # fmt: skip
def decay_answers_table(results: Results, runs: list[str]) -> DataFrame:
    """Accuracy on questions with pruned caches, at every budget and with other prompts, after Fig. 4a and Table 2 of
    the Decay article (40 % of the tokens, no examples in the prompt). A budget is the percentage of the tokens that the
    cache keeps; higher accuracy is better, and chance is the accuracy of guessing. After ±: one standard error over
    questions and seeds. Each policy has one configuration, the published one if it was measured; the CSV has all. The
    published models answer other questions: compare differences to Full. There, 20+20 are 20 % of recent and 20 % of
    selected tokens.
    """
    scored = questions.accuracy_columns(load_answers(results, STUDY, runs), CONFIGURATION).drop(columns="seeds")
    guessed = scored["run"] == questions.CHANCE
    chance, table = scored[guessed].assign(configuration=questions.CHANCE), label_and_sort(scored[~guessed])
    table.insert(1, "configuration", table.pop("configuration"))
    blocks = []
    for run, of_run in table.groupby("run", sort=False):
        asked = [name for name in of_run if of_run[name].notna().any()]
        blocks += [of_run, chance.assign(run=run, questions=of_run["questions"].iloc[0]).reindex(columns=asked)]
    return pd.concat(blocks, ignore_index=True)


_NAMES = {suite: f"{task_label(suite)} (%)" for suite in (*SUITES, "sciq", "blimp")}
_MEAN, _AGAINST = "mean of five (%)", {"full": "minus Full (points)", "h2o": "minus H2O (points)"}


def _main_alphas(rows: DataFrame) -> DataFrame:
    """Return rows without the values of alpha between those that readers ask for, the published one and 0.95."""
    swept = rows["configuration"].str.match(r"Decay, alpha (?!0\.2|0\.95, 50)")
    main = rows[~swept].drop(columns=[name for name in rows if str(name).startswith(("SciQ", "BLiMP"))])
    return _of_model(main).rename(columns=lambda name: name.replace(" (%)", PERCENT))


def _published_suites() -> DataFrame:
    wide = _published({f"{suite}_acc": _NAMES[suite] for suite in SUITES} | {"average": _MEAN}, 1)
    models, full = wide["run"].str.split().str[0], wide["run"].str.endswith(" Full")
    return wide.assign(**{_AGAINST["full"]: wide[_MEAN] - models.map(wide[full].set_index(models[full])[_MEAN])})


@table(reads="prune_questions.csv", runs="released-* decoder", published=_published_suites,
       readers=_main_alphas,
       columns="source run configuration policy -realised_budget OpenBookQA~(%)[] WinoGrande~(%)[] ARC-e~(%)[] "
               "ARC-c~(%)[] PIQA~(%)[] mean~of~five~(%)[] minus~Full~(points)[] minus~H2O~(points)[] -SciQ~(%)[] "
               "-BLiMP~(%)[] seeds")  # fmt: skip
def decay_suites_table(results: Results, runs: list[str]) -> DataFrame:
    """Accuracy of every eviction policy that keeps 40 % of the tokens, after Fig. 4a and Table 2 of the Decay article.
    Five sets of questions, without examples in the prompt; higher is better. In brackets: 95 % interval over questions,
    and over seeds if there are at least two. The mean weighs the five sets alike. Read the last two columns: they are
    differences of the mean, paired by question, above zero better than Full or H2O. "Recent" is the fraction of the
    budget that is reserved for the last tokens. Our questions have prompts of their own, so compare differences with
    the published ones and no levels; there, 20+20 are 20 % of recent and 20 % of selected tokens. The CSV has all
    values of alpha, and two more sets of questions.
    """
    rows = load_answers(results, STUDY, runs)
    rows = rows[rows["task"].str.removesuffix(LOCAL_SUFFIX).isin(_NAMES)]
    if rows["policy"].eq("full").all():
        return DataFrame()
    values, table = ["accuracy", "low", "high"], accuracies(pruning.nearest_budget_rows(rows), against=tuple(_AGAINST))
    by_column = [table.assign(name=table["task"].str.removesuffix(LOCAL_SUFFIX).map(_NAMES).fillna(_MEAN))]
    for policy, name in _AGAINST.items():
        means = table[table["task"].str.startswith(MEAN_LABEL) & (table["policy"] != policy)].assign(name=name)
        means[values] = means[expand_columns(f"{DIFFERENCES[policy]}[]")]
        by_column.append(means)
    long = pd.concat(by_column, ignore_index=True)
    long[values] *= 100
    keys = [*CONFIGURATION, "configuration", "realised_budget", "seeds"]
    wide = long[keys].drop_duplicates(ignore_index=True)
    for suite, block in long.groupby("name", sort=False):
        columns = dict(zip(values, (f"{suite}{end}" for end in ("", "_low", "_high")), strict=True))
        wide = wide.merge(block[[*keys, *values]].rename(columns=columns), on=keys, how="left")
    return wide


RECENT = {"local": 1.0, "streaming_llm": 1.0, "full": None}
"""Recent fraction of the budget of policies without this setting: all but the sink."""


def _at_published_budget(rows: DataFrame) -> DataFrame:
    """Return the rows at the published budget, or all without such rows, and of Decay those with alpha 0.2."""
    rows = _of_model(rows[~rows["configuration"].str.match(r"Decay, alpha (?!0\.2)")])
    pruned = rows["budget"] == pruning.PUBLISHED_BUDGET
    return rows[pruned | rows["budget"].eq(1)].drop(columns="budget") if pruned.any() else rows


@table(reads="prune.csv", runs="decoder released-*",
       published=lambda: DataFrame(
           [("Full", 1.0, None, None), ("H2O", 0.4, 0.2, 0.2), ("Decay", 0.4, 0.0, 0.4)],
           columns=["configuration", "budget", "recent_share", "selected_share"],
       ).assign(run="OPT-2.7B, LLaMA-2-7B-chat"),
       readers=_at_published_budget,
       columns="source run configuration budget recent_share selected_share realised_budget seeds windows")  # fmt: skip
def decay_ratio_table(results: Results, runs: list[str]) -> DataFrame:
    """How the methods divide a cache of 40 % of the tokens, after Table 1 of the Decay article. A policy keeps the most
    recent tokens, tokens that its score selects, or both; the cache size is measured at the end of the text. A
    comparison is fair if cache sizes agree within 1 %. All policies round alike: the total half up, the recent tokens
    down; the key of the query comes on top. The global and local statistics are the official masks of H2O, whose halves
    overlap, so they keep fewer keys. The CSV has all budgets and values of alpha.
    """
    ours = pruning.configurations(results, STUDY, runs)
    kinds = ours["policy"].str.split().str[0]
    recent = kinds.map(RECENT).where(kinds.isin(RECENT), ours["recent"].fillna(0.0))
    return ours.assign(recent_share=recent * ours["budget"], selected_share=(1 - recent) * ours["budget"])


def _spread(alphas: pd.Series) -> str:
    """Return the chosen alphas as text: the median, and the range if they differ."""
    low, middle, high = np.quantile(alphas, [0, 0.5, 1])
    return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"


@table(reads="prune_calibrated.csv prune_alphas.csv", readers=_of_model,
       columns="source run budget choice alphas loss_nats -realised_budget minus_best_single_nats[] seeds "
               "windows")  # fmt: skip
def decay_heads_table(results: Results, runs: list[str]) -> DataFrame:
    """Does a forgetting factor (alpha) of its own for every head help? Held-out loss of Decay with alphas that are
    chosen on validation text from one grid; lower is better. Per head: each head takes the alpha whose attention is
    nearest to the ideal attention. Single by distance: one alpha for all heads, by the same measure. Single by loss:
    one alpha for all heads, by the loss itself, the strongest single choice. In brackets: 95 % interval of the paired
    difference over windows, and over seeds if there are at least two. Alphas: the median, and the range over heads. No
    published code has this.
    """
    rows, keys = results.rows("prune_calibrated.csv", STUDY, runs), ["run", "budget", "choice"]
    table = paired_losses(rows, keys[:2], "single_by_loss", "minus_best_single_nats", keys)
    alphas = results.rows("prune_alphas.csv", STUDY, runs).groupby(keys)["alpha"].agg(_spread).rename("alphas")
    return table.join(alphas, on=keys).assign(choice=table["choice"].str.replace("_", " "))


@table(reads="prune.csv", runs="decoder released-*", readers=_of_model,
       columns="source run budget choice loss_nats minus_published_alpha_nats[] seeds windows")  # fmt: skip
def decay_texts_table(results: Results, runs: list[str]) -> DataFrame:
    """What the best forgetting factor of every text would bring: of each window the alpha of least loss on this window,
    which no cache can know, beside one alpha for all windows and beside half of the budget for recent keys. The choice
    is made on the losses that it is judged by, so its gain is an upper bound for any rule that chooses alpha by text.
    The difference to alpha 0.2 is paired by window, with its 95 % interval over windows and seeds.
    """
    rows = results.rows("prune.csv", STUDY, runs)
    rows, keys = rows[rows["policy"] == "decay"], ["run", "budget"]
    rows = rows.assign(choice="alpha " + rows["alpha"].map("{:g}".format) + rows["recent"].map(_recent))
    alone = rows[(rows["recent"] == 0) & (rows.groupby(keys)["alpha"].transform("nunique") > 2)]
    best = alone.loc[alone.groupby([*keys, "seed", "window"])["loss_nats"].idxmin()]
    rows = pd.concat([rows, best.assign(choice=BEST)], ignore_index=True)
    table = paired_losses(rows, keys, "alpha 0.2", "minus_published_alpha_nats", [*keys, "choice"])
    single = table["choice"].str.fullmatch(r"alpha [\d.]+")
    least = table["loss_nats"] == table[single].groupby(keys)["loss_nats"].transform("min").reindex(table.index)
    return table[~single | least | table["choice"].eq("alpha 0.2")].sort_values(keys, kind="stable")


BEST = "best alpha of each window"


def _recent(fraction: float) -> str:
    return f", {100 * fraction:g} % recent" if fraction else ""


@table(reads="prune_questions.csv", readers=_of_model)
def decay_tasks_table(results: Results, runs: list[str]) -> DataFrame:
    """Does it pay to choose alpha per task? Accuracy of Decay with an alpha that is chosen for each set of questions
    (own) and with one alpha for all sets (common); higher is better. Each set is halved by a hash of its ids, and an
    alpha is chosen on one half and evaluated on the other, so two alphas may be shown. In brackets: 95 % interval of
    the gain over questions, and over seeds if there are at least two. It takes the alphas as given; the interval of the
    mean chooses them anew in every resample. Alphas are 0 to 1, without recent tokens.
    """
    rows = load_answers(results, STUDY, runs)
    rows = rows[(rows["policy"] == "decay") & (rows["recent"] == 0)]
    table = []
    for (run, budget), group in rows.groupby(["run", "budget"], sort=False):
        alphas, grids, names = questions.answer_grids(group.sort_values("alpha", kind="stable"))
        halves = half_indices(names)
        grids = {task: grid for task, grid in grids.items() if len(set(halves[task])) == 2}
        if len(alphas) < 2 or not grids:
            continue
        own, common = (choose_alphas(grids, halves, common=common) for common in (False, True))
        for task, grid in grids.items():
            row = {"run": run, "budget": budget, "task": task_label(task)}
            for name, chosen in (("own", own[task]), ("common", common[task])):
                row[f"{name} alphas"] = ", ".join(sorted({f"{alpha:g}" for alpha in alphas["alpha"][chosen.ravel()]}))
            of_own, of_common = (chosen_answers(grid, chosen[task], halves[task]) for chosen in (own, common))
            row |= {"acc_own": of_own.mean(), "acc_common": of_common.mean()}
            row |= estimate("gain", over_examples(of_own - of_common))
            table.append(row | {"seeds": len(of_own), "questions": grid.shape[2]})
        sides = split_halves({task: np.moveaxis(grid, 0, -1) for task, grid in grids.items()}, halves)
        seeds = tuple(range(len(sides[0])))
        by_own, by_common = (Examples(sides, seeds, {}, chosen=chosen).estimate() for chosen in ("own", "common"))
        mean = (by_own - by_common).interval(CONFIDENCE)
        table.append({"run": run, "budget": budget, "task": "mean of these"} | estimate("gain", mean))
    return DataFrame(table)


@table(reads="prune_one_shot.csv", readers=_by_budget,
       columns="source run configuration policy budget realised_budget perplexity -loss_nats increase_nats[] seeds "
               "windows")  # fmt: skip
def decay_one_shot_table(results: Results, runs: list[str]) -> DataFrame:
    """How much loss one-shot compression of the prompt adds, as kvpress and SnapKV do it. The first half of each window
    is read as a prompt with the full cache, which is then pruned once to a percentage of its tokens. Cells are the loss
    per token of the second half minus the loss with the full cache; lower is better. In brackets: 95 % interval of the
    paired difference over windows, and over seeds if there are at least two. Do not compare with step-by-step eviction
    (decay_table): a prompt that is read in full is the easier task. The CSV has perplexities and measured cache sizes.
    """
    table = paired_losses(results.rows("prune_one_shot.csv", STUDY, runs), ["run"], "full", "increase_nats")
    return label_and_sort(table.assign(perplexity=np.exp(table["loss_nats"])))


@table(reads="prune_questions.csv", runs="float32-* released-*", needs="float32-*", readers=_of_model,
       columns="source run configuration budget task acc_float32 acc_model difference[] judged_alike "
               "questions")  # fmt: skip
def decay_precision_table(results: Results, runs: list[str]) -> DataFrame:
    """Does the model's own precision (bfloat16 or float16) change accuracies? The same questions with the same policies
    in the model's precision and in float32; a difference is the former minus the latter, in points of accuracy. In
    brackets: 95 % interval of the paired difference over questions. An interval around zero: no effect is seen.
    """
    rows, keys = load_answers(results, STUDY, runs), [*CONFIGURATION, "task"]
    precise = rows["run"].str.startswith("float32-")
    rounded = rows[~precise].assign(run=rows["run"].str.replace(pruning.RELEASED_RUNS, "float32-"))
    pairs = rows[precise].merge(rounded, on=[*keys, "example"], suffixes=("_precise", "_rounded"))
    table = []
    for key, group in pairs.groupby(keys, sort=False, dropna=False):
        row = dict(zip(keys, key, strict=True))
        of_float32, of_model = group["value_precise"].to_numpy(), group["value_rounded"].to_numpy()
        row |= {"task": task_label(str(row["task"])), "acc_float32": of_float32.mean(), "acc_model": of_model.mean()}
        row |= estimate("difference", over_examples((of_model - of_float32)[None]))
        table.append(row | {"judged_alike": (of_float32 == of_model).mean(), "questions": len(group)})
    return label_and_sort(DataFrame(table)) if table else DataFrame()


@table(reads="decode.csv", readers=_of_model,
       columns="source run sequences length configuration policy decoded_tokens_per_s[] speed_ratio[] -prompt_s "
               "prompt_ratio -cache_megabytes cache_share metadata_megabytes repetitions")  # fmt: skip
def decay_decode_table(results: Results, runs: list[str]) -> DataFrame:
    """Speed of decoding with full and pruned caches, after the longest measured prompt. Policies that keep 10 or 40 %
    of the tokens are compared with Full, our full cache, and with DynamicCache, the full cache of transformers. Medians
    over repetitions; in brackets: quartiles of the repetitions, which are no confidence interval. Measured in turns,
    alone on one machine, on a released model or an untrained one of its shape. A ratio on one machine says little about
    another machine, and a ratio on a CPU nothing about a GPU.
    """
    rows = pruning.decode_speeds(results, STUDY, runs)
    if rows.empty:
        return rows
    rows = rows[rows["length"] == rows.groupby(["run", "sequences"])["length"].transform("max")]
    rows = rows.rename(columns=lambda name: name.replace("tokens_per_s", "decoded_tokens_per_s"))
    return rows.assign(cache_megabytes=rows["cache_bytes"] / 1e6, metadata_megabytes=rows["metadata_bytes"] / 1e6)


_SPEED = "cache_share speed_ratio prompt_ratio"
SUITES_MINUS_H2O = "five suites at 40 % minus H2O (points) ↑"


def _losses_apart(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the losses on each text, and the other columns, in blocks of their own, without an empty block."""
    rows = rows[~rows["configuration"].str.contains(", budget by ")]
    rows = rows.rename(columns=lambda name: str(name).replace(_AGAINST["h2o"], SUITES_MINUS_H2O))
    losses = [str(name) for name in rows if " (nats)" in str(name)]
    texts = rows[["source", "configuration", *losses]].dropna(subset=losses, how="all")
    others = rows.drop(columns=losses)
    others = others[others.drop(columns=["source", "configuration"]).notna().any(axis=1)]
    for short, text in TABLE_LABELS.items():
        texts = texts.rename(columns={name: name.replace(f"{short} at", f"{text}, at") for name in map(str, texts)})
    blocks = {
        "loss minus the loss with H2O": texts.rename(columns=lambda name: name.replace("(nats)", "(nats) ↓")),
        "needles, questions and cost": others.rename(columns=lambda name: name.replace("(%)", "(%) ↑")),
    }
    return {title: block for title, block in blocks.items() if len(block)}


@table(reads="prune.csv prune_questions.csv decode.csv", runs="released-* random-* novels-* tight-* league-*",
       needs="league-*", readers=_losses_apart)  # fmt: skip
def decay_league_table(results: Results, runs: list[str]) -> DataFrame:
    """Which policy at which budget: loss minus the loss with H2O at the same budget on each text, numbers found that
    are hidden in a text of 512 tokens, accuracy on the five suites minus that with H2O at 40 % of the tokens, and
    decoding behind the longest prompt that was measured. In brackets: 95 % intervals, paired with H2O on the windows or
    questions that both read, for this one model; of several windows of a document, documents are resampled. Cache,
    speed and the time to read the prompt are ratios to the full cache. Random, protected keeps the first 4 keys and
    gives a quarter of the budget to recent keys. An empty cell was not run, or is H2O minus itself. The CSV also
    has budgets that are divided unequally by head or layer.
    """
    parts = {
        "nats": (policy_comparison.losses(results, STUDY, runs), "text", pruning.MINUS_H2O),
        "%": (policy_comparison.needles(results), "task", "found_percent"),
    }
    blocks = []
    for unit, (part, by, value) in parts.items():
        part = part.sort_values([by, "budget"], ascending=[False, True])
        names = part[by].str.replace("_", " ") + " at " + part["budget"].map(pruning.budget_text) + f" ({unit})"
        for name, rows in part.groupby(names, sort=False):
            columns = {f"{value}{end}": f"{name}{end}" for end in ("", "_low", "_high")}
            blocks.append(rows.set_index("configuration").rename(columns=columns)[[*columns.values()]])
    accuracy = decay_suites_table.rows(results, [run for run in runs if run.startswith(pruning.RELEASED_RUNS)])
    speed = pruning.decode_speeds(results, STUDY, runs)
    if len(speed):
        speed = pruning.nearest_budget_rows(speed[speed["length"] == speed["length"].max()])
    for rows, words in ((accuracy, f"{_AGAINST['h2o'].replace(' ', '~')}[]"), (speed, _SPEED)):
        if len(rows):
            rows = policy_comparison.labelled(rows.drop(columns="configuration")).set_index("configuration")
            blocks.append(rows.reindex(columns=expand_columns(words)))
    wide = pd.concat(blocks, axis=1) if blocks else DataFrame()
    order = [name for name in policy_comparison.LABELS.values() if name in wide.index]
    return wide.reindex(order).reset_index(names="configuration")
