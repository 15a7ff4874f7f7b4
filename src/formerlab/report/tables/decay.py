"""Tables of the pruning study (Decay, Jo and Shin 2024; A2SF, arXiv:2407.20485)."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.quantity import Examples
from formerlab.report.names import RELEASED_NAMES, TABLE_LABELS, data_set_label
from formerlab.report.pages import format_table
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
from formerlab.report.tables.blocks import processor, side_by_side
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE, over_examples

STUDY = "decay"


def _model(run: str) -> str:
    """Return the label of the released model in which the name of a run ends, or the name."""
    return next((label for name, label in RELEASED_NAMES.items() if run.endswith(name)), run)


def _of_model(rows: DataFrame) -> DataFrame:
    """Return rows with the model of each run in the first column."""
    if "task" in rows:
        rows = rows.assign(task=rows["task"].str.removesuffix(" (local)"))
    if rows["source"].eq("ours").all():
        return DataFrame({"model": rows["run"].map(_model)}).join(rows)
    return rows.rename(columns={"run": "model"})


_COMPARED = ("H2O", "Decay, alpha 0.2, no recent", "Decay, alpha 0.2")
"""Configurations that the main claim compares."""
_SWEPT = r"Decay, alpha 0\.([13-8]|9,)"
"""Matches the values of alpha that tables for readers leave out."""


def _texts(results: Results, runs: list[str]) -> dict[str, str]:
    """Return the name of the text of each run."""
    records = results.runs(STUDY, runs).to_dict("records")
    labels = {run["run"]: data_set_label(run["data.name"], run.get("spec.released"), results.scale) for run in records}
    return {run: TABLE_LABELS.get(label, label) for run, label in labels.items()}


def _by_budget(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the loss that pruning adds in the main run, with a row per policy and a column per budget, best first."""
    rows = pruning.first_model_rows(rows)
    heading = f"{_model(rows['run'].iloc[0])}, {rows['text'].iloc[0]}"
    full, pruned = rows["policy"].eq("full"), rows["policy"].ne("full")
    if not full.any() or not pruned.any():
        return {heading: rows}
    rows = rows[~rows["configuration"].str.match(_SWEPT)]
    pruned = rows["policy"].ne("full")
    budgets = rows.loc[pruned, "budget"]
    labels = {size: f"at {pruning.budget_text(size)} (nats) ↓" for size in sorted(budgets.unique())}
    table = side_by_side(rows[pruned], "configuration", budgets.map(labels), "increase_nats", labels.values())
    heading += f", perplexity {rows.loc[~pruned, 'perplexity'].iloc[0]:.1f} with the full cache"
    table = table.assign(seeds=rows["seeds"].iloc[0], windows=rows["windows"].iloc[0])
    return {heading: table.assign(bold=table["configuration"].isin(_COMPARED)).sort_values(labels[max(labels)])}


@table(reads="prune.csv", readers=_by_budget,
       columns="source run text configuration policy -alpha -recent budget realised_budget perplexity -loss_nats "
               "increase_nats[] seeds windows")  # fmt: skip
def decay_table(results: Results, runs: list[str]) -> DataFrame:
    """How much loss every eviction policy adds at every cache budget. A budget is the percentage of the tokens whose
    keys and values the cache keeps. Cells are the loss per token with the pruned cache minus the loss with the full
    cache on the same windows; lower is better. Rows are sorted by the largest budget. In brackets: 95 % interval over
    windows, for this one model. Bold: the policies that the main claim compares. "Recent" is the fraction of the budget
    that is reserved for the last tokens (for H2O, half). Ideal and the global statistics see the future. The CSV has
    all texts and values of alpha; decay_league_table has protected Random.
    """
    rows = pruning.configurations(results, STUDY, runs)
    return rows.assign(text=rows["run"].map(_texts(results, runs)))


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
    "shots-": "250 questions of each set (COPA 100), five examples in the prompt",
}
"""Prefix of a run to the condition of its questions."""


_NAMES = {suite: f"{task_label(suite)} (%)" for suite in (*SUITES, "copa", "sciq", "blimp")}
_MEAN, _AGAINST = "mean (%)", {"full": "minus Full (points)", "h2o": "minus H2O (points)"}
_MINUS_FULL, _MINUS_H2O = "minus~Full~(points)[]", "minus~H2O~(points)[]"


def _by_condition(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the means and their differences in a block per condition, then the accuracies set by set."""
    columns = ["configuration", _MEAN, *expand_columns(f"{_MINUS_FULL} {_MINUS_H2O}")]
    if rows["source"].eq("published").any():
        models = rows["run"].str.partition(" ")
        return rows.assign(model=models[0], configuration=models[2])[["model", *columns[:3], columns[5]]]
    rows = rows[~rows["configuration"].str.match(_SWEPT)]
    rows = rows.assign(bold=rows["configuration"].isin(_COMPARED)).sort_values(_MEAN, ascending=False)
    blocks = {}
    for prefix, words in _CONDITIONS.items():
        of_run = rows[rows["run"].str.startswith(prefix)]
        for budget in sorted(of_run.loc[of_run["budget"] < 1, "budget"].unique()):
            shown = of_run[of_run["budget"].isin([budget, 1]) | of_run["budget"].isna()]
            if of_run["budget"].nunique() > 2:  # the difference of the full cache is to H2O at the smallest budget
                shown = shown[shown["policy"] != "full"]
            heading = f"{_model(str(of_run['run'].iloc[0]))} at {pruning.budget_text(budget)}, {words}"
            blocks[heading] = shown[[*columns, "realised_budget", "bold"]]
    released = rows[rows["run"].str.startswith(pruning.RELEASED_RUNS)]
    sets = [name for name in _NAMES.values() if released.loc[~released["bold"].eq(False), name].notna().any()]
    if len(released):
        by_set = released[["configuration", *sets, "bold"]].rename(columns={name: f"{name} ↑" for name in sets})
        blocks["accuracy set by set"] = by_set
    return blocks or rows


_ENDS = ("", "_low", "_high")


def _published_suites() -> DataFrame:
    wide = _published({f"{suite}_acc": _NAMES[suite] for suite in SUITES} | {"average": _MEAN}, 1)
    models = wide["run"].str.split().str[0]
    for word, name in zip(("Full", "H2O"), _AGAINST.values(), strict=True):
        base = wide["run"].str.contains(f" {word}")
        wide[name] = (wide[_MEAN] - models.map(wide[base].set_index(models[base])[_MEAN])).mask(base)
    return wide


@table(reads="prune_questions.csv", published=_published_suites, readers=_by_condition,
       columns="source run configuration policy budget realised_budget OpenBookQA~(%)[] WinoGrande~(%)[] ARC-e~(%)[] "
               "ARC-c~(%)[] PIQA~(%)[] COPA~(%)[] mean~(%)[] minus~Full~(points)[] minus~H2O~(points)[] SciQ~(%)[] "
               "BLiMP~(%)[] seeds")  # fmt: skip
def decay_suites_table(results: Results, runs: list[str]) -> DataFrame:
    """Accuracy on questions with pruned caches, after Fig. 4a and Table 2 of the Decay article. The mean weighs the
    sets alike (OpenBookQA, WinoGrande, ARC-e, ARC-c and PIQA; five examples: COPA in place of ARC). Differences of the
    mean are paired by question; above zero is better than Full or H2O. In brackets: 95 % interval over questions, for
    this one model. Rows are sorted by the mean; bold: the policies that the main claim compares. Chance is the accuracy
    of guessing. The measured cache size is below the budget, because budgets of short texts are rounded. Published:
    other models and prompts, so compare differences; 20+20 are 20 % of recent and 20 % of selected tokens. The CSV has
    the intervals of every set, and all values of alpha.
    """
    rows = load_answers(results, STUDY, runs)
    rows = rows.assign(task=rows["task"].str.replace("_leading|_5_shots", "", regex=True))
    rows = rows[rows["task"].str.removesuffix(LOCAL_SUFFIX).isin(_NAMES)]
    released = rows["run"].str.startswith(pruning.RELEASED_RUNS)
    rows = pd.concat([pruning.nearest_budget_rows(rows[released]), rows[~released]])
    released = rows["run"].str.startswith(pruning.RELEASED_RUNS)
    if rows["policy"].eq("full").all():
        return DataFrame()
    values, tables = ["accuracy", "low", "high"], []
    for _, of_run in rows.groupby("run", sort=False):
        tasks = of_run["task"].str.removesuffix(LOCAL_SUFFIX).unique()
        suites = SUITES if {*SUITES} <= {*tasks} else tuple(tasks)
        full = of_run["policy"] == "full"
        for budget in of_run.loc[~full, "budget"].unique():
            of_budget = of_run[full | of_run["budget"].eq(budget)]
            tables.append(accuracies(of_budget, against=tuple(_AGAINST), suites=suites))
    table = pd.concat(tables, ignore_index=True).drop_duplicates([*CONFIGURATION, "task"])
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
        columns = dict(zip(values, (f"{suite}{end}" for end in _ENDS), strict=True))
        wide = wide.merge(block[[*keys, *values]].rename(columns=columns), on=keys, how="left")
    guesses = {_NAMES[task.removesuffix(LOCAL_SUFFIX)]: 100 * value
               for task, value in questions.chance_accuracy(rows[released]).items()}  # fmt: skip
    if guesses:
        mean = np.mean([guesses.get(_NAMES[suite], np.nan) for suite in SUITES])
        guess = {"run": rows.loc[released, "run"].iloc[0], "configuration": questions.CHANCE, _MEAN: mean} | guesses
        wide = pd.concat([wide, DataFrame([guess])], ignore_index=True)
    return wide


RECENT = {"local": 1.0, "streaming_llm": 1.0, "full": None}
"""Recent fraction of the budget of policies without this setting: all but the sink."""


def _at_published_budget(rows: DataFrame) -> DataFrame:
    """Return the rows at the published budget, or all without such rows, and of Decay those with alpha 0.2."""
    rows = _of_model(rows[~rows["configuration"].str.match(r"Decay, alpha (?!0\.2)")])
    pruned = rows["budget"] == pruning.PUBLISHED_BUDGET
    if rows["source"].eq("published").any() or not pruned.any():
        return rows
    rows = rows[pruned | rows["budget"].eq(1)].drop(columns="budget")
    sizes = rows[["realised_budget", "on_questions"]]
    h2o = sizes[rows["configuration"] == "H2O"]
    alike = (sizes / h2o.iloc[0]).sub(1).abs().max(axis=1).le(0.01) if len(h2o) else None
    return rows.assign(alike=alike if alike is None else alike.map({True: "yes", False: "no"}))


@table(reads="prune.csv prune_questions.csv", runs="decoder released-*",
       published=lambda: DataFrame(
           [("Full", 1.0, None, None), ("H2O", 0.4, 0.2, 0.2), ("Decay", 0.4, 0.0, 0.4)],
           columns=["configuration", "budget", "recent_share", "selected_share"],
       ).assign(run="OPT-2.7B, LLaMA-2-7B-chat"),
       readers=_at_published_budget,
       columns="source run configuration budget recent_share selected_share realised_budget on_questions seeds windows"
       )  # fmt: skip
def decay_ratio_table(results: Results, runs: list[str]) -> DataFrame:
    """How the methods divide a cache of 40 % of the tokens, after Table 1 of the Decay article. A policy keeps the most
    recent tokens, tokens that its score selects, or both. Cache sizes are measured at the end of a text, and on
    questions, which are short. A comparison with H2O is fair if both sizes are within 1 %, which the last column says.
    All policies round alike: the total half up, the recent tokens down; the key of the query comes on top. The global
    and local statistics are the official masks of H2O, whose halves overlap. The CSV has all budgets and values of
    alpha.
    """
    ours = pruning.configurations(results, STUDY, runs)
    kinds = ours["policy"].str.split().str[0]
    recent = kinds.map(RECENT).where(kinds.isin(RECENT), ours["recent"].fillna(0.0))
    answers = load_answers(results, STUDY, runs)
    sizes = answers.groupby(CONFIGURATION, dropna=False)["realised_budget"].mean().rename("on_questions")
    ours = ours.merge(sizes.reset_index(), on=CONFIGURATION, how="left")
    return ours.assign(recent_share=recent * ours["budget"], selected_share=(1 - recent) * ours["budget"])


def _spread(alphas: pd.Series) -> str:
    """Return the chosen alphas as text: the median, and the range if they differ."""
    low, middle, high = np.quantile(alphas, [0, 0.5, 1])
    return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"


@table(reads="prune_calibrated.csv prune_alphas.csv prune.csv",
       readers=lambda rows: _of_model(rows[~rows["minus_best_single_nats"].eq(0)]),
       columns="source run budget choice alphas loss_nats -realised_budget minus_best_single_nats[] seeds "
               "windows")  # fmt: skip
def decay_heads_table(results: Results, runs: list[str]) -> DataFrame:
    """Does a forgetting factor (alpha) of its own for every head help? Held-out loss of Decay with alphas that are
    chosen on validation text from one grid; lower is better. Per head: each head takes the alpha whose attention is
    nearest to the ideal attention. Single by loss: one alpha for all heads, by the loss itself. Both have no recent
    keys; the other rows, on the same windows, give them half of the budget. In brackets: 95 % interval of the paired
    difference over windows. Alphas: the median, and the range over heads. No published code has this.
    """
    rows, keys = results.rows("prune_calibrated.csv", STUDY, runs), ["run", "budget", "choice"]
    others = results.rows("prune.csv", STUDY, runs)
    others = others.assign(choice=_choices(others))
    others = others[others["choice"].isin(("H2O", "alpha 0.95, 50 % recent"))]
    windows = rows.groupby(keys[:2])["window"].agg(frozenset)
    same = others.groupby(keys)["window"].agg(frozenset).rename("read").reset_index().join(windows, on=keys[:2])
    same = same.loc[same["read"] == same["window"], keys]
    rows = pd.concat([rows, others.merge(same)], ignore_index=True)
    table = paired_losses(rows, keys[:2], "single_by_loss", "minus_best_single_nats", keys)
    alphas = results.rows("prune_alphas.csv", STUDY, runs).groupby(keys)["alpha"].agg(_spread).rename("alphas")
    return table.join(alphas, on=keys).assign(choice=table["choice"].str.replace("_", " "))


def _choices(rows: DataFrame) -> pd.Series:
    """Return the name of the policy of each row in the tables of alphas: H2O, or alpha and the recent keys of Decay."""
    recent = (100 * rows["recent"]).map(", {:g} % recent".format).where(rows["recent"] > 0, "")
    decay = "alpha " + rows["alpha"].map("{:g}".format) + recent
    return decay.where(rows["policy"] == "decay").mask(rows["policy"] == "h2o", "H2O")


@table(reads="prune.csv", runs="decoder released-*", readers=_of_model,
       columns="source run budget choice loss_nats minus_published_alpha_nats[] seeds windows")  # fmt: skip
def decay_texts_table(results: Results, runs: list[str]) -> DataFrame:
    """What the best forgetting factor (alpha) of every text would bring. Each window has the alpha with the least loss
    on it. No cache can know this alpha, so the gain is an upper bound for any rule that chooses alpha by text. These
    alphas have no recent keys; H2O and Decay with half of the budget for recent keys may be better. The difference to
    alpha 0.2 is paired by window, with its 95 % interval over windows; the text is six test books.
    """
    rows = results.rows("prune.csv", STUDY, runs)
    rows, keys = rows.assign(choice=_choices(rows)).dropna(subset="choice"), ["run", "budget"]
    rows = rows[rows.groupby(keys)["alpha"].transform("nunique") > 0]
    alone = rows[
        rows["policy"].eq("decay") & rows["recent"].eq(0) & (rows.groupby(keys)["alpha"].transform("nunique") > 2)
    ]
    best = alone.loc[alone.groupby([*keys, "seed", "window"])["loss_nats"].idxmin()]
    rows = pd.concat([rows, best.assign(choice=BEST)], ignore_index=True)
    table = paired_losses(rows, keys, "alpha 0.2", "minus_published_alpha_nats", [*keys, "choice"])
    single = table["choice"].str.fullmatch(r"alpha [\d.]+")
    least = table["loss_nats"] == table[single].groupby(keys)["loss_nats"].transform("min").reindex(table.index)
    return table[~single | least | table["choice"].eq("alpha 0.2")].sort_values(keys, kind="stable")


BEST = "best alpha of each window"
LARGEST_ALPHA = 0.9
"""Largest alpha of the claim on the best alpha of a task."""


@table(reads="prune_questions.csv", readers=_of_model)
def decay_tasks_table(results: Results, runs: list[str]) -> DataFrame:
    """Does it pay to choose alpha per task? Accuracy of Decay with an alpha that is chosen for each set of questions
    (own) and with one alpha for all sets (common); higher is better. Each set is halved by a hash of its ids, and an
    alpha is chosen on one half and evaluated on the other, so two alphas may be shown. In brackets: 95 % interval of
    the gain over questions. It takes the alphas as given; the interval of the mean chooses them anew in every resample.
    Alphas are 0 to 0.9, the grid of the claim, without recent tokens. Bold: the row on which the verdict rests.
    """
    rows = load_answers(results, STUDY, runs)
    rows = rows[(rows["policy"] == "decay") & (rows["recent"] == 0) & (rows["alpha"] <= LARGEST_ALPHA)]
    table = []
    for (run, budget), group in rows.groupby(["run", "budget"], sort=False):
        alphas, grids, names = questions.answer_grids(group.sort_values("alpha", kind="stable"))
        if article := [task for task in grids if task.removesuffix(LOCAL_SUFFIX) in SUITES]:
            grids, names = {task: grids[task] for task in article}, {task: names[task] for task in article}
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
            table.append(row | {"questions": grid.shape[2]})
        sides = split_halves({task: np.moveaxis(grid, 0, -1) for task, grid in grids.items()}, halves)
        seeds = tuple(range(len(sides[0])))
        by_own, by_common = (Examples(sides, seeds, {}, chosen=chosen).estimate() for chosen in ("own", "common"))
        mean = (by_own - by_common).interval(CONFIDENCE)
        table.append({"run": run, "budget": budget, "task": "mean", "bold": True} | estimate("gain", mean))
    return DataFrame(table)


@table(reads="prune_one_shot.csv", readers=_by_budget,
       columns="source run text configuration policy budget realised_budget perplexity -loss_nats increase_nats[] "
               "seeds windows")  # fmt: skip
def decay_one_shot_table(results: Results, runs: list[str]) -> DataFrame:
    """How much loss one-shot compression of the prompt adds, as kvpress and SnapKV do it. The first half of each window
    is read as a prompt with the full cache, which is then pruned once to a percentage of its tokens. Cells are the loss
    per token of the second half minus the loss with the full cache; lower is better. Half of the budget of H2O, and no
    fixed part of the others, is for recent keys. In brackets: 95 % interval of the paired difference over windows, for
    this one model. Bold: the policies that the main claim compares, with step-by-step eviction. Do not compare with
    that eviction (decay_table): a prompt that is read in full is the easier task. The CSV has perplexities and measured
    cache sizes.
    """
    table = paired_losses(results.rows("prune_one_shot.csv", STUDY, runs), ["run"], "full", "increase_nats")
    table = table.assign(perplexity=np.exp(table["loss_nats"]), text=table["run"].map(_texts(results, runs)))
    return label_and_sort(table)


@table(reads="prune_questions.csv", runs="float32-* released-*", needs="float32-*", readers=_of_model,
       columns="source run configuration budget acc_float32 acc_model difference[] judged_alike questions"
       )  # fmt: skip
def decay_precision_table(results: Results, runs: list[str]) -> DataFrame:
    """Does the model's own precision change accuracies? The same questions (100 of each of the article's five sets)
    with the same policies, in the precision of the model (bfloat16, with weights in 4 bits) and in float32 with the
    same weights. A difference is the former minus the latter. In brackets: 95 % interval of the paired difference over
    questions; if it includes zero, no effect is seen.
    """
    rows = load_answers(results, STUDY, runs)
    precise = rows["run"].str.startswith("float32-")
    rounded = rows[~precise].assign(run=rows["run"].str.replace(pruning.RELEASED_RUNS, "float32-"))
    pairs = rows[precise].merge(rounded, on=[*CONFIGURATION, "task", "example"], suffixes=("_precise", "_rounded"))
    table = []
    for key, group in pairs.groupby(CONFIGURATION, sort=False, dropna=False):
        of_float32, of_model = group["value_precise"].to_numpy(), group["value_rounded"].to_numpy()
        row = dict(zip(CONFIGURATION, key, strict=True)) | {
            "acc_float32": of_float32.mean(),
            "acc_model": of_model.mean(),
        }
        row |= estimate("difference", over_examples((of_model - of_float32)[None]))
        table.append(row | {"judged_alike": (of_float32 == of_model).mean(), "questions": len(group)})
    return label_and_sort(DataFrame(table)) if table else DataFrame()


@table(reads="decode.csv", readers=_of_model,
       columns="source run sequences length configuration policy decoded_tokens_per_s[] speed_ratio[] -prompt_s "
               "prompt_ratio cache_megabytes -cache_share -metadata_megabytes repetitions device threads")  # fmt: skip
def decay_decode_table(results: Results, runs: list[str]) -> DataFrame:
    """Speed of decoding with full and pruned caches, after the longest measured prompt. Policies that keep 10 or 40 %
    of the tokens are compared with Full, our full cache, and with DynamicCache, the full cache of transformers. Medians
    over repetitions; in brackets: quartiles of the repetitions, which are no confidence interval. Ratios to Full are
    within a repetition: above 1 of the speed, and below 1 of the time to read the prompt, are better. Bytes are of keys
    and values. Measured in turns, alone on one machine, in the precision of the released model. A ratio on one machine
    says little about another machine, and a ratio on a CPU nothing about a GPU.
    """
    rows = pruning.decode_speeds(results, STUDY, runs)
    if rows.empty:
        return rows
    rows = rows[rows["length"] == rows.groupby(["run", "sequences"])["length"].transform("max")]
    rows = rows.rename(columns=lambda name: name.replace("tokens_per_s", "decoded_tokens_per_s"))
    record = results.stage_record(STUDY, "decode")
    megabytes = {f"{name}_megabytes": rows[f"{name}_bytes"] / 1e6 for name in ("cache", "metadata")}
    return rows.assign(**megabytes, device=processor(record.get("device", "")), threads=record.get("threads"))


_SPEED = "cache_share speed_ratio prompt_ratio"
_IN_LEAGUE = {"Decay 0.95, half recent": "Decay, alpha 0.95, 50 % recent", "Decay 0.2": "Decay, alpha 0.2, no recent"}


def _with_best(rows: DataFrame) -> DataFrame:
    """Return the cells of rows; bold is the lowest loss of a real cache, if its difference to H2O excludes zero."""
    cells, real = format_table(rows), ~rows["configuration"].isin(("Full", "Ideal"))
    for name in (name for name in map(str, rows) if f"{name}_low" in rows):
        best = rows.index == rows.loc[real, name].astype(float).idxmin()
        best = best & (rows[f"{name}_high"] < 0)
        cells[name] = cells[name].mask(best, "**" + cells[name] + "**")
    return _filled(cells)


def _filled(cells: DataFrame) -> DataFrame:
    """Return cells with words in empty ones: H2O minus itself is 0, others were not run."""
    is_h2o = cells["policy"].eq("H2O").to_numpy()[:, None]
    return cells.mask(is_h2o & cells.isin(("", "0.000 [0.000, 0.000]")), "0").replace("", "not run")


def _league_blocks(rows: DataFrame) -> dict[str, DataFrame]:
    """Return a block per text, blocks of divided budgets, and blocks of needles and questions, and of cost."""
    rows = rows.assign(configuration=rows["configuration"].replace(_IN_LEAGUE))
    divided, blocks = rows["configuration"].str.contains(", budget by "), {}
    apart, rows = rows[divided], rows[~divided]
    for text in dict.fromkeys(name.partition(" at ")[0] for name in map(str, rows) if "(nats)" in name):
        names = {name: name.replace(f"{text} at ", "") for name in map(str, rows) if name.startswith(f"{text} at ")}
        heading = f"loss minus the loss with H2O, {TABLE_LABELS.get(text, text)}"
        both = (part[["configuration", *names]].rename(columns=names) for part in (rows, apart))
        undivided, shared = (part.dropna(subset=[*names.values()], how="all") for part in both)
        blocks[heading] = _with_best(undivided)
        if len(shared):
            blocks[f"{heading}, the same total divided by head or by layer"] = shared.dropna(axis=1)
    needles = [name for name in map(str, rows) if name.startswith("needle ") and name.endswith("(%)")]
    for name in needles:
        counts = (rows[name] * rows["needles"] / 100).map("{:.0f} of ".format) + rows["needles"].map("{:.0f}".format)
        rows = rows.assign(**{name: counts.where(rows[name].notna(), "")})
    minus_h2o = expand_columns(_MINUS_H2O)
    asked = rows[["configuration", *needles, *minus_h2o]].replace("", None)
    asked = asked.dropna(subset=[*needles, *minus_h2o], how="all").fillna(dict.fromkeys(needles, ""))
    asked = asked.rename(columns={name: name.replace(" at 40 % (%)", " (found)") for name in needles})
    cost = [name for name in _SPEED.split() if name in rows]
    costs = rows[["configuration", *cost]].dropna(subset=cost)
    asked = _filled(format_table(asked)) if len(asked) else asked
    others = {"needles found, and accuracy on questions, at 40 %": asked, "cost at 40 %": costs}
    return blocks | {heading: block for heading, block in others.items() if len(block)}


@table(reads="prune.csv prune_questions.csv decode.csv", runs="released-* random-* novels-* tight-* league-*",
       needs="league-*", readers=_league_blocks)  # fmt: skip
def decay_league_table(results: Results, runs: list[str]) -> DataFrame:
    """Which cache policy at which budget? Loss minus the loss with H2O at the same budget, text by text; numbers found
    that are hidden in a text of 512 tokens (of 20); mean accuracy on five sets of questions minus that with H2O; and
    speed behind a prompt of 2048 tokens. The model is SmolLM2-135M-Instruct in 4 bits. In brackets: 95 % intervals for
    this one model, paired with H2O on the windows or questions that both read (45 windows of English novels, where
    documents are resampled; 128 of six test books). Bold: the lowest loss of a real cache, if it excludes zero. Random,
    protected keeps the first 4 keys and gives a quarter of the budget to recent keys. Ideal and Full are no real caches
    of this size. Cache, speed and prompt time are ratios to the full cache.
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
    for rows, words in ((accuracy, _MINUS_H2O), (speed, _SPEED)):
        if len(rows):
            rows = policy_comparison.labelled(rows.dropna(subset="policy").drop(columns="configuration")).set_index(
                "configuration"
            )
            blocks.append(rows.reindex(columns=expand_columns(words)))
    wide = pd.concat(blocks, axis=1) if blocks else DataFrame()
    wide["needles"] = parts["%"][0]["examples"].max()
    order = [name for name in policy_comparison.LABELS.values() if name in wide.index]
    return wide.reindex(order).reset_index(names="configuration")
