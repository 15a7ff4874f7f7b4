"""What growth does to the loss, on its own text and on a second domain (Tokenformer, arXiv:2410.23168, Fig 6)."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.runs import GROWN, TRAINED_ON, held_out_losses, parent, summary
from formerlab.report.tokenformer import at_step, by_step, equal_to_grown, means
from formerlab.results.read import Results

STUDY = "tokenformer"
_SAID = {
    f"{GROWN}: random keys, tau sqrt(n)": "the published way",
    f"{GROWN}: zero keys, tau kept": "keeps the function",
}
_LOSS = "loss_minus_parent_nats"


def _label(variant: str, equal: str | None) -> str:
    """Return what a reader calls a run; a parent trained on is told by what it shares with a model that grew."""
    if equal is not None:
        return "the parent, trained on" + (f"\n(not grown, equal {equal})" if equal else "\n(not grown)")
    keys, tau, *changes = variant.removeprefix(f"{GROWN}: ").split(", ")
    said = [f"({_SAID[variant]})"] if variant in _SAID else [", ".join(changes)] if changes else []
    return "\n".join([f"{keys}, {tau}", *said])


def draw_growth(data: DataFrame) -> Figure:
    """Draw where every run ends on both texts, and the stage against its cost."""
    rank = data[data["part"] == "end"].groupby("label")[_LOSS].mean().rank()
    valid, fewer = data["part"].str.endswith("_valid"), data["equal"].eq("tokens")
    rows = data.assign(
        tera=data["flops_of_stage"] / 1e12,
        rank=data["label"].map(rank),
        text=valid.map({True: "valid", False: "test"}).where(data["part"] != "curve"),
        part=data["part"].str.removesuffix("_valid"),
        variant=data["variant"].mask(fewer, "parent trained on, equal tokens"),
    )
    shared: dict[str, Any] = {"by": "label", "style": "variant", "zero": 0.0}
    return sheet(
        *(
            Panel(_LOSS, "label", kind="forest", where={"text": text}, title=title,
                  xlabel="loss minus the parent's (nats)", **shared)
            for text, title in (("test", "{setting}: at the end, test text"), ("valid", "At the end, validation text"))
        ),
        Panel("tera", _LOSS, kind="band", where={"part": "curve"}, far=4.0, xlabel="training cost since then (TFLOP)",
              title="From the moment of growth on, validation text", ylabel="loss minus the parent's (nats)", **shared),
        columns=1, height=2.4,
    )(rows.sort_values(["rank", "step"], kind="stable"))  # fmt: skip


@plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("tokenformer-1", "long-matched-chosen", "grown-random-*-2", "grown-zero-*-2", "trained-on-*2"),
    needs=("grown-random-*-2", "grown-zero-*-2"),
    draw=draw_growth,
)
def tokenformer_growth(results: Results, runs: Sequence[str]) -> DataFrame:
    """The first stage after growth: loss minus that of the parent (line at zero) at the end of its own training, by how
    the new keys start, whether tau keeps its value, whether the optimizer's moments are carried over and whether old
    tokens are trained (Tokenformer, arXiv:2410.23168, section 3.3 and Appendix B). The control is the parent trained
    on, without growth. Above: both held-out texts at the end; below: the validation text from growth on, where far
    values are given in words; the line at zero is the parent. Differences are paired by seed. To see: of the grown
    models only zero keys with tau kept start on the line, because only they keep the function. Growing has helped where
    a model ends left of the parent trained on. Small models; the paper prints no values for its curves.
    """
    losses = held_out_losses(results, STUDY, runs)
    found = [(run, parent(losses, run)) for run in losses["run"].unique()]
    started = {run: start for run, start in found if start is not None}
    if not losses[losses["run"].isin(started)]["variant"].str.startswith(GROWN).any():
        return DataFrame()
    curves, parts = by_step(results, runs), []
    lasts = curves[curves["step"] == curves.groupby(["run", "seed"])["step"].transform("max")]
    for run, start in started.items():
        level, curve = at_step(curves, start, None), curves[curves["run"] == run]
        curve = means(curve.assign(loss_nats=curve["loss_nats"] - curve["seed"].map(level)).dropna())
        parts.append(curve.rename(columns=lambda name: name.replace("loss_nats", _LOSS)).assign(part="curve"))
        for rows, text in ((losses, ""), (lasts, "_valid")):
            ended = summary(rows[rows["run"].isin((run, start))], "loss_nats", ["run"], {run: start}, _LOSS)
            parts.append(ended.assign(part=ended["part"].replace("mean", "end") + text))
    rows = pd.concat(parts, ignore_index=True).assign(source="ours")
    first = losses.drop_duplicates("run").set_index("run")
    first["parent"] = first.index.map(started)
    equal = {run: equal_to_grown(first, run) for run in started if str(first.loc[run, "variant"]).endswith(TRAINED_ON)}
    share = rows["step"] / rows["run"].map(first["spec.steps"])
    rows["flops_of_stage"] = share * rows["run"].map(first["flops"])
    rows["variant"] = rows["run"].map(first["variant"])
    rows["parent"] = rows["run"].map(started)
    rows["equal"] = rows["run"].map(equal)
    rows["label"] = [_label(str(name), equal.get(run)) for run, name in zip(rows["run"], rows["variant"], strict=True)]
    return rows


UNGROWN = {"tokenformer": "continued-tokenformer-ungrown", "transformer": "continued-transformer-ungrown"}
ARMS = {
    "continued-tokenformer": ("Tokenformer, zero keys, tau kept", UNGROWN["tokenformer"]),
    "continued-tokenformer-sqrt": ("Tokenformer, zero keys, tau sqrt(n)", UNGROWN["tokenformer"]),
    UNGROWN["tokenformer"]: ("Tokenformer, not grown", ""),
    "continued-net2net-pad": ("Net2Net by padding", UNGROWN["transformer"]),
    "continued-net2net": ("Net2Net (2015)", UNGROWN["transformer"]),
    "continued-hypercloning": ("HyperCloning", UNGROWN["transformer"]),
    UNGROWN["transformer"]: ("Transformer, not grown", ""),
}
"""Name for readers, and the ungrown run of its family, of every arm."""


@plot(
    reads=("eval.csv", "run.json"),
    runs=("continued-*",),
    draw=sheet(
        *(
            Panel("step", "loss_nats", kind="band", where={"part": part}, zero=zero, far=2.5, title=title,
                  xlabel="step on the second domain", ylabel=label)
            for part, zero, title, label in (
                ("loss", None, "{setting}", "validation loss (nats)"),
                ("relative", 0.0, "Beside the ungrown model of the same family", "minus the ungrown model's (nats)"),
            )
        ),
        wanted=[name for name, _ in ARMS.values()], columns=1, height=2.3,
    ),
)  # fmt: skip
def tokenformer_continued(results: Results, runs: Sequence[str]) -> DataFrame:
    """Continued training on a second domain at a constant learning rate, after Fig. 6 of Tokenformer
    (arXiv:2410.23168): models grown one size, and models not grown. Above: validation loss on the new domain from
    before the first step. Below: minus the loss of the ungrown model of the same family after as many steps, paired by
    seed. To see: a line below zero is a model that growing has helped; one that keeps its function starts on zero;
    padding with new blocks, the paper's form of Net2Net, does not, and copies (the Net2Net of 2015, HyperCloning) do by
    construction. Far values are given in words. The paper prints no values.
    """
    curves = by_step(results, runs)
    curves = curves[curves["run"].isin(ARMS)]
    relative = means(curves, {run: ungrown for run, (_, ungrown) in ARMS.items() if ungrown})
    rows = pd.concat([means(curves).assign(part="loss"), relative.assign(part="relative")], ignore_index=True)
    return rows.assign(variant=[ARMS[run][0] for run in rows["run"]])
