"""Variations of the architecture (arXiv:1706.03762, Table 3)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._translation import over_seeds
from formerlab.report.published import TRANSFORMER, published
from formerlab.results.read import Results

STUDY = "transformer"
READS = ("run.json", "eval.csv", "test.csv", "translate.csv", "bleu.csv")
RUNS = ("*",)
CAPTION = (
    "Variations of the base model on the development split, after Table 3 of arXiv:1706.03762: (A) heads, (B) key "
    "width, (C) size, (D) dropout and label smoothing, (E) learned positions. Losses and perplexities are per word "
    "piece, without label smoothing, after the last step; BLEU is sacreBLEU. The paper averages no checkpoints here; "
    "runs named averaged, and big, do before they translate. At another vocabulary, scale or language pair only the "
    "differences between rows compare with the published ones."
)
_SPEC = {"layers": "N", "width": "d_model", "heads": "h", "d_key": "d_k", "dropout": "P_drop"}
_COLUMNS = ["source", "run", "N", "d_model", "h", "d_k", "P_drop", "smoothing", "positions", "loss_nats"]
_COLUMNS += ["loss_nats_low", "loss_nats_high", "perplexity", "sacrebleu", "sacrebleu_low", "sacrebleu_high", "bleu"]
_COLUMNS += ["parameters", "seeds"]
_ROWS = ("base", "heads", "key", "layers", "width", "hidden", "dropout", "smoothing", "positions", "big")


def table(results: Results) -> DataFrame:
    """Return our runs in the order of the paper's rows, then the published ones."""
    ours = over_seeds(results, "valid")
    names = {f"spec.model.{key}": name for key, name in _SPEC.items()}
    names |= {"spec.task.label_smoothing": "smoothing", "spec.model.position.kind": "positions"}
    ours = ours.rename(columns=names)
    if len(ours):
        order = [_place(run) for run in ours["run"]]
        ours = ours.assign(order=order).sort_values(["order", "run"], ignore_index=True)
    return pd.concat([ours, _published()], ignore_index=True).reindex(columns=_COLUMNS)


def _place(run: str) -> int:
    return _ROWS.index(run.split("-")[0]) if run.split("-")[0] in _ROWS else len(_ROWS)


def _published() -> DataFrame:
    rows = published(TRANSFORMER, "Table 3")
    wide = rows.pivot_table(index="model", columns="metric", values="value", sort=False, aggfunc="first").reset_index()
    wide = wide.rename(columns={"model": "run", "perplexity_per_wordpiece": "perplexity"})
    return wide.assign(source="published", parameters=wide["parameters"].astype(float) * 1e6)
