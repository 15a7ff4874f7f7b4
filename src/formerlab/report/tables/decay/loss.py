"""Tables of the loss, the size and the speed of pruned caches."""

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.names import TABLE_LABELS
from formerlab.report.studies import policy_comparison, pruning
from formerlab.report.studies.pruning import CONFIGURATION, MINUS_H2O, label_and_sort, model_label, paired_losses
from formerlab.report.studies.questions import load_answers
from formerlab.report.tables.blocks import processor, side_by_side
from formerlab.results.read import Results

STUDY = "decay"
_SWEPT = r"Decay 0\.([13-8]|9$)"
"""Matches the values of alpha that tables for readers leave out."""


def _by_budget(rows: DataFrame, value: str) -> DataFrame:
    """Return a row per policy and a column per budget, sorted by the value at the budget with the most policies (the
    smallest such budget).
    """
    sizes = rows.groupby("budget")["configuration"].size()
    labels = {size: f"at {pruning.budget_text(size)} (nats) ↓" for size in sizes.index}
    table = side_by_side(rows, ["configuration"], rows["budget"].map(labels), value, labels.values())
    table = table.sort_values(labels[sizes.idxmax()])
    return table.assign(seeds=rows["seeds"].max(), windows=rows["windows"].max())


def _heading(rows: DataFrame) -> str:
    """Return the model and the text of rows of one run."""
    text = str(rows["text"].iloc[0])
    return f"{model_label(rows['run'].iloc[0].removeprefix('one-shot-'))}, {TABLE_LABELS.get(text, text)}"


def _increases(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the loss that pruning adds in the main run."""
    rows = pruning.first_model_rows(rows)
    full, pruned = rows["policy"].eq("full"), rows["policy"].ne("full")
    if not full.any() or not pruned.any():
        return {_heading(rows): rows}
    heading = (
        f"loss minus Full; {_heading(rows)}, perplexity {rows.loc[full, 'perplexity'].iloc[0]:.1f} with the full cache"
    )
    sizes = rows["realised_budget"] / rows["budget"].map(
        rows[rows["policy"] == "h2o"].groupby("budget")["realised_budget"].mean()
    )
    unequal = rows.loc[(sizes - 1).abs() > 0.01, "configuration"]
    shown = pruned & ~rows["configuration"].str.match(_SWEPT) & ~rows["configuration"].isin(unequal)
    return {heading: _by_budget(rows[shown], "increase_nats")}


@table(reads="prune.csv", readers=_increases,
       columns="source run text configuration policy -alpha -recent budget realised_budget perplexity -loss_nats "
               "increase_nats[] seeds windows")  # fmt: skip
def decay_table(results: Results, runs: list[str]) -> DataFrame:
    """How much loss does every eviction policy add? The loss per token with the pruned cache minus the loss with the
    full cache on the same windows, by cache budget in percent of the tokens. Rows are sorted by the loss at the budget
    with the most policies (the smallest such budget). In brackets: 95 % interval over windows, for this one model.
    "Recent" is the fraction of the budget that is reserved for the last tokens (for H2O, half). Ideal sees the future,
    so no cache can do this. decay_league_table has the differences to H2O. The CSV has all texts, values of alpha, and
    policies whose cache differs in size from H2O's.
    """
    rows = pruning.configurations(results, STUDY, runs)
    return rows.assign(text=rows["run"].map(pruning.text_labels(results, STUDY, runs)))


@table(reads="prune_one_shot.csv", readers=_increases,
       columns="source run text configuration policy budget realised_budget perplexity -loss_nats increase_nats[] "
               "seeds windows")  # fmt: skip
def decay_one_shot_table(results: Results, runs: list[str]) -> DataFrame:
    """How much loss does one-shot compression of the prompt add? The first half of each window is read as a prompt with
    the full cache, which is then pruned once, as SnapKV and the library kvpress do it. Cells are the loss per token of
    the second half minus the loss with the full cache, by cache budget in percent of the prompt. H2O reserves half of
    its budget for recent keys; the other policies reserve no fixed fraction. In brackets: 95 % interval over windows,
    for this one model. A prompt that is read in full is an easier task than the step-by-step eviction of decay_table.
    """
    table = paired_losses(results.rows("prune_one_shot.csv", STUDY, runs), ["run"], "full", "increase_nats")
    table = table.assign(
        perplexity=np.exp(table["loss_nats"]), text=table["run"].map(pruning.text_labels(results, STUDY, runs))
    )
    return label_and_sort(table)


def _by_text(rows: DataFrame) -> dict[str, DataFrame]:
    """Return a block per text."""
    rows = rows.replace({"text": TABLE_LABELS}, regex=True)
    is_h2o = rows["configuration"].eq("H2O")
    rows.loc[is_h2o, expand_columns(f"{MINUS_H2O}[]")[1:]] = np.nan
    blocks = {}
    for text, group in rows.groupby("text", sort=False):
        most = group["windows"].max()
        fewer = group["windows"] < most
        group["configuration"] += fewer.map({True: " *", False: ""})
        windows = f"{most:.0f} windows" + f" (*: {group['windows'].min():.0f})" * bool(fewer.any())
        blocks[f"loss minus H2O; {text}, {windows}"] = _by_budget(group, MINUS_H2O).drop(columns="windows")
    return blocks


@table(reads="prune.csv", runs="released-* random-* novels-* tight-* league-*", needs="league-*", readers=_by_text,
       columns="source run text configuration budget realised_budget increase_nats[] minus_h2o_nats[] seeds windows"
       )  # fmt: skip
def decay_league_table(results: Results, runs: list[str]) -> DataFrame:
    """Which cache policy has the lowest loss at which budget? The loss minus the loss with H2O at the same budget, text
    by text; below zero, the policy is better than H2O. The model is SmolLM2-135M-Instruct in 4 bits. In brackets: 95 %
    interval over the windows that both read (documents, if there are at least 20), for this one model. An empty cell
    was not run. Random, protected keeps the first 4 keys and gives a quarter of the budget to recent keys. Budget by
    head or by layer: the same total is divided unequally, on fewer windows. Full and Ideal are bounds; they do not run
    with a cache of this size.
    """
    return policy_comparison.losses(results, STUDY, runs)


def _by_size(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return a row per division of the cache at the published budget, with the policies that have it."""
    if rows["source"].eq("published").any():
        return {}
    rows = pruning.first_model_rows(rows[~rows["configuration"].str.match(r"Decay (?!0\.2)|plain sum")])
    rows = pruning.nearest_budget_rows(rows[rows["policy"] != "full"])
    sizes = ["recent_share", "selected_share", "realised_budget", "on_questions"]
    policies = rows.groupby([rows[name].round(3) for name in sizes], sort=False, dropna=False)["configuration"]
    return policies.agg("; ".join).reset_index()[["configuration", *sizes]].assign(windows=rows["windows"].max())


RECENT = {"local": 1.0, "streaming_llm": 1.0, "full": None}
"""Recent fraction of the budget of policies without this setting: all but the sink."""


@table(reads="prune.csv prune_questions.csv", runs="decoder released-*",
       published=lambda: DataFrame(
           [("Full", 1.0, None, None), ("H2O", 0.4, 0.2, 0.2), ("Decay", 0.4, 0.0, 0.4)],
           columns=["configuration", "budget", "recent_share", "selected_share"],
       ).assign(run="OPT-2.7B, LLaMA-2-7B-chat"),
       readers=_by_size,
       columns="source run configuration policy budget recent_share selected_share realised_budget on_questions seeds "
               "windows")  # fmt: skip
def decay_ratio_table(results: Results, runs: list[str]) -> DataFrame:
    """Do all policies hold a cache of the same size? Each row is one way to divide 40 % of the tokens into the most
    recent ones and those that a score selects, after Table 1 of the Decay article: H2O has 20 + 20 and Decay 0 + 40.
    Cache sizes are measured at the end of a text, and on questions, which are short. Policies in rows of unequal size
    cannot be compared: the official masks of H2O (global and local statistics), whose halves overlap, and SpAtten. All
    policies use one rounding rule: the total is rounded half up, the recent tokens are rounded down. The query's own
    key is additional. StreamingLLM counts its first tokens as recent.
    """
    ours = pruning.configurations(results, STUDY, runs)
    kinds = ours["policy"].str.split().str[0]
    recent = kinds.map(RECENT).where(kinds.isin(RECENT), ours["recent"].fillna(0.0))
    answers = load_answers(results, STUDY, runs)
    sizes = answers.groupby(CONFIGURATION, dropna=False)["realised_budget"].mean().rename("on_questions")
    ours = ours.merge(sizes.reset_index(), on=CONFIGURATION, how="left")
    return ours.assign(recent_share=recent * ours["budget"], selected_share=(1 - recent) * ours["budget"])


BEST_OF_WINDOW, BEST_OF_TEXT = "best alpha of each window", "best alpha of this text"
_CALIBRATED = {
    "per_head": "an alpha for each head, chosen on validation text",
    "single_by_loss": "one alpha, chosen on validation text",
}


def _spread(alphas: Series) -> str:
    """Return the chosen alphas as text: the median, and the range if they differ."""
    low, middle, high = np.quantile(alphas, [0, 0.5, 1])
    return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"


@table(reads="prune.csv prune_calibrated.csv prune_alphas.csv", runs="decoder released-*",
       readers=lambda rows: {f"loss minus H2O; {_heading(rows := pruning.first_model_rows(rows))}":
                             _by_budget(rows, MINUS_H2O)},
       columns="source run text configuration alphas budget loss_nats minus_h2o_nats[] seeds windows")  # fmt: skip
def decay_alphas_table(results: Results, runs: list[str]) -> DataFrame:
    """Does a better choice of alpha beat H2O? The loss of Decay minus the loss of H2O by cache budget, on the same
    windows; below zero, Decay is better. Rows without "recent" give the whole budget to the decayed score. The best
    alpha of each window is chosen by the reported loss itself, so it bounds every rule that chooses alpha by text. The
    best alpha of this text bounds every rule with a single alpha. With an alpha for each head, a head takes the alpha
    whose attention is nearest to the ideal attention. In brackets: 95 % interval over windows, for this one model. The
    CSV has the chosen alphas.
    """
    keys, choice = ["run", "budget"], ["run", "budget", "configuration"]
    rows = results.rows("prune.csv", STUDY, runs)
    rows = rows[rows["policy"].eq("decay") | rows["policy"].eq("h2o")]
    recent = (100 * rows["recent"]).map(", {:g} % recent".format).where(rows["recent"] > 0, "")
    names = ("alpha " + rows["alpha"].map("{:g}".format) + recent).mask(rows["policy"] == "h2o", "H2O")
    rows = rows.assign(configuration=names)
    rows = rows[rows.groupby(keys)["alpha"].transform("nunique") > 0]
    single = rows[rows["configuration"].str.fullmatch(r"alpha [\d.]+")]
    best = single.loc[single.groupby([*keys, "seed", "window"])["loss_nats"].idxmin()]
    calibrated = results.rows("prune_calibrated.csv", STUDY, runs)
    calibrated = calibrated.assign(configuration=calibrated["choice"].map(_CALIBRATED))
    rows = pd.concat([rows, best.assign(configuration=BEST_OF_WINDOW), calibrated.dropna(subset="configuration")])
    reads = rows.groupby([*keys, "seed", "window"])["configuration"].transform("nunique")
    rows = rows[reads == rows.groupby(keys)["configuration"].transform("nunique")]
    table = paired_losses(rows, keys, "H2O", MINUS_H2O, choice)
    table.loc[table["configuration"] == "H2O", MINUS_H2O] = 0.0
    is_single = table["configuration"].str.fullmatch(r"alpha [\d.]+")
    best = table.loc[table[is_single].groupby(keys)["loss_nats"].idxmin()]
    best = best.assign(alphas=best["configuration"].str.removeprefix("alpha "), configuration=BEST_OF_TEXT)
    chosen = results.rows("prune_alphas.csv", STUDY, runs)
    chosen = chosen.assign(configuration=chosen["choice"].map(_CALIBRATED))
    table = table.join(chosen.groupby(choice)["alpha"].agg(_spread).rename("alphas"), on=choice)
    table = pd.concat([table[~is_single | table["configuration"].eq("alpha 0.2")], best], ignore_index=True)
    return table.assign(text=table["run"].map(pruning.text_labels(results, STUDY, runs)))


@table(reads="decode.csv", readers=pruning.by_model,
       columns="source run sequences length configuration policy decoded_tokens_per_s[] speed_ratio[] -prompt_s "
               "prompt_ratio faster_after cache_megabytes -cache_share -metadata_megabytes repetitions device "
               "threads")  # fmt: skip
def decay_decode_table(results: Results, runs: list[str]) -> DataFrame:
    """Does a pruned cache decode faster? Speed after the longest measured prompt, of policies that keep 10 or 40 % of
    the tokens, of Full, our full cache, and of DynamicCache, the full cache of transformers. Medians over repetitions;
    in brackets: quartiles of the repetitions, which are no confidence interval. Ratios to Full are computed within each
    repetition. A speed ratio above 1 and a prompt time ratio below 1 are better. "Faster after" is the number of
    generated tokens after which prompt and answer together take less time than with Full. Measured in turns, alone on
    one machine, in the precision of the released model. Another machine may have other ratios, and a GPU will.
    """
    rows = pruning.decode_speeds(results, STUDY, runs)
    if rows.empty:
        return rows
    rows = rows[rows["length"] == rows.groupby(["run", "sequences"])["length"].transform("max")]
    saved = rows["sequences"] / rows["tokens_per_s"] * (rows["speed_ratio"] - 1)  # seconds per step of decoding
    added = rows["prompt_s"] * (1 - 1 / rows["prompt_ratio"])
    rows = rows.assign(faster_after=(added / saved).where((rows["budget"] != 1) & (saved > 0)))
    rows = rows.rename(columns=lambda name: name.replace("tokens_per_s", "decoded_tokens_per_s"))
    record = results.stage_record(STUDY, "decode")
    megabytes = {f"{name}_megabytes": rows[f"{name}_bytes"] / 1e6 for name in ("cache", "metadata")}
    return rows.assign(**megabytes, device=processor(record.get("device", "")), threads=record.get("threads"))
