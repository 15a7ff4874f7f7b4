"""Rows of pruned caches for figures and tables: configurations and their loss minus the loss of the full cache."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns
from formerlab.report.claims.quantity import MIN_UNITS
from formerlab.report.names import RELEASED_NAMES, data_set_label, variant_styles
from formerlab.report.runs import seed_count
from formerlab.results.read import Results
from formerlab.statistics import bootstrap_means, half_width, mean_ends, sample_variances

_POLICIES = {kind: name.label for kind, name in variant_styles()["policy"].items()}
POLICY_LABELS = {"full": _POLICIES["full"], "dynamic_cache": "DynamicCache", **_POLICIES}
"""Labels of the policies, in the order of figures and tables. DynamicCache is the full cache
of the transformers library."""

BEYOND_BUDGET = ("Full", "Ideal")
"""Configurations for comparison, which no cache within a budget can implement."""
CONFIGURATION = ["run", "policy", "alpha", "recent", "budget"]
MINUS_H2O = "minus_h2o_nats"
PUBLISHED_ALPHA, PUBLISHED_BUDGET = 0.2, 0.4
"""The alpha of the Decay article, and its cache budget as a fraction of the tokens (Fig 4a, Table 2)."""

_EVERY_TOKEN = "every_token("
"""Start of the policies in prune_one_shot.csv that evict after every token; all others evict once."""
RELEASED_RUNS = "released-"
"""Prefix of the names of the main runs of released models."""


def first_model_rows(rows: DataFrame) -> DataFrame:
    """Return the rows of one run, for figures of a single model: the first released model, otherwise our first run."""
    runs = sorted(rows["run"].unique(), key=lambda run: not str(run).startswith(RELEASED_RUNS))
    return rows[rows["run"] == runs[0]] if runs else rows


def model_label(run: str) -> str:
    """Return the label of the released model of a run, or the name of any other run."""
    labels = (label for name, label in RELEASED_NAMES.items() if run.endswith(name))
    return next(labels, run.removeprefix(RELEASED_RUNS))


def by_model(rows: DataFrame) -> DataFrame:
    """Return rows with a column `model`, the label of the model, in place of `run`."""
    return rows.assign(run=rows["run"].map(model_label)).rename(columns={"run": "model"})


def text_labels(results: Results, study: str, runs: Sequence[str]) -> dict[str, str]:
    """Return the label of the text of each run."""
    records = results.runs(study, runs).to_dict("records")
    return {run["run"]: data_set_label(run["data.name"], run.get("spec.released"), results.scale) for run in records}


def configurations(results: Results, study: str, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return one row per run, policy, alpha, recent fraction and budget, with its loss over all seeds and windows.

    `increase_nats` is the loss minus the loss of the full cache on the same windows of the same model. Its 95 %
    interval is over documents if there are at least MIN_UNITS, otherwise over windows, and over seeds if there are at
    least two (`statistics.mean_ends`, or Student's t for fewer than MIN_UNITS windows). `perplexity_low` and
    `perplexity_high` add this interval to the loss of the full cache, so they show the uncertainty of the comparison.
    Without rows of the full cache, the difference and these ends are empty.
    """
    table = paired_losses(on_common_windows(results.rows("prune.csv", study, runs)), ["run"], "full", "increase_nats")
    full = table["policy"] == "full"
    level = table["run"].map(table[full].groupby("run")["loss_nats"].max())  # NaN without rows of the full cache
    table.loc[full, expand_columns("increase_nats[]")] = 0.0
    bounds = {f"perplexity_{end}": np.exp(level + table[f"increase_nats_{end}"]) for end in ("low", "high")}
    return label_and_sort(table.assign(perplexity=np.exp(table["loss_nats"]), **bounds, source="ours"))


def policy_labels(kinds: "Series[str]") -> "Series[str]":
    """Return the label of each policy, or its kind if names.yaml does not list it."""
    return kinds.map(POLICY_LABELS).fillna(kinds)


def scorer(policy: str) -> str:
    """Return the kind of the policy that scores the keys, such as `h2o` for `h2o` and `pyramid(h2o) layers=30`."""
    return policy.split()[0].rstrip(")").rpartition("(")[2]


def label_and_sort(table: DataFrame) -> DataFrame:
    """Return the rows in the order of POLICY_LABELS, with the label of each configuration as `configuration`."""
    ranks = {policy: rank for rank, policy in enumerate(POLICY_LABELS)}
    rank = table["policy"].map(scorer).map(ranks).fillna(len(ranks))
    cells = table[["policy", "alpha", "recent"]].itertuples(index=False, name=None)
    table = table.assign(_rank=rank, configuration=[configuration_label(*cell) for cell in cells])
    table = table.sort_values(["run", "_rank", "policy", "alpha", "recent", "budget"], ignore_index=True)
    return table.drop(columns="_rank")


def paired_losses(
    rows: DataFrame, by: Sequence[str], base: str, name: str, keys: Sequence[str] = CONFIGURATION
) -> DataFrame:
    """Return a row per group of `by` and configuration (combination of `keys`) with its loss and its difference to the
    loss of the configuration `base`.

    `base` is a value of one of the `keys`. The column `name`, with the ends of its 95 % interval, has the difference on
    the same windows of the same model. It is empty for the base itself, and without rows of the base.
    """
    tables = [_paired_losses_of_group(group, base, name, [*keys]) for _, group in rows.groupby([*by], sort=False)]
    columns = [*keys, "loss_nats", *expand_columns(f"{name}[]")]
    return pd.concat(tables or [DataFrame(columns=columns)], ignore_index=True)


def _paired_losses_of_group(rows: DataFrame, base: str, name: str, keys: list[str]) -> DataFrame:
    rows, seeds = rows.sort_values([*keys, "seed", "window"]), rows["seed"].nunique()
    configurations, grids = [], []
    for values, group in rows.groupby(keys, sort=False, dropna=False):
        grids.append(group["loss_nats"].to_numpy(float).reshape(seeds, -1))
        configurations.append(
            dict(zip(keys, values, strict=True)) | {"realised_budget": group["realised_budget"].mean()}
        )
        windows = group[: grids[-1].shape[1]]
    losses, table = np.stack(grids), DataFrame(configurations).assign(seeds=seeds, windows=len(windows))
    losses, weights = _per_document(losses, windows)
    table["loss_nats"] = np.average(losses, axis=2, weights=weights).mean(axis=1)
    columns, is_base = expand_columns(f"{name}[]"), (table[keys] == base).any(axis=1)
    table[columns] = np.nan
    if is_base.any():
        differences = losses - losses[np.argmax(is_base)]
        by_seed = np.average(differences, axis=2, weights=weights)
        if len(weights) < MIN_UNITS:
            low, high = _student_ends(differences, by_seed)
        else:
            low, high = mean_ends(by_seed, bootstrap_means(differences, weights), len(weights))
        table[columns] = np.column_stack([by_seed.mean(axis=1), low, high])
        table.loc[is_base, columns] = np.nan
    return table


def _student_ends(
    differences: Float[np.ndarray, "arms seeds units"], by_seed: Float[np.ndarray, "arms seeds"]
) -> tuple[Float[np.ndarray, " arms"], Float[np.ndarray, " arms"]]:
    """Return the ends of Student's t interval over units, and over seeds if there are at least two.

    The percentiles of a bootstrap are too narrow for fewer than MIN_UNITS units (protocol.statistics.examples in
    claims.yaml). A single unit has no interval.
    """
    mean, half = by_seed.mean(axis=1), np.full(len(by_seed), np.nan)
    if differences.shape[-1] > 1:
        half = half_width(sample_variances(by_seed, differences.mean(axis=1)))
    return mean - half, mean + half


def _per_document(
    losses: Float[np.ndarray, "arms seeds windows"], windows: DataFrame
) -> tuple[Float[np.ndarray, "arms seeds units"], Float[np.ndarray, " units"]]:
    """Return losses and token counts per document if there are at least MIN_UNITS documents, otherwise per window.

    Both give the same mean over tokens. Windows of one document are correlated, so the bootstrap resamples documents.
    """
    tokens, documents = windows["tokens"].to_numpy(dtype=float), windows.get("document", Series(dtype=float))
    if documents.nunique() < MIN_UNITS or documents.isna().any():
        return losses, tokens
    sums = np.eye(documents.nunique())[documents.factorize()[0]] * tokens[:, None]  # windows, documents
    return losses @ sums / sums.sum(axis=0), sums.sum(axis=0)


def decay_minus_h2o(results: Results, study: str, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return the loss of Decay minus the loss of H2O (half recent) by configuration, paired as in `configurations`.

    Budgets without rows of H2O are left out.
    """
    rows = results.rows("prune.csv", study, runs)
    rows = on_common_windows(rows[rows["policy"].eq("decay") | rows["policy"].eq("h2o") & rows["recent"].eq(0.5)])
    table = paired_losses(rows, ["run", "budget"], "h2o", MINUS_H2O).query("policy == 'decay'")
    return table[[*CONFIGURATION, *expand_columns(f"{MINUS_H2O}[]")]].dropna(subset=MINUS_H2O)


def on_common_windows(rows: DataFrame) -> DataFrame:
    """Return the rows of the seeds and windows that all configurations of their run have."""
    counts = rows.drop_duplicates(CONFIGURATION)["run"].value_counts()
    return rows[rows.groupby(["run", "seed", "window"])["loss_nats"].transform("size") == rows["run"].map(counts)]


_USUAL_RECENT = {"h2o": 0.5, "random sink=4": 0.25}
"""Recent fractions that labels leave out, by policy; for other policies, labels leave out 0."""
_RECENT_LABELS = {0.0: "none recent", 0.5: "half recent"}
_LABELS = {"random sink=4": "Random, protected", "decay alpha=1": "plain sum (alpha 1)"}
"""Labels of single settings."""


def configuration_label(policy: str, alpha: float, recent: float) -> str:
    """Return the label of a configuration, which is the same in all figures and tables.

    In the rows, a policy is its kind, followed by its other options that differ from the defaults
    (`h2o variant=local_statistics`). A policy that allocates the budget over layers or heads has the scoring policy in
    brackets (`pyramid(h2o) layers=30`). Decay with alpha 1 and without recent tokens is the plain sum.
    """
    if policy.startswith(_EVERY_TOKEN):
        return f"{configuration_label(policy.removeprefix(_EVERY_TOKEN)[:-1], alpha, recent)}, every token"
    kind, *options = policy.split()
    *dividing, _ = kind.split("(")
    scores, notes = scorer(policy), []
    if not dividing:
        notes = [option.removeprefix("variant=").removeprefix("positions=").replace("_", " ") for option in options]
    name = POLICY_LABELS.get(scores, scores) + f" {alpha:g}" * (scores == "decay")
    name = " ".join([name, *(f"({note}{', sees the future' * (note == 'global statistics')})" for note in notes)])
    parts = [_LABELS.get(f"{policy} alpha={alpha:g}" if scores == "decay" and not recent else policy, name)]
    if pd.notna(recent) and recent != _USUAL_RECENT.get(policy, _USUAL_RECENT.get(scores, 0.0)):
        parts.append(_RECENT_LABELS.get(recent, f"{100 * recent:g} % recent"))
    return ", ".join([*parts, *(POLICY_LABELS.get(name, name) for name in dividing)])


def is_published_setting(rows: DataFrame) -> "pd.Series[bool]":
    """Return a mask of the published settings: H2O with half of the budget recent, Decay with alpha 0.2 and no recent
    window.
    """
    policy, recent = rows["policy"], rows["recent"]
    return policy.eq("h2o") & recent.eq(0.5) | policy.eq("decay") & recent.eq(0) & rows["alpha"].eq(PUBLISHED_ALPHA)


def nearest_budget_rows(rows: DataFrame, budget: float = PUBLISHED_BUDGET) -> DataFrame:
    """Return the rows of the full cache and, for each run, the rows at the budget nearest to `budget`."""
    pruned = rows["policy"] != "full"
    distance = (rows["budget"] - budget).abs().where(pruned)
    return rows[~pruned | (distance == distance.groupby(rows["run"]).transform("min"))]


def main_configurations(table: DataFrame) -> DataFrame:
    """Return the rows of one configuration per run and policy.

    Its recent fraction is the nearest to the papers' value, which is half of the budget for H2O and 0 for the others.
    Ties go to the configuration with the most budgets, then to the alpha nearest to the published one.
    """
    published_recent = np.where(table["policy"].str.startswith("h2o"), 0.5, 0.0)
    ranks = DataFrame({
        "recent": (table["recent"] - published_recent).abs().fillna(0.0),
        "budgets": -table.groupby(["run", "configuration"])["budget"].transform("nunique"),
        "alpha": (table["alpha"] - PUBLISHED_ALPHA).abs().fillna(0.0),
    })  # fmt: skip
    ranked = table.loc[ranks.sort_values([*ranks], kind="stable").index]
    best = ranked.drop_duplicates(["run", "policy"])[["run", "configuration"]]
    return table.merge(best, on=["run", "configuration"])


def pruning_sample(rows: DataFrame) -> str:
    """Return the number of seeds in words, or `one model` if all of our rows are of one released model."""
    ours = rows[rows["source"] == "ours"]
    released = ours["_released"].notna().all() and ours["_released"].nunique() == 1 if "_released" in ours else False
    return "one model" if released else seed_count(rows["seeds"])


_DECODE_KEYS = ["run", "sequences", "length"]


def decode_speeds(results: Results, study: str, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, number of sequences, cache and length with medians and quartiles over repetitions; bytes
    have no quartiles.

    `tokens_per_s` counts the tokens of all sequences. Three columns are relative to our full cache in the same
    repetition: `speed_ratio` (decoding speed), `prompt_ratio` (time to process the prompt, if it was measured) and
    `cache_share` (bytes of keys and values).
    """
    rows = results.rows_of("decode.csv", study)
    rows = rows[rows["run"].isin(results.runs(study, runs)["run"])]
    if rows.empty:
        return DataFrame()
    rows = rows.assign(prompt_s=rows.get("prompt_s", np.nan))
    full = rows[rows["policy"] == "full"].set_index([*_DECODE_KEYS, "repetition"])
    rows = rows.join(full[["time_s", "prompt_s", "cache_bytes"]].add_suffix("_full"), on=[*_DECODE_KEYS, "repetition"])
    rows["tokens_per_s"] = rows["sequences"] / rows["time_s"]
    rows["speed_ratio"] = rows["time_s_full"] / rows["time_s"]
    rows["prompt_ratio"] = rows["prompt_s"] / rows["prompt_s_full"]
    rows["cache_share"] = rows["cache_bytes"] / rows["cache_bytes_full"]
    medians, keys = [], [*_DECODE_KEYS, *CONFIGURATION[1:]]
    for values, group in rows.groupby(keys, sort=False, dropna=False):
        row = dict(zip(keys, values, strict=True))
        for name in ("tokens_per_s", "speed_ratio", "prompt_s", "prompt_ratio"):
            low, middle, high = np.quantile(group[name], (0.25, 0.5, 0.75))
            row |= {name: middle, f"{name}_low": low, f"{name}_high": high}
        row |= {name: float(group[name].median()) for name in ("cache_bytes", "metadata_bytes", "cache_share")}
        medians.append(row | {"repetitions": len(group)})
    table = label_and_sort(DataFrame(medians)).assign(source="ours")
    return table.sort_values(["run", "sequences", "length"], kind="stable", ignore_index=True)


def budget_text(budget: float, of: str = "") -> str:
    """Return the budget of a pruned cache in words; the suffix `of`, such as ` of the tokens`, follows a percentage."""
    return f"{100 * budget:g} %{of}" if budget < 1 else f"{budget:g} entries"
