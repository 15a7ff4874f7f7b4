"""Score functions and block norms on language (Tokenformer, arXiv:2410.23168, Tables 4 and 5)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._runs import by_run, held_out_losses
from formerlab.report.figures._tokenformer import held_out, minus
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.tables._paired import ends
from formerlab.results.read import Results

STUDY = "tokenformer"
READS = ("test.csv", "run.json")
RUNS = ("score-*", "layernorm-*")
CAPTION = (
    "Score functions and block norms of a Tokenformer from scratch on language, after Tables 4 and 5 of Tokenformer "
    "(arXiv:2410.23168), which are on ImageNet: held-out loss, and its difference to the default of each block "
    "(score-l2_gelu, layernorm-none), paired by seed; above zero is worse. In brackets: 95 % Student t interval over "
    "seeds. All arms have one learning rate, that of the study. exp_l1 is softmax times n, the row exp + L1 of the "
    "paper; gelu_l1 is our reading of a row that neither official code has. Published: top-1 accuracy on ImageNet."
)
DEFAULTS = {"score": "score-l2_gelu", "layernorm": "layernorm-none"}


def table(results: Results) -> DataFrame:
    """Return a row per arm, by block and loss, then the published accuracies."""
    losses = held_out_losses(results, STUDY, RUNS)
    ours = _ours(losses) if len(losses) else DataFrame(columns=["source"])
    return pd.concat([ours, _published()], ignore_index=True)


def _ours(losses: DataFrame) -> DataFrame:
    rows = []
    for row in by_run(losses).to_dict("records"):
        block = str(row["run"]).partition("-")[0]
        default = DEFAULTS[block]
        difference = minus(held_out(losses, str(row["run"])), held_out(losses, default))
        shared = {"source": "ours", "block": block, "run": row["run"]}
        numbers = {key: row[key] for key in ("loss_nats", "loss_nats_low", "loss_nats_high", "perplexity")}
        numbers |= ends("loss_minus_default_nats", difference) if row["run"] != default else {}
        rows.append(shared | numbers | {"seeds": row["seeds"], "diverged": row["diverged"] or None})
    return DataFrame(rows).sort_values(["block", "loss_nats"], ascending=[False, True], ignore_index=True)


def _published() -> DataFrame:
    rows = published(PAPER, "Table 4", "Table 5")
    return DataFrame(
        {
            "source": "published",
            "block": rows["table_or_figure"],
            "run": rows["model"],
            "ImageNet top-1 (%)": rows["value"].astype(float),
        }
    )
