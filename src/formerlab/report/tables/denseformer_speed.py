"""How fast and how large every model is, measured alone on the machine (arXiv:2402.02622, Tables 1 and 6)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._depth import PUBLISHED_SEQUENCES, plain_of, published_table, speeds
from formerlab.report.figures._runs import variant
from formerlab.results.measures import DECODE, FORWARD, TRAINING
from formerlab.results.read import Results

STUDY = "denseformer"
READS = ("run.json", "speed.csv")
RUNS = ("plain-*", "dwa-*", "gains-*", "connect-*", "last-*", "random-*", "softmax-*", "attention-*", "mudd-*")
CAPTION = (
    "Training steps, full forward passes and decoded tokens per second, and peak memory, of every model, measured "
    "in turns in one process on an otherwise idle machine: medians over repetitions, in brackets the quartiles. "
    "Beside them the ratio of the time and of the memory to that of the plain Transformer of the same depth: "
    "below 1 is faster or smaller. A forward pass is a batch of sequences without gradients, as many as the column "
    "says: 64 in Tables 1 and 6 of DenseFormer (arXiv:2402.02622), which does not name the GPU; decoding goes token by "
    "token with cached keys and values, which the paper does not report. Memory is the most that tensors hold at "
    "one time, weights included, and in training gradients and AdamW's moments."
)
_UNITS = {TRAINING: "training_steps_per_s", FORWARD: "forward_batches_per_s", DECODE: "decoded_tokens_per_s"}


def table(results: Results) -> DataFrame:
    """Return a row per timed run, shallow before deep, then the published batches per second."""
    measured = speeds(results, STUDY)
    runs = results.runs(STUDY, RUNS).drop_duplicates("run").set_index("run")
    measured = measured[measured["run"].isin(runs.index)]
    rows = []
    plain = measured.set_index("run")
    for row in measured.to_dict("records"):
        record = runs.loc[row["run"]].to_dict()
        shown = {"source": "ours", "run": row["run"], "variant": variant(record)}
        shown |= {"layers": record.get("spec.model.layers"), "parameters": record["parameters"]}
        partner = plain_of(row["run"])
        for measure, name in _UNITS.items():
            ends = (("", "_time_s"), ("_low", "_time_s_high"), ("_high", "_time_s_low"))
            shown |= {f"{name}{end}": 1 / row[f"{measure}{column}"] for end, column in ends}
            if partner in plain.index:
                for what, label in (("time_s", "time_ratio"), ("memory_bytes", "memory_ratio")):
                    shown[f"{measure}_{label}"] = row[f"{measure}_{what}"] / plain.loc[partner, f"{measure}_{what}"]
            shown[f"{measure}_megabytes"] = row[f"{measure}_memory_bytes"] / 1e6
        shown[f"{FORWARD}_sequences"] = row[f"{FORWARD}_sequences"]
        rows.append(shown)
    ours = DataFrame(rows).sort_values(["layers", "run"]) if rows else DataFrame(columns=["source"])
    theirs = published_table("Table 1", "Table 6").rename(columns={"model": "run", "table_or_figure": "variant"})
    theirs = theirs.rename(
        columns={
            "inference_batches_per_second": _UNITS[FORWARD],
            "inference_batches_per_second_standard_error": f"{_UNITS[FORWARD]}_se",
        }
    )
    theirs["parameters"] *= 1e6
    theirs[f"{FORWARD}_sequences"] = PUBLISHED_SEQUENCES
    kept = [name for name in (*ours.columns, f"{_UNITS[FORWARD]}_se") if name in theirs]
    return pd.concat([ours, theirs[kept]], ignore_index=True)
