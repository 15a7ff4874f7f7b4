"""Tables of the DenseFormer study (arXiv:2402.02622)."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.depth import (
    METHODS,
    PUBLISHED_SEQUENCES,
    gains,
    plains,
    published_depths,
    published_table,
    speeds,
)
from formerlab.report.drawings import Table
from formerlab.report.families import setting
from formerlab.report.runs import (
    TRANSFORMER,
    by_run,
    ends,
    floors,
    held_out_losses,
    main_first,
    paired_difference,
    variant,
)
from formerlab.results.read import Results
from formerlab.results.schema import DECODE, FORWARD, TRAINING

STUDY = "denseformer"


def main(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run in the order of depth."""
    losses = held_out_losses(results, STUDY, runs)
    losses = losses[losses["run"].map(setting) == "main"]
    if losses.empty:
        return DataFrame()
    rows = by_run(losses).assign(mixed=lambda rows: rows["variant"] != TRANSFORMER)
    rows["regime"] = rows["run"].map(losses.drop_duplicates("run").set_index("run")["regime"])
    rows = rows.merge(speeds(results, STUDY), on="run", how="left")
    rows = rows.assign(inference_batches_per_s=1 / rows[f"{FORWARD}_time_s"])
    rows = main_first(rows, "layers", "mixed", "variant", "run")
    rows = rows.join(DataFrame([_against_plain(results, losses, rows, place) for place in rows.index]))
    return pd.concat([floors(results, STUDY, runs), rows])


def _against_plain(results: Results, losses: DataFrame, runs: DataFrame, place: int) -> dict[str, object]:
    mine = runs.iloc[place].to_dict()
    same = (runs["layers"] == mine["layers"]) & (runs["regime"] == mine["regime"])
    plain = runs[(runs["variant"] == TRANSFORMER) & same]["run"]
    if mine["variant"] == TRANSFORMER or plain.empty:
        return {}
    difference = paired_difference(results, losses, mine["run"], plain.iloc[0])
    return ends("loss_minus_plain_nats", difference) | {"interval": METHODS[difference.method]}


denseformer_table = Table(
    reads=("test.csv", "floors.csv", "run.json", "speed.csv"),
    runs=("*",),
    caption=(
        "Depth, held-out perplexity and speed of every run, after Table 1 of DenseFormer (arXiv:2402.02622). Loss "
        "minus plain: to the plain Transformer of the same depth, data set and schedule, paired by seed. Brackets: 95 "
        "% Student t interval over seeds; with one seed a paired bootstrap over windows, of these two models alone. "
        "Inference batches are full forward passes, measured alone on one machine. After ±: the published standard "
        "error over three runs."
    ),
    ours=main,
    published=published_depths,
    columns=(
        "source run regime variant layers -parameters perplexity[]± -loss_nats[] -bits_per_byte "
        "loss_minus_plain_nats[] interval inference_batches_per_s -forward_sequences seeds -diverged"
    ),
)


STATIC = ("dwa", "last_k", "connect_to_last", "random_sparse", "softmax")
"""Mixers whose parameters are one weight per connection."""


def patterns(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, shallow before deep."""
    ours = gains(results, STUDY, runs)
    if len(ours):
        ours = ours[ours["setting"].isin(("main", "small-batch"))]
        parameters = ours.set_index("run")["parameters"]
        ours = ours.assign(parameters_added=ours["parameters"] - ours["plain"].map(parameters))
        kinds = results.runs(STUDY, runs).drop_duplicates("run").set_index("run")["spec.model.depth.kind"]
        absent = 1 - ours["parameters_added"] / (ours["layers"] * (ours["layers"] + 3) / 2)
        ours["sparsity"] = absent.where(ours["run"].map(kinds).isin(STATIC))
        ours = main_first(ours, "setting", "layers", "loss_nats")
    return ours


def _published_patterns() -> DataFrame:
    rows = published_table("Table 4", "Table 7").rename(columns={"model": "variant"})
    return rows.assign(sparsity=rows["sparsity"] / 100, layers=48.0, run=rows["table_or_figure"])


denseformer_patterns = Table(
    reads=("test.csv", "run.json"),
    runs=("*",),
    caption=(
        "Held-out loss of every way to mix the outputs of earlier blocks, after Tables 4 and 7 of DenseFormer "
        "(arXiv:2402.02622). Gain is the loss of the plain Transformer of the same depth and batch minus that of the "
        "run, paired by seed, with its 95 % interval over seeds (with one seed over windows). Sparsity is the exact "
        "share of the weights of 1x1 that are absent, where every added parameter is one weight. The embedding enters "
        "Last-K always, as one of the last K, or never: the paper allows each reading. Softmax weights, Attention "
        "Residuals, MUDD, Hyper-Connections and random patterns are not of the paper. After ±: the published standard "
        "error."
    ),
    ours=patterns,
    published=_published_patterns,
    columns=(
        "source -run regime setting variant layers parameters_added sparsity perplexity[]± -loss_nats gain_nats[] "
        "-interval seeds -diverged"
    ),
)


_ASKED = {"lr": "spec.optimizer.lr", "batch": "spec.task.batch", "context": "spec.task.context", "data": "data.name"}


def settings(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run of every other setting and of what the runs without decay are compared with."""
    ours = gains(results, STUDY, runs)
    if len(ours):
        undecayed = ours.loc[ours["setting"] == "no-decay", "run"].str.removeprefix("no-decay-")
        compared = {*("dwa-" + undecayed), *ours.loc[ours["setting"] == "no-decay", "plain"]}
        ours = ours[(ours["setting"] != "main") | ours["run"].isin(compared)]
        specs = results.runs(STUDY, runs).drop_duplicates("run").set_index("run")
        for name, column in _ASKED.items():
            ours = ours.assign(**{name: ours["run"].map(specs[column]) if column in specs else None})
        ours = ours.sort_values(["setting", "lr", "layers", "run"])
    return ours


def _published_settings() -> DataFrame:
    rows = published_table("Table 2", "Table 6", "text").dropna(subset="perplexity")
    return rows.rename(columns={"model": "variant", "table_or_figure": "run"})


denseformer_settings = Table(
    reads=("test.csv", "run.json"),
    runs=("plain-*", "dwa-*", "no-decay-*", "small-batch-*", "long-context-*", "books-*", "modern-*"),
    caption=(
        "Held-out loss of DenseFormer and of its plain Transformer in other settings: a smaller batch, a longer "
        "context, a second corpus, a modern backbone (RMSNorm, SwiGLU, rotary positions) at several learning rates, "
        "and mixing weights without weight decay; after Tables 2 and 6 and section 4.2 of DenseFormer "
        "(arXiv:2402.02622). Gain is the loss of the plain Transformer of the same setting minus that of the run, "
        "paired by seed, with its 95 % interval. Losses of different corpora cannot be compared; the second one is "
        "PG-19 in the paper. The backbone and the run without decay are not of the paper. After ±: the published "
        "standard error; it gives none for PG-19."
    ),
    ours=settings,
    published=_published_settings,
    columns=(
        "source setting -run regime variant layers lr -batch -context -data perplexity[]± -loss_nats gain_nats[] "
        "-interval seeds -diverged"
    ),
)


def delay(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per start, from the first step to never, for each depth."""
    ours = gains(results, STUDY, runs)
    if len(ours):
        ours = ours.assign(start_share=ours["run"].map(_shares(results, runs)))
        late = set(ours.loc[ours["setting"] == "late", "layers"])
        ours = ours[ours["layers"].isin(late)].sort_values(["layers", "start_share"])
        immediate = ours[ours["run"].str.startswith("dwa-")].set_index("layers")
        if "gain_nats" in ours:
            ours["kept"] = ours["gain_nats"] / ours["layers"].map(immediate["gain_nats"])
    return ours


def _shares(results: Results, runs: Sequence[str]) -> dict[str, float]:
    """Return, by run, the share of the steps after which its mixing weights start to learn: 1 where there are none."""
    records = results.runs(STUDY, runs).drop_duplicates("run").set_index("run")
    starts = records.get("spec.optimizer.mixing_start_step", pd.Series(0.0, records.index)).fillna(0.0)
    shares = (starts / records["spec.steps"]).mask(records["spec.model.depth.kind"] == "identity", 1.0)
    return {str(run): float(share) for run, share in shares.items()}


def _published_delay() -> DataFrame:
    rows = published_table("Table 5")
    found = [re.search(r"N=(\w+)", setting) for setting in rows["setting"]]
    steps = [40_000.0 if match is None or match[1] == "never" else float(match[1]) for match in found]
    rows = rows.assign(run=rows["model"], layers=48.0, start_share=np.array(steps) / 40_000)
    rows["gain_nats"] = np.log(rows["perplexity"].max() / rows["perplexity"])
    return rows.assign(kept=rows["gain_nats"] / rows["gain_nats"].max())


denseformer_delay = Table(
    reads=("test.csv", "run.json"),
    runs=("plain-*", "dwa-4x5-*", "late-*"),
    caption=(
        "Held-out loss where the mixing weights of DenseFormer 4x5 wait at the identity for a share of the steps, "
        "after Table 5 of DenseFormer (arXiv:2402.02622). Gain is the loss of the plain Transformer minus that of the "
        "run, paired by seed, with its 95 % interval. Kept is the mean gain as a share of that of the run whose "
        "weights learn from the first step. The paper gives no intervals for delayed starts; its shares are "
        "recomputed in nats."
    ),
    ours=delay,
    published=_published_delay,
    columns="source run layers start_share perplexity[] -loss_nats gain_nats[] -interval kept seeds",
)


def equal_time(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return three rows per comparison (plain, plain for equal time, DenseFormer)."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty or "equal_time.arm" not in losses:
        return DataFrame()
    rows, records = by_run(losses).set_index("run"), losses.drop_duplicates("run").set_index("run")
    found = []
    for name in records.index[records["equal_time.arm"].notna()]:
        arm, reference = records.loc[name, ["equal_time.arm", "equal_time.reference"]]
        for run in (reference, name, arm):
            if run not in rows.index:
                continue
            row = {**rows.loc[run].to_dict(), "run": run, "steps": records.loc[run, "spec.steps"]}
            if run == name:
                row["step_time_ratio"] = records.loc[name, "equal_time.time_ratio"]
            if run != arm and arm in rows.index:
                gain = paired_difference(results, losses, run, arm)
                row |= ends("gain_nats", gain) | {"interval": METHODS[gain.method]}
            found.append(row)
    return DataFrame(found)


def _published_equal_time() -> DataFrame:
    names = {"model": "run", "training_steps": "steps", "training_time": "training_time_hours"}
    return published_table("Table 3").rename(columns=names)


denseformer_equal_time = Table(
    reads=("test.csv", "run.json", "speed.csv"),
    runs=("plain-*", "dwa-*", "equal-time-*"),
    caption=(
        "A plain Transformer that trains for as long as a DenseFormer, after Table 3 of DenseFormer "
        "(arXiv:2402.02622). Its steps are those of the DenseFormer times the ratio of the two times of a step, "
        "measured beside each other on an otherwise idle machine, and its learning rate follows a schedule of its own "
        "length. The plain Transformer with as many steps stands above it: what the added steps bring by themselves. "
        "Gain is the loss of a plain run minus that of the DenseFormer, paired by seed, with its 95 % interval. "
        "Training time is that of the steps alone, as the runs themselves had it, other jobs beside them. After ±: "
        "the published standard error."
    ),
    ours=equal_time,
    published=_published_equal_time,
    columns=(
        "source run layers steps step_time_ratio training_time_s training_time_hours perplexity[]± -loss_nats "
        "gain_nats[] -interval seeds"
    ),
)


_UNITS = {TRAINING: "training_steps_per_s", FORWARD: "forward_batches_per_s", DECODE: "decoded_tokens_per_s"}


def speed(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per timed run, shallow before deep."""
    measured = speeds(results, STUDY)
    records = results.runs(STUDY, runs).drop_duplicates("run").set_index("run")
    measured = measured[measured["run"].isin(records.index) & (measured["run"].map(setting) == "main")]
    plain_of = plains(records.reset_index()) if len(records) else {}
    rows = []
    plain = measured.set_index("run")
    for row in measured.to_dict("records"):
        record = records.loc[row["run"]].to_dict()
        shown = {"run": row["run"], "variant": variant(record)}
        shown |= {"layers": record.get("spec.model.layers"), "parameters": record["parameters"]}
        partner = plain_of.get(row["run"])
        for measure, name in _UNITS.items():
            sides = (("", "_time_s"), ("_low", "_time_s_high"), ("_high", "_time_s_low"))
            shown |= {f"{name}{end}": 1 / row[f"{measure}{column}"] for end, column in sides}
            if partner is not None and partner in plain.index:
                for what, label in (("time_s", "time_ratio"), ("memory_bytes", "memory_ratio")):
                    shown[f"{measure}_{label}"] = row[f"{measure}_{what}"] / plain.loc[partner, f"{measure}_{what}"]
            shown[f"{measure}_megabytes"] = row[f"{measure}_memory_bytes"] / 1e6
        shown[f"{FORWARD}_sequences"] = row[f"{FORWARD}_sequences"]
        rows.append(shown)
    return DataFrame(rows).sort_values(["layers", "run"]) if rows else DataFrame()


def _published_speed() -> DataFrame:
    names = {"model": "run", "table_or_figure": "variant", "inference_batches_per_second": _UNITS[FORWARD]}
    names |= {"inference_batches_per_second_standard_error": f"{_UNITS[FORWARD]}_se"}
    rows = published_table("Table 1", "Table 6").rename(columns=names)
    return rows.assign(parameters=1e6 * rows["parameters"], **{f"{FORWARD}_sequences": PUBLISHED_SEQUENCES})


denseformer_speed = Table(
    reads=("run.json", "speed.csv"),
    runs=("*",),
    caption=(
        "Speed of training, scoring and decoding, after Tables 1 and 6 of DenseFormer (arXiv:2402.02622). All are "
        "measured in turns in one process on an otherwise idle machine: medians over repetitions, in brackets the "
        "quartiles. Beside them the ratio of the time to that of the plain Transformer of the same depth: below 1 is "
        "faster. A forward pass is a batch of sequences without gradients, 64 in the paper, which names no GPU and "
        "does not report decoding. The table denseformer_memory has the memory."
    ),
    ours=speed,
    published=_published_speed,
    columns=(
        "source run variant layers -parameters training_steps_per_s[] training_step_time_ratio "
        "-training_step_memory_ratio -training_step_megabytes forward_batches_per_s[] forward_time_ratio "
        "-forward_memory_ratio -forward_megabytes decoded_tokens_per_s[] decode_time_ratio -decode_memory_ratio "
        "-decode_megabytes -forward_sequences forward_batches_per_s_se"
    ),
)


denseformer_memory = Table(
    reads=("run.json", "speed.csv"),
    runs=("*",),
    caption=(
        "Peak memory of training steps, full forward passes and decoding, and its ratio to that of the plain "
        "Transformer of the same depth. It is the most that tensors hold at one time, weights included, and in "
        "training gradients and AdamW's moments."
    ),
    ours=speed,
    columns=(
        "source run variant layers training_step_megabytes training_step_memory_ratio forward_megabytes "
        "forward_memory_ratio decode_megabytes decode_memory_ratio"
    ),
)
