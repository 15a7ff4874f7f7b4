"""Tables of the loss, the size and the speed of pruned caches."""

import re
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.names import PRUNING_LABELS
from formerlab.report.studies import policy_comparison, pruning
from formerlab.report.studies.pruning import (
    BEYOND_BUDGET,
    CONFIGURATION,
    MINUS_H2O,
    budget_text,
    label_and_sort,
    model_label,
    paired_losses,
)
from formerlab.report.tables.cells import claim_verdicts, in_words, processor, side_by_side, with_verdicts
from formerlab.results.read import Results

STUDY = "decay"
_IN_CSV_ONLY = r"Decay 0\.(?:[13-8]|9$|2 \()"
_ONE_SHOT = r"KeyDiff|Knorm|.*reindexed"
"""Match settings that tables for readers leave out: other alphas; if keys are evicted after every
token, also methods that were made to prune once."""
_HALF_RECENT, _PROTECTED = "decay-half-recent-beats-h2o", "decay-score-beats-protected-random"
_SAME_WINDOWS = ("random-", "novels-", "tight-", "league-")
"""Prefixes of the runs on windows of the novels; league-* has every second window of the others. Only some of them have
H2O.
"""
_DIFFERENCE = expand_columns(f"{MINUS_H2O}[]")


def _by_budget(rows: DataFrame) -> DataFrame:
    """Return a row per policy with a column per budget: the loss minus the loss of H2O.

    Policies that no cache can implement and H2O come first. The others are sorted by their difference at one budget:
    the smallest of the budgets with the most policies.
    """
    labels = {size: f"{budget_text(size)} (nats) ↓" for size in sorted(rows["budget"].unique())}
    table = side_by_side(rows, ["configuration"], rows["budget"].map(labels), MINUS_H2O, labels.values())
    h2o, beyond_budget = table["configuration"].eq("H2O"), table["configuration"].isin(BEYOND_BUDGET)
    rank = table[labels[rows.groupby("budget").size().idxmax()]].mask(h2o, 0.0)
    return table.assign(is_reference=h2o).iloc[np.lexsort([rank, ~h2o, ~beyond_budget])]


def _heading(rows: DataFrame) -> str:
    """Return the text of rows, and on a second line the model, the number of windows and the level of the loss."""
    text, model = str(rows["text"].iloc[0]), model_label(str(rows["run"].iloc[0]))
    return f"{PRUNING_LABELS.get(text, text)}, loss minus H2O\n{model}, {rows['windows'].max():.0f} windows"


def _by_text(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the rows of each model and text that can be compared, by heading.

    Only runs with the largest number of windows are kept. Configurations whose cache differs from H2O's by more than
    1 % at any budget are left out. The full cache has a row for each budget, paired with H2O.
    """
    rows, texts = rows.assign(model=rows["run"].map(model_label)), {}
    for _, group in rows.groupby(["model", "text"], sort=False):
        group = group[group["windows"] == group["windows"].max()].drop_duplicates(["configuration", "budget"])
        h2o = group[group["configuration"] == "H2O"].set_index("budget", drop=False)
        sizes = group["realised_budget"] / group["budget"].map(h2o["realised_budget"])
        unequal = group.loc[(sizes - 1).abs() > 0.01, "configuration"]
        pruned = group[group["policy"].ne("full") & ~group["configuration"].isin(unequal)]
        pruned = pruned[~pruned["configuration"].str.match(_IN_CSV_ONLY)]
        if h2o.empty or group["policy"].ne("full").all():
            continue
        added = h2o[[f"increase_nats{end}" for end in ("", "_high", "_low")]].set_axis(_DIFFERENCE, axis=1)
        full = h2o.drop(columns=_DIFFERENCE).join(-added).assign(configuration="Full", verdict=None, needed=None)
        level = group.loc[group["policy"].eq("full"), "perplexity"].iloc[0]
        texts[f"{_heading(group)}; Full has perplexity {level:.1f}"] = pd.concat([pruned, full], ignore_index=True)
    return texts


def _minus_h2o_by_text(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the lowest policy by text and budget, and a block for each model and text with a row per policy."""
    blocks, lowest, ranks = dict[str, DataFrame](), [], dict[str, int]()
    for heading, of_text in _by_text(rows[~rows["configuration"].str.match(_ONE_SHOT)]).items():
        table = _by_budget(of_text)
        ranks = ranks or {name: number for number, name in enumerate(table["configuration"])}  # all as in the first
        blocks[heading] = table.iloc[table["configuration"].map(ranks).argsort(kind="stable")]
        if of_text["verdict"].notna().any():
            verdicts = of_text.dropna(subset="verdict").drop_duplicates("configuration").set_index("configuration")
            blocks[heading] = blocks[heading].join(verdicts[["needed", "verdict"]], on="configuration")
        rivals = of_text[~of_text["configuration"].isin(BEYOND_BUDGET)].fillna({MINUS_H2O: 0.0}).sort_values("budget")
        best = rivals.loc[rivals.groupby("budget")[MINUS_H2O].idxmin()]
        names = [budget_text(budget) for budget in best["budget"]]
        lowest.append({"text": heading.partition(", ")[0]} | dict(zip(names, best["configuration"], strict=True)))
    order = sorted({name for row in lowest for name in row} - {"text"}, key=lambda name: float(name.split()[0]))
    return {"policy with the lowest loss": DataFrame(lowest, columns=["text", *order]), **blocks} if blocks else {}


def _once_or_every_token(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the policies that prune once and the policies that evict after every token, both minus H2O once."""
    blocks = {}
    for heading, of_text in _by_text(rows).items():
        title, _, settings = heading.partition("\n")
        table = _by_budget(of_text)
        table.columns = table.columns.str.replace(" % (", " % of the prompt (")
        every = table["configuration"].str.endswith(", every token")
        blocks[f"pruned once, after the prompt: {title}\nSecond halves of windows; {settings}"] = table[~every]
        table["configuration"] = table["configuration"].str.removesuffix(", every token")
        blocks["evicted after every token: loss minus H2O that prunes once"] = table[every].drop(columns="is_reference")
    return {heading: block for heading, block in blocks.items() if len(block)}


def _answer_minus_h2o(rows: DataFrame) -> str:
    """Return, for each budget of all texts, the policy that is clearly below H2O on the most texts, or the lowest."""
    texts, words = [*_by_text(rows).values()], list[str]()
    for budget in sorted(set.intersection(*({*of_text["budget"]} for of_text in texts)) if texts else (), reverse=True):
        rivals = pd.concat(of_text[of_text["budget"].eq(budget)] for of_text in texts).dropna(subset=MINUS_H2O)
        rivals = rivals[~rivals["configuration"].isin((*BEYOND_BUDGET, "H2O"))].sort_values(MINUS_H2O)
        clear = rivals.loc[rivals[f"{MINUS_H2O}_high"] < 0, "configuration"].value_counts()
        result = "no policy"
        if len(clear):
            tried = rivals["configuration"].eq(clear.index[0]).sum()
            result = f"{clear.index[0]}, on {clear.iloc[0]} of {tried} texts with this policy"
        if clear.empty and len(texts) == 1 and len(rivals):
            result += f" (lowest: {rivals['configuration'].iloc[0]}, {in_words(rivals.iloc[0], MINUS_H2O)} nats)"
        words.append(f"at {budget_text(budget)} {result}")
    return f"Clearly below H2O: {'; '.join(words)}." if words else ""


def _minus_h2o(rows: DataFrame) -> DataFrame:
    """Return the difference to H2O at the same budget by configuration."""
    table = paired_losses(pruning.on_common_windows(rows), ["run", "budget"], "h2o", MINUS_H2O)
    return table[[*CONFIGURATION, *_DIFFERENCE]]


def _minus_h2o_of_other_runs(results: Results, runs: list[str]) -> DataFrame:
    """Return the difference to H2O at the same budget by text and configuration, for runs on the same windows."""
    shared, columns = [run for run in runs if run.startswith(_SAME_WINDOWS)], ["text", "configuration", "budget"]
    if not shared:
        return DataFrame(columns=[*columns, *_DIFFERENCE], dtype=float)
    table = policy_comparison.losses(results, STUDY, shared, None)
    return table.loc[table["configuration"] != "H2O", [*columns, *_DIFFERENCE]].drop_duplicates(columns)


@table(reads="prune.csv", readers=_minus_h2o_by_text, answer=_answer_minus_h2o,
       columns="source run text configuration policy -alpha -recent budget realised_budget perplexity -loss_nats "
               "increase_nats[] minus_h2o_nats[] seeds windows needed verdict")  # fmt: skip
def decay_table(results: Results, runs: list[str]) -> DataFrame:
    """Which eviction policy adds less loss than H2O?

    - Loss minus the loss of H2O on the same windows, by cache budget in percent of the tokens.
    - Brackets: 95 % interval over novels (otherwise windows), for this model.
    - Doubt: few texts. Decay 0.95, half recent, was chosen by these losses and has no claim. The CSV also has methods
    that prune once, and H2O that ranks by later queries.
    """
    rows = pruning.configurations(results, STUDY, runs)
    rows = rows.merge(_minus_h2o(results.rows("prune.csv", STUDY, runs)), "left", CONFIGURATION)
    rows = rows.assign(text=rows["run"].map(pruning.text_labels(results, STUDY, runs)))
    other = rows[["text", "configuration", "budget"]].merge(_minus_h2o_of_other_runs(results, runs), "left")
    rows[_DIFFERENCE] = rows[_DIFFERENCE].fillna(other[_DIFFERENCE].where(rows["run"].str.startswith(_SAME_WINDOWS)))
    protected = rows["configuration"].eq("Random, protected")
    masks = {_HALF_RECENT: rows["configuration"].eq("Decay 0.2, half recent"), _PROTECTED: protected}
    rows = with_verdicts(rows, results, STUDY, masks, mirrored=True)
    limits = re.findall(r"(\d+ %): .*?at least ([\d.]+)", claim_verdicts(results, STUDY, _PROTECTED)[_PROTECTED].needed)
    words = f"above Decay 0.2 by at least {', '.join(f'{limit} ({budget})' for budget, limit in limits)}"
    return rows.assign(needed=rows["needed"].mask(protected & rows["needed"].notna(), words))


@table(reads="prune_one_shot.csv", readers=_once_or_every_token, answer=_answer_minus_h2o,
       columns="source run text configuration policy budget realised_budget perplexity -loss_nats increase_nats[] "
               "minus_h2o_nats[] seeds windows")  # fmt: skip
def decay_one_shot_table(results: Results, runs: list[str]) -> DataFrame:
    """Which one-shot policy adds less loss than H2O?

    - The first half of a window is the prompt; loss and perplexity are of the second half. A cache that is pruned once
    then grows; the other keeps its size, so it ends with fewer keys.
    - Brackets: 95 % interval over windows, one model.
    - Doubt: one text. H2O reserves half of its budget for recent keys, SnapKV less.
    """
    rows = results.rows("prune_one_shot.csv", STUDY, runs)
    table = paired_losses(rows, ["run"], "full", "increase_nats").merge(_minus_h2o(rows), "left", CONFIGURATION)
    texts = table["run"].map(pruning.text_labels(results, STUDY, runs))
    return label_and_sort(table.assign(perplexity=np.exp(table["loss_nats"]), text=texts))


BEST_OF_WINDOW, BEST_OF_TEXT = (
    "best alpha of each window, known afterwards",
    "best alpha of this text, known afterwards",
)
_CALIBRATED = {
    "per_head": "an alpha for each head, chosen on validation text",
    "single_by_loss": "one alpha, chosen on validation text",
}
_FIXED, _RESERVED = "alpha 0.2, as published", "for comparison: Decay 0.95, half recent"
_CHOICES = ("H2O", *_CALIBRATED.values(), _FIXED, BEST_OF_WINDOW, BEST_OF_TEXT, _RESERVED)


def _spread(alphas: Series) -> str:
    low, middle, high = np.quantile(alphas, [0, 0.5, 1])
    return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"


def _choices(rows: DataFrame) -> dict[str, DataFrame]:
    """Return H2O and a row per choice of alpha, with the chosen alphas."""
    rows = pruning.first_model_rows(rows)
    rows = rows[rows["configuration"].isin(_CHOICES)]
    if rows.empty:
        return {}
    chosen = rows[rows["alphas"].str.fullmatch(r"[\d.]+", na=False)]
    alphas = chosen["alphas"] + " at " + chosen["budget"].map(budget_text)
    alphas = alphas.groupby(chosen["configuration"]).agg(", ".join)
    rows = rows.assign(**{MINUS_H2O: rows[MINUS_H2O].mask(rows["configuration"].eq("H2O"))})
    table = _by_budget(rows).sort_values("configuration", key=lambda names: names.map(_CHOICES.index))
    names = table["configuration"].replace({_RESERVED: "Decay 0.95, half recent, known afterwards"})
    table = table.assign(configuration=names)
    table.insert(1, "alpha", table["configuration"].map(alphas))
    return {_heading(rows): table.rename(columns={"configuration": "choice of alpha"})}


def _answer_choices(rows: DataFrame) -> str:
    """Return for each budget whether the best choice without hindsight has a clearly lower loss than H2O."""
    rows = pruning.first_model_rows(rows)
    chosen, words = rows[rows["configuration"].isin(_CALIBRATED.values())], list[str]()
    if chosen.empty:
        return ""
    for _, row in chosen.loc[chosen.groupby("budget")[MINUS_H2O].idxmin()].iterrows():
        answer = "yes" if row[f"{MINUS_H2O}_high"] < 0 else "no"
        words.append(f"at {budget_text(row['budget'])} {answer}, {in_words(row, MINUS_H2O)} nats")
    return f"Loss minus H2O with {row['configuration']}: {'; '.join(words)}."


@table(reads="prune.csv prune_calibrated.csv prune_alphas.csv", runs="decoder released-*",
       readers=_choices, answer=_answer_choices,
       columns="source run text configuration alphas budget loss_nats minus_h2o_nats[] seeds windows")  # fmt: skip
def decay_alphas_table(results: Results, runs: list[str]) -> DataFrame:
    """Does a better choice of alpha beat H2O?

    - Loss of Decay minus the loss of H2O, by cache budget in percent of the tokens. An alpha for each head makes its
    attention most similar to ideal attention.
    - Brackets: 95 % interval over windows, for this one model.
    - Doubt: what is known afterwards was chosen by the reported loss. Intervals are not corrected for their number.
    """
    keys, choice = ["run", "budget"], ["run", "budget", "configuration"]
    rows = results.rows("prune.csv", STUDY, runs)
    h2o, decay, plain = rows["policy"].eq("h2o"), rows["policy"].eq("decay"), rows["recent"].eq(0)
    reserved = decay & rows["alpha"].eq(0.95) & rows["recent"].eq(0.5)
    rows = rows.assign(configuration=("alpha " + rows["alpha"].map("{:g}".format)).mask(h2o, "H2O"))
    rows["configuration"] = rows["configuration"].mask(reserved, _RESERVED)
    rows = rows[h2o | decay & plain | reserved]
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
    table["configuration"] = table["configuration"].replace("alpha 0.2", _FIXED)
    return table.assign(text=table["run"].map(pruning.text_labels(results, STUDY, runs)))


def _speeds(rows: DataFrame) -> dict[str, DataFrame]:
    """Return a block for each model, number of sequences and prompt, with the caches by decreasing budget."""
    rows, blocks = pruning.by_model(rows), {}
    for _, group in rows.groupby(["model", "sequences", "length"], sort=False):
        first = group.iloc[0]
        title = f"{first['model']}, prompt of {first['length']:,} tokens, sequences: {first['sequences']}"
        group = group.sort_values("budget", ascending=False, kind="stable").assign(is_reference=group["budget"].eq(1))
        ratios = {name: [_with_quartiles(row, name) for _, row in group.iterrows()] for name in _RATIOS}
        columns = ["configuration", "budget", "prompt_s", "prompt_ratio", "decoded_tokens_per_s", "speed_ratio"]
        blocks[title] = group.assign(**ratios)[
            [*columns, "faster_after", "megabytes", "repetitions", "device", "threads"]
        ]
    return blocks


_RATIOS = ("prompt_ratio", "speed_ratio")


def _with_quartiles(row: "Series[Any]", name: str) -> str:
    """Return a ratio with its quartiles in round brackets, since square brackets are confidence intervals."""
    if row["budget"] == 1:
        return "reference" if row["policy"] == "full" else f"{row[name]:.2f}"
    return re.sub(r"\[(.*),\s(.*)\]", r"(\1 to \2)", in_words(row, name))


def _answer_speeds(rows: DataFrame) -> str:
    rows = rows[rows["policy"].eq("decay") & (rows["budget"] < 1)]
    if rows.empty:
        return ""
    row = rows.sort_values("budget").iloc[0]
    answer = "Yes" if row["speed_ratio_low"] > 1 else "No"
    cache = f"{row['configuration']} with {budget_text(row['budget'])} of the cache"
    prompt, speed = (_with_quartiles(row, name) for name in _RATIOS)
    return (
        f"{answer}, in our decoder: {cache} decodes {speed} times as fast as Full, but reads the prompt in {prompt} "
        "times the time."
    )


@table(reads="decode.csv", readers=_speeds, answer=_answer_speeds,
       columns="source run sequences length configuration policy budget prompt_s prompt_ratio[] decoded_tokens_per_s[] "
               "speed_ratio[] faster_after cache_megabytes cache_share metadata_megabytes megabytes repetitions device "
               "threads")  # fmt: skip
def decay_decode_table(results: Results, runs: list[str]) -> DataFrame:
    """Does a pruned cache decode faster?

    - Median times on one machine; ratios to Full, measured in turns. Reading takes longer because scores are computed.
    Memory includes scores and positions.
    - Round brackets: quartiles over repetitions (no confidence interval).
    - Doubt: in `generate` of transformers, Decay decodes more slowly than the full cache (0.88 times).
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
    rows = rows.assign(**megabytes, device=processor(record.get("device", "")), threads=record.get("threads"))
    return rows.assign(megabytes=rows["cache_megabytes"] + rows["metadata_megabytes"].fillna(0))
