"""What the figures and tables of DenseFormer share: a run's plain partner, what mixing gains, how fast a run is."""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.families import setting
from formerlab.report.published import DENSEFORMER, published
from formerlab.report.runs import by_run, ends, held_out_losses, paired_difference, regime_of
from formerlab.results.read import Results
from formerlab.results.schema import DECODE, FORWARD, TRAINING

PUBLISHED_SEQUENCES = 64.0
"""Sequences of a full forward pass in Tables 1 and 6 of arXiv:2402.02622."""

_OWN_PLAIN = ("small-batch", "long-context", "long", "books", "modern")
"""Settings that have a plain Transformer of their own; the others are compared with that of the main ones."""

METHODS = {"student": "over seeds", "bootstrap": "over windows, these two models only", "none": "none"}
"""What an interval speaks of."""


def at_last_step(rows: DataFrame) -> DataFrame:
    """Return the mixing weights at the end of training, of the rows of depth.csv at every evaluation."""
    if "step" not in rows:  # rows older than this column hold the final weights alone
        return rows
    last = rows.groupby(["run", "seed"])["step"].transform("max")
    return rows[rows["step"].isna() | (rows["step"] == last)]


def plains(records: DataFrame) -> dict[str, str]:
    """Return, by run, the plain Transformer of the same depth, data, batch and backbone, if any.

    Of several it is the one with the run's learning rate. Where each has a rate of its own, found for it, there is one.
    """
    plain: dict[tuple[str, ...], str] = {}
    for record in records[records["spec.model.depth.kind"] == "identity"].to_dict("records"):
        if setting(record["run"]) in ("main", *_OWN_PLAIN):
            for key in (_like(record), _like(record)[:3]):
                plain.setdefault(key, record["run"])
    partners: dict[str, str] = {}
    for row in records.to_dict("records"):
        key = _like(row)
        partner = plain.get(key) or (None if key[1] == "modern" else plain.get(key[:3]))
        partners |= {row["run"]: partner} if partner else {}
    return partners


def _like(record: Mapping[Hashable, Any]) -> tuple[str, ...]:
    where, layers = setting(record["run"]), str(record["spec.model.layers"])
    where = where if where in _OWN_PLAIN else "main"
    return regime_of(record), where, layers, str(record.get("spec.optimizer.lr"))


def gains(results: Results, study: str, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, by depth: its loss, and how much lower than its plain Transformer's it is, in nats.

    The difference is paired by seed; `interval` says what its interval speaks of.
    """
    losses = held_out_losses(results, study)
    if losses.empty:
        return DataFrame()
    chosen, plain_of = set(results.runs(study, runs)["run"]), plains(losses)
    rows, regimes = [], dict(zip(losses["run"], losses["regime"], strict=True))
    for row in by_run(losses).to_dict("records"):
        if row["run"] not in chosen:
            continue
        row |= {"setting": setting(row["run"]), "plain": plain_of.get(row["run"]), "regime": regimes[row["run"]]}
        if row["plain"] not in (None, row["run"]):
            gain = paired_difference(results, losses, row["plain"], row["run"])
            row |= ends("gain_nats", gain) | {"interval": METHODS[gain.method]}
        rows.append(row)
    return DataFrame(rows).sort_values(["layers", "run"], ignore_index=True) if rows else DataFrame()


def with_seeds(rows: DataFrame, losses: DataFrame, shared: Sequence[str]) -> DataFrame:
    """Return rows of runs, `part` is mean, and below them a row per seed, `part` is seed, with the `shared` columns."""
    seeds = losses[["run", "seed", "loss_nats"]].merge(rows[["run", *shared]], on="run")
    return pd.concat([rows.assign(part="mean"), seeds.assign(part="seed")], ignore_index=True)


def speeds(results: Results, study: str) -> DataFrame:
    """Return a row per timed run: median and quartiles of the times and of the bytes of each measure.

    Columns are `<measure>_time_s`, `..._time_s_low`, `..._time_s_high`, `<measure>_memory_bytes`, and
    `<measure>_sequences`, the number that is trained on, scored or decoded at a time.
    """
    rows = results.rows_of_study("speed.csv", study)
    columns: dict[str, dict[str, float]] = {}
    for (run, measure), group in rows.groupby(["run", "measure"], sort=False):
        low, middle, high = np.quantile(group["time_s"], (0.25, 0.5, 0.75))
        found = columns.setdefault(str(run), {})
        found |= {f"{measure}_time_s": middle, f"{measure}_time_s_low": low, f"{measure}_time_s_high": high}
        found[f"{measure}_memory_bytes"] = float(group["memory_bytes"].median())
        found[f"{measure}_sequences"] = float(group["sequences"].median())
    measures = (TRAINING, FORWARD, DECODE)
    what = ("time_s", "time_s_low", "time_s_high", "memory_bytes", "sequences")
    wanted = [f"{measure}_{name}" for measure in measures for name in what]
    table = DataFrame.from_dict(columns, orient="index").reindex(columns=wanted)
    return table.rename_axis("run").reset_index().astype({"run": str})


def published_table(*places: str) -> DataFrame:
    """Return tables of the paper, a row per place, model and setting, with `perplexity` and its standard error."""
    rows = published(DENSEFORMER, *places)
    names = {"perplexity_standard_error": "perplexity_se", "perplexity_uncertainty": "perplexity_se"}
    rows = rows.assign(value=pd.to_numeric(rows["value"]), metric=rows["metric"].replace(names))
    wide = rows.pivot_table("value", ["table_or_figure", "model", "setting"], "metric", sort=False)
    return wide.reset_index().assign(source="published").rename_axis(columns=None)


def published_depths() -> DataFrame:
    """Return Table 1 of the paper, a row per model."""
    table = published(DENSEFORMER, "Table 1").assign(value=lambda rows: rows["value"].astype(float))
    wide = table.pivot(index="model", columns="metric", values="value").loc[table["model"].unique()]
    names = [re.fullmatch(r"(.+) (\d+) blocks", model) for model in wide.index]
    return DataFrame(
        {
            "source": "published",
            "run": wide.index,
            "variant": [name[1] for name in names if name],
            "layers": [float(name[2]) for name in names if name],
            "perplexity": wide["perplexity"],
            "perplexity_se": wide["perplexity_standard_error"],
            "parameters": wide["parameters"] * 1e6,
            "inference_batches_per_s": wide["inference_batches_per_second"],
            f"{FORWARD}_sequences": PUBLISHED_SEQUENCES,
        }
    ).reset_index(drop=True)
