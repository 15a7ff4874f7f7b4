"""What figures and tables know of a run: its name for readers, its held-out loss, its chain of ancestors."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.families import regime
from formerlab.report.names import called, names
from formerlab.results.read import Results
from formerlab.statistics import Interval, over_examples, paired_student, student, weighted_means

TRANSFORMER, TOKENFORMER = (names("projection")[kind].label for kind in ("linear", "pattention"))
DENSEFORMER = "DenseFormer"
GROWN = "grown"
TRAINED_ON = "trained on"
"""What starts from another run and has not grown."""

WIDER = {"net2net_pad": "Net2Net by padding", "net2net": "Net2Net", "hypercloning": "HyperCloning"}
"""Growth in width."""

CARRIED = (
    *("parameters", "parameters_non_embedding", "tokens", "flops", "flops_cumulative"),
    *("tokens_per_s", "training_time_s", "layers"),
)
"""Numbers of run.json that the seeds of a run share, or whose mean over seeds is shown."""


def variant(record: Mapping[Hashable, Any]) -> str:
    """Return what a reader calls the model of a run, from the flat columns of its spec."""
    if isinstance(record.get("spec.growth.keys"), str):
        return f"{GROWN}: {_growth(record)}"
    mixer = called("mixer", record, "spec.model.depth.")
    name = mixer or called("projection", record, "spec.model.projection.") or TRANSFORMER
    return f"{name}, {TRAINED_ON}" if isinstance(record.get("spec.init"), str) else name


def _growth(record: Mapping[Hashable, Any]) -> str:
    """Return what a reader calls a way to grow."""
    if (method := record.get("spec.growth.method")) in WIDER:
        noise = record.get("spec.growth.noise")
        return f"{WIDER[method]}, noise {noise:g}" if noise else WIDER[method]
    tau = {"keep": "tau kept", "sqrt": "tau sqrt(n)"}.get(str(record.get("spec.growth.tau")), "")
    carried = ", optimizer carried" if record.get("spec.growth.optimizer") == "carry" else ""
    old = record.get("spec.growth.old_tokens")
    held = ", old tokens frozen" if old == "freeze" else ""
    if isinstance(old, float) and 0 < old < 1:  # not so where the record is older than this key
        held = f", old tokens at {old:g} of the rate"
    return f"{record['spec.growth.keys']} keys, {tau}{carried}{held}"


def regime_of(record: Mapping[Hashable, Any]) -> str:
    """Return the regime of a run from the flat columns of its record (`families.regime`)."""
    schedule = {key: record.get(f"spec.schedule.{key}") for key in ("kind", "floor", "end_division")}
    return regime({"data": record["data.name"], "schedule": schedule})


def held_out_losses(results: Results, study: str, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return one row per run and seed: the columns of `Results.runs` with `variant`, `layers` and `loss_nats`.

    The loss is the mean of test.csv over tokens, in nats. Training writes the loss of a uniform guess there for a run
    that diverged.
    """
    records = results.runs(study, runs)
    if records.empty:
        return records
    rows = results.rows("test.csv", study, runs)
    records["layers"] = records.get("spec.model.layers", pd.Series(np.nan, records.index))
    records["variant"] = [variant(record) for record in records.to_dict("records")]
    records["diverged"] = records["status"] == "diverged"
    records["regime"] = [regime_of(record) for record in records.to_dict("records")]
    data = zip(records["data.name"], records["data.fingerprint"], strict=True)
    records["bytes_per_token"] = [results.bytes_per_token(name, fingerprint) for name, fingerprint in data]
    return records.join(weighted_means(rows, ["run", "seed"]), on=["run", "seed"])


def by_run(losses: DataFrame) -> DataFrame:
    """Return one row per run: mean loss over seeds with its Student interval, perplexity, and what the seeds share."""
    rows = []
    for run, group in losses.groupby("run", sort=False):
        interval = student(group["loss_nats"])
        row = {
            "source": "ours",
            "run": run,
            "variant": group["variant"].iloc[0],
            "seeds": interval.seeds,
            "diverged": int(group["diverged"].sum()),
            **ends("loss_nats", interval),
            **{name: group[name].astype(float).mean() for name in CARRIED if name in group},
        }
        row["bits_per_byte"] = bits_per_byte(interval.mean, group["bytes_per_token"].iloc[0])
        rows.append(add_perplexity(row))
    return DataFrame(rows)


def floors(results: Results, study: str, runs: Sequence[str]) -> DataFrame:
    """Return a row per model without depth (floors.csv) and data set, in the form of `by_run`."""
    rows, records = results.rows("floors.csv", study, runs), results.runs(study, runs)
    found = []
    means = weighted_means(rows, ["run", "seed", "floor"]).reset_index()
    for run, seed, floor, mean in means.itertuples(index=False, name=None):
        record = records[(records["run"] == run) & (records["seed"] == seed)].iloc[0]
        row = {"source": "ours", "run": f"{floor} on {record['data.name']}", "variant": "floor", "loss_nats": mean}
        size = results.bytes_per_token(record["data.name"], record["data.fingerprint"])
        row |= {"perplexity": math.exp(mean), "bits_per_byte": bits_per_byte(mean, size)}
        found.append(row)
    return DataFrame(found).drop_duplicates("run") if found else DataFrame()


def main_first(rows: DataFrame, *then: str) -> DataFrame:
    """Return rows of several regimes, that with the most rows first, each sorted by the columns `then`."""
    counts = rows.groupby("regime")["regime"].transform("size").astype(int)
    order = ["_count", "regime", *then]
    return rows.assign(_count=-counts).sort_values(order, ignore_index=True).drop(columns="_count")


def bits_per_byte(loss_nats: float, bytes_per_token: float) -> float:
    """Return a loss per token in bits per byte of text, which does not depend on the tokenizer."""
    return loss_nats / math.log(2) / bytes_per_token


def ends(name: str, interval: Interval) -> dict[str, float]:
    """Return a mean as `name`, with the ends of its interval as `<name>_low` and `<name>_high`."""
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def ends_over_seeds(name: str, differences: Mapping[int, float]) -> dict[str, float]:
    """Return the mean of values by seed as `name`, with the ends of its 95 % Student t interval."""
    return ends(name, student([differences[seed] for seed in sorted(differences)])) if differences else {}


def add_perplexity(row: dict[str, Any]) -> dict[str, Any]:
    """Add exp of the mean loss and of the ends of its interval."""
    return row | {f"perplexity{end}": float(np.exp(row[f"loss_nats{end}"])) for end in ("", "_low", "_high")}


def parent(losses: DataFrame, run: str) -> str | None:
    """Return the run that `run` grew from, where it is among `losses`."""
    if "init.id" not in losses:
        return None
    ids = losses.loc[losses["run"] == run, "init.id"].dropna()
    name = ids.iloc[0].split("/")[1] if len(ids) else None
    return name if name in set(losses["run"]) else None


def chain(losses: DataFrame, run: str) -> list[str]:
    """Return `run` preceded by its ancestors, the oldest first."""
    names = [run]
    while (name := parent(losses, names[0])) is not None and name not in names:
        names.insert(0, name)
    return names


def n_seeds(counts: Iterable[float]) -> str:
    """Say how many seeds stand behind what is drawn, such as `n = 3 seeds` or `n = 1 to 3 seeds`."""
    known = sorted({int(count) for count in counts if not np.isnan(count)})
    number = f"{known[0]}" if len(known) == 1 else f"{known[0]} to {known[-1]}"
    return f"n = {number} seed{'s' if known[-1] > 1 else ''}"


def seed_notes(rows: DataFrame) -> list[str]:
    """Return how many seeds stand behind ours, what bars and bands mean, and which runs diverged, for a caption."""
    ours = rows[rows["source"].eq("ours")]
    means = ours[ours["part"].ne("seed")] if "part" in ours else ours
    counts = means["seeds"].dropna() if "seeds" in means else means.get("none", pd.Series(dtype=float))
    if counts.empty:
        return []
    ends = [name for name in means if str(name).endswith("_low") and means[name].notna().any()]
    spread = "bars and bands: 95 % Student t interval over seeds; dots and thin lines: seeds"
    if counts.max() == 1:
        spread = "bars: 95 % bootstrap over examples, of these models alone" if ends else "no interval"
    notes = [f"{n_seeds(counts)}; {spread}."]
    diverged = means[means["diverged"] > 0] if "diverged" in means else means[:0]
    if len(diverged):
        names = ", ".join(f"{row.run} ({row.diverged:.0f} of {row.seeds:.0f} seeds)" for row in diverged.itertuples())
        notes.append(f"Diverged, counted as a uniform guess: {names}.")
    return notes


def missing_note(present: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return a note naming what has no finished run; a wanted name may be the beginning of one that is present."""
    absent = [name for name in wanted if not any(have.startswith(name) for have in present)]
    return [f"Missing, no finished runs: {', '.join(absent)}."] if absent else []


def held_out(losses: DataFrame, run: str) -> dict[int, float]:
    """Return a run's held-out loss by seed."""
    rows = losses[losses["run"] == run]
    return dict(zip(rows["seed"].astype(int), rows["loss_nats"].astype(float), strict=True))


def minus(a: dict[int, float], b: dict[int, float]) -> dict[int, float]:
    """Return a - b for the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in a.keys() & b.keys()}


def paired_difference(results: Results, losses: DataFrame, a: str, b: str) -> Interval:
    """Return the held-out loss of run a minus that of run b, paired by seed.

    With a single shared seed the interval is a bootstrap over windows: it speaks of these two models alone.
    """
    of_a, of_b = (held_out(losses, run) for run in (a, b))
    interval = paired_student(of_a, of_b)
    if interval.seeds != 1:
        return interval
    seed = min(set(of_a) & set(of_b))
    rows = results.rows("test.csv", losses["study"].iloc[0], (a, b))
    rows = rows[rows["seed"] == seed]
    pairs = rows[rows["run"] == a].merge(rows[rows["run"] == b], on=["window", "tokens"], suffixes=("_a", "_b"))
    differences = (pairs["loss_nats_a"] - pairs["loss_nats_b"]).to_numpy()
    return over_examples(differences[None, :], pairs["tokens"].to_numpy(dtype=float)) if len(pairs) else interval


def quantity(value: float) -> str:
    """Return a count with k, M or B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.0f}"


def short(value: float, digits: int = 2) -> str:
    """Return a count in a few digits, with k, M or B."""
    return quantity(float(f"{value:.{digits}g}"))
