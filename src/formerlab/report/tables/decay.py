"""Tables of the pruning study (Decay, Jo and Shin 2024; A2SF, arXiv:2407.20485)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.drawings import Table
from formerlab.report.pruning import (
    CONFIGURATION,
    PANELS,
    RELEASED_RUNS,
    configurations,
    decoding,
    measured,
    ordered,
)
from formerlab.report.published import DECAY, published, published_cosines
from formerlab.report.questions import (
    CHANCE,
    LOCAL,
    MEAN,
    SUITES,
    accuracies,
    accuracy_columns,
    answers,
    title,
)
from formerlab.report.runs import ends
from formerlab.report.two_fold import Grid, Halves, half_of, two_fold_selection
from formerlab.results.read import Results
from formerlab.statistics import bootstrap_means, interval_over, over_examples

STUDY = "decay"


decay_table = Table(
    reads=("prune.csv", "run.json"),
    runs=("*",),
    caption=(
        "Held-out perplexity of every eviction policy at every budget. Loss minus Full is paired: the same windows of "
        "the same model, with the 95 % interval over windows, and over seeds where there are several, in brackets; "
        "with one seed it speaks of this model alone. Compare policies at equal realised budget. The table "
        "decay_answers_table has accuracies at every budget, decay_suites_table those at 40 % beside the published."
    ),
    ours=lambda results, runs: configurations(results, STUDY, runs),
    columns=(
        "source run configuration policy -alpha -recent budget realised_budget perplexity -loss_nats increase_nats[] "
        "seeds windows"
    ),
    each="run",
)


def answered(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and configuration with the accuracy of every task, and rows of guessing."""
    rows = answers(results, STUDY, runs)
    if rows.empty:
        return rows
    scored = accuracy_columns(rows, CONFIGURATION).drop(columns="seeds")
    chance, found = scored[scored["run"] == CHANCE].assign(configuration=CHANCE), []
    table = ordered(scored[scored["run"] != CHANCE])
    table.insert(1, "configuration", table.pop("configuration"))
    for run, mine in table.groupby("run", sort=False):
        asked = [name for name in mine if mine[name].notna().any()]
        found += [mine, chance.assign(run=run, questions=mine["questions"].iloc[0]).reindex(columns=asked)]
    return pd.concat(found, ignore_index=True)


def _published_answers() -> DataFrame:
    rows = published(DECAY, "Fig 4a", "Table 2")
    order = [*(f"{suite}_acc" for suite in SUITES), "average"]
    rows = rows.assign(value=rows["value"].astype(float) / 100)
    wide = rows.pivot_table("value", ["model", "setting"], "metric", sort=False)[order]
    wide.columns = [f"{name} (published)" for name in order]
    return wide.reset_index().rename(columns={"model": "run", "setting": "configuration"})


decay_answers_table = Table(
    reads=("prune_questions.csv", "run.json"),
    runs=("*",),
    caption=(
        "Accuracies on every kind of question under every eviction policy and budget, after Fig. 4a and Table 2 of the "
        "Decay article (accuracies at 40 % of the tokens, zero-shot). After ±: one standard error over questions and "
        "seeds. The published models are OPT-2.7B and LLaMA-2-7B-chat on other questions."
    ),
    ours=answered,
    published=_published_answers,
    each="run",
)


_NAMES = {suite: f"{title(suite)} (%)" for suite in (*SUITES, "sciq", "blimp")}
_MEAN, _AGAINST = "mean of five (%)", {"full": "minus Full (points)", "h2o": "minus H2O (points)"}


def suites(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and configuration at the budget nearest to the published 40 %."""
    rows = answers(results, STUDY, runs)
    rows = rows[rows["task"].str.removesuffix(LOCAL).isin(_NAMES)]
    budgets = rows.loc[rows["budget"] != 1, "budget"].unique()
    if not len(budgets):
        return DataFrame()
    rows = rows[rows["budget"].isin([1, min(budgets, key=lambda budget: abs(budget - 0.4))])]
    paired = {policy: accuracies(rows, against=policy) for policy in _AGAINST}
    found = paired["full"]
    table = found[[*CONFIGURATION, "configuration", "realised_budget", "seeds"]].drop_duplicates(ignore_index=True)
    for task, block in found.groupby("task"):
        name = _NAMES.get(str(task).removesuffix(LOCAL), _MEAN)
        table = _joined(table, block, {"accuracy": name, "low": f"{name}_low", "high": f"{name}_high"})
    for policy, name in _AGAINST.items():
        block = paired[policy]
        block = block[block["task"].str.startswith(MEAN) & (block["policy"] != policy)]
        table = _joined(table, block, {f"difference{end}": f"{name}{end}" for end in ("", "_low", "_high")})
    return table


def _joined(table: DataFrame, block: DataFrame, shown: Mapping[str, str]) -> DataFrame:
    """Return the table with columns of `block` under other names and in percent, joined by configuration."""
    percent = block[[*CONFIGURATION, *shown]].rename(columns=shown)
    percent[[*shown.values()]] *= 100
    return table.merge(percent, on=CONFIGURATION, how="left")


def _published_suites() -> DataFrame:
    rows = published(DECAY, "Fig 4a", "Table 2")
    names = {f"{suite}_acc": _NAMES[suite] for suite in SUITES} | {"average": _MEAN}
    rows = rows.assign(value=rows["value"].astype(float), metric=rows["metric"].map(names))
    wide = rows.pivot_table("value", ["model", "setting"], "metric", sort=False)[[*names.values()]].reset_index()
    full = wide[wide["model"].str.endswith(" Full")]
    level = dict(zip(full["model"].str.split().str[0], full[_MEAN], strict=True))
    wide["minus Full (points)"] = wide[_MEAN] - wide["model"].str.split().str[0].map(level)
    return wide.rename(columns={"model": "run", "setting": "configuration"})


decay_suites_table = Table(
    reads=("prune_questions.csv", "run.json"),
    runs=("released-*", "decoder"),
    caption=(
        "Accuracies under every policy that keeps 40 % of the tokens (or the budget nearest to it), without examples "
        "in the prompt, after Fig. 4a and Table 2 of the Decay article. In brackets: 95 % interval over questions, and "
        "over seeds where there are several; the mean weighs the five suites alike. Minus Full and minus H2O are of "
        "the mean, paired by question: read these, for the accuracies of two policies on the same questions err "
        "together. Our suites come from local files with prompts of their own, so levels compare with none published."
    ),
    ours=suites,
    published=_published_suites,
    columns=(
        "source run configuration policy -realised_budget OpenBookQA~(%)[] WinoGrande~(%)[] ARC-e~(%)[] ARC-c~(%)[] "
        "PIQA~(%)[] mean~of~five~(%)[] minus~Full~(points)[] minus~H2O~(points)[] -SciQ~(%)[] -BLiMP~(%)[] seeds"
    ),
)


RECENT = {"local": 1.0, "streaming_llm": 1.0, "full": None}
"""Recent share of policies that have no such setting: all but the sink."""


def ratio(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per configuration."""
    ours = configurations(results, STUDY, runs)
    kinds = ours["policy"].str.split().str[0]
    recent = kinds.map(RECENT).where(kinds.isin(RECENT), ours["recent"].fillna(0.0))
    ours = ours.assign(recent_share=recent * ours["budget"], selected_share=(1 - recent) * ours["budget"])
    return ours


def _published_ratio() -> DataFrame:
    rows = [("Full", 1.0, None, None), ("H2O", 0.4, 0.2, 0.2), ("Decay", 0.4, 0.0, 0.4)]
    table = DataFrame(rows, columns=["configuration", "budget", "recent_share", "selected_share"])
    return table.assign(run="OPT-2.7B, LLaMA-2-7B-chat")


decay_ratio_table = Table(
    reads=("prune.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "How the methods divide the tokens they may keep, after Table 1 of the Decay article (Full 100 %; H2O 20 % "
        "recent and 20 % selected; Decay 0 % and 40 %), and the realised budget: the share of keys and values held at "
        "the end, counted. One rounding for all: the total is rounded half up, the recent part down, the rest is "
        "selected. The query's own key comes on top. Comparisons are fair where realised budgets agree within 1 %; "
        "the official masks of H2O keep fewer keys, since their halves overlap."
    ),
    ours=ratio,
    published=_published_ratio,
    columns="source run configuration budget recent_share selected_share realised_budget seeds windows",
)


COSINES = {"distance_to_ideal": "cosine", "distance_to_ideal_without_first": "cosine_without_first"}


def ideal(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and configuration."""
    rows = measured(results.rows("prune_masks.csv", STUDY, runs), list(PANELS))
    if rows.empty:
        return rows
    keys = ["source", "run", "configuration", "policy", "alpha", "recent", "budget", "seeds", "windows"]
    found = rows[keys].drop_duplicates().reset_index(drop=True)
    for metric in PANELS:
        block = rows[rows["metric"] == metric]
        name = COSINES.get(metric, metric)
        values = {"value": name, "value_low": f"{name}_low", "value_high": f"{name}_high"}
        if metric in COSINES:
            block = block.assign(
                value=1 - block["value"], value_low=1 - block["value_high"], value_high=1 - block["value_low"]
            )
        found = found.merge(block[[*keys, *values]].rename(columns=values), on=keys, how="left")
    return found


decay_ideal_table = Table(
    reads=("prune_masks.csv", "run.json"),
    runs=("*",),
    caption=(
        "Cosine between the attention rows under each policy and the ideal ones, which keep of the past the keys of "
        "the largest unpruned attention, with and without position 0, whose attention decides the cosine alone; and "
        "where the kept keys stand: share of the first 40 % and 10 % of the positions so far, and mean position (0.4, "
        "0.1 and 0.5 are even). All choose from the attention of the same unpruned pass. In brackets: 95 % "
        "interval over windows and seeds. Published: A2SF, Table 2, LLaMA-2-7B at 20 %."
    ),
    ours=ideal,
    published=published_cosines,
    columns=(
        "source run configuration policy -alpha -recent budget seeds windows early_share[] -early_share_10[] "
        "mean_position[] cosine[] cosine_without_first[]"
    ),
)


BEST = "single_by_loss"


def heads(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, budget and choice."""
    rows = results.rows("prune_calibrated.csv", STUDY, runs)
    chosen = results.rows("prune_alphas.csv", STUDY, runs)
    if rows.empty:
        return DataFrame()
    found = []
    for (run, budget), group in rows.groupby(["run", "budget"], sort=False):
        grids = {
            choice: block.pivot_table("loss_nats", "seed", "window").to_numpy()
            for choice, block in group.groupby("choice", sort=False)
        }
        mine = chosen[(chosen["run"] == run) & (chosen["budget"] == budget)]
        for choice, grid in grids.items():
            alphas = mine.loc[mine["choice"] == choice, "alpha"]
            row = {"run": run, "budget": budget, "choice": str(choice).replace("_", " ")}
            row |= {"alphas": _spread(alphas), "loss_nats": grid.mean()}
            row |= {"realised_budget": group.loc[group["choice"] == choice, "realised_budget"].mean()}
            if choice != BEST and BEST in grids:
                gap = over_examples(grid - grids[BEST])
                row |= ends("minus_best_single_nats", gap)
            found.append(row | {"seeds": grid.shape[0], "windows": grid.shape[1]})
    return DataFrame(found)


def _spread(alphas: pd.Series) -> str:
    """Return the chosen alphas for readers: their median and range where there are several."""
    low, middle, high = np.quantile(alphas, [0, 0.5, 1])
    return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"


decay_heads_table = Table(
    reads=("prune_calibrated.csv", "prune_alphas.csv", "run.json"),
    runs=("*",),
    caption=(
        "What a forgetting factor of its own brings to every layer and head. All choices are made on windows of the "
        "validation text, from the same grid of alphas; losses are those of the test text. per head: each head takes "
        "the alpha whose attention rows are nearest to the ideal ones. single by distance: one alpha for all, by the "
        "same measure. single by loss: one alpha for all, by the loss itself, the strongest single choice. The "
        "difference is paired: the same windows of the same model, with the 95 % interval over windows and seeds in "
        "brackets. None of the published codes has this."
    ),
    ours=heads,
)


def tasks(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, budget and task, and their mean."""
    rows = answers(results, STUDY, runs)
    rows = rows[(rows["policy"] == "decay") & (rows["recent"] == 0)]
    found = []
    for (run, budget), group in rows.groupby(["run", "budget"], sort=False):
        alphas = tuple(sorted(group["alpha"].unique()))
        if len(alphas) < 2:
            continue
        found_grids = {str(task): _grid(block) for task, block in group.groupby("task", sort=False)}
        pairs = {task: pair for task, pair in found_grids.items() if pair is not None}
        grids, halves = ({task: pair[part] for task, pair in pairs.items()} for part in (0, 1))
        answered = two_fold_selection(grids, halves)
        for task, (own, common, *places) in answered.items():
            gain = over_examples(own - common)
            row = {"run": run, "budget": budget, "task": title(task)}
            row |= {"own alphas": ", ".join(sorted({f"{alphas[place]:g}" for place in places[0]}))}
            row |= {"common alphas": ", ".join(sorted({f"{alphas[place]:g}" for place in places[1]}))}
            row |= {"acc_own": own.mean(), "acc_common": common.mean()} | ends("gain", gain)
            found.append(row | {"seeds": len(own), "questions": own.shape[1]})
        if answered:
            gains = [own - common for own, common, *_ in answered.values()]
            of_seeds = np.mean([gain.mean(axis=1) for gain in gains], axis=0)
            drawn = np.mean([bootstrap_means(gain, random_seed=place) for place, gain in enumerate(gains)], axis=0)
            mean = interval_over(of_seeds, drawn, sum(gain.shape[1] for gain in gains))
            row = {"run": run, "budget": budget, "task": "mean of these"}
            found.append(row | ends("gain", mean))
    return DataFrame(found) if found else DataFrame()


def _grid(block: DataFrame) -> tuple[Grid, Halves] | None:
    """Return answers (alphas x seeds x examples) and the half of each example; none where some are missing."""
    table = block.pivot_table("value", ["alpha", "seed"], "example").dropna(axis=1).sort_index()
    alphas = table.index.get_level_values("alpha").nunique()
    seeds = table.index.get_level_values("seed").nunique()
    halves = np.array([half_of(str(example)) for example in table.columns])
    if len(table) != alphas * seeds:
        return None
    return table.to_numpy().reshape(alphas, seeds, -1), halves


decay_tasks_table = Table(
    reads=("prune_questions.csv", "run.json"),
    runs=("*",),
    caption=(
        "Does it pay to choose alpha per task? The questions of every suite are halved by a hash of their ids. Of "
        "each half, own is the alpha of the best accuracy on the other half of the same suite, common the one of the "
        "best mean over the other halves of all suites; both are judged where they were not chosen, per model. gain "
        "is own minus common with its 95 % interval over questions and seeds. Reading the best alpha off the curve "
        "itself would make it differ between tasks by chance. The grid is that of the sweep, without a recent part."
    ),
    ours=tasks,
)


def one_shot(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and configuration."""
    rows = results.rows("prune_one_shot.csv", STUDY, runs)
    if rows.empty:
        return DataFrame()
    found = []
    for run, mine in rows.groupby("run", sort=False):
        grids = {
            key: block.pivot_table("loss_nats", "seed", "window").to_numpy()
            for key, block in mine.groupby([*CONFIGURATION, "realised_budget"], sort=False, dropna=False)
        }
        full = next((grid for key, grid in grids.items() if key[1] == "full"), None)
        for key, grid in grids.items():
            row = dict(zip([*CONFIGURATION, "realised_budget"], key, strict=True))
            row |= {"loss_nats": grid.mean(), "perplexity": np.exp(grid.mean())}
            if full is not None and key[1] != "full":
                gap = over_examples(grid - full)
                row |= ends("increase_nats", gap)
            found.append(row | {"seeds": grid.shape[0], "windows": grid.shape[1], "run": run})
    return ordered(DataFrame(found))


decay_one_shot_table = Table(
    reads=("prune_one_shot.csv", "run.json"),
    runs=("*",),
    caption=(
        "One-shot compression, as kvpress and SnapKV do it: the first half of each window is read as a prompt without "
        "pruning, a part of its keys is kept once, and the loss is that of the second half. Compare nothing here with "
        "the tables of step-by-step eviction, whose prompts are pruned while they are read: at the same ratio this is "
        "the easier task. Budgets are shares of the prompt. Loss minus Full is paired, with its 95 % interval over "
        "windows and seeds."
    ),
    ours=one_shot,
    columns=(
        "source run configuration policy budget realised_budget perplexity -loss_nats increase_nats[] seeds windows"
    ),
)


PRECISE = "float32-"
"""How the runs of released models begin that compute in float32; the others have the precision of the model."""


def precision(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per model, configuration and task: both precisions on the same questions."""
    rows = answers(results, STUDY, runs)
    found = []
    for run in [run for run in rows["run"].unique() if run.startswith(PRECISE)]:
        other = RELEASED_RUNS + run.removeprefix(PRECISE)
        keys = [*CONFIGURATION[1:], "task", "example"]
        pairs = rows[rows["run"] == run].merge(rows[rows["run"] == other], on=keys, suffixes=("_precise", "_rounded"))
        for key, group in pairs.groupby([*CONFIGURATION[1:], "task"], sort=False, dropna=False):
            row = dict(zip([*CONFIGURATION[1:], "task"], key, strict=True)) | {"run": run}
            precise, rounded = group["value_precise"].to_numpy(), group["value_rounded"].to_numpy()
            row |= {"task": title(row["task"]), "acc_float32": precise.mean(), "acc_model": rounded.mean()}
            row |= ends("difference", over_examples((rounded - precise)[None]))
            found.append(row | {"judged_alike": (precise == rounded).mean(), "questions": len(group)})
    return ordered(DataFrame(found)) if found else DataFrame()


decay_precision_table = Table(
    reads=("prune_questions.csv", "run.json"),
    runs=("float32-*", "released-*"),
    caption=(
        "What computing in the model's own precision (bfloat16 or float16) does to accuracies: the same questions "
        "under the same policies, once more in float32. The difference, of the model's precision minus float32, is "
        "paired, with its 95 % interval over questions; judged_alike is the share of the questions that both answer "
        "rightly or both wrongly."
    ),
    ours=precision,
    columns="source run configuration budget task acc_float32 acc_model difference[] judged_alike questions",
    needs=("float32-*",),
)


def decode(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, number of sequences and cache."""
    rows = decoding(results, STUDY, runs)
    if rows.empty:
        return rows
    rows = rows[rows["length"] == rows.groupby(["run", "sequences"])["length"].transform("max")]
    rows = rows.rename(columns=lambda name: name.replace("tokens_per_s", "decoded_tokens_per_s"))
    rows = rows.assign(cache_megabytes=rows["cache_bytes"] / 1e6, metadata_megabytes=rows["metadata_bytes"] / 1e6)
    return rows


decay_decode_table = Table(
    reads=("decode.csv", "run.json"),
    runs=("*",),
    caption=(
        "Decoding behind the longest prompt that was measured, with whole and pruned caches. Ratio: speed over that "
        "of Full, our whole cache, in the same repetition; in brackets: quartiles of the repetitions, no confidence "
        "interval. Prompt: seconds in which it was read, and that time over Full's. Cache: keys and values held, also "
        "as a share of Full's; metadata: scores and positions, which a pruned cache keeps beside them. Measured alone "
        "on the machine, in turns, on an untrained model of that shape, or a released one: nothing learned matters to "
        "speed. A ratio on one machine says little about another, and one on a CPU nothing about a GPU."
    ),
    ours=decode,
    columns=(
        "source run sequences length configuration policy decoded_tokens_per_s[] speed_ratio[] -prompt_s "
        "prompt_ratio -cache_megabytes cache_share metadata_megabytes repetitions"
    ),
)
