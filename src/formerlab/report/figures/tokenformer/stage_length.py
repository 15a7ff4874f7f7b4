"""What growing brings against training the parent on, by the length of the stage (arXiv:2410.23168, section 4.1)."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.runs import differences, held_out, held_out_losses
from formerlab.report.style import PUBLISHED_INK
from formerlab.report.tokenformer import STUDY
from formerlab.results.read import Results

PAPER = (27, 130)
"""Tokens per new parameter of the published stages: 15 billion from 757M to 1.31B, 30 billion from 124M to 354M."""


def _mark_paper(axes: Axes, rows: DataFrame) -> None:
    axes.axvspan(*PAPER, color=PUBLISHED_INK, alpha=0.12, linewidth=0, zorder=0)
    axes.text(PAPER[0], 0.98, " PUBLISHED stages", transform=axes.get_xaxis_transform(), va="top", color=PUBLISHED_INK)


@plot(
    reads=("test.csv", "run.json"),
    runs=("annealed-*-short", "annealed-*-medium", "annealed-*-long"),
    needs=("annealed-trained-on-*",),
    draw=sheet(
        Panel("tokens_per_new_parameter", "difference_nats", log="x", zero=0.0, xlabel="tokens per new parameter",
              ylabel="grown minus trained on\n(nats per token)", finish=_mark_paper)
    ),
)  # fmt: skip
def tokenformer_stage_length(results: Results, runs: Sequence[str]) -> DataFrame:
    """Held-out loss of a grown Tokenformer minus that of its parent trained on for the same FLOPs, against the tokens
    of the stage per parameter that it adds (arXiv:2410.23168). Differences are paired by seed; below zero growing has
    helped. The band marks the stages of the paper. To see: whether growing needs a longer stage to pay. Every learning
    rate falls to zero.
    """
    losses, records = held_out_losses(results, STUDY, runs), results.runs(STUDY).drop_duplicates("run").set_index("run")
    rows: list[dict[str, Any]] = []
    if "spec.growth.keys" not in losses:
        return DataFrame()
    for stage in losses[losses["spec.growth.keys"].notna()].drop_duplicates("run").to_dict("records"):
        equal = losses["flops"].between(0.95 * stage["flops"], 1.05 * stage["flops"])
        control = losses[(losses["spec.init"] == stage["spec.init"]) & losses["spec.growth.keys"].isna() & equal]
        if control.empty or stage["spec.init"] not in records.index:
            continue
        new = stage["parameters_non_embedding"] - records["parameters_non_embedding"][stage["spec.init"]]
        of_stage, of_control = held_out(losses, stage["run"]), held_out(losses, control["run"].iloc[0])
        shared = {"variant": stage["variant"], "run": stage["run"], "rival": control["run"].iloc[0]}
        rows += differences(of_stage, of_control, **shared, tokens_per_new_parameter=stage["tokens"] / new)
    return DataFrame(rows)
