"""Gains and costs of averages over depth, for tables and figures (DenseFormer, arXiv:2402.02622)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.arms import registered_arms
from formerlab.report.claims.verdict import MIN_SEEDS
from formerlab.report.columns import count
from formerlab.report.families import run_setting
from formerlab.report.published import DENSEFORMER, published_rows
from formerlab.report.runs import (
    cached_reader,
    difference,
    held_out_losses,
    load_runs,
    means_by_run,
    seed_count,
    sort_by_regime,
    with_difference,
)
from formerlab.report.tables.cells import (
    answer_word,
    arm_runs,
    claim_rows,
    first_row,
    in_words,
    negated,
    ngram_levels,
    ngrams,
    pooled_estimate,
    processor,
    with_pooled,
    with_verdict,
    with_verdicts,
)
from formerlab.results.read import Results
from formerlab.results.schema import DECODE, FORWARD, TRAINING

STUDY = "denseformer"
_ENDS = ("", "_low", "_high")
_SETTINGS_WITH_BASELINE = ("small-batch", "long-context", "long", "books", "modern")
"""Settings with their own plain Transformer; runs of all other settings are compared with the plain Transformer of the
main setting."""


def plains(records: DataFrame) -> dict[str, str]:
    """Return, by run, the plain Transformer of the same depth, data, batch and backbone, if any.

    If there are several, prefer the one with the same learning rate, otherwise take the first. Runs of setting `modern`
    require the same learning rate.
    """
    plain, keys = dict[tuple[str, ...], str](), dict[str, tuple[str, ...]]()
    for row in records.drop_duplicates("run").to_dict("records"):
        run, where = row["run"], run_setting(row["run"])
        compared = where if where in _SETTINGS_WITH_BASELINE else "main"
        keys[run] = (row["regime"], compared, str(row["spec.model.layers"]), str(row.get("spec.optimizer.lr")))
        if row["spec.model.depth.kind"] == "identity" and where == compared:
            plain.setdefault(keys[run], run)
            plain.setdefault(keys[run][:3], run)
    partners = {run: plain.get(key) or plain.get(key[:3] * (key[1] != "modern")) for run, key in keys.items()}
    return {run: partner for run, partner in partners.items() if partner}


@cached_reader
def gains(results: Results, runs: list[str]) -> DataFrame:
    """Return a row per run, sorted by depth: its loss, its spec, and its gain, the loss of the plain Transformer minus
    the loss of the run, in nats and paired by seed. `interval` names the unit of the interval of the gain (seeds or
    test windows).
    """
    losses = held_out_losses(results, STUDY)
    first = [str(name) for name in losses if str(name).startswith(("regime", "data.name", "device", "spec."))]
    rows = means_by_run(losses[losses["run"].isin(results.runs(STUDY, runs)["run"])], first=first)
    rows = rows.assign(setting=rows["run"].map(run_setting), plain=rows["run"].map(plains(losses)))
    rows = with_difference(rows, losses, "plain", "run", "gain_nats", results=results)
    return rows.sort_values(["layers", "run"], ignore_index=True)


def speeds(results: Results) -> DataFrame:
    """Return a row per timed run: by measure, the median and quartiles of the times and the median of the bytes.

    Columns are `<measure>_time_s`, `..._time_s_low`, `..._time_s_high`, `<measure>_memory_bytes`, and
    `<measure>_sequences`, the number of sequences in one step, forward pass or decoding step.
    """
    rows, columns = results.rows_of("speed.csv", STUDY), {}
    for measure in (TRAINING, FORWARD, DECODE):
        groups = rows[rows["measure"] == measure].groupby("run", sort=False)
        for end, quantile in zip(_ENDS, (0.5, 0.25, 0.75), strict=True):
            columns[f"{measure}_time_s{end}"] = groups["time_s"].agg(np.quantile, quantile)
        columns |= {f"{measure}_{name}": groups[name].median() for name in ("memory_bytes", "sequences")}
    return DataFrame(columns, index=rows["run"].unique()).rename_axis("run").reset_index().astype({"run": str})


def time_ratios(results: Results, reference: Mapping[str, str]) -> DataFrame:
    """Return the quartiles (`low`, `high`) of the time of a run divided by the time of its reference run in the same
    repetition, by run and measure.
    """
    times, keys = results.rows_of("speed.csv", STUDY), ["measure", "repetition"]
    times = times.assign(plain=times["run"].map(reference))
    pairs = times.merge(times, left_on=["plain", *keys], right_on=["run", *keys], suffixes=("", "_plain"))
    ratios = (pairs["time_s"] / pairs["time_s_plain"]).groupby([pairs["run"], pairs["measure"]])
    return DataFrame({"low": ratios.quantile(0.25), "high": ratios.quantile(0.75)})


_NAMES = {
    "model": "run",
    "perplexity_standard_error": "perplexity_se",
    "perplexity_uncertainty": "perplexity_se",
    "inference_batches_per_second": "inference_batches_per_s",
    "training_steps": "steps",
    "training_time": "training_time_hours",
}


def published_models(*tables: str) -> DataFrame:
    """Return tables of the paper, a row per table, model and setting. `run` is the printed name, `variant` and `layers`
    are its two parts, and `perplexity_se` is the published standard error. A forward pass has 64 sequences.
    """
    by = ("table_or_figure", "model", "setting")
    rows = published_rows(DENSEFORMER, *tables, by=by, names=_NAMES, factors={"parameters": 1e6})
    rows[["variant", "layers"]] = rows["run"].str.extract(r"(.+?)(?: (\d+) blocks)?$")
    layers = rows["layers"].fillna(rows["setting"].str.extract(r"(\d+) blocks")[0]).astype(float)
    return rows.assign(source="published", layers=layers, **{f"{FORWARD}_sequences": 64.0})


def published_depths() -> DataFrame:
    """Return Table 1 of the paper, a row per model."""
    columns = ["source", "run", "variant", "layers", "perplexity", "perplexity_se", "parameters"]
    return published_models("Table 1")[[*columns, "inference_batches_per_s", f"{FORWARD}_sequences"]]


_DENSE = "DenseFormer 1x1"
_EQUAL_DEPTH, _PERSISTS = "denseformer-better-at-equal-depth", "denseformer-gain-persists-with-training"
_MODERN = "denseformer-gain-modern-backbone", "denseformer-no-gain-modern-backbone"


def published_pairs() -> DataFrame:
    """Return the plain Transformers and DenseFormers 1x1 of Tables 1 and 2, with the gains that they imply."""
    rows = published_models("Table 1", "Table 2")
    rows = rows[rows["variant"].isin(("Transformer", _DENSE))]
    rows["regime"] = rows["setting"].str.partition(";")[0].str.partition(",")[0].replace("OWT2", "OpenWebText2")
    keys = ["regime", "layers"]
    plain = rows[rows["variant"] == "Transformer"].set_index(keys)["perplexity"]
    gain = np.log(plain.reindex(rows.set_index(keys).index).to_numpy() / rows["perplexity"])
    return rows.assign(gain_nats=gain.where(rows["variant"] == _DENSE)).sort_values(["regime", "layers"])


_DIFFERENCE = "dense_minus_plain_nats"


def _pairs(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return a row per pair of DenseFormer 1x1 and plain Transformer of equal size and training, the deepest first."""
    dense = rows[(rows["variant"] == _DENSE) & rows["gain_nats"].notna()]
    if dense.empty:
        return rows
    plain = dense["plain_perplexity"].fillna(dense["perplexity"] * np.exp(dense["gain_nats"]))
    modern = dense["setting"].eq("modern").map({True: ", modern backbone", False: ""}) if "setting" in dense else ""
    pair = dense["layers"].map("{:.0f} blocks".format) + modern + ", " + dense["regime"].str.partition(", ")[0]
    dense = dense.assign(pair=pair, plain_perplexity=plain, dense_perplexity=plain / np.exp(dense["gain_nats"]))
    columns = ["pair", "plain_perplexity", "dense_perplexity", *expand_columns(f"{_DIFFERENCE}[]+")]
    if rows["source"].eq("published").any():
        return negated(dense, "gain_nats", _DIFFERENCE).reindex(columns=columns).dropna(axis=1, how="all")
    dense.loc[dense["pairs"].eq(1), expand_columns("gain_nats[]+")[1:]] = np.nan
    dense = negated(dense, "gain_nats", _DIFFERENCE).assign(_unclaimed=dense["verdict"].isna())
    dense = dense.sort_values(["layers", "tokens", "_unclaimed"], ascending=[False, False, True], kind="stable")
    columns[1:1] = ["tokens", "plain_learning_rate", "dense_learning_rate"]
    dense["dense_learning_rate"] = dense["learning_rate"]
    settings = "; ".join(filter(None, [seed_count(dense["pairs"]), ngram_levels(rows)]))
    return {f"1x1 and plain Transformers\n{settings}": dense[[*columns, "needed", "verdict"]]}


def _answer_pairs(rows: DataFrame) -> str:
    evaluated = rows[rows["variant"].eq(_DENSE) & rows["verdict"].notna() & rows["setting"].ne("modern")]
    evaluated = negated(evaluated, "gain_nats", _DIFFERENCE).sort_values("layers", ascending=False)
    if evaluated.empty:
        return ""
    words = [
        f"{in_words(row, _DIFFERENCE)} nats at {row['layers']:.0f} blocks{with_verdict(row)}"
        for _, row in evaluated.iterrows()
    ]
    return f"{answer_word(evaluated.iloc[0])}: loss with 1x1 minus loss of the plain model is {' and '.join(words)}."


@table(reads="test.csv floors.csv", published=published_pairs, readers=_pairs, answer=_answer_pairs,
       columns="source run regime setting variant layers tokens -parameters learning_rate perplexity[] -loss_nats[] "
               "-bits_per_byte plain plain_learning_rate plain_perplexity gain_nats[]+ interval -pairs seeds "
               "diverged needed verdict")  # fmt: skip
def denseformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Do averages over depth lower the loss?

    - Test loss with 1x1 minus test loss of the plain Transformer, paired by seed. After Tables 1 and 2 of DenseFormer
    (arXiv:2402.02622).
    - Brackets: 95 % interval over seeds, with the variance of similar runs; the row of 31.9M tokens has no similar run.
    - Doubt: the first row has the best rates, but two processors, which differ by 0.005 nats.
    """
    ours, losses = gains(results, runs), held_out_losses(results, STUDY)
    items = registered_arms(_EQUAL_DEPTH, results.scale).items.values()
    partners = {str(arms["dense"].run): str(arms["plain"].run) for arms in items if {"dense", "plain"} <= {*arms}}
    of_search = ours["variant"].eq(_DENSE) & ours["setting"].eq("whole") & ~ours["run"].isin(partners)
    sizes = ours[ours["run"].isin(partners)].set_index(["regime", "layers"])["run"].map(partners)
    searched = ours[of_search & ours["seeds"].ge(MIN_SEEDS)].join(sizes.rename("rival"), on=["regime", "layers"])
    plain = partners | searched.dropna(subset="rival").set_index("run")["rival"].to_dict()
    claimed = ours[ours["run"].isin(plain)].drop(columns=[*expand_columns("gain_nats[]"), "interval"])
    claimed, ours = claimed.assign(plain=claimed["run"].map(plain)), ours[~of_search]
    claimed = with_difference(claimed, losses, "plain", "run", "gain_nats", results=results)
    if len(claimed):
        ours = pd.concat([ours, claimed], ignore_index=True).drop_duplicates(["run", "plain"], ignore_index=True)
    ours = with_pooled(ours, results, STUDY, "plain", "run", "gain_nats")
    values = losses.pivot(index="seed", columns="run", values="loss_nats")
    paired = values.reindex(columns=ours["plain"]).where(values[ours["run"]].notna().to_numpy())
    counts = paired.notna().sum().set_axis(ours.index)
    rates = losses.drop_duplicates("run").set_index("run")["spec.optimizer.lr"]
    ours = ours.assign(
        pairs=counts.where(counts > 0),
        plain_perplexity=np.exp(paired.mean()).to_numpy(),
        plain_learning_rate=ours["plain"].map(rates),
        learning_rate=ours["run"].map(rates),
    )
    dense, longest = ours["variant"].eq(_DENSE), ours.loc[ours["setting"].eq("long"), "tokens"].max()
    masks = {_EQUAL_DEPTH: dense & ours["plain"].eq(ours["run"].map(partners))}
    masks |= {_PERSISTS: dense & ours["tokens"].eq(longest)}
    masks |= dict.fromkeys(_MODERN, dense & ours["setting"].eq("modern"))
    rows = sort_by_regime(
        with_verdicts(ours, results, STUDY, masks, mirrored=True), "layers", "tokens", "variant", "run"
    )
    return pd.concat([ngrams(results, STUDY, runs), rows])


_SPARSE, _SIMPLER = "denseformer-sparse-keeps-the-gain", "denseformer-beats-simpler-skips"


def _published_patterns() -> DataFrame:
    """Return the models of 48 blocks with the loss minus the loss of 1x1 at the same batch size."""
    rows = published_models("Table 1", "Table 4", "Table 6", "Table 7").query("layers == 48")
    rows["variant"] = rows["variant"].replace(r"Last-K K=4.*", "Last-K, K = 4, X_0 always", regex=True)
    rows["setting"] = rows["setting"].str.extract(r"(batch \d+)", expand=False)
    dense = rows[rows["variant"] == _DENSE].set_index("setting")["perplexity"]
    behind = np.log(rows["perplexity"] / rows["setting"].map(dense))
    return rows.drop_duplicates(["variant", "setting"]).assign(run=rows["table_or_figure"], published_nats=behind)


_ADDITIONS = {
    _DENSE: "averages of all earlier blocks",
    r"Transformer": "nothing",
    r"Last-K.*": "the last 4 outputs and the embedding",
    r"Connect-to-Last": "all blocks, at the end only",
    r"Skips with Gains": "a learned gain on each addition",
    r"Hyper-Connections, static.*": "4 streams, fixed weights",
    r"Hyper-Connections, dynamic.*": "4 streams, weights from the input",
    r"mHC.*": "4 streams, doubly stochastic weights",
}
"""Addition of each scheme to a Transformer, by regular expression for the name of the scheme."""


def _sparser_and_simpler(rows: DataFrame) -> dict[str, DataFrame]:
    """Return a block per depth and text for sparser averages and for other schemes, with the published values."""
    if rows["source"].eq("published").any():
        return {}
    paper = _published_patterns().drop_duplicates("variant").set_index("variant")["published_nats"]
    rows = rows.assign(text=rows["regime"].str.partition(", ")[0], is_reference=rows["variant"].eq(_DENSE))
    name = "loss_minus_dense_nats"
    printed = "published minus 1x1 (nats) ↓"
    rows = rows.assign(
        **{printed: rows["variant"].map(paper).mask(rows["is_reference"])},
        adds=rows["variant"].replace(_ADDITIONS, regex=True),
        averages=rows["variant"].str.removeprefix("DenseFormer ").replace("Transformer", "none"),
        others=~rows["variant"].str.startswith(("DenseFormer", "Transformer")),
        sparse=rows["variant"].str.startswith("DenseFormer") & rows["variant"].ne(_DENSE),
    ).sort_values(["layers", "loss_nats"], ascending=[False, True])
    columns = ["run", "parameters_added", *expand_columns(f"{name}[]+"), printed, "device", "verdict", "is_reference"]
    rows.loc[rows["is_reference"], name] = np.nan
    blocks = dict[str, DataFrame]()
    for (depth, text), group in rows.groupby(["layers", "text"], sort=False):
        rates = " and ".join(f"{rate:g}" for rate in sorted(group["learning_rate"].unique()))
        heading = f"{depth:.0f} blocks; {text}, {count(group['tokens'].max())} training tokens; peak rate {rates}; "
        level = group.loc[group["is_reference"], "perplexity"].max()
        heading += f"{seed_count(group['seeds'])}; 1x1 has perplexity {level:.1f}"
        if group["sparse"].any():
            blocks[f"sparser averages; {heading}"] = group.loc[~group["others"], ["averages", *columns]]
        if group["others"].any():
            group = group[~group["sparse"]].assign(variant=group["variant"].str.removesuffix(", X_0 always"))
            blocks[f"simpler schemes; {heading}"] = group[["variant", "adds", *columns]]
    return blocks


def _answer_patterns(rows: DataFrame) -> str:
    row = first_row(rows[rows["layers"].eq(rows["layers"].max())], variant="DenseFormer 4x5")
    if row is None:
        return ""
    low = rows[["loss_minus_dense_nats_low", "loss_minus_dense_nats_pooled_low"]].min(axis=1, skipna=False)
    worse = rows[low.gt(0) & rows["variant"].ne("Transformer") & rows["layers"].ne(row["layers"])]
    names = worse["variant"].str.removeprefix("DenseFormer ").groupby(worse["layers"]).agg(", ".join)
    words = "".join(f" Worse than 1x1 at {depth:.0f} blocks, with and without the variance of similar runs: {schemes}."
                    for depth, schemes in names.items())  # fmt: skip
    others = rows[~rows["variant"].str.startswith(("DenseFormer", "Transformer"))]
    if len(others) and not low[others.index].gt(0).any():
        words += f" No simpler scheme at {others['layers'].max():.0f} blocks differs clearly from 1x1."
    excess = f"4x5 minus 1x1 is {in_words(row, 'loss_minus_dense_nats')} nats{with_verdict(row)}"
    return f"{answer_word(row)} at {row['layers']:.0f} blocks: {excess}.{words}"


def losses_of_shared_seeds(results: Results) -> DataFrame:
    """Return the held-out losses; the arms of the claim on sparse averages are restricted to their common seeds, which
    the claim pairs.
    """
    losses = held_out_losses(results, STUDY)
    named = {*arm_runs(_SPARSE, results.scale).values()}
    seeds = losses[losses["run"].isin(named)].groupby("seed")["run"].nunique()
    shared = seeds.index[seeds == len(named)]
    return losses[~losses["run"].isin(named) | losses["seed"].isin(shared)]


@cached_reader
def pattern_losses(results: Results, runs: list[str]) -> DataFrame:
    """Return a row per scheme and depth with `loss_minus_dense_nats`, its loss minus the loss of 1x1 (`dense`), and the
    intervals of this difference.
    """
    losses, arms = losses_of_shared_seeds(results), arm_runs(_SPARSE, results.scale)
    ours = gains(results, runs).rename(columns={"spec.optimizer.lr": "learning_rate"})
    ours = ours.assign(parameters_added=ours["parameters"] - ours["plain"].map(ours.set_index("run")["parameters"]))
    is_arm = ours["run"].isin(arms.values())
    with_arm = is_arm.groupby([ours["regime"], ours["layers"]]).transform("any")
    ours = ours[is_arm | ~with_arm & ours["setting"].isin(("main", "small-batch"))].replace(
        {"setting": "whole"}, "main"
    )
    by_run = losses.groupby("run")["loss_nats"].agg(["mean", "size"]).reindex(ours["run"]).set_index(ours.index)
    ours = ours.assign(loss_nats=by_run["mean"], perplexity=np.exp(by_run["mean"]), seeds=by_run["size"])
    keys, name = ["regime", "setting", "layers"], "loss_minus_dense_nats"
    of_key = ours[ours["variant"] == _DENSE].drop_duplicates(keys).set_index(keys)["run"].rename("dense")
    ours = with_difference(ours.join(of_key, on=keys), losses, "run", "dense", name)
    ours = with_pooled(ours, results, STUDY, "run", "dense", name)
    if {"sparse", "dense"} <= {*arms} and {*arms.values()} <= {*losses["run"]}:
        signs = dict.fromkeys(arms.values(), 0.0) | {arms["sparse"]: 1.0, arms["dense"]: -1.0}
        of_claim = pooled_estimate(claim_rows(results, STUDY), f"{name}_pooled", signs)
        for end in expand_columns(f"{name}_pooled[]")[1:]:
            ours.loc[ours["run"].eq(arms["sparse"]), end] = of_claim.get(end)
    return ours


@table(reads="test.csv", published=_published_patterns, readers=_sparser_and_simpler, answer=_answer_patterns,
       columns="source run regime setting variant learning_rate layers parameters_added perplexity -perplexity_se "
               "-loss_nats loss_minus_dense_nats[]+ published_nats device tokens seeds -diverged verdict")  # fmt: skip
def denseformer_patterns(results: Results, runs: list[str]) -> DataFrame:
    """Do simpler or sparser schemes do as well as DenseFormer 1x1?

    - Test loss minus the loss of 1x1, paired by seed. After Tables 1 and 4 of DenseFormer (arXiv:2402.02622; 48 blocks,
    batch 400; 2x1: Table 6, batch 128). mHC: manifold-constrained Hyper-Connections.
    - Brackets: 95 % interval over seeds, with the variance of similar runs (4x3: Welch's interval).
    - Doubt: two processors differ by about 0.005 nats; the best schemes cannot be ranked.
    """
    ours = pattern_losses(results, runs)
    ours = ours.assign(device=ours["device"].map(processor))
    masks = {_SPARSE: ours["variant"].eq("DenseFormer 4x5"), _SIMPLER: ours["variant"].ne(_DENSE)}
    return sort_by_regime(with_verdicts(ours, results, STUDY, masks), "setting", "layers", "loss_nats")


@table(reads="test.csv speed.csv", runs="plain-* dwa-* equal-time-*", needs="equal-time-*",
       published=lambda: published_models("Table 3"),
       columns="source run variant layers steps step_time_ratio training_time_s training_time_hours perplexity[]± "
               "-loss_nats gain_nats[] -interval seeds")  # fmt: skip
def denseformer_equal_time(results: Results, runs: list[str]) -> DataFrame:
    """Is a DenseFormer better than a Transformer that trains for the same time?

    - The Transformer trains for more steps, in the ratio of the measured step times, after Table 3 of DenseFormer
    (arXiv:2402.02622). The gain is the loss of the Transformer minus the loss of the DenseFormer.
    - Brackets: 95 % Student t interval over seeds; after ±, the published standard error.
    - Doubt: other jobs share the machine.
    """
    losses = held_out_losses(results, STUDY, runs)
    settings = ["spec.steps", "equal_time.arm", "equal_time.reference", "equal_time.time_ratio"]
    rows, compared = means_by_run(losses, first=settings).set_index("run", drop=False), []
    for equal in rows[rows["equal_time.arm"].notna()].to_dict("records"):
        arm = equal["equal_time.arm"]
        for run in (run for run in (equal["equal_time.reference"], equal["run"], arm) if run in rows.index):
            compared.append(rows.loc[run].to_dict() | difference(losses, run, arm, "gain_nats", results=results))
    return DataFrame(compared).rename(columns={"spec.steps": "steps", "equal_time.time_ratio": "step_time_ratio"})


_OPERATIONS = {
    TRAINING: "training step of {:.0f} windows",
    FORWARD: "forward pass of {:.0f} windows",
    DECODE: "one decoded token",
}


def _published_speeds() -> DataFrame:
    rows = published_models("Table 1", "Table 6").drop_duplicates("run")
    speed = rows["inference_batches_per_s"]
    plain = rows[rows["variant"] == "Transformer"].set_index("layers")["inference_batches_per_s"]
    ratio = rows["layers"].map(plain) / speed
    return rows.assign(measure=FORWARD, sequences=64.0, milliseconds=1000 / speed, time_ratio=ratio)


def _by_operation(rows: DataFrame) -> dict[str, DataFrame]:
    """Return a row per operation and scheme: the time of the plain Transformer, and the ratios to it."""
    if rows["source"].eq("published").any():
        return {}
    printed, keys = _published_speeds(), ["layers", "measure"]
    printed = printed[printed["run"].str.contains("DenseFormer")].sort_values("layers")
    ratios = printed["time_ratio"].map("{:.2f}".format).groupby(printed["variant"]).agg("; ".join)
    published = f"published time, {'; '.join(printed['layers'].drop_duplicates().map('{:.0f}'.format))} blocks"
    plain = rows[rows["variant"] == "Transformer"].set_index(keys)[["milliseconds", "verdict"]]
    plain = plain.rename(columns={"milliseconds": "plain_milliseconds"})
    others = rows[rows["variant"] != "Transformer"].drop(columns="verdict").join(plain, on=keys)
    others["operation"] = [_OPERATIONS[name].format(n) for name, n in others[["measure", "sequences"]].to_numpy()]
    others[published] = others["variant"].map(ratios).where(others["measure"].eq(FORWARD))
    columns = ["operation", "variant", "plain_milliseconds", *expand_columns("time_ratio[]"), published]
    columns += ["memory_ratio", "verdict"]
    first = rows.iloc[0]
    heading = f"{first['layers']:.0f} blocks; {first['device']}, {first['threads']:.0f} core"
    return {f"{heading}, {first['repetitions']:.0f} repetitions": others[columns]}


def _answer_speeds(rows: DataFrame) -> str:
    forward = rows[rows["measure"].eq(FORWARD) & rows["variant"].str.startswith("DenseFormer")]
    times = [
        f"{in_words(row, 'time_ratio')} times as long with {row['variant'].removeprefix('DenseFormer ')}"
        for _, row in forward.iterrows()
    ]
    return f"A forward pass takes {' and '.join(times)} as with plain." if times else ""


_MEMORY = "denseformer-memory-negligible"


@table(reads="speed.csv", published=_published_speeds, readers=_by_operation, answer=_answer_speeds,
       columns="source run variant layers measure sequences milliseconds[] time_ratio[] memory_ratio megabytes device "
               "threads repetitions perplexity verdict"
       )  # fmt: skip
def denseformer_speed(results: Results, runs: list[str]) -> DataFrame:
    """How much slower is a DenseFormer than the plain Transformer of equal depth?

    - Time and memory of 1x1 and 4x5 divided by time and memory of the plain Transformer, after Tables 1 and 6 of
    DenseFormer (arXiv:2402.02622). Verdicts concern memory only.
    - Values: ratios of medians. Brackets: quartiles of the ratios by repetition, which need not include the value.
    - Doubt: our models are small and run on a CPU; the paper used a GPU.
    """
    records, timed = load_runs(results, STUDY, runs), speeds(results).set_index("run")
    models = records[records["run"].isin(timed.index) & records["run"].map(run_setting).eq("main")]
    models = models[["run", "variant", "layers"]].drop_duplicates().sort_values(["layers", "run"])
    reference, frames = plains(records), list[DataFrame]()
    ratios = time_ratios(results, reference).add_prefix("time_ratio_")
    for measure in (TRAINING, FORWARD, DECODE):
        costs = timed.filter(like=f"{measure}_")
        costs.columns = costs.columns.str.removeprefix(f"{measure}_")
        relative = costs / costs.reindex(costs.index.map(reference)).set_axis(costs.index)
        columns = {f"milliseconds{end}": 1000 * costs[f"time_s{end}"] for end in _ENDS}
        columns |= {"time_ratio": relative["time_s"], "memory_ratio": relative["memory_bytes"]}
        columns |= {"megabytes": costs["memory_bytes"] / 1e6, "sequences": costs["sequences"]}
        rows = models.join(DataFrame(columns), on="run").join(ratios.xs(measure, level="measure"), on="run")
        frames.append(rows.assign(measure=measure))
    record, table = results.stage_record(STUDY, "speed"), pd.concat(frames, ignore_index=True)
    table = table.assign(device=processor(record.get("device", "")), threads=record.get("threads"),
                         repetitions=results.rows_of("speed.csv", STUDY)["repetition"].nunique())  # fmt: skip
    return with_verdicts(table, results, STUDY, {_MEMORY: table["measure"].isin((TRAINING, DECODE))})
