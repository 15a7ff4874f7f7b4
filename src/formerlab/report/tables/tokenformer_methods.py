"""Growth by tokens against growth in width (Tokenformer, arXiv:2410.23168, Table 8)."""

from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.report.figures._formulas import shape_of
from formerlab.report.figures._runs import add_perplexity, held_out_losses
from formerlab.report.figures._tokenformer import held_out, minus
from formerlab.report.figures.tokenformer_rivals import METHODS, STAGES
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.tables._paired import ends
from formerlab.results.read import Results

STUDY = "tokenformer"
READS = ("test.csv", "run.json")
RUNS = ("tokenformer-1", "transformer-1", "grown-random-sqrt-[23]", "net2net-*", "hypercloning-*")
CAPTION = (
    "Growing by tokens against growing in width, after Table 8 of Tokenformer (arXiv:2410.23168). Gain: how much "
    "lower the held-out loss is than that of the family's own model before growth. Tokenformer's lead: its gain minus "
    "the method's gain at the same stage, paired by seed; above zero, growing by tokens gains more. Loss minus "
    "Tokenformer's is the plain difference. In brackets: 95 % Student t interval over seeds. FLOPs: 4 L d, what "
    "multiplies T^2. The published perplexities fit neither Table 7 nor a documented setting; read them by column."
)


def table(results: Results) -> DataFrame:
    """Return a row per method and stage, stage 1 being the model before growth; then the published rows."""
    losses = held_out_losses(results, STUDY, RUNS)
    ours = _ours(losses) if len(losses) else DataFrame(columns=["source"])
    return pd.concat([ours, _published()], ignore_index=True)


def _ours(losses: DataFrame) -> DataFrame:
    rows: list[dict[str, Any]] = []
    for method, (start, pattern, _) in METHODS.items():
        before = held_out(losses, start)
        for stage in (1, *STAGES):
            run = start if stage == 1 else pattern.format(size=stage)
            after = held_out(losses, run)
            if not after or run in [row["run"] for row in rows]:
                continue
            record = losses[losses["run"] == run].iloc[0].to_dict()
            shape = shape_of(record)
            row = {"source": "ours", "method": "before growth" if stage == 1 else method, "stage": stage, "run": run}
            row |= {"parameters_non_embedding": record["parameters_non_embedding"], "tokens": record["tokens"]}
            row |= {"flops_token_token_coefficient": 4 * shape.layers * shape.width}
            row |= add_perplexity(ends("loss_nats", after))
            if stage > 1:
                row |= ends("gain_nats", minus(before, after)) | _against_tokenformer(
                    losses, method, stage, before, after
                )
            rows.append(row | {"seeds": len(after)})
    return DataFrame(rows)


def _against_tokenformer(
    losses: DataFrame, method: str, stage: int, before: dict[int, float], after: dict[int, float]
) -> dict[str, float]:
    start, pattern, _ = METHODS["Tokenformer"]
    ours = held_out(losses, pattern.format(size=stage))
    if method == "Tokenformer":
        return {}
    lead = minus(minus(held_out(losses, start), ours), minus(before, after))
    return ends("tokenformers_lead_nats", lead) | ends("loss_minus_tokenformers_nats", minus(after, ours))


def _published() -> DataFrame:
    table = published(PAPER, "Table 8").assign(value=lambda rows: rows["value"].astype(float))
    wide = table.pivot(index="model", columns="metric", values="value").loc[table["model"].unique()]
    names = [model.rsplit(" ", 1) for model in wide.index]
    return DataFrame(
        {
            "source": "published",
            "method": [name for name, _ in names],
            "run": [size for _, size in names],
            "flops_token_token_coefficient": wide["token_token_flops_coefficient"].to_numpy() * 1e4,
            "perplexity": wide["perplexity"].to_numpy(),
        }
    )
