"""Tables of the translation study (arXiv:1706.03762)."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from pandas import DataFrame

from formerlab.report.drawings import Table
from formerlab.report.published import TRANSFORMER, published
from formerlab.report.transformer import complexity, over_seeds
from formerlab.results.read import Results

STUDY = "transformer"


def bleu(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return our runs."""
    return over_seeds(results, "test", runs).rename(columns={"data.name": "data"})


def _published_bleu() -> DataFrame:
    rows = published(TRANSFORMER, "Table 2")
    names = {("bleu", True): "bleu_en_de", ("bleu", False): "bleu_en_fr"}
    found: dict[str, dict[str, object]] = {}
    for row in rows[["model", "setting", "metric", "value"]].astype(str).to_dict("records"):
        place = found.setdefault(row["model"], {"run": row["model"]})
        to_german = "En-De" in row["setting"]
        name = "flops" if row["metric"] == "training_cost" else names[row["metric"], to_german]
        if name != "flops" or to_german or "flops" not in place:
            place[name] = float(row["value"])
    return DataFrame(list(found.values()))


transformer_bleu = Table(
    reads=("run.json", "test.csv", "translate.csv", "bleu.csv"),
    runs=("*",),
    caption=(
        "Translations of the test split and what training cost, after Table 2 of arXiv:1706.03762. The column "
        "sacrebleu is the score to compare with others; its signature stands in translate.json of each run. "
        "compound_split is tokenised, with hyphenated compounds split, as the 2017 paper reports (there with Moses' "
        "tokenizer and a tweaked reference: up to 1.5 BLEU more than sacreBLEU); tokenized_lowercase is what most "
        "tutorials report. exact is the share of translations equal to the reference, which means something on the "
        "embedded task alone. Perplexity is per word piece, so it compares within one vocabulary only. Scores of "
        "another data set or language pair do not compare with the published ones."
    ),
    ours=bleu,
    published=_published_bleu,
    columns=(
        "source run -data regime sacrebleu[] compound_split -tokenized_lowercase exact_percent bleu_en_de bleu_en_fr "
        "perplexity -parameters flops seeds"
    ),
)


_SPEC = {"layers": "N", "width": "d_model", "heads": "h", "d_key": "d_k", "dropout": "P_drop"}
_ROWS = ("base", "heads", "key", "layers", "width", "hidden", "dropout", "smoothing", "positions", "big")


def variations(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return our runs in the order of the paper's rows."""
    ours = over_seeds(results, "valid", runs)
    names = {f"spec.model.{key}": name for key, name in _SPEC.items()}
    names |= {"spec.task.label_smoothing": "smoothing", "spec.model.position.kind": "positions"}
    ours = ours.rename(columns=names)
    if len(ours):
        order = [_place(run) for run in ours["run"]]
        ours = ours.assign(order=order).sort_values(["regime", "order", "run"], ignore_index=True)
        settings = ours.reindex(columns=[*_SPEC.values(), "smoothing", "positions"])
        base = settings[ours["run"].isin(["base", "settled-base"])].head(1)
        ours["change"] = [_change(row, base) for row in settings.to_dict("records")]
    return ours


def _change(row: dict[Hashable, Any], base: DataFrame) -> str:
    """Return what differs from the base model, such as `h = 1`."""
    old = {str(name): values.iloc[0] for name, values in base.items()} if len(base) else {}
    return ", ".join(f"{key} = {row[key]}" for key in old if str(row[key]) != str(old[key]))


def _place(run: str) -> int:
    return _ROWS.index(run.split("-")[0]) if run.split("-")[0] in _ROWS else len(_ROWS)


def _published_variations() -> DataFrame:
    rows = published(TRANSFORMER, "Table 3")
    wide = rows.pivot_table(index="model", columns="metric", values="value", sort=False, aggfunc="first").reset_index()
    wide = wide.rename(columns={"model": "run", "perplexity_per_wordpiece": "perplexity"})
    return wide.assign(parameters=wide["parameters"].astype(float) * 1e6)


transformer_variations = Table(
    reads=("run.json", "eval.csv", "test.csv", "translate.csv", "bleu.csv"),
    runs=("*",),
    caption=(
        "Variations of the base model on the development split, after Table 3 of arXiv:1706.03762: (A) heads, (B) key "
        "width, (C) size, (D) dropout and label smoothing, (E) learned positions. Losses and perplexities are per "
        "word piece, without label smoothing, after the last step; BLEU is sacreBLEU. The paper averages no "
        "checkpoints here; runs named averaged, and big, do before they translate. At another vocabulary, scale or "
        "language pair only the differences between rows compare with the published ones."
    ),
    ours=variations,
    published=_published_variations,
    columns=(
        "source run regime change -N -d_model -h -d_k -P_drop -smoothing -positions loss_nats[] perplexity sacrebleu[] "
        "bleu parameters seeds"
    ),
)


THEORY = {
    "self_attention": (2, 1, "O(n^2 d)", "O(1)", "O(1)"),
    "recurrent": (1, 2, "O(n d^2)", "O(n)", "O(n)"),
    "convolution": (1, 2, "O(k n d^2)", "O(1)", "O(log_k n)"),
    "restricted": (1, 1, "O(r n d)", "O(1)", "O(n/r)"),
}
"""Exponents of n and d, complexity, sequential operations and maximum path length as published."""


def layers(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per layer type."""
    rows = complexity(results, runs)
    ours = []
    for name, group in rows.groupby("operation", sort=False):
        row: dict[str, object] = {"layer": name}
        for axis in ("n", "d"):
            points = group[group["axis"] == axis]
            for column, label in (("multiply_adds", "counted"), ("time_s", "time"), ("memory_bytes", "memory")):
                row[f"{label}_exponent_{axis}"] = slope(points, axis, column)
        ours.append(row | {"longest_path": int(group["path"].max())})
    return DataFrame(ours)


def _published_layers() -> DataFrame:
    names = ("layer", "counted_exponent_n", "counted_exponent_d", "complexity", "sequential", "longest_path")
    return DataFrame([dict(zip(names, (layer, *cells), strict=True)) for layer, cells in THEORY.items()])


def slope(points: DataFrame, axis: str, column: str) -> float:
    """Return the least-squares slope of ln(column) on ln(axis)."""
    if points[axis].nunique() < 2:
        return float("nan")
    return float(np.polyfit(np.log(points[axis].astype(float)), np.log(points[column].astype(float)), 1)[0])


transformer_layers = Table(
    reads=("complexity.csv", "run.json"),
    runs=("*",),
    caption=(
        "The four layer types of Table 1 of arXiv:1706.03762: slopes of the logarithm of counted multiply-adds, "
        "measured time and held memory on the logarithm of length n and of width d, beside the exponents of the "
        "table. The table leaves out the projections of self-attention, O(n d^2), and so do the counts; time follows "
        "the exponents only where the operation is large. The longest path is found by search and shown at the "
        "largest length."
    ),
    ours=layers,
    published=_published_layers,
)
