"""Gains and costs of averages over depth, for tables and figures (DenseFormer, arXiv:2402.02622)."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.arms import registered_arms
from formerlab.report.families import run_setting
from formerlab.report.published import DENSEFORMER, published_rows
from formerlab.report.runs import (
    cached_reader,
    difference,
    held_out_losses,
    load_runs,
    means_by_run,
    sort_by_regime,
    with_difference,
)
from formerlab.report.tables.blocks import (
    by_regime,
    claim_verdicts,
    first_row,
    in_words,
    negated,
    ngram_levels,
    ngrams,
    processor,
    side_by_side,
    with_pooled,
    with_prefix,
    with_verdict,
)
from formerlab.results.read import Results
from formerlab.results.schema import DECODE, FORWARD, TRAINING

STUDY = "denseformer"
_ENDS = ("", "_low", "_high")
_OWN_PLAIN = ("small-batch", "long-context", "long", "books", "modern")
"""Settings with their own plain Transformer; runs of all other settings are compared with the plain Transformer of the
main setting."""


def plains(records: DataFrame) -> dict[str, str]:
    """Return, by run, the plain Transformer of the same depth, data, batch and backbone, if any.

    If there are several, prefer the one with the same learning rate, otherwise take the first. Runs of setting `modern`
    require the same learning rate.
    """
    plain: dict[tuple[str, ...], str] = {}
    keys: dict[str, tuple[str, ...]] = {}
    for row in records.drop_duplicates("run").to_dict("records"):
        run, where = row["run"], run_setting(row["run"])
        compared = where if where in _OWN_PLAIN else "main"
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


def registered_plains(results: Results) -> dict[str, str]:
    """Return the plain Transformer that the claim on equal depth compares with, by DenseFormer."""
    items = registered_arms(_PAIRS[0], results.scale).items.values()
    return {str(arms["dense"].run): str(arms["plain"].run) for arms in items if {"dense", "plain"} <= {*arms}}


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
_PAIRS = "denseformer-better-at-equal-depth", "denseformer-gain-persists-with-training"


def published_pairs() -> DataFrame:
    """Return the plain Transformers and DenseFormers 1x1 of Tables 1 and 2, with the gains that they imply."""
    rows = published_models("Table 1", "Table 2")
    rows = rows[rows["variant"].isin(("Transformer", _DENSE))]
    rows["regime"] = rows["setting"].str.partition(";")[0].str.partition(",")[0].replace("OWT2", "OpenWebText2")
    keys = ["regime", "layers"]
    plain = rows[rows["variant"] == "Transformer"].set_index(keys)["perplexity"]
    gain = np.log(plain.reindex(rows.set_index(keys).index).to_numpy() / rows["perplexity"])
    return rows.assign(gain_nats=gain.where(rows["variant"] == _DENSE)).sort_values(["regime", "layers"])


def _pairs(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return a row per DenseFormer 1x1 and the plain Transformer of equal depth, data and training."""
    dense = rows[(rows["variant"] == _DENSE) & rows["gain_nats"].notna()]
    if dense.empty:
        return by_regime(rows)
    published = rows["source"].eq("published").any()
    plain = dense["perplexity"] * np.exp(dense["gain_nats"])  # of one model each; ours may have further seeds
    plain = plain if published else dense["plain"].map(rows.drop_duplicates("run").set_index("run")["perplexity"])
    columns = {
        "layers": dense["layers"],
        "tokens": dense["tokens"],
        "test text": dense["regime"].str.partition(", ")[0],
    }
    if not published:
        rates = ", plain at rate " + dense["plain_learning_rate"].map("{:g}".format)
        blocks = dense["setting"].eq("modern").map({True: "modern", False: "classic"})
        columns["blocks are"] = blocks + rates.where(dense["run"].duplicated(keep=False), "")
    columns |= {"plain ↓": plain, "1x1 ↓": dense["perplexity"]}
    dense = negated(dense, "gain_nats", "minus_plain_nats")
    shown = DataFrame(columns).join(dense[[name for name in dense if str(name).startswith("minus_plain_nats")]])
    shown = shown.join(dense[["seeds", "verdict"]]).sort_values(["layers", "tokens"], kind="stable")
    return {"perplexity, and loss" + with_prefix("; ", ngram_levels(rows)): shown}


def _answer_pairs(rows: DataFrame) -> str:
    dense = negated(rows[rows["variant"] == _DENSE], "gain_nats", "minus_plain_nats").dropna(subset="minus_plain_nats")
    if dense.empty:
        return ""
    deep = dense.assign(claimed=dense["verdict"].notna()).sort_values(["layers", "claimed"], kind="stable").iloc[-1]
    lower = f"in {(dense['minus_plain_nats'] < 0).sum()} of {len(dense)} comparisons the mean loss is lower"
    return (
        f"At {deep['layers']:.0f} blocks 1x1 changes the loss by {in_words(deep, 'minus_plain_nats')} nats"
        f"{with_verdict(deep)}; {lower}."
    )


@table(reads="test.csv floors.csv", published=published_pairs, readers=_pairs, answer=_answer_pairs,
       columns="source run regime setting variant layers tokens -parameters perplexity[] -loss_nats[] -bits_per_byte "
               "plain -plain_learning_rate gain_nats[]+ interval seeds diverged verdict")  # fmt: skip
def denseformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Do averages over depth lower the loss?

    - Test loss of 1x1 (averages over all earlier blocks) minus plain, paired by seed, after Tables 1 and 2 of
    DenseFormer (arXiv:2402.02622).
    - Brackets: 95 % interval over seeds, with the variance of similar runs, if any.
    - Doubt: the gain depends on the learning rate; modern blocks have RMSNorm, SwiGLU and rotary positions.
    """
    ours, losses = gains(results, runs), held_out_losses(results, STUDY)
    partners = registered_plains(results)
    claimed = ours[ours["run"].isin(partners)].drop(columns=[*expand_columns("gain_nats[]"), "interval"])
    claimed = claimed.assign(plain=claimed["run"].map(partners))
    claimed["seeds"] = claimed[["plain", "run"]].replace(losses.groupby("run").size().to_dict()).min(axis=1)
    claimed = with_difference(claimed, losses, "plain", "run", "gain_nats", results=results)
    if len(claimed):
        ours = pd.concat([ours, claimed], ignore_index=True).drop_duplicates(["run", "plain"], ignore_index=True)
    ours = with_pooled(ours, results, STUDY, "plain", "run", "gain_nats")
    rates = losses.drop_duplicates("run").set_index("run")["spec.optimizer.lr"]
    ours["plain_learning_rate"] = ours["plain"].map(rates)
    depth, persists = claim_verdicts(results, STUDY, *_PAIRS).values()
    longest = ours["tokens"].eq(ours.loc[ours["run"].isin(persists.runs), "tokens"].max())
    dense = ours["variant"].eq(_DENSE)
    ours["verdict"] = None
    registered = ours["plain"].eq(ours["run"].map(partners))
    ours.loc[dense & registered & ours["run"].isin(depth.runs), "verdict"] = depth.word
    ours.loc[dense & longest & ours["run"].isin(persists.runs), "verdict"] = persists.word
    rows = sort_by_regime(ours, "layers", "tokens", "variant", "run")
    return pd.concat([ngrams(results, STUDY, runs), rows])


def _published_patterns() -> DataFrame:
    """Return the models of 48 blocks in Tables 1, 4 and 7, with the loss minus the loss of 1x1 in the same setting."""
    rows = published_models("Table 1", "Table 4", "Table 7").query("layers == 48")
    rows["variant"] = rows["variant"].replace(r"Last-K K=4.*", "Last-K, K = 4, X_0 always", regex=True)
    rows["setting"] = rows["setting"].str.extract(r"(batch \d+)", expand=False)
    dense = rows[rows["variant"] == _DENSE].set_index("setting")["perplexity"]
    behind = np.log(rows["perplexity"] / rows["setting"].map(dense))
    return rows.drop_duplicates(["variant", "setting"]).assign(run=rows["table_or_figure"], published_nats=behind)


_READS = {
    r"Transformer": "nothing",
    _DENSE: "all earlier blocks",
    r"DenseFormer (\d+)x1$": r"1 in \1 blocks",
    r"DenseFormer (\d+)x(\d+)": r"1 in \1 blocks, after 1 in \2",
    r"Last-K.*": "the last 4 outputs, the embedding",
    r"Connect-to-Last": "all blocks, at the end only",
    r"Skips with Gains": "a gain on each addition",
    r"Hyper-Connections.*": "4 residual streams",
    r"mHC.*": "4 residual streams, constrained",
}
"""Descriptions of what each scheme reads or adds, by regular expressions for their names."""


def _by_depth(rows: DataFrame) -> dict[str, DataFrame]:
    """Return one block per depth and text that has 1x1 and at least three models; one block for published rows."""
    if rows["source"].eq("published").any():
        levels = rows.assign(is_reference=rows["variant"].eq(_DENSE)).rename(columns={"setting": "training"})
        levels = levels.replace({"published_nats": 0.0}, np.nan).sort_values(["training", "perplexity"])
        columns = ["training", "variant", "perplexity", "perplexity_se", "published_nats", "is_reference"]
        return {"48 blocks, OpenWebText2": levels[columns].rename(columns={"published_nats": "loss_minus_dense_nats"})}
    blocks, texts = {}, rows["regime"].str.partition(", ")[0]
    for (depth, text), group in rows.groupby([rows["layers"], texts], sort=False):
        if len(group) < 3 or not (dense := group["variant"].eq(_DENSE)).any():
            continue
        other = group["device"].ne(group.loc[dense, "device"].iloc[0])
        rates = ", rate " + group["learning_rate"].map("{:g}".format)
        stars = rates.where(group["variant"].duplicated(keep=False), "") + other.map({True: " *", False: ""})
        group.insert([*group].index("variant") + 1, "reads", group["variant"].replace(_READS, regex=True))
        group = group.assign(variant=group["variant"] + stars, is_reference=dense)
        group = group.drop(columns=["regime", "setting", "layers", "device", "learning_rate"])
        blocks[f"{depth:.0f} blocks, {text}"] = group.sort_values("perplexity")
    return blocks


def _answer_patterns(rows: DataFrame) -> str:
    row = first_row(rows[rows["layers"] == rows["layers"].max()], variant="DenseFormer 4x5")
    if row is None:
        return ""
    behind = rows[rows["variant"].ne("Transformer") & rows["loss_minus_dense_nats_pooled_low"].gt(0)]
    text = f"4x5 minus 1x1 at {row['layers']:.0f} blocks: {in_words(row, 'loss_minus_dense_nats')} nats"
    names = behind["variant"].str.removeprefix("DenseFormer ").groupby(behind["layers"]).agg(", ".join)
    worse = "; ".join(f"{of_depth} at {depth:.0f} blocks" for depth, of_depth in names.items())
    return f"{text}{with_verdict(row)}. Clearly worse than 1x1: {worse or 'no scheme'}."


@table(reads="test.csv", published=_published_patterns, readers=_by_depth, answer=_answer_patterns,
       columns="source -run regime setting variant learning_rate layers parameters_added perplexity -perplexity_se "
               "-loss_nats loss_minus_dense_nats[]+ published_nats device tokens seeds -diverged verdict")  # fmt: skip
def denseformer_patterns(results: Results, runs: list[str]) -> DataFrame:
    """Do simpler or sparser schemes do as well as DenseFormer 1x1?

    - Test loss minus the loss of 1x1, paired by seed, after Tables 4 and 7 of DenseFormer (arXiv:2402.02622).
    - Brackets: 95 % interval over seeds, with the variance of similar runs; after ±, the published standard error.
    - Doubt: * marks models that ran on a different processor from 1x1 (about 0.005 nats); the best schemes are closer.
    """
    ours, losses = gains(results, runs), held_out_losses(results, STUDY)
    ours = ours[ours["setting"].isin(("main", "small-batch")) | ours["run"].isin(registered_plains(results).values())]
    ours = ours.replace({"setting": {"whole": "main"}}).rename(columns={"spec.optimizer.lr": "learning_rate"})
    ours = ours.assign(parameters_added=ours["parameters"] - ours["plain"].map(ours.set_index("run")["parameters"]))
    keys = ["regime", "setting", "layers"]
    of_key = ours[ours["variant"] == _DENSE].drop_duplicates(keys).set_index(keys)["run"].rename("dense")
    ours = with_difference(ours.join(of_key, on=keys), losses, "run", "dense", "loss_minus_dense_nats")
    ours = with_pooled(ours, results, STUDY, "run", "dense", "loss_minus_dense_nats")
    sparse = claim_verdicts(results, STUDY, claim := "denseformer-sparse-keeps-the-gain")[claim]
    claimed = ours["run"].isin(sparse.runs) & ours["variant"].eq("DenseFormer 4x5")
    ours = ours.assign(device=ours["device"].map(processor), verdict=claimed.map({True: sparse.word, False: None}))
    return sort_by_regime(ours, "setting", "layers", "loss_nats")


@table(reads="test.csv speed.csv", runs="plain-* dwa-* equal-time-*", needs="equal-time-*",
       published=lambda: published_models("Table 3"),
       columns="source run variant layers steps step_time_ratio training_time_s training_time_hours perplexity[]± "
               "-loss_nats gain_nats[] -interval seeds")  # fmt: skip
def denseformer_equal_time(results: Results, runs: list[str]) -> DataFrame:
    """Is a DenseFormer better than a Transformer that trains for the same time?

    - The Transformer takes more steps, by the ratio of the measured times of a step, after Table 3 of DenseFormer
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
    plain = rows.assign(speed=speed)[rows["variant"] == "Transformer"].set_index("layers")["speed"]
    return rows.assign(measure=FORWARD, sequences=64.0, milliseconds=1000 / speed,
                       time_ratio=rows["layers"].map(plain) / speed)  # fmt: skip


def _by_operation(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return a row per depth and operation: the time of the plain Transformer, and the ratios of the others."""
    heading = "time divided by the time of plain"
    if published := rows["source"].eq("published").any():
        times = rows.set_index("run")["milliseconds"]
        equal = times["Transformer 72 blocks"] / times["DenseFormer 4x5 48 blocks"]
        heading += f"; at nearly equal perplexity, 72 plain blocks / 48 blocks of 4x5: {equal:.2f}"
        rows = rows[rows["variant"].isin(("Transformer", _DENSE, "DenseFormer 4x5"))]
    operations = [_OPERATIONS[key].format(size) for key, size in zip(rows["measure"], rows["sequences"], strict=True)]
    rows = rows.assign(operation=operations)
    keys = ["layers", "operation"]
    plain = rows[rows["variant"] == "Transformer"].set_index(keys)[["milliseconds"]].add_prefix("plain_")
    if not published:
        plain = plain.join(rows[rows["variant"] == "Transformer"].set_index(keys)[["device", "threads"]])
    others = rows[rows["variant"] != "Transformer"].sort_values("variant")
    labels = others["variant"].str.removeprefix("DenseFormer ") + "_time_ratio"
    table = side_by_side(others, keys, labels, "time_ratio")
    return {heading: plain.join(table.set_index(keys), how="inner").reset_index()}


def _answer_speeds(rows: DataFrame) -> str:
    forward = rows[rows["measure"].eq(FORWARD) & rows["variant"].str.startswith("DenseFormer")]
    times = [
        f"{row['variant'].removeprefix('DenseFormer ')} {in_words(row, 'time_ratio')}" for _, row in forward.iterrows()
    ]
    return f"A forward pass takes {' and '.join(times)} times as long as plain." if times else ""


@table(reads="speed.csv", published=_published_speeds, readers=_by_operation, answer=_answer_speeds,
       columns="source run variant layers measure sequences milliseconds[] time_ratio[] memory_ratio megabytes device "
               "threads"
       )  # fmt: skip
def denseformer_speed(results: Results, runs: list[str]) -> DataFrame:
    """How much slower is a DenseFormer than the plain Transformer of equal depth?

    - Ratios of median times; repetitions take turns in one process. After Tables 1 and 6 of DenseFormer
    (arXiv:2402.02622).
    - Brackets: quartiles of the ratio within each repetition.
    - Doubt: ours are small models on a CPU; the paper measures forward passes on a GPU. Memory is in the CSV.
    """
    records, timed = load_runs(results, STUDY, runs), speeds(results)
    rows = timed.merge(records.drop_duplicates("run")[["run", "variant", "layers"]], on="run")
    rows = rows[rows["run"].map(run_setting) == "main"].sort_values(["layers", "run"])
    reference = plains(records)
    plain = timed.set_index("run").reindex(rows["run"].map(reference)).set_index(rows.index)
    times = results.rows_of("speed.csv", STUDY).assign(plain=lambda rows: rows["run"].map(reference))
    keys, frames = ["measure", "repetition"], []
    pairs = times.merge(times, left_on=["plain", *keys], right_on=["run", *keys], suffixes=("", "_plain"))
    ratios = (pairs["time_s"] / pairs["time_s_plain"]).groupby([pairs["run"], pairs["measure"]])
    for measure in (TRAINING, FORWARD, DECODE):
        columns = {f"milliseconds{end}": 1000 * rows[f"{measure}_time_s{end}"] for end in _ENDS}
        for end, quantile in zip(_ENDS[1:], (0.25, 0.75), strict=True):
            columns[f"time_ratio{end}"] = rows["run"].map(ratios.quantile(quantile).xs(measure, level="measure"))
        for cost, label in (("time_s", "time_ratio"), ("memory_bytes", "memory_ratio")):
            columns[label] = rows[f"{measure}_{cost}"] / plain[f"{measure}_{cost}"]
        columns |= {"megabytes": rows[f"{measure}_memory_bytes"] / 1e6, "sequences": rows[f"{measure}_sequences"]}
        frames.append(rows[["run", "variant", "layers"]].assign(measure=measure, **columns))
    record = results.stage_record(STUDY, "speed")
    return pd.concat(frames).assign(device=processor(record.get("device", "")), threads=record.get("threads"))
