"""Gains and costs of averages over depth, for tables and figures (DenseFormer, arXiv:2402.02622)."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.columns import count
from formerlab.report.families import run_setting
from formerlab.report.published import DENSEFORMER, published_rows
from formerlab.report.runs import (
    cached_reader,
    difference,
    held_out_losses,
    language_baselines,
    load_runs,
    means_by_run,
    seed_count,
    sort_by_regime,
    with_difference,
)
from formerlab.report.tables.blocks import by_regime, claim_runs, processor, with_pooled
from formerlab.results.read import Results
from formerlab.results.schema import DECODE, FORWARD, TRAINING

STUDY = "denseformer"
_ENDS = ("", "_low", "_high")
_OWN_PLAIN = ("small-batch", "long-context", "long", "books", "modern")
"""Settings with their own plain Transformer; runs of other settings are compared with the one of the main setting."""


def plains(records: DataFrame) -> dict[str, str]:
    """Return, by run, the plain Transformer of the same depth, data, batch and backbone, if any.

    Of several, it is the one with the run's learning rate, otherwise the first. Setting `modern` needs an equal rate.
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
    its own, in nats and paired by seed. `interval` says what the interval of the gain is over.
    """
    losses = held_out_losses(results, STUDY)
    first = [str(name) for name in losses if str(name).startswith(("regime", "data.name", "device", "spec."))]
    rows = means_by_run(losses[losses["run"].isin(results.runs(STUDY, runs)["run"])], first=first)
    rows = rows.assign(setting=rows["run"].map(run_setting), plain=rows["run"].map(plains(losses)))
    rows = with_difference(rows, losses, "plain", "run", "gain_nats", results=results)
    return rows.sort_values(["layers", "run"], ignore_index=True)


def speeds(results: Results) -> DataFrame:
    """Return a row per timed run: median and quartiles of the times and of the bytes of each measure.

    Columns are `<measure>_time_s`, `..._time_s_low`, `..._time_s_high`, `<measure>_memory_bytes`, and
    `<measure>_sequences`, the number that is trained on, scored or decoded at a time.
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
    """Return tables of the paper, a row per table, model and setting. `run` is the printed name, which `variant` and
    `layers` divide, and `perplexity_se` the published standard error. A forward pass has 64 sequences.
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


def _published_pairs() -> DataFrame:
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
    text = dense["regime"].str.partition(", ")[0]
    published = rows["source"].eq("published").any()
    plain = dense["perplexity"] * np.exp(dense["gain_nats"])  # of one model each; ours may have further seeds
    plain = plain if published else dense["plain"].map(rows.set_index("run")["perplexity"])
    setting = ", " + dense["setting"].str.replace("-", " ")
    setting = setting.mask(dense["setting"].isin(("main", "long", "books")) | dense["source"].eq("published"), "")
    ngrams = rows[rows["variant"].str.startswith("5-gram")].set_index("regime")["perplexity"]
    shown = DataFrame(
        {"blocks": dense["layers"].map("{:.0f}".format) + setting, "tokens": dense["tokens"], "test text": text}
        | {"5-gram ↓": text.map(ngrams), "plain ↓": plain, "1x1 ↓": dense["perplexity"]}
        | {name: dense[name] for name in expand_columns("gain_nats[]+ seeds bold")}
    )
    order = shown.join(dense["layers"]).sort_values(["layers", "blocks", "tokens"], kind="stable").index
    return {"perplexity, and gain of 1x1": shown.loc[order]}


@table(reads="test.csv floors.csv", published=_published_pairs, readers=_pairs,
       columns="source run regime setting variant layers tokens -parameters perplexity[] -loss_nats[] -bits_per_byte "
               "plain gain_nats[]+ interval seeds diverged bold")  # fmt: skip
def denseformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Do averages over depth lower the loss? Held-out perplexity of DenseFormer 1x1 and of the plain Transformer of
    equal depth, after Tables 1 and 2 of DenseFormer (arXiv:2402.02622). 1x1 averages the outputs of all earlier blocks
    after every block; modern has RMSNorm, SwiGLU and rotary positions. A gain is the plain loss minus the loss with
    1x1, paired by seed; above zero, 1x1 is better. In brackets: 95 % interval over seeds, with the variance of similar
    runs if there are any, as for verdicts. Bold: a gain on which a verdict rests. Perplexities compare within one test
    text; the 5-gram model was trained on the same text.
    """
    ours = with_pooled(gains(results, runs), results, STUDY, "plain", "run", "gain_nats")
    depth, persists = (ours["run"].isin(claimed) for claimed in claim_runs(results, STUDY, *_PAIRS).values())
    bold = depth | persists & ours["tokens"].eq(ours.loc[persists, "tokens"].max())
    rows = sort_by_regime(ours.assign(bold=bold), "layers", "tokens", "variant", "run")
    return pd.concat([language_baselines(results, STUDY, runs), rows])


def _published_patterns() -> DataFrame:
    """Return the models of 48 blocks in Tables 1, 4 and 7, with the loss minus the loss of 1x1 in the same setting."""
    rows = published_models("Table 1", "Table 4", "Table 7").query("layers == 48")
    rows["variant"] = rows["variant"].replace(r"Last-K K=4.*", "Last-K, K = 4, X_0 always", regex=True)
    rows["setting"] = rows["setting"].str.extract(r"(batch \d+)", expand=False)
    dense = rows[rows["variant"] == _DENSE].set_index("setting")["perplexity"]
    behind = np.log(rows["perplexity"] / rows["setting"].map(dense))
    return rows.drop_duplicates(["variant", "setting"]).assign(run=rows["table_or_figure"], published_nats=behind)


def _by_depth(rows: DataFrame) -> dict[str, DataFrame]:
    """Return a block per depth and text with more models than 1x1 and the plain Transformer."""
    if rows["source"].eq("published").any():
        return {}
    blocks, theirs = {}, _published_patterns().dropna(subset="published_nats").set_index("variant")["published_nats"]
    rows = rows.drop(columns="published_nats").join(theirs, on="variant")
    texts = rows["regime"].str.partition(", ")[0]
    for (depth, text), group in rows.groupby([rows["layers"], texts], sort=False):
        if len(group) < 3 or not (dense := group["variant"].eq(_DENSE)).any():
            continue
        other = group["device"].ne(group.loc[dense, "device"].iloc[0])
        group = group.assign(variant=group["variant"] + other.map({True: " *", False: ""}))
        group = group.drop(columns=["regime", "setting", "layers", "device"])
        blocks[f"{depth:.0f} blocks, {text}"] = group.sort_values("perplexity")
    return blocks


@table(reads="test.csv", published=_published_patterns, readers=_by_depth,
       columns="source -run regime setting variant layers parameters_added perplexity -perplexity_se "
               "-loss_nats loss_minus_dense_nats[]+ published_nats device tokens seeds -diverged")  # fmt: skip
def denseformer_patterns(results: Results, runs: list[str]) -> DataFrame:
    """Do simpler or sparser schemes do as well as DenseFormer 1x1? The loss minus the loss of 1x1, paired by seed,
    after Tables 4 and 7 of DenseFormer (arXiv:2402.02622); above zero, the scheme is worse. dxp averages over every
    d-th earlier block, after every p-th block; Last-K reads the last K outputs and the embedding X_0. Hyper-Connections
    and mHC, which keep n residual streams, are not in the paper. In brackets: 95 % interval over seeds, with the
    variance of similar runs, as for verdicts. A star marks another processor than that of 1x1, which changes the loss
    of a seed by about 0.005 nats. Published: 48 blocks on OpenWebText2, batch 400; the CSV has batch 128.
    """
    ours, losses = gains(results, runs), held_out_losses(results, STUDY)
    ours = ours[ours["setting"].isin(("main", "small-batch"))]
    ours = ours.assign(parameters_added=ours["parameters"] - ours["plain"].map(ours.set_index("run")["parameters"]))
    keys = ["regime", "setting", "layers"]
    of_key = ours[ours["variant"] == _DENSE].drop_duplicates(keys).set_index(keys)["run"].rename("dense")
    ours = with_difference(ours.join(of_key, on=keys), losses, "run", "dense", "loss_minus_dense_nats")
    ours = with_pooled(ours, results, STUDY, "run", "dense", "loss_minus_dense_nats")
    return sort_by_regime(ours.assign(device=ours["device"].map(processor)), "setting", "layers", "loss_nats")


def _published_delay() -> DataFrame:
    rows = published_models("Table 5")
    steps = rows["setting"].str.extract(r"N=(\d+)")[0].astype(float).fillna(40_000.0)  # never
    gain = np.log(rows["perplexity"].max() / rows["perplexity"]).mask(steps == 40_000)
    return rows.assign(start_share=steps / 40_000, gain_nats=gain, kept=gain / gain.max())


def _starts(rows: DataFrame) -> dict[str, DataFrame]:
    """Return our gains beside the published ones of equal start, in a block per depth."""
    if rows["source"].eq("published").any():
        return {}
    theirs = _published_delay().rename(columns={"gain_nats": "published_gain_nats"})
    theirs, blocks = theirs[["start_share", "published_gain_nats", "kept"]], {}
    for layers, group in rows[rows["start_share"] < 1].groupby("layers"):
        text = group["regime"].iloc[0].partition(", ")[0]
        trained = f"{count(group['tokens'].max())} training tokens, {text}, {seed_count(group['seeds'])}"
        both = group.drop(columns=["kept", "layers", "seeds", "tokens", "regime"])
        both = both.merge(theirs, how="left", on="start_share")
        start = (100 * both["start_share"]).map("{:g} % of the steps".format)
        both["start_share"] = start.replace("0 % of the steps", "the first step")
        blocks[f"{layers:.0f} blocks, {trained}; published: 48 blocks, OpenWebText2"] = both
    return blocks


@table(reads="test.csv", runs="plain-* dwa-4x5-* late-*", published=_published_delay, readers=_starts,
       columns="source -run regime layers start_share perplexity -loss_nats gain_nats[]+ loss_minus_start_nats[]+ "
               "-interval kept tokens seeds")  # fmt: skip
def denseformer_delay(results: Results, runs: list[str]) -> DataFrame:
    """Does a late start of the mixing weights cost gain? After Table 5 of DenseFormer (arXiv:2402.02622). DenseFormer
    4x5 averages over every 4th earlier block, after every 5th block. Until its weights begin to learn, it is a plain
    Transformer. A gain is the loss of the plain Transformer minus the loss of 4x5. An early start is at the first
    step; above zero, a late start has a higher loss. Both are paired by seed; in brackets: 95 % interval
    over seeds, with the variance of similar runs, as for verdicts. If the gain from the first step includes zero, a
    late start cannot be judged. Published gains are computed from perplexities, without intervals; the CSV has the
    other starts.
    """
    ours, losses = gains(results, runs), held_out_losses(results, STUDY)
    starts = ours.get("spec.optimizer.mixing_start_step", pd.Series(0.0, ours.index)).fillna(0.0)
    ours["start_share"] = (starts / ours["spec.steps"]).mask(ours["spec.model.depth.kind"] == "identity", 1.0)
    late = set(ours.loc[ours["setting"] == "late", "layers"])
    ours = ours[ours["layers"].isin(late)].sort_values(["layers", "start_share"])
    immediate = ours[ours["run"].str.startswith("dwa-")].set_index("layers")
    ours = ours.assign(
        kept=ours["gain_nats"] / ours["layers"].map(immediate["gain_nats"]),
        immediate=ours["layers"].map(immediate["run"]).where(ours["setting"] == "late"),
    )
    ours = with_difference(ours, losses, "run", "immediate", "loss_minus_start_nats")
    ours = with_pooled(ours, results, STUDY, "run", "immediate", "loss_minus_start_nats")
    return with_pooled(ours, results, STUDY, "plain", "run", "gain_nats")


@table(reads="test.csv speed.csv", runs="plain-* dwa-* equal-time-*", needs="equal-time-*",
       published=lambda: published_models("Table 3"),
       columns="source run variant layers steps step_time_ratio training_time_s training_time_hours perplexity[]± "
               "-loss_nats gain_nats[] -interval seeds")  # fmt: skip
def denseformer_equal_time(results: Results, runs: list[str]) -> DataFrame:
    """DenseFormer beside a Transformer that trains for the same time, after Table 3 of DenseFormer (arXiv:2402.02622).
    The Transformer takes more steps, by the ratio of the two times of a step, which are measured side by side, and has
    a schedule of this length. Above it is the Transformer with the steps of the DenseFormer. A gain is the loss of a
    Transformer minus the loss of the DenseFormer, paired by seed; above zero, the DenseFormer is better. In brackets:
    95 % Student t interval over seeds. After ±: the published standard
    error. Training time counts the steps alone, with other jobs on the machine.
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


def _by_operation(rows: DataFrame) -> DataFrame:
    """Return a row per depth and operation: the time of the plain Transformer, and the ratios of the others."""
    if rows["source"].eq("published").any():
        rows = rows[rows["variant"].isin(("Transformer", _DENSE, "DenseFormer 4x5"))]
    operations = [_OPERATIONS[key].format(size) for key, size in zip(rows["measure"], rows["sequences"], strict=True)]
    rows = rows.assign(operation=operations)
    keys = ["layers", "operation"]
    plain = rows[rows["variant"] == "Transformer"].set_index(keys)
    ratios = rows[rows["variant"] != "Transformer"].pivot_table("time_ratio", keys, "variant", sort=False)
    table = plain.loc[ratios.index, ["milliseconds"]].rename(columns={"milliseconds": "plain (ms) ↓"})
    names = {name: f"{name} / plain ↓".replace("DenseFormer ", "") for name in map(str, ratios)}
    table = table.join(ratios.sort_index(axis=1).rename(columns=names).round(2))
    return table.reset_index().assign(**{name: plain[name].iloc[0] for name in ("device", "threads")})


@table(reads="speed.csv", published=_published_speeds, readers=_by_operation,
       columns="source run variant layers measure sequences milliseconds[] time_ratio memory_ratio megabytes device "
               "threads"
       )  # fmt: skip
def denseformer_speed(results: Results, runs: list[str]) -> DataFrame:
    """How much slower is a DenseFormer than the plain Transformer of equal depth? After Tables 1 and 6 of DenseFormer
    (arXiv:2402.02622). The table gives the time of the plain Transformer, and the time of the others divided by it;
    below 1 is faster. Ours are medians over repetitions, measured in turns in one process, so that the load of the
    machine falls on all. The paper scores batches of 64 sequences on a GPU and reports neither training nor decoding.
    Quartiles, peak memory and other published schemes are in the CSV.
    """
    records, timed = load_runs(results, STUDY, runs), speeds(results)
    rows = timed.merge(records.drop_duplicates("run")[["run", "variant", "layers"]], on="run")
    rows = rows[rows["run"].map(run_setting) == "main"].sort_values(["layers", "run"])
    plain = timed.set_index("run").reindex(rows["run"].map(plains(records))).set_index(rows.index)
    frames = []
    for measure in (TRAINING, FORWARD, DECODE):
        columns = {f"milliseconds{end}": 1000 * rows[f"{measure}_time_s{end}"] for end in _ENDS}
        for cost, label in (("time_s", "time_ratio"), ("memory_bytes", "memory_ratio")):
            columns[label] = rows[f"{measure}_{cost}"] / plain[f"{measure}_{cost}"]
        columns |= {"megabytes": rows[f"{measure}_memory_bytes"] / 1e6, "sequences": rows[f"{measure}_sequences"]}
        frames.append(rows[["run", "variant", "layers"]].assign(measure=measure, **columns))
    record = results.stage_record(STUDY, "speed")
    return pd.concat(frames).assign(device=processor(record.get("device", "")), threads=record.get("threads"))
