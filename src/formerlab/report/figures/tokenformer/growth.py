"""What growth does to the loss, on its own text and on a second domain (Tokenformer, arXiv:2410.23168, Fig 6)."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.panel import Panel, Style, hollow, sheet
from formerlab.report.runs import GROWN, TRAINED_ON, held_out_losses, parent
from formerlab.report.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, look
from formerlab.report.summary import summary
from formerlab.report.tokenformer import at_step, by_step, equal_to_grown, means
from formerlab.results.read import Results

STUDY = "tokenformer"
_SAID = {
    f"{GROWN}: random keys, tau sqrt(n)": "the published way",
    f"{GROWN}: zero keys, tau kept": "keeps the function",
}
_LOSS, _ENDED = "loss_minus_parent_nats", {"mean": "end", "seed": "seed"}


def growth_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return losses minus the parent's, paired by seed, of what grew from a run and of that run trained on.

    `part` is `curve` for a row per run and evaluated step (validation), `end` for one per run and `seed` for one per
    run and seed (held-out text, after the last step); `end_valid` and `seed_valid` are the same of the validation text.
    """
    losses = held_out_losses(results, STUDY, runs)
    found = [(run, parent(losses, run)) for run in losses["run"].unique()]
    started = {run: start for run, start in found if start is not None}
    if not losses[losses["run"].isin(started)]["variant"].str.startswith(GROWN).any():
        return DataFrame()
    curves, parts = by_step(results, runs), []
    lasts = curves[curves["step"] == curves.groupby(["run", "seed"])["step"].transform("max")]
    for run, start in started.items():
        ended = [summary(rows[rows["run"].isin((run, start))], "loss_nats", ["run"], {run: start}, _LOSS)
                 for rows in (losses, lasts)]  # fmt: skip
        parts += [_curve(curves, run, start), ended[0].assign(part=ended[0]["part"].map(_ENDED))]
        parts.append(ended[1].assign(part=ended[1]["part"].map(_ENDED) + "_valid"))
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


def _label(variant: str, equal: str | None) -> str:
    """Return what a reader calls a run; a parent trained on is told by what it shares with a model that grew."""
    if equal is not None:
        return "the parent, trained on" + (f"\n(not grown, equal {equal})" if equal else "\n(not grown)")
    keys, tau, *changes = variant.removeprefix(f"{GROWN}: ").split(", ")
    said = [f"({_SAID[variant]})"] if variant in _SAID else [", ".join(changes)] if changes else []
    return "\n".join([f"{keys}, {tau}", *said])


def _curve(curves: DataFrame, run: str, start: str) -> DataFrame:
    """Return the validation loss of a run by step, minus the parent's last one of the same seed."""
    of_run = curves[curves["run"] == run]
    level = at_step(curves, start, None)
    differences = of_run.assign(loss_nats=of_run["loss_nats"] - of_run["seed"].map(level)).dropna()
    named = {f"loss_nats{end}": f"{_LOSS}{end}" for end in ("", "_low", "_high")}
    return means(differences).rename(columns=named).assign(part="curve")


def line_and_marker(name: str, rows: DataFrame) -> Style:
    """Return how a run is drawn: keys and tau have the colour, what else is changed the marker and the line."""
    variant = str(rows["variant"].iloc[0])
    base, *changes = variant.split(", optimizer")
    base, *frozen = base.split(", old tokens")
    fewer = rows["equal"].iloc[0] == "tokens"  # the control on fewer FLOPs; else it would look like the other one
    line = ":" if frozen else "--" if changes or fewer else "-"
    return {"color": look(base).colour, "marker": look(variant).marker, "linestyle": line} | hollow(fewer)


def draw_growth(data: DataFrame) -> Figure:
    """Draw where every run ends on both texts, and the stage against its cost."""
    order = data[data["part"] == "end"].sort_values(_LOSS)["label"]
    text = data["part"].str.endswith("_valid").map({True: "valid", False: "test"}).where(data["part"] != "curve")
    rows = data.assign(tera=data["flops_of_stage"] / 1e12, label=pd.Categorical(data["label"], order.unique()),
                       text=text, part=data["part"].str.removesuffix("_valid"))  # fmt: skip
    rows = rows.sort_values(["label", "step"], kind="stable").astype({"label": str})
    return sheet(
        *(
            Panel(_LOSS, "label", by="label", kind="forest", where={"text": text}, zero=0.0, title=title,
                  xlabel="loss minus the parent's (nats)", style=line_and_marker)
            for text, title in (("test", "{setting}: at the end, test text"), ("valid", "At the end, validation text"))
        ),
        Panel("tera", _LOSS, by="label", kind="band", where={"part": "curve"}, zero=0.0, far=1.0,
              title="From the moment of growth on, validation text", xlabel="training cost since then (TFLOP)",
              ylabel="loss minus the parent's (nats)", style=line_and_marker),
        notes=["Differences are paired by seed. The lines at zero are the parent, below is better."],
        columns=1, height=2.4,
    )(rows)  # fmt: skip


tokenformer_growth = Plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("tokenformer-1", "long-matched-chosen", "grown-random-*-2", "grown-zero-*-2", "trained-on-*2"),
    needs=("grown-random-*-2", "grown-zero-*-2"),
    caption=(
        "The first stage after growth: loss minus that of the parent (line at zero) at the end of its own training, "
        "by how the new keys start, whether tau keeps its value, whether the optimizer's moments are carried over and "
        "whether old tokens are trained (Tokenformer, arXiv:2410.23168, section 3.3 and Appendix B). The control is "
        "the parent trained on, without growth. Above: both held-out texts at the end; below: the validation text "
        "from growth on, where far values are given in words. To see: of the grown models only zero keys with tau "
        "kept start on the line, because only they keep the function. Growing has helped where a model ends left of "
        "the parent trained on. Small models; the paper prints no values for its curves."
    ),
    data=growth_data,
    draw=draw_growth,
)


TOKENFORMER_START, TRANSFORMER_START = "continued-tokenformer-ungrown", "continued-transformer-ungrown"
ARMS = {
    "continued-tokenformer": ("Tokenformer, zero keys, tau kept", (GREEN, "D"), TOKENFORMER_START),
    "continued-tokenformer-sqrt": ("Tokenformer, zero keys, tau sqrt(n)", (PURPLE, "P"), TOKENFORMER_START),
    TOKENFORMER_START: ("Tokenformer, not grown", (BLUE, "s"), TOKENFORMER_START),
    "continued-net2net-pad": ("Net2Net by padding", (ORANGE, "v"), TRANSFORMER_START),
    "continued-net2net": ("Net2Net (2015)", ("#8C564B", "^"), TRANSFORMER_START),
    "continued-hypercloning": ("HyperCloning", (SKY, "X"), TRANSFORMER_START),
    TRANSFORMER_START: ("Transformer, not grown", (BLACK, "o"), TRANSFORMER_START),
}
"""Name for readers, look, and the ungrown run of its family, of every arm."""


def continued_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and step; `part` is `loss`, or `relative` to the ungrown model, paired by seed and step."""
    curves = by_step(results, runs)
    curves = curves[curves["run"].isin(ARMS)]
    levels = curves.set_index(["run", "seed", "step"])["loss_nats"]
    grown = curves[[ARMS[run][2] != run for run in curves["run"]]]
    places = [(ARMS[run][2], seed, step) for run, seed, step in grown[["run", "seed", "step"]].itertuples(index=False)]
    relative = grown.assign(loss_nats=grown["loss_nats"] - levels.reindex(places).to_numpy()).dropna()
    parts = {"loss": curves, "relative": relative}
    rows = pd.concat([means(part).assign(part=name) for name, part in parts.items()], ignore_index=True)
    return rows.assign(variant=[ARMS[run][0] for run in rows["run"]])


tokenformer_continued = Plot(
    reads=("eval.csv", "run.json"),
    runs=("continued-*",),
    caption=(
        "Continued training on a second domain at a constant learning rate, after Fig. 6 of Tokenformer "
        "(arXiv:2410.23168): models grown one size, and models not grown. Above: validation loss on the new domain "
        "from before the first step. Below: minus the loss of the ungrown model of the same family after as many "
        "steps, paired by seed. To see: a line below zero is a model that growing has helped; one that keeps its "
        "function starts on zero; padding with new blocks, the paper's form of Net2Net, does not, and copies (the "
        "Net2Net of 2015, HyperCloning) do by construction. Far values are given in words. The paper prints no "
        "values."
    ),
    data=continued_data,
    draw=sheet(
        *(
            Panel("step", "loss_nats", kind="band", where={"part": part}, zero=zero, far=2.5, title=title,
                  style={name: kind for name, kind, _ in ARMS.values()},
                  xlabel="step on the second domain", ylabel=label)
            for part, zero, title, label in (
                ("loss", None, "{setting}", "validation loss (nats)"),
                ("relative", 0.0, "Beside the ungrown model of the same family", "minus the ungrown model's (nats)"),
            )
        ),
        wanted=[name for name, _, _ in ARMS.values()], columns=1, height=2.3,
    ),
)  # fmt: skip
