"""Gains and costs of averages over depth, for tables and figures (DenseFormer, arXiv:2402.02622)."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.families import run_setting
from formerlab.report.published import DENSEFORMER, published_rows
from formerlab.report.runs import (
    cached_reader,
    difference,
    held_out_losses,
    language_baselines,
    load_runs,
    means_by_run,
    sort_by_regime,
)
from formerlab.report.tables.blocks import by_regime
from formerlab.results.read import Results
from formerlab.results.schema import DECODE, FORWARD, TRAINING

STUDY = "denseformer"
_ENDS = ("", "_low", "_high")
_OWN_PLAIN = ("small-batch", "long-context", "long", "books", "modern")
"""Settings that have a plain Transformer of their own; the others are compared with that of the main ones."""


def plains(records: DataFrame) -> dict[str, str]:
    """Return, by run, the plain Transformer of the same depth, data, batch and backbone, if any.

    If there are several, it is the one with the run's learning rate. If each model has a rate that was searched for it,
    there is one.
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
    plain = plains(losses)
    first = [str(name) for name in losses if str(name).startswith(("regime", "data.name", "spec."))]
    rows = means_by_run(losses[losses["run"].isin(results.runs(STUDY, runs)["run"])], first=first)
    rows = rows.assign(setting=rows["run"].map(run_setting), plain=rows["run"].map(plain))
    differences = [difference(losses, plain.get(run), run, "gain_nats", results=results) for run in rows["run"]]
    rows = rows.join(DataFrame(differences, columns=[*expand_columns("gain_nats[]"), "interval"]))
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


def published_table(*tables: str, **names: str) -> DataFrame:
    """Return tables of the paper, a row per table, model and setting, under other `names`; `perplexity_se` is the
    published standard error. A forward pass of Tables 1 and 6 has 64 sequences.
    """
    names |= {"perplexity_standard_error": "perplexity_se", "perplexity_uncertainty": "perplexity_se"}
    by, factors = ("table_or_figure", "model", "setting"), {"parameters": 1e6}
    rows = published_rows(DENSEFORMER, *tables, by=by, names=names, factors=factors)
    return rows.assign(source="published", **{f"{FORWARD}_sequences": 64.0})


def published_depths() -> DataFrame:
    """Return Table 1 of the paper, a row per model."""
    table = published_table("Table 1", model="run", inference_batches_per_second="inference_batches_per_s")
    table[["variant", "layers"]] = table["run"].str.extract(r"(.+) (\d+) blocks")
    columns = ["source", "run", "variant", "layers", "perplexity", "perplexity_se", "parameters"]
    return table.astype({"layers": float})[[*columns, "inference_batches_per_s", f"{FORWARD}_sequences"]]


@table(reads="test.csv floors.csv speed.csv", published=published_depths, readers=by_regime,
       columns="source -run regime variant layers -parameters perplexity[]± -loss_nats[] -bits_per_byte "
               "loss_minus_plain_nats[] -interval inference_batches_per_s -forward_sequences seeds "
               "-diverged")  # fmt: skip
def denseformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Held-out perplexity and speed of DenseFormers and Transformers by depth, after Table 1 of DenseFormer
    (arXiv:2402.02622). DenseFormer dxp averages over every d-th earlier block, after every p-th block. Each model is
    compared with the Transformer of the same depth, data and schedule, paired by seed. In brackets: 95 % Student t
    interval over seeds; with one seed a paired bootstrap over windows, which is about these two models alone. After ±:
    the published standard error over three runs. n-gram baselines have no depth. Speed is measured alone on one
    machine. Perplexities compare within one data set and tokenizer.
    """
    ours = gains(results, runs).merge(speeds(results), on="run", how="left")
    ours = ours[ours["setting"] == "main"].assign(inference_batches_per_s=lambda rows: 1 / rows[f"{FORWARD}_time_s"])
    for end, gain in (("", ""), ("_low", "_high"), ("_high", "_low")):
        ours[f"loss_minus_plain_nats{end}"] = -ours[f"gain_nats{gain}"]
    ours["mixed"] = ours["spec.model.depth.kind"] != "identity"
    rows = sort_by_regime(ours, "layers", "mixed", "variant", "run")
    return pd.concat([language_baselines(results, STUDY, runs), rows])


def _words(rows: DataFrame) -> DataFrame:
    """Return rows with settings in words, and with blocks apart from the names of published models and settings."""
    if rows["source"].eq("ours").all():
        return rows.assign(setting=rows["setting"].replace("main", "").str.replace("-", " "))
    names = rows["variant"].str.extract(r"(.+?)(?: (\d+) blocks)?$")
    settings = rows["setting"].str.replace("seq", "context").str.replace("OWT2", "OpenWebText2")
    blocks = names[1].fillna(settings.str.extract(r"(\d+) blocks")[0])
    settings = settings.str.replace(r"; \d+ blocks", "", regex=True)
    return rows.assign(setting=settings, variant=names[0], layers=blocks.astype(float))


STATIC = ("dwa", "last_k", "connect_to_last", "random_sparse", "softmax")
"""Mixers whose parameters are one weight per connection."""


@table(reads="test.csv",
       published=lambda: published_table("Table 4", "Table 7", model="variant", table_or_figure="run").assign(
           sparsity=lambda rows: rows["sparsity"] / 100, layers=48.0),
       readers=lambda rows: by_regime(_words(rows)),
       columns="source -run regime setting variant layers parameters_added sparsity perplexity[]± -loss_nats "
               "gain_nats[] -interval seeds -diverged")  # fmt: skip
def denseformer_patterns(results: Results, runs: list[str]) -> DataFrame:
    """Held-out perplexity of every way to mix the outputs of earlier blocks, after Tables 4 and 7 of DenseFormer
    (arXiv:2402.02622). A model's gain is the loss of the Transformer of the same depth and batch minus its own, paired
    by seed. In brackets: 95 % Student t interval over seeds, or with one seed over windows. After ±: the published
    standard error. The embedding X_0 enters Last-K always, as one of the last K, or never: the paper allows each
    reading. Softmax weights, Attention Residuals, MUDD, Hyper-Connections and random patterns are not in the paper.
    Rows are sorted by depth, then by loss.
    """
    ours = gains(results, runs)
    ours = ours[ours["setting"].isin(("main", "small-batch"))]
    ours = ours.assign(parameters_added=ours["parameters"] - ours["plain"].map(ours.set_index("run")["parameters"]))
    absent = 1 - ours["parameters_added"] / (ours["layers"] * (ours["layers"] + 3) / 2)
    ours["sparsity"] = absent.where(ours["spec.model.depth.kind"].isin(STATIC))
    return sort_by_regime(ours, "setting", "layers", "loss_nats")


_ASKED = {"spec.optimizer.lr": "lr", "spec.task.batch": "batch", "spec.task.context": "context", "data.name": "data"}


@table(reads="test.csv", runs="plain-* dwa-* no-decay-* small-batch-* long-context-* books-* modern-*",
       published=lambda: published_table("Table 2", "Table 6", "text", model="variant", table_or_figure="run").dropna(
           subset="perplexity"),
       readers=lambda rows: _words(rows),
       columns="source setting -run regime variant layers lr -batch -context -data perplexity[]± -loss_nats "
               "gain_nats[] -interval seeds -diverged")  # fmt: skip
def denseformer_settings(results: Results, runs: list[str]) -> DataFrame:
    """Held-out perplexity of DenseFormer and the Transformer in other settings, after Tables 2 and 6 and section 4.2 of
    DenseFormer (arXiv:2402.02622). Small batch, long context, books (a second corpus; PG-19 in the paper), modern
    (RMSNorm, SwiGLU, rotary positions) and no decay (mixing weights without weight decay); rows exist for the settings
    that were run. A gain is the loss of the Transformer in the same setting minus the loss of the model, paired by
    seed. In brackets: 95 % Student t interval over seeds. After ±: the published standard error. Perplexities compare
    within one setting and corpus.
    """
    ours = gains(results, runs).rename(columns=_ASKED)
    undecayed = ours[ours["setting"] == "no-decay"]
    compared = {*("dwa-" + undecayed["run"].str.removeprefix("no-decay-")), *undecayed["plain"]}
    ours = ours[(ours["setting"] != "main") | ours["run"].isin(compared)]
    return ours.sort_values(["setting", "lr", "layers", "run"])


def _published_delay() -> DataFrame:
    rows = published_table("Table 5", model="run").assign(layers=48.0)
    steps = rows["setting"].str.extract(r"N=(\d+)")[0].astype(float).fillna(40_000.0)  # never
    gain = np.log(rows["perplexity"].max() / rows["perplexity"])
    return rows.assign(start_share=steps / 40_000, gain_nats=gain, kept=gain / gain.max())


@table(reads="test.csv", runs="plain-* dwa-4x5-* late-*", published=_published_delay,
       columns="source -run layers start_share perplexity[] -loss_nats gain_nats[] -interval kept seeds")  # fmt: skip
def denseformer_delay(results: Results, runs: list[str]) -> DataFrame:
    """What if the mixing weights of DenseFormer 4x5 start to learn late? Until then they stay at the identity, which is
    a plain Transformer; after Table 5 of DenseFormer (arXiv:2402.02622). A gain is the loss of the plain Transformer
    minus the loss of the model, paired by seed. In brackets: 95 % Student t interval over seeds. The paper gives no
    intervals here; its gains are computed from its perplexities.
    """
    ours = gains(results, runs)
    starts = ours.get("spec.optimizer.mixing_start_step", pd.Series(0.0, ours.index)).fillna(0.0)
    ours["start_share"] = (starts / ours["spec.steps"]).mask(ours["spec.model.depth.kind"] == "identity", 1.0)
    late = set(ours.loc[ours["setting"] == "late", "layers"])
    ours = ours[ours["layers"].isin(late)].sort_values(["layers", "start_share"])
    immediate = ours[ours["run"].str.startswith("dwa-")].set_index("layers")
    return ours.assign(kept=ours["gain_nats"] / ours["layers"].map(immediate["gain_nats"]))


@table(reads="test.csv speed.csv", runs="plain-* dwa-* equal-time-*", needs="equal-time-*",
       published=lambda: published_table("Table 3", model="run", training_steps="steps",
                                         training_time="training_time_hours"),
       columns="source run variant layers steps step_time_ratio training_time_s training_time_hours perplexity[]± "
               "-loss_nats gain_nats[] -interval seeds")  # fmt: skip
def denseformer_equal_time(results: Results, runs: list[str]) -> DataFrame:
    """DenseFormer beside a Transformer that trains for the same time, after Table 3 of DenseFormer (arXiv:2402.02622).
    The Transformer takes more steps, by the ratio of the two times of a step, which are measured side by side, and has
    a schedule of this length. Above it is the Transformer with the steps of the DenseFormer. A gain is the loss of a
    Transformer minus the loss of the DenseFormer, paired by seed; above zero, the DenseFormer is better. In brackets:
    95 % Student t interval over seeds. After ±: the published standard error. Training time counts the steps alone,
    with other jobs on the machine.
    """
    losses = held_out_losses(results, STUDY, runs)
    settings = ["spec.steps", "equal_time.arm", "equal_time.reference", "equal_time.time_ratio"]
    rows, compared = means_by_run(losses, first=settings).set_index("run", drop=False), []
    for equal in rows[rows["equal_time.arm"].notna()].to_dict("records"):
        arm = equal["equal_time.arm"]
        for run in (run for run in (equal["equal_time.reference"], equal["run"], arm) if run in rows.index):
            compared.append(rows.loc[run].to_dict() | difference(losses, run, arm, "gain_nats", results=results))
    return DataFrame(compared).rename(columns={"spec.steps": "steps", "equal_time.time_ratio": "step_time_ratio"})


def _published_apart(rows: DataFrame) -> DataFrame:
    """Return the published rows with model, blocks and table apart, by depth; ours as they are."""
    if rows["source"].eq("ours").all():
        return rows
    parts = rows["run"].str.extract(r"(.+) (\d+) blocks")
    rows = rows.assign(table=rows["variant"], variant=parts[0], layers=parts[1].astype(float)).drop(columns="run")
    return rows.sort_values(["table", "layers"], kind="stable")


_UNITS = {TRAINING: "training_steps_per_s", FORWARD: "forward_batches_per_s", DECODE: "decoded_tokens_per_s"}


@table(reads="speed.csv",
       published=lambda: published_table("Table 1", "Table 6", model="run", table_or_figure="variant",
                                         inference_batches_per_second=_UNITS[FORWARD],
                                         inference_batches_per_second_standard_error=f"{_UNITS[FORWARD]}_se"),
       columns="source run variant layers -parameters training_steps_per_s[] training_step_time_ratio "
               "-training_step_memory_ratio -training_step_megabytes forward_batches_per_s[] forward_time_ratio "
               "-forward_memory_ratio -forward_megabytes decoded_tokens_per_s[] decode_time_ratio "
               "-decode_memory_ratio -decode_megabytes -forward_sequences forward_batches_per_s_se",
       readers=_published_apart)  # fmt: skip
def denseformer_speed(results: Results, runs: list[str]) -> DataFrame:
    """Speed of DenseFormers and Transformers in training, scoring and decoding, after Tables 1 and 6 of DenseFormer
    (arXiv:2402.02622). Medians over repetitions; in brackets: their quartiles. Models are measured in turns in one
    process, so that the load of the machine falls on all. A ratio below 1 is faster than the Transformer of the same
    depth. A forward pass scores a batch of sequences, 64 in the paper, which names no GPU and reports no decoding.
    After ±: the published standard error. Peak memory is in the CSV.
    """
    records, timed = load_runs(results, STUDY, runs), speeds(results)
    rows = timed.merge(records.drop_duplicates("run")[["run", "variant", "layers", "parameters"]], on="run")
    rows = rows[rows["run"].map(run_setting) == "main"].sort_values(["layers", "run"])
    plain = timed.set_index("run").reindex(rows["run"].map(plains(records))).set_index(rows.index)
    for measure, name in _UNITS.items():
        for end, column in zip(_ENDS, ("_time_s", "_time_s_high", "_time_s_low"), strict=True):
            rows[f"{name}{end}"] = 1 / rows[f"{measure}{column}"]
        for cost, label in (("time_s", "time_ratio"), ("memory_bytes", "memory_ratio")):
            rows[f"{measure}_{label}"] = rows[f"{measure}_{cost}"] / plain[f"{measure}_{cost}"]
        rows[f"{measure}_megabytes"] = rows[f"{measure}_memory_bytes"] / 1e6
    return rows
