"""Read rows for figures and tables: labels of runs, means over seeds, differences paired by seed.

Rows are tidy. `source` is `ours` or `published`; `part` is `mean` for a mean over seeds and `seed` for the value of one
seed. Runs with the same seed share data and batches, so differences are paired by seed before they are averaged.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns
from formerlab.report.columns import count
from formerlab.report.families import regime
from formerlab.report.names import kind_label, variant_styles
from formerlab.results.read import Results
from formerlab.statistics import Interval, over_examples, student, weighted_means

TRANSFORMER, TOKENFORMER = (variant_styles()["projection"][kind].label for kind in ("linear", "pattention"))
DENSEFORMER = "DenseFormer"
GROWN = "grown"
TRAINED_FURTHER = "trained further"
"""Label of a run that starts from another run without growth."""

WIDER = {"net2net_pad": "Net2Net by padding", "net2net": "Net2Net", "hypercloning": "HyperCloning"}
"""Labels of the methods that grow the width."""

INTERVALS = {"student": "over seeds", "bootstrap": "over {}, these two models only", "none": "none"}
"""The meaning of the interval of a difference, by its method."""

RUN_COLUMNS = (
    *("parameters", "parameters_non_embedding", "tokens", "flops", "flops_cumulative"),
    *("tokens_per_s", "training_time_s", "layers"),
)
"""Numbers of run.json that tables and figures show, as means over seeds."""


def variant_label(record: Mapping[Any, Any]) -> str:
    """Return the label of a run's model, from the flat columns of its spec."""
    if isinstance(record.get("spec.growth.keys"), str):
        return f"{GROWN}: {_growth_label(record)}"
    mixer = kind_label("mixer", record, "spec.model.depth.")
    name = mixer or kind_label("projection", record, "spec.model.projection.") or TRANSFORMER
    return f"{name}, {TRAINED_FURTHER}" if isinstance(record.get("spec.init"), str) else name


def _growth_label(record: Mapping[Any, Any]) -> str:
    """Return the label of a way to grow."""
    if (method := record.get("spec.growth.method")) in WIDER:
        noise = record.get("spec.growth.noise")
        return f"{WIDER[method]}, noise {noise:g}" if noise else WIDER[method]
    tau, old = {"sqrt": "sqrt(n)", "keep": "kept"}[record["spec.growth.tau"]], record.get("spec.growth.old_tokens")
    state_kept = ", optimizer state kept" * (record.get("spec.growth.optimizer") == "carry")
    slower = isinstance(old, float) and 0 < old < 1  # older records do not have this key
    slowed = f", old tokens at {old:g} of the rate" if slower else ", old tokens frozen" * (old == "freeze")
    return f"{record['spec.growth.keys']} keys, tau {tau}{state_kept}{slowed}"


def cached_reader(read: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    """Cache the rows that a function returns for the same results and arguments; every caller gets a copy."""
    cached = lru_cache(maxsize=64)(read)  # the figures of a study read the same runs many times

    @wraps(read)
    def read_copy(results: Results, *arguments: str | Sequence[str]) -> DataFrame:
        return cached(results, *(value if isinstance(value, str) else tuple(value) for value in arguments)).copy()

    return read_copy


@cached_reader
def load_runs(results: Results, study: str, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return the rows of `Results.runs`, one per run and seed, with the further columns `variant`, `layers`, `regime`,
    `diverged` and `bytes_per_token`.
    """
    records = results.runs(study, runs)
    if records.empty:
        return records
    missing, dictionaries = pd.Series(np.nan, records.index), records.to_dict("records")
    return records.assign(
        layers=records.get("spec.model.layers", missing),
        variant=[variant_label(record) for record in dictionaries],
        diverged=records["status"] == "diverged",
        regime=[_regime(record) for record in dictionaries],
        bytes_per_token=records.get("bytes_per_token", missing).astype(float),
    )


def _regime(record: Mapping[Any, Any]) -> str:
    schedule = {key: record.get(f"spec.schedule.{key}") for key in ("kind", "floor", "end_division")}
    return regime({"data": record["data.name"], "schedule": schedule})


@cached_reader
def held_out_losses(results: Results, study: str, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return the rows of `load_runs` with `loss_nats`, the mean over tokens of test.csv, in nats.

    For a run that diverged, training writes the loss of a uniform guess to test.csv.
    """
    records = load_runs(results, study, runs)
    if records.empty:
        return records
    return records.join(weighted_means(results.rows("test.csv", study, runs), ["run", "seed"]), on=["run", "seed"])


@cached_reader
def comparable_losses(results: Results, study: str, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return `held_out_losses` on comparable text.

    The column `lent` is true for runs whose tokenizer comes from another data set. Their loss is on the test text of
    that data set (lender_test.csv), and their `bytes_per_token` is unknown.
    """
    losses, rows = held_out_losses(results, study, runs), results.rows("lender_test.csv", study, runs)
    if losses.empty or rows.empty:
        return losses.assign(lent=False)
    lent = losses[["run", "seed"]].join(weighted_means(rows, ["run", "seed"]), on=["run", "seed"])["loss_nats"]
    bytes_per_token = losses["bytes_per_token"].where(lent.isna())  # unknown for the text of the other data set
    return losses.assign(lent=lent.notna(), loss_nats=lent.fillna(losses["loss_nats"]), bytes_per_token=bytes_per_token)


@cached_reader
def validation_losses(results: Results, study: str, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return the validation loss of every run, seed and evaluated step: the mean over tokens of eval.csv, in nats."""
    rows = results.rows("eval.csv", study, runs)
    return weighted_means(rows[rows["split"] == "valid"], ["run", "seed", "step"]).reset_index()


def last_step_rows(curves: DataFrame) -> DataFrame:
    """Return the rows of the last step of each run and seed."""
    return curves[curves["step"] == curves.groupby(["run", "seed"])["step"].transform("max")]


def means_by_run(rows: DataFrame, values: Sequence[str] = ("loss_nats",), first: Iterable[str] = ()) -> DataFrame:
    """Return a row per run with the mean of each value over seeds, Student's interval, and the columns RUN_COLUMNS.

    `rows` has one row per run and seed (`load_runs`). `first` lists further columns, copied from the first seed.
    """
    means = []
    for run, group in rows.groupby("run", sort=False):
        row: dict[str, Any] = {"source": "ours", "run": run, "variant": group["variant"].iloc[0]}
        row |= {"seeds": len(group), "diverged": int(group["diverged"].sum())}
        for value in values:
            row |= estimate(value, student(group[value]))
        row |= {name: group[name].astype(float).mean() for name in RUN_COLUMNS if name in group}
        means.append(row | {name: group[name].iloc[0] for name in ("bytes_per_token", *first) if name in group})
    return with_perplexity(DataFrame(means))


def with_perplexity(rows: DataFrame) -> DataFrame:
    """Add the perplexity with its interval ends, and the bits per byte of text, both computed from `loss_nats`."""
    rows = rows.assign(bits_per_byte=rows["loss_nats"] / math.log(2) / rows.pop("bytes_per_token"))
    ends = [end for end in ("", "_low", "_high") if f"loss_nats{end}" in rows]
    return rows.assign(**{f"perplexity{end}": np.exp(rows[f"loss_nats{end}"]) for end in ends})


def with_seeds(rows: DataFrame, losses: DataFrame, shared: Sequence[str]) -> DataFrame:
    """Return `rows`, one per run (`part` is `mean`), then a row per run and seed (`part` is `seed`) with its loss and
    the `shared` columns of the run.
    """
    seeds = losses[["run", "seed", "loss_nats"]].merge(rows[["run", *shared]], on="run")
    return pd.concat([rows.assign(part="mean"), seeds.assign(part="seed")], ignore_index=True)


def baselines(results: Results, study: str, runs: Sequence[str]) -> DataFrame:
    """Return the rows of floors.csv, one per baseline, data set and window; `run` is `<baseline> on <data set>`."""
    rows = results.rows("floors.csv", study, runs)
    of_run = load_runs(results, study, runs).set_index(["run", "seed"])[["data.name", "bytes_per_token"]]
    rows = rows.join(of_run, on=["run", "seed"]).drop_duplicates(["floor", "data.name", "window"])
    return rows.assign(run=rows["floor"] + " on " + rows["data.name"], variant="floor")


def language_baselines(results: Results, study: str, runs: Sequence[str]) -> DataFrame:
    """Return a row per language baseline and data set, with `loss_nats`, `perplexity` and `bits_per_byte`."""
    rows = baselines(results, study, runs)
    return with_perplexity(weighted_means(rows, ["run", "variant", "bytes_per_token"]).reset_index())


def sort_by_regime(rows: DataFrame, *columns: str) -> DataFrame:
    """Return the rows sorted by regime, with the most frequent regime first, then by `columns`."""
    counts = rows.groupby("regime")["regime"].transform("size").astype(int)
    order = ["_count", "regime", *columns]
    return rows.assign(_count=-counts).sort_values(order, ignore_index=True).drop(columns="_count")


def estimate(name: str, interval: Interval) -> dict[Any, Any]:
    """Return a mean as `name`, with the ends of its interval as `<name>_low` and `<name>_high`."""
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def by_seed(losses: DataFrame, run: str | None, value: str = "loss_nats") -> "pd.Series[float]":
    """Return the column `value` of a run by seed, by default its loss."""
    return losses[losses["run"] == run].set_index("seed")[value].astype(float).sort_index()


def subtract(a: "pd.Series[float]", b: "pd.Series[float]") -> "pd.Series[float]":
    """Return a - b for the seeds that both have."""
    return (a - b).loc[a.index.intersection(b.index)]


def difference(
    rows: DataFrame, a: str | None, b: str | None, name: str, value: str = "loss_nats", results: Results | None = None
) -> dict[Any, Any]:
    """Return the value of run a minus the value of run b, paired by seed, as `name` with its interval ends.

    Return {} if a is b or the runs share no seed. With `results`, the key `interval` names the unit of the interval:
    seeds if the runs share at least two; otherwise test windows or images, which excludes the variance between seeds.
    It is `none` if there are no test rows.
    """
    values = subtract(by_seed(rows, a, value), by_seed(rows, b, value))
    interval = student(values)
    if a == b or values.empty or results is None:
        return {} if a == b or values.empty else estimate(name, interval)
    if interval.seeds == 1:
        tests = results.rows("test.csv", rows["study"].iloc[0], [str(a), str(b)])
        tests = tests[tests["seed"] == values.index[0]]
        tests = tests.assign(top1_percent=100.0 * (tests["rank"] == 0)) if "rank" in tests else tests
        rows_a, rows_b = (tests[tests["run"] == run] for run in (a, b))
        pairs = rows_a.merge(rows_b, on=["window", "tokens"], suffixes=("_a", "_b"))
        if len(pairs):
            by_example = (pairs[f"{value}_a"] - pairs[f"{value}_b"]).to_numpy()
            interval = over_examples(by_example[None, :], pairs["tokens"].to_numpy(dtype=float))
    meaning = INTERVALS[interval.method].format("images" if value == "top1_percent" else "windows")
    return estimate(name, interval) | {"interval": meaning}


def with_difference(
    rows: DataFrame,
    losses: DataFrame,
    a: str,
    b: str,
    name: str,
    value: str = "loss_nats",
    results: Results | None = None,
) -> DataFrame:
    """Return rows with the columns of `difference`, from the runs in the columns `a` and `b`. The cells of a row are
    empty if `difference` returns {}.
    """
    pairs = rows[[a, b]].to_numpy()
    differences = [difference(losses, first, second, name, value, results) for first, second in pairs]
    columns = [*expand_columns(f"{name}[]"), *(["interval"] if results else [])]
    return rows.join(DataFrame(differences, rows.index, columns))


def summarize(
    rows: DataFrame, value: str, by: Sequence[str], minus: Mapping[Any, str] | None = None, name: str = ""
) -> DataFrame:
    """Return the mean over seeds of a value for each group of `by`, then its values by seed.

    `rows` has one value per group and seed (`statistics.weighted_means`). `minus` maps each run to a reference run. The
    value of the reference with the same seed (and the same step, or other keys of `by`) is subtracted. Runs that are
    not in `minus` are left out. `name` is the column of the result, by default `value`.
    """
    name = name or value
    if minus is not None:
        keys = ["seed", *(key for key in by if key != "run")]
        references = rows.drop_duplicates(["run", *keys]).set_index(["run", *keys])[value]
        rows = rows[rows["run"].isin(list(minus))]
        index = list(zip(rows["run"].map(minus), *(rows[key] for key in keys), strict=True))
        rows = rows.assign(**{value: rows[value] - references.reindex(index).to_numpy()}).dropna(subset=value)
    means = []
    for key, group in rows.groupby([*by], sort=False, dropna=False):
        interval = student(group[value])
        means.append(dict(zip(by, key, strict=True)) | estimate(name, interval) | {"seeds": interval.seeds})
    seeds = rows[[*by, "seed", value]].rename(columns={value: name}).assign(part="seed")
    table = pd.concat([DataFrame(means).assign(part="mean"), seeds], ignore_index=True)
    table.insert(0, "source", "ours")
    return table


def differences(
    losses: DataFrame,
    pairs: DataFrame,
    a: str,
    b: str,
    name: str = "difference_nats",
    value: str = "loss_nats",
    results: Results | None = None,
) -> DataFrame:
    """Return the difference of a value for each row of `pairs`: the run in column `a` minus the run in column `b`.

    A row per seed (`part` is `seed`) is followed by the mean with the interval of `difference` (`part` is `mean`).
    """
    rows = []
    for pair in pairs.to_dict("records"):
        shared = {"source": "ours"} | pair
        values = subtract(by_seed(losses, pair[a], value), by_seed(losses, pair[b], value))
        rows += [shared | {"part": "seed", "seed": seed, name: number} for seed, number in values.items()]
        if mean := difference(losses, pair[a], pair[b], name, value, results):
            rows.append(shared | {"part": "mean", "seeds": len(values)} | mean)
    return DataFrame(rows)


def differences_by_step(curves: DataFrame, pairs: DataFrame, a: str, b: str, name: str) -> DataFrame:
    """Return `differences` of the validation losses in `curves` (`validation_losses`) for each `step`."""
    steps = [differences(losses, pairs, a, b, name).assign(step=step) for step, losses in curves.groupby("step")]
    return pd.concat(steps, ignore_index=True) if steps else DataFrame()


def parent_run(losses: DataFrame, run: str) -> str | None:
    """Return the run from which `run` started, or None if it is not among `losses`."""
    if "init.id" not in losses:
        return None
    ids = losses.loc[losses["run"] == run, "init.id"].dropna()
    name = ids.iloc[0].split("/")[1] if len(ids) else None
    return name if name in set(losses["run"]) else None


def lineage(losses: DataFrame, run: str) -> list[str]:
    """Return the ancestors of `run`, oldest first, followed by `run`."""
    names = [run]
    while (name := parent_run(losses, names[0])) is not None and name not in names:
        names.insert(0, name)
    return names


def seed_count(counts: Iterable[float]) -> str:
    """Return the number of seeds in words, such as `n = 3 seeds` or `n = 1 to 3 seeds`."""
    numbers = sorted({int(count) for count in counts if not np.isnan(count)}) or [0]
    text = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    return f"n = {text} seed{'' if numbers[-1] == 1 else 's'}"


def seed_notes(rows: DataFrame) -> list[str]:
    """Return notes for a caption: the number of seeds, the meaning of bars and bands, and the runs that diverged.

    `rows.attrs["marks"]`, if set, is the set of marks to explain: bars, bands, dots and thin lines.
    """
    marks = rows.attrs.get("marks", {"bars", "bands", "dots", "thin lines"})
    intervals, seeds = (
        " and ".join(name for name in names if name in marks) for names in (("bars", "bands"), ("dots", "thin lines"))
    )
    of_seeds = f"; {seeds}: seeds" * bool(seeds)
    ours = rows[rows["source"].eq("ours")]
    means = ours[ours["seed"].isna()] if "seed" in ours else ours
    counts = means.get("seeds", pd.Series(dtype=float)).dropna()
    if counts.empty:
        return []
    lows = [name for name in means if str(name).endswith("_low") and means[name].notna().any()]
    interval = "no interval"
    if lows and not intervals:
        interval = of_seeds.removeprefix("; ")
    elif any(str(name).endswith("_pooled_low") for name in lows):
        interval = (
            "thick bars: 95 % interval with the spread of similar runs, as used for verdicts; thin bars: Student t "
            f"interval of these seeds alone{of_seeds}"
        )
    elif lows and counts.max() > 1:
        interval = f"{intervals}: 95 % Student t interval over seeds{of_seeds}"
    elif "interval" in means and means["interval"].notna().any():
        interval = "bars: 95 % bootstrap interval over test examples, for these models only"
    notes = [f"{'; '.join(filter(None, (seed_count(counts), interval)))}."]
    diverged = means[means["diverged"] > 0] if "diverged" in means else means[:0]
    if len(diverged):
        names = ", ".join(f"{row.run} ({row.diverged:.0f} of {row.seeds:.0f} seeds)" for row in diverged.itertuples())
        notes.append(f"Diverged, counted as a uniform guess: {names}.")
    return notes


def format_count(value: float, digits: int = 2) -> str:
    """Return a count with `digits` significant digits and the suffix k, M or B."""
    return count(float(f"{value:.{digits}g}"))
