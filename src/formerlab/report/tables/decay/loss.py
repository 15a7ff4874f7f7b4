"""Tables of the loss, the size and the speed of pruned caches."""

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.names import TABLE_LABELS
from formerlab.report.studies import policy_comparison, pruning
from formerlab.report.studies.pruning import CONFIGURATION, MINUS_H2O, label_and_sort, model_label, paired_losses
from formerlab.report.tables.blocks import in_words, processor, side_by_side, with_verdicts
from formerlab.results.read import Results

STUDY = "decay"
_SWEPT = r"Decay 0\.([13-8]|9$)"
"""Matches the values of alpha that tables for readers leave out."""
_HALF_RECENT = "decay-half-recent-beats-h2o"
_BOUNDS = ("Full", "Ideal")
"""Upper bounds: no cache of this budget can implement these policies."""


def _by_budget(rows: DataFrame, value: str) -> DataFrame:
    """Return a row per policy and a column per budget, sorted by the smallest budget that most policies have; bounds
    come last.
    """
    sizes = rows.groupby("budget")["configuration"].size()
    labels = {size: f"{pruning.budget_text(size)} (nats) ↓" for size in sizes.index}
    table = side_by_side(rows, ["configuration"], rows["budget"].map(labels), value, labels.values())
    bound = table["configuration"].isin(_BOUNDS)
    table = table.assign(configuration=table["configuration"] + bound.map({True: " (bound)", False: ""}))
    return table.assign(_bound=bound).sort_values(["_bound", labels[sizes.idxmax()]]).drop(columns="_bound")


def _heading(rows: DataFrame) -> str:
    """Return the model, the text and the number of windows of rows of one run."""
    text, model = str(rows["text"].iloc[0]), model_label(rows["run"].iloc[0].removeprefix("one-shot-"))
    return f"{model}, {rows['windows'].max():.0f} windows of {TABLE_LABELS.get(text, text)}"


def _comparable(rows: DataFrame) -> DataFrame:
    """Return the rows without the swept values of alpha and without policies whose cache differs in size from H2O's."""
    of_h2o = rows[rows["configuration"] == "H2O"].groupby("budget")["realised_budget"].mean()
    unequal = rows.loc[(rows["realised_budget"] / rows["budget"].map(of_h2o) - 1).abs() > 0.01, "configuration"]
    return rows[~rows["configuration"].str.match(_SWEPT) & ~rows["configuration"].isin(unequal)]


def _increases(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the loss that pruning adds in the main run, and the difference to H2O at the smallest budget of H2O."""
    rows = pruning.first_model_rows(rows)
    full, pruned = rows["policy"].eq("full"), rows["policy"].ne("full")
    if not full.any() or not pruned.any():
        return {_heading(rows): rows}
    heading = f"loss minus Full; {_heading(rows)}, perplexity {rows.loc[full, 'perplexity'].iloc[0]:.1f} with Full"
    shown = _comparable(rows[pruned])
    if "verdict" in shown:
        return {heading.replace("minus Full", "minus H2O"): _minus_h2o_by_budget(shown)}
    table, paired = _by_budget(shown, "increase_nats"), shown.dropna(subset=MINUS_H2O)
    if len(paired):
        least = paired[paired["budget"] == paired["budget"].min()]
        name = f"minus H2O, {pruning.budget_text(paired['budget'].min())} (nats) ↓"
        ends = dict(zip(expand_columns(f"{MINUS_H2O}[]"), expand_columns(f"{name.replace(' ', '~')}[]"), strict=True))
        columns = ["configuration", *ends.values()]
        names = least["configuration"] + least["configuration"].isin(_BOUNDS).map({True: " (bound)", False: ""})
        table = table.merge(least.rename(columns=ends).assign(configuration=names)[columns], "left", "configuration")
        table["is_reference"] = table["configuration"].eq("H2O")
    return {heading: table}


def _minus_h2o_by_budget(rows: DataFrame) -> DataFrame:
    """Return a row per policy with its loss minus the loss of H2O at each budget; the full cache is a bound."""
    h2o, ends = rows[rows["configuration"] == "H2O"], expand_columns(f"{MINUS_H2O}[]")
    added = -h2o[[f"increase_nats{end}" for end in ("", "_high", "_low")]].set_axis(ends, axis=1)
    full = h2o.drop(columns=ends).join(added).assign(configuration="Full")
    reference = h2o.assign(**dict(zip(ends, (0.0, np.nan, np.nan), strict=True)))
    table = _by_budget(pd.concat([rows.drop(h2o.index), reference, full], ignore_index=True), MINUS_H2O)
    verdicts = rows.dropna(subset="verdict").drop_duplicates("configuration").set_index("configuration")["verdict"]
    return table.assign(verdict=table["configuration"].map(verdicts))


def _minus_h2o(rows: DataFrame) -> DataFrame:
    """Return the difference to H2O at the same budget by configuration."""
    table = paired_losses(pruning.on_common_windows(rows), ["run", "budget"], "h2o", MINUS_H2O)
    return table[[*CONFIGURATION, *expand_columns(f"{MINUS_H2O}[]")]]


def _answer_increases(rows: DataFrame) -> str:
    rows = _comparable(pruning.first_model_rows(rows))
    rows = rows[~rows["configuration"].isin((*_BOUNDS, "H2O"))].dropna(subset=MINUS_H2O)
    if rows.empty:
        return ""
    best = rows.loc[rows.groupby("budget")[MINUS_H2O].idxmin()]
    words = [f"{pruning.budget_text(row['budget'])}: {row['configuration']} {in_words(row, MINUS_H2O)}"
             for _, row in best.iterrows()]  # fmt: skip
    return f"The best rival of H2O at each budget, loss minus H2O in nats: {'; '.join(words)}."


@table(reads="prune.csv", readers=_increases, answer=_answer_increases,
       columns="source run text configuration policy -alpha -recent budget realised_budget perplexity -loss_nats "
               "increase_nats[] minus_h2o_nats[] seeds windows verdict")  # fmt: skip
def decay_table(results: Results, runs: list[str]) -> DataFrame:
    """Which eviction policy adds less loss than H2O?

    - Loss minus the loss with H2O on the same windows, by cache budget in percent of the tokens; claim: 10
    and 20 %.
    - Brackets: 95 % interval over windows, for this one model.
    - Doubt: few books. Half recent: half of the budget for the last tokens. Ideal sees the future. The
    CSV has more policies.
    """
    rows = pruning.configurations(results, STUDY, runs)
    rows = rows.merge(_minus_h2o(results.rows("prune.csv", STUDY, runs)), "left", CONFIGURATION)
    rows = rows.assign(text=rows["run"].map(pruning.text_labels(results, STUDY, runs)))
    return with_verdicts(rows, results, STUDY, {_HALF_RECENT: rows["configuration"].eq("Decay 0.2, half recent")})


@table(reads="prune_one_shot.csv", readers=_increases, answer=_answer_increases,
       columns="source run text configuration policy budget realised_budget perplexity -loss_nats increase_nats[] "
               "minus_h2o_nats[] seeds windows")  # fmt: skip
def decay_one_shot_table(results: Results, runs: list[str]) -> DataFrame:
    """How much loss does one-shot compression of the prompt add?

    - The first half of a window is a prompt, whose cache is pruned once, as SnapKV does; loss of the second half minus
    the loss with the full cache, by budget in percent of the prompt.
    - Brackets: 95 % interval over windows, for this one model.
    - Doubt: H2O reserves half for recent keys, SnapKV its observation window.
    """
    rows = results.rows("prune_one_shot.csv", STUDY, runs)
    table = paired_losses(rows, ["run"], "full", "increase_nats").merge(_minus_h2o(rows), "left", CONFIGURATION)
    texts = table["run"].map(pruning.text_labels(results, STUDY, runs))
    return label_and_sort(table.assign(perplexity=np.exp(table["loss_nats"]), text=texts))


def _by_text(rows: DataFrame) -> dict[str, DataFrame]:
    """Return a block per text and number of windows."""
    rows = rows.replace({"text": TABLE_LABELS})
    h2o = rows["configuration"].eq("H2O")
    rows.loc[h2o, expand_columns(f"{MINUS_H2O}[]")] = np.nan
    blocks = {}
    for text, group in rows.groupby("text", sort=False):
        for windows, part in sorted(group.groupby("windows"), reverse=True):
            table = _by_budget(part, MINUS_H2O)
            table["is_reference"] = table["configuration"].eq("H2O")
            blocks[f"loss minus H2O; {text}, {windows:.0f} windows"] = table
    return blocks


def _answer_texts(rows: DataFrame) -> str:
    """Return the rule with the lowest loss at 10 % of the cache on each text."""
    rows = rows[~rows["configuration"].isin((*_BOUNDS, "H2O")) & rows["budget"].eq(0.1)].dropna(subset=MINUS_H2O)
    rows = rows[rows["windows"].eq(rows.groupby("text")["windows"].transform("max"))]
    best = rows.loc[rows.groupby("text", sort=False)[MINUS_H2O].idxmin()]
    words = [f"{TABLE_LABELS.get(row['text'], row['text'])}: {row['configuration']} {in_words(row, MINUS_H2O)}"
             for _, row in best.iterrows()]  # fmt: skip
    return f"The best measured rival of H2O at 10 %, loss minus H2O in nats: {'; '.join(words)}." if words else ""


@table(reads="prune.csv", runs="random-* novels-* tight-* league-* released-* wikitext-*", needs="league-*",
       readers=_by_text, answer=_answer_texts,
       columns="source run text configuration policy budget realised_budget increase_nats[] minus_h2o_nats[] seeds "
               "windows")  # fmt: skip
def decay_league_table(results: Results, runs: list[str]) -> DataFrame:
    """Which cache policy has the lowest loss at which budget?

    - Loss minus the loss with H2O at the same budget, on three texts. Random, protected: 4 first keys, a quarter
    recent.
    - Brackets: 95 % interval over novels, otherwise over windows, for this one model.
    - Doubt: empty cells were not run; a budget per head or layer was evaluated on fewer windows; bounds cannot be
    implemented.
    """
    return policy_comparison.losses(results, STUDY, runs)


BEST_OF_WINDOW, BEST_OF_TEXT = "best alpha of each window", "best alpha of this text"
_CALIBRATED = {
    "per_head": "an alpha for each head, chosen on validation text",
    "single_by_loss": "one alpha, chosen on validation text",
}
_FIXED = "alpha 0.2, as published"


def _spread(alphas: Series) -> str:
    """Return the chosen alphas as text: the median, and the range if they differ."""
    low, middle, high = np.quantile(alphas, [0, 0.5, 1])
    return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"


def _choices(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the rules that can be run, then the bounds with hindsight."""
    rows, blocks = pruning.first_model_rows(rows), dict[str, DataFrame]()
    hindsight = rows["configuration"].isin((BEST_OF_WINDOW, BEST_OF_TEXT))
    for words, group in ("rules that can be run", rows[~hindsight]), ("bounds, with hindsight", rows[hindsight]):
        group = group[group["configuration"].ne("H2O")]
        if len(group):
            alphas = group.groupby("configuration")["alphas"].agg(lambda names: "; ".join(names.dropna()))
            table = _by_budget(group, MINUS_H2O)
            table.insert(1, "alphas by budget", table["configuration"].map(alphas))
            blocks[f"{words}; loss minus H2O; {_heading(rows)}"] = table
    return blocks


def _answer_choices(rows: DataFrame) -> str:
    best = pruning.first_model_rows(rows).query("configuration == @BEST_OF_WINDOW").sort_values("budget")
    words = [f"{in_words(row, MINUS_H2O)} at {pruning.budget_text(row['budget'])}" for _, row in best.iterrows()]
    return f"Even the best alpha of each window, minus H2O, nats: {', '.join(words)}." if words else ""


@table(reads="prune.csv prune_calibrated.csv prune_alphas.csv", runs="decoder released-*",
       readers=_choices, answer=_answer_choices,
       columns="source run text configuration alphas budget loss_nats minus_h2o_nats[] seeds windows")  # fmt: skip
def decay_alphas_table(results: Results, runs: list[str]) -> DataFrame:
    """Does a better choice of alpha beat H2O?

    - Loss of Decay without recent tokens minus the loss of H2O by cache budget. A head takes the alpha whose attention
    is nearest to the ideal attention.
    - Brackets: 95 % interval over windows, for this one model.
    - Doubt: the bounds choose alpha by the reported loss itself.
    """
    keys, choice = ["run", "budget"], ["run", "budget", "configuration"]
    rows = results.rows("prune.csv", STUDY, runs)
    rows = rows[rows["policy"].eq("decay") | rows["policy"].eq("h2o")]
    rows = rows[rows["policy"].eq("h2o") | rows["recent"].eq(0)]
    rows = rows.assign(configuration=("alpha " + rows["alpha"].map("{:g}".format)).mask(rows["policy"] == "h2o", "H2O"))
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


def _speeds(rows: DataFrame) -> DataFrame:
    """Return the caches by decreasing budget, with all their bytes."""
    rows = pruning.by_model(rows).sort_values("budget", ascending=False, kind="stable")
    full = rows["policy"].eq("full")
    rows = rows.assign(megabytes=rows["cache_megabytes"] + rows["metadata_megabytes"].fillna(0), is_reference=full)
    rows.loc[full, expand_columns("speed_ratio[]")] = np.nan
    return rows.drop(columns=["cache_megabytes", "prompt_ratio"])


def _answer_speeds(rows: DataFrame) -> str:
    rows = rows[rows["policy"].eq("decay") & (rows["budget"] < 1)]
    if rows.empty:
        return ""
    row = rows.sort_values("budget").iloc[0]
    cache = f"{row['configuration']} with {pruning.budget_text(row['budget'])}"
    prompt = f"reads a prompt of {row['length']:,.0f} tokens in {row['prompt_ratio']:.2f} times the time"
    return f"{cache} decodes {in_words(row, 'speed_ratio')} times as fast as Full, but {prompt}."


@table(reads="decode.csv", readers=_speeds, answer=_answer_speeds,
       columns="source run sequences length configuration policy budget prompt_s decoded_tokens_per_s[] speed_ratio[] "
               "prompt_ratio faster_after cache_megabytes -cache_share -metadata_megabytes megabytes repetitions "
               "device threads")  # fmt: skip
def decay_decode_table(results: Results, runs: list[str]) -> DataFrame:
    """Does a pruned cache decode faster?

    - Medians of caches that take turns on one machine. DynamicCache is the full cache of transformers. Bytes include
    scores and positions.
    - Brackets: quartiles over repetitions; they are not a confidence interval.
    - Doubt: our own decoder; in generate and on a GPU, ratios differ.
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
