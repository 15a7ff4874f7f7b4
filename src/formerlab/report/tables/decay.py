"""Tables of the pruning study (Decay, Jo and Shin 2024; A2SF, arXiv:2407.20485)."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.quantity import Examples
from formerlab.report.published import DECAY, published_rows
from formerlab.report.runs import estimate
from formerlab.report.studies import league, pruning, questions
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
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE, over_examples

STUDY = "decay"


@table(reads="prune.csv",
       columns="source run configuration policy -alpha -recent budget realised_budget perplexity -loss_nats "
               "increase_nats[] seeds windows", each="run")  # fmt: skip
def decay_table(results: Results, runs: list[str]) -> DataFrame:
    """Held-out perplexity of every eviction policy at every budget. Loss minus Full is paired: the same windows of
    the same model, with the 95 % interval over windows, and over seeds where there are several, in brackets; with
    one seed it speaks of this model alone. Compare policies at equal measured cache size. The table decay_answers_table
    has accuracies at every budget, decay_suites_table those at 40 % beside the published.
    """
    return pruning.configurations(results, STUDY, runs)


def _published(names: dict[str, str], factor: float) -> DataFrame:
    """Return the accuracies of the article under other names, times a factor."""
    by, names = ("model", "setting"), {"model": "run", "setting": "configuration"} | names
    wide = published_rows(DECAY, "Fig 4a", "Table 2", by=by, names=names)
    wide[[*names.values()][2:]] /= factor
    return wide[[*names.values()]]


@table(reads="prune_questions.csv",
       published=lambda: _published(
           {name: f"{name} (published)" for name in (*(f"{suite}_acc" for suite in SUITES), "average")}, 100
       ), each="run")  # fmt: skip
def decay_answers_table(results: Results, runs: list[str]) -> DataFrame:
    """Accuracies on every kind of question under every eviction policy and budget, after Fig. 4a and Table 2 of the
    Decay article (accuracies at 40 % of the tokens, zero-shot). After ±: one standard error over questions and
    seeds. The published models are OPT-2.7B and LLaMA-2-7B-chat on other questions.
    """
    scored = questions.accuracy_columns(load_answers(results, STUDY, runs), CONFIGURATION).drop(columns="seeds")
    guessed = scored["run"] == questions.CHANCE
    chance, table, found = scored[guessed].assign(configuration=questions.CHANCE), label_and_sort(scored[~guessed]), []
    table.insert(1, "configuration", table.pop("configuration"))
    for run, mine in table.groupby("run", sort=False):
        asked = [name for name in mine if mine[name].notna().any()]
        found += [mine, chance.assign(run=run, questions=mine["questions"].iloc[0]).reindex(columns=asked)]
    return pd.concat(found, ignore_index=True)


_NAMES = {suite: f"{task_label(suite)} (%)" for suite in (*SUITES, "sciq", "blimp")}
_MEAN, _AGAINST = "mean of five (%)", {"full": "minus Full (points)", "h2o": "minus H2O (points)"}


def _published_suites() -> DataFrame:
    wide = _published({f"{suite}_acc": _NAMES[suite] for suite in SUITES} | {"average": _MEAN}, 1)
    models, full = wide["run"].str.split().str[0], wide["run"].str.endswith(" Full")
    return wide.assign(**{_AGAINST["full"]: wide[_MEAN] - models.map(wide[full].set_index(models[full])[_MEAN])})


@table(reads="prune_questions.csv", runs="released-* decoder", published=_published_suites,
       columns="source run configuration policy -realised_budget OpenBookQA~(%)[] WinoGrande~(%)[] ARC-e~(%)[] "
               "ARC-c~(%)[] PIQA~(%)[] mean~of~five~(%)[] minus~Full~(points)[] minus~H2O~(points)[] -SciQ~(%)[] "
               "-BLiMP~(%)[] seeds")  # fmt: skip
def decay_suites_table(results: Results, runs: list[str]) -> DataFrame:
    """Accuracies under every policy that keeps 40 % of the tokens (or the budget nearest to it), without examples
    in the prompt, after Fig. 4a and Table 2 of the Decay article. In brackets: 95 % interval over questions, and
    over seeds where there are several; the mean weighs the five suites alike. Minus Full and minus H2O are of the
    mean, paired by question: read these, for the accuracies of two policies on the same questions err together. Our
    suites come from local files with prompts of their own, so levels compare with none published.
    """
    rows = load_answers(results, STUDY, runs)
    rows = rows[rows["task"].str.removesuffix(LOCAL_SUFFIX).isin(_NAMES)]
    if rows["policy"].eq("full").all():
        return DataFrame()
    values, table = ["accuracy", "low", "high"], accuracies(pruning.nearest_budget_rows(rows), against=tuple(_AGAINST))
    shown = [table.assign(name=table["task"].str.removesuffix(LOCAL_SUFFIX).map(_NAMES).fillna(_MEAN))]
    for policy, name in _AGAINST.items():
        means = table[table["task"].str.startswith(MEAN_LABEL) & (table["policy"] != policy)].assign(name=name)
        means[values] = means[expand_columns(f"{DIFFERENCES[policy]}[]")]
        shown.append(means)
    long = pd.concat(shown, ignore_index=True)
    long[values] *= 100
    keys = [*CONFIGURATION, "configuration", "realised_budget", "seeds"]
    found = long[keys].drop_duplicates(ignore_index=True)
    for suite, block in long.groupby("name", sort=False):
        columns = dict(zip(values, (f"{suite}{end}" for end in ("", "_low", "_high")), strict=True))
        found = found.merge(block[[*keys, *values]].rename(columns=columns), on=keys, how="left")
    return found


RECENT = {"local": 1.0, "streaming_llm": 1.0, "full": None}
"""Recent share of policies that have no such setting: all but the sink."""


@table(reads="prune.csv", runs="decoder released-*",
       published=lambda: DataFrame(
           [("Full", 1.0, None, None), ("H2O", 0.4, 0.2, 0.2), ("Decay", 0.4, 0.0, 0.4)],
           columns=["configuration", "budget", "recent_share", "selected_share"],
       ).assign(run="OPT-2.7B, LLaMA-2-7B-chat"),
       columns="source run configuration budget recent_share selected_share realised_budget seeds windows")  # fmt: skip
def decay_ratio_table(results: Results, runs: list[str]) -> DataFrame:
    """How the methods divide the tokens they may keep, after Table 1 of the Decay article (Full 100 %; H2O 20 %
    recent and 20 % selected; Decay 0 % and 40 %), and the measured cache size: the fraction of keys and values retained
    at the end. One rounding for all: the total is rounded half up, the recent part down, the rest is selected.
    The query's own key comes on top. Comparisons are fair where cache sizes agree within 1 %; the official
    masks of H2O keep fewer keys, since their halves overlap.
    """
    ours = pruning.configurations(results, STUDY, runs)
    kinds = ours["policy"].str.split().str[0]
    recent = kinds.map(RECENT).where(kinds.isin(RECENT), ours["recent"].fillna(0.0))
    return ours.assign(recent_share=recent * ours["budget"], selected_share=(1 - recent) * ours["budget"])


def _spread(alphas: pd.Series) -> str:
    """Return the chosen alphas for readers: their median and range where there are several."""
    low, middle, high = np.quantile(alphas, [0, 0.5, 1])
    return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"


@table(reads="prune_calibrated.csv prune_alphas.csv",
       columns="source run budget choice alphas loss_nats realised_budget minus_best_single_nats[] seeds "
               "windows")  # fmt: skip
def decay_heads_table(results: Results, runs: list[str]) -> DataFrame:
    """What a forgetting factor of its own brings to every layer and head. All choices are made on windows of the
    validation text, from the same grid of alphas; losses are those of the test text. per head: each head takes the
    alpha whose attention rows are nearest to the ideal ones. single by distance: one alpha for all, by the same
    measure. single by loss: one alpha for all, by the loss itself, the strongest single choice. The difference is
    paired: the same windows of the same model, with the 95 % interval over windows and seeds in brackets. None of
    the published codes has this.
    """
    rows, keys = results.rows("prune_calibrated.csv", STUDY, runs), ["run", "budget", "choice"]
    table = paired_losses(rows, keys[:2], "single_by_loss", "minus_best_single_nats", keys)
    alphas = results.rows("prune_alphas.csv", STUDY, runs).groupby(keys)["alpha"].agg(_spread).rename("alphas")
    return table.join(alphas, on=keys).assign(choice=table["choice"].str.replace("_", " "))


@table(reads="prune.csv", runs="decoder released-*",
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
    found = paired_losses(rows, keys, "alpha 0.2", "minus_published_alpha_nats", [*keys, "choice"])
    single = found["choice"].str.fullmatch(r"alpha [\d.]+")
    least = found["loss_nats"] == found[single].groupby(keys)["loss_nats"].transform("min").reindex(found.index)
    return found[~single | least | found["choice"].eq("alpha 0.2")].sort_values(keys, kind="stable")


BEST = "best alpha of each window"


def _recent(fraction: float) -> str:
    return f", {100 * fraction:g} % recent" if fraction else ""


@table(reads="prune_questions.csv")
def decay_tasks_table(results: Results, runs: list[str]) -> DataFrame:
    """Does it pay to choose alpha per task? The questions of every suite are halved by a hash of their ids. Of each
    half, own is the alpha of the best accuracy on the other half of the same suite, common the one of the best mean
    over the other halves of all suites; both are judged where they were not chosen, per model. gain is own minus
    common with its 95 % interval over questions and seeds, which takes the alphas as given; that of the mean chooses
    them anew in every resample. Reading the best alpha off the curve itself would make it differ between tasks by
    chance. The grid is that of the sweep, without a recent part.
    """
    rows = load_answers(results, STUDY, runs)
    rows = rows[(rows["policy"] == "decay") & (rows["recent"] == 0)]
    found = []
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
            found.append(row | {"seeds": len(of_own), "questions": grid.shape[2]})
        sides = split_halves({task: np.moveaxis(grid, 0, -1) for task, grid in grids.items()}, halves)
        seeds = tuple(range(len(sides[0])))
        by_own, by_common = (Examples(sides, seeds, {}, chosen=chosen).estimate() for chosen in ("own", "common"))
        mean = (by_own - by_common).interval(CONFIDENCE)
        found.append({"run": run, "budget": budget, "task": "mean of these"} | estimate("gain", mean))
    return DataFrame(found)


@table(reads="prune_one_shot.csv",
       columns="source run configuration policy budget realised_budget perplexity -loss_nats increase_nats[] seeds "
               "windows")  # fmt: skip
def decay_one_shot_table(results: Results, runs: list[str]) -> DataFrame:
    """One-shot compression, as kvpress and SnapKV do it: the first half of each window is read as a prompt without
    pruning, a part of its keys is kept once, and the loss is that of the second half. Compare nothing here with the
    tables of step-by-step eviction, whose prompts are pruned while they are read: at the same ratio this is the easier
    task. Budgets are fractions of the prompt. Loss minus Full is paired, with its 95 % interval over windows and seeds.
    """
    found = paired_losses(results.rows("prune_one_shot.csv", STUDY, runs), ["run"], "full", "increase_nats")
    return label_and_sort(found.assign(perplexity=np.exp(found["loss_nats"])))


@table(reads="prune_questions.csv", runs="float32-* released-*", needs="float32-*",
       columns="source run configuration budget task acc_float32 acc_model difference[] judged_alike "
               "questions")  # fmt: skip
def decay_precision_table(results: Results, runs: list[str]) -> DataFrame:
    """What computing in the model's own precision (bfloat16 or float16) does to accuracies: the same questions under
    the same policies, once more in float32. The difference, of the model's precision minus float32, is paired, with its
    95 % interval over questions; judged_alike is the fraction of the questions that both answer rightly or both
    wrongly.
    """
    rows, keys = load_answers(results, STUDY, runs), [*CONFIGURATION, "task"]
    precise = rows["run"].str.startswith("float32-")
    rounded = rows[~precise].assign(run=rows["run"].str.replace(pruning.RELEASED_RUNS, "float32-"))
    pairs = rows[precise].merge(rounded, on=[*keys, "example"], suffixes=("_precise", "_rounded"))
    found = []
    for key, group in pairs.groupby(keys, sort=False, dropna=False):
        row = dict(zip(keys, key, strict=True))
        of_float32, of_model = group["value_precise"].to_numpy(), group["value_rounded"].to_numpy()
        row |= {"task": task_label(str(row["task"])), "acc_float32": of_float32.mean(), "acc_model": of_model.mean()}
        row |= estimate("difference", over_examples((of_model - of_float32)[None]))
        found.append(row | {"judged_alike": (of_float32 == of_model).mean(), "questions": len(group)})
    return label_and_sort(DataFrame(found)) if found else DataFrame()


@table(reads="decode.csv",
       columns="source run sequences length configuration policy decoded_tokens_per_s[] speed_ratio[] -prompt_s "
               "prompt_ratio -cache_megabytes cache_share metadata_megabytes repetitions")  # fmt: skip
def decay_decode_table(results: Results, runs: list[str]) -> DataFrame:
    """Decoding behind the longest prompt that was measured, with whole and pruned caches. Ratio: speed over that of
    Full, our whole cache, in the same repetition; in brackets: quartiles of the repetitions, no confidence interval.
    Prompt: seconds in which it was read, and that time over the full cache's. Cache: retained keys and values, also as
    a fraction of the full cache; metadata: scores and positions, which a pruned cache keeps beside them. Measured alone
    on the machine, in turns, on an untrained model of that shape, or a released one: nothing learned matters to speed.
    A ratio on one machine says little about another, and one on a CPU nothing about a GPU.
    """
    rows = pruning.decode_speeds(results, STUDY, runs)
    if rows.empty:
        return rows
    rows = rows[rows["length"] == rows.groupby(["run", "sequences"])["length"].transform("max")]
    rows = rows.rename(columns=lambda name: name.replace("tokens_per_s", "decoded_tokens_per_s"))
    return rows.assign(cache_megabytes=rows["cache_bytes"] / 1e6, metadata_megabytes=rows["metadata_bytes"] / 1e6)


@table(reads="prune.csv prune_questions.csv decode.csv", runs="released-* random-* novels-* tight-* league-*",
       needs="league-*")  # fmt: skip
def decay_league_table(results: Results, runs: list[str]) -> DataFrame:
    """Which policy at which budget: loss minus the loss with H2O at the same budget on each text, numbers found that
    are hidden in a text of 512 tokens, accuracy on the five suites minus that with H2O at 40 % of the tokens, and
    decoding behind the longest prompt that was measured. In brackets: 95 % intervals, paired with H2O on the windows or
    questions that both read, for this one model; of several windows of a document, documents are resampled. Cache,
    speed and the time to read the prompt are ratios to the full cache. Random, protected keeps the first 4 keys and
    gives a quarter of the budget to recent keys. Budget by head or layer: the same total, divided unequally.
    """
    parts = {
        "nats": (league.losses(results, STUDY, runs), "text", pruning.MINUS_H2O),
        "%": (league.needles(results), "task", "found_percent"),
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
            rows = league.labelled(rows.drop(columns="configuration")).set_index("configuration")
            blocks.append(rows.reindex(columns=expand_columns(words)))
    wide = pd.concat(blocks, axis=1) if blocks else DataFrame()
    return wide.reindex([name for name in league.LABELS.values() if name in wide.index]).reset_index(
        names="configuration"
    )


_SPEED = "cache_share speed_ratio prompt_ratio"
