"""Effect of growth on the loss, and a Tokenformer against its rivals (Tokenformer, arXiv:2410.23168, Fig 6 and 7)."""

from functools import partial

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.names import data_set_labels
from formerlab.report.panel import Panel, layout
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published, published_rows
from formerlab.report.runs import (
    GROWN,
    TOKENFORMER,
    TRANSFORMER,
    differences,
    held_out_losses,
    last_step_rows,
    summarize,
    validation_losses,
    with_published,
)
from formerlab.report.studies.tokenformer import (
    METHODS,
    STAGES,
    STUDY,
    WAYS_TO_GROW,
    budgets_equal_to_grown,
    families_at_best_rates,
    mean_curves,
    run_before_growth,
    with_ancestors,
)
from formerlab.results.read import Results

_LOSS = "loss_minus_parent_nats"


def _label(variant: str, equal: str | None) -> str:
    """Return the label of a run. The label of a parent trained further says what it has in common with a grown
    model.
    """
    if equal is not None:
        return "parent trained further" + f",\nequal {equal}" * bool(equal)
    keys, tau, *changes = variant.removeprefix(f"{GROWN}: ").split(", ")
    if variant in WAYS_TO_GROW:
        return f"{WAYS_TO_GROW[variant]}\n({keys}, {tau})"
    return "\n".join([f"{keys}, {tau}", *([", ".join(changes)] if changes else [])])


_minus_parent = partial(Panel, by="label", zero=0.0)
_ended = partial(_minus_parent, _LOSS, "label", kind="forest", xlabel="loss minus the parent's (nats)")


@plot(reads="eval.csv test.csv",
      runs="tokenformer-1 long-matched-chosen grown-random-*-2 grown-zero-*-2 trained-on-*2",
      needs="grown-random-*-2 grown-zero-*-2", draw=layout(
    _ended(where={"part": ["end", "seed"]}, title="{setting}: at the end, test text"),
    _ended(where={"part": ["end_valid", "seed_valid"]}, title="At the end, validation text"),
    _minus_parent("_tera", _LOSS, kind="band", where={"part": "curve"}, far=4.0,
                  title="From the moment of growth on, validation text", ylabel="loss minus the parent's (nats)",
                  xlabel="training cost since then (TFLOP)"),
    columns=1, height=2.4, order="_rank step"
))  # fmt: skip
def tokenformer_growth(results: Results, runs: list[str]) -> DataFrame:
    """Loss in the first stage after growth, minus the final loss of the parent (line at zero). The variants differ in
    how new keys start, whether tau keeps its value, whether the optimizer's moments are carried over, and whether old
    tokens are trained (Tokenformer, arXiv:2410.23168, section 3.3 and Appendix B). The control is the parent trained
    further, without growth. Above: both held-out texts at the end; below: the validation text from growth on.
    Differences are paired by seed. To see: only zero keys with tau kept preserve the function, so only these grown
    models start on the line. Growing helps if a model ends left of the control. The paper prints no values for its
    curves.
    """
    losses = held_out_losses(results, STUDY, runs)
    started = with_ancestors(losses)["parent"].dropna().to_dict()
    if not losses[losses["run"].isin(started)]["variant"].str.startswith(GROWN).any():
        return DataFrame()
    curves = validation_losses(results, STUDY, runs)
    ends = {"": losses, "_valid": last_step_rows(curves)}
    level = ends["_valid"].set_index(["run", "seed"])["loss_nats"]
    curves = curves[curves["run"].isin(started)]
    before = level.reindex(list(zip(curves["run"].map(started), curves["seed"], strict=True))).to_numpy()
    curves = curves.assign(**{_LOSS: curves["loss_nats"] - before}).dropna(subset=_LOSS)
    parts = [summarize(curves, _LOSS, ["run", "step"]).query("part == 'mean'").assign(part="curve")]
    for text, rows in ends.items():
        ended = summarize(rows, "loss_nats", ["run"], started, _LOSS)
        parts.append(ended.assign(part=ended["part"].replace("mean", "end") + text))
    rows = pd.concat(parts, ignore_index=True)
    if rows.empty:  # no seed in common with the parent
        return DataFrame()
    first = losses.drop_duplicates("run").set_index("run")
    first["parent"] = first.index.map(started)
    equal = budgets_equal_to_grown(first)
    share = rows["step"] / rows["run"].map(first["spec.steps"])
    rows["flops_of_stage"] = share * rows["run"].map(first["flops"])
    rows["variant"] = rows["run"].map(first["variant"])
    rows["parent"] = rows["run"].map(started)
    rows["equal"] = rows["run"].map(equal)
    rows["label"] = [_label(str(name), equal.get(run)) for run, name in zip(rows["run"], rows["variant"], strict=True)]
    rank = rows[rows["part"] == "end"].groupby("label")[_LOSS].mean().rank()
    return rows.assign(
        _tera=rows["flops_of_stage"] / 1e12,
        _rank=rows["label"].map(rank),
        _look=rows["variant"].mask(rows["equal"].eq("tokens"), "parent trained further, equal tokens"),
    )


ARMS = {
    "continued-tokenformer": "Tokenformer, zero keys, tau kept",
    "continued-tokenformer-sqrt": "Tokenformer, zero keys, tau sqrt(n)",
    "continued-tokenformer-ungrown": "Tokenformer, not grown",
    "continued-net2net-pad": "Net2Net by padding",
    "continued-net2net": "Net2Net (2015)",
    "continued-hypercloning": "HyperCloning",
    "continued-transformer-ungrown": "Transformer, not grown",
}
_domain = partial(Panel, "step", "loss_nats", by="_name", kind="band", far=2.5, xlabel="step on the second domain")


def _short(name: str) -> str:
    """Return the label of an arm without its family, which is in the title."""
    return name.removeprefix("Tokenformer, ").removeprefix("Transformer, ")


@plot(reads="eval.csv", runs="continued-*", draw=layout(
    _domain(where={"part": "loss"}, each="_family", title="{_family}", ylabel="validation loss (nats)"),
    _domain(where={"part": "relative"}, zero=0.0, title="Both, minus the ungrown model",
            ylabel="loss difference (nats)"),
    wanted=[_short(name) for name in ARMS.values()]
))  # fmt: skip
def tokenformer_continued(results: Results, runs: list[str]) -> DataFrame:
    """Continued training of grown and ungrown models on a second domain at a constant learning rate, after Fig. 6 of
    Tokenformer (arXiv:2410.23168). Above: validation loss on the new domain. Below: the same minus the loss of the
    ungrown model of the same family at the same step, paired by seed. To see: growing helps a model whose line is below
    zero. A model whose growth preserves its function starts at zero. Copies (the Net2Net of 2015, HyperCloning) do so
    by construction; padding with new blocks, the paper's form of Net2Net, does not. The paper prints no values.
    """
    curves = validation_losses(results, STUDY, runs)
    curves = curves[curves["run"].isin(ARMS)]
    family = {run: "tokenformer" if "tokenformer" in run else "transformer" for run in ARMS if "ungrown" not in run}
    relative = mean_curves(curves, {run: f"continued-{name}-ungrown" for run, name in family.items()})
    rows = pd.concat([mean_curves(curves).assign(part="loss"), relative.assign(part="relative")], ignore_index=True)
    rows["variant"] = rows["run"].map(ARMS)
    families = rows["run"].str.contains("tokenformer").map({True: TOKENFORMER, False: TRANSFORMER})
    return rows.assign(_name=rows["variant"].map(_short), _look=rows["variant"], _family=families)


@plot(reads="eval.csv test.csv",
      runs="matched-* modern-* classic-* long-* annealed-m* annealed-classic-* annealed-long-* annealed-whole-*",
      needs="long-matched-*", within_regime=True, draw=layout(
    Panel("difference_nats", "_label", by="_label", kind="forest", each="_text", zero=0.0, alike="x",
          title="Tokenformer, test text: {_text}", xlabel="nats per token (left is better)",
          published={"each": "", "title": "one model"}),
    columns=1
))  # fmt: skip
def tokenformer_gap(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of a Tokenformer minus that of Transformers of equal width and parameters, for each number of
    training tokens, with a panel per test text. One Transformer is modern (RMSNorm, SwiGLU), the other classic. Every
    run has its own full schedule, and each model has the learning rate, of those run, with the lowest validation loss.
    Differences are paired by seed. To see: whether the gap shrinks, stays or changes its sign as both train longer.
    Published: against a modern Transformer.
    """
    losses = held_out_losses(results, STUDY, runs)
    families = families_at_best_rates(results, runs)
    families["text"] = data_set_labels(families["data.name"], results.scale)
    families["series"] = "minus " + families["arm"] + " Transformer, " + families["text"]
    rivals = families[families["chosen"] & families["arm"].ne("matched")].dropna(subset="tokenformer")
    rivals = rivals.sort_values(["text", "arm", "tokens"]).rename(columns={"run": "rival", "tokenformer": "run"})
    pairs = rivals[["series", "tokens", "run", "rival"]]
    theirs = published("zzox531/nlp_tokenformer").query("metric == 'perplexity'").set_index("model")["value"]
    gap = float(np.log(float(theirs["TokenFormer"]) / float(theirs["Transformer"])))
    return with_published(differences(losses, pairs, "run", "rival"), gap, "third party, 124M parameters").assign(
        _look=TOKENFORMER
    )


_PRINTED = {
    "TokenFormer": "Tokenformer",
    "Net2Net (Transformer)": "Net2Net by padding",
    "HyperCloning (Transformer)": "HyperCloning",
}


def gains(losses: DataFrame) -> DataFrame:
    """Return the decrease in held-out loss of each stage from the model before growth, paired by seed, in nats."""
    pairs = DataFrame(
        {"method": method, "run": pattern.format(size=size), "size": size, "start": run_before_growth(losses, method)}
        for method, (_, pattern) in METHODS.items()
        for size in STAGES
    )
    return differences(losses, pairs, "start", "run", "gain_nats").drop(columns="start", errors="ignore")


def published_gains() -> DataFrame:
    """Return the gains computed from the perplexities of Table 8."""
    table = published_rows(PAPER, "Table 8").rename(columns={"model": "run"})
    table["method"] = table["run"].str.rsplit(n=1).str[0].map(_PRINTED)
    of_method = table.groupby("method", sort=False)["perplexity"]
    gain = np.log(of_method.transform("first") / table["perplexity"])
    table = table.assign(source="published", part="mean", size=of_method.cumcount() + 1, gain_nats=gain)
    return table.loc[table["size"].isin(STAGES), ["source", "part", "method", "run", "size", "gain_nats"]]


@plot(reads="eval.csv test.csv",
      runs="tokenformer-1 transformer-1 long-*-chosen grown-random-sqrt-[23] net2net-* hypercloning-*",
      needs="net2net-* hypercloning-*", draw=layout(
    Panel("step", "loss_nats", by="method", kind="band", where={"part": "curve"}, title="First stage",
          name="legend", xlabel="step of the stage", ylabel="validation loss (nats)"),
    Panel("size", "gain_nats", by="method", where={"part": ["mean", "seed"]}, zero=0.0, ticks="{:.0f}".format,
          name="legend", title="Gain over the own start", xlabel="stage",
          ylabel="loss before growth minus loss after", published={"title": "Table 8", "ylabel": ""}),
    wanted=list(METHODS), columns=3
))  # fmt: skip
def tokenformer_rivals(results: Results, runs: list[str]) -> DataFrame:
    """Growing a Tokenformer by tokens against growing a Transformer in width, after Fig. 7 and Table 8 of Tokenformer
    (arXiv:2410.23168). Left: validation loss of the first stage, from before its first step. Middle: decrease in
    held-out loss from the family's own model before growth, because the starts differ. To see: the family with the
    highest line gains most from growing. Padding is the form of Net2Net that the paper used; Net2Net (2015) and
    HyperCloning copy units and preserve the function if the growth factor is an integer.
    """
    losses = held_out_losses(results, STUDY, runs)
    curves = mean_curves(validation_losses(results, STUDY, runs))
    first = {pattern.format(size=2): method for method, (_, pattern) in METHODS.items()}
    curves = curves[curves["run"].isin(first)].assign(part="curve")
    curves["method"] = curves["run"].map(first)
    return pd.concat([curves, gains(losses), published_gains()], ignore_index=True)
