"""Effect of growth on the loss, and a Tokenformer against its rivals (Tokenformer, arXiv:2410.23168, Fig 6 and 7)."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.claims.rows import pooled_differences
from formerlab.report.names import data_set_labels
from formerlab.report.panel import Panel, layout
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published, published_rows
from formerlab.report.runs import (
    GROWN,
    TOKENFORMER,
    TRAINED_FURTHER,
    TRANSFORMER,
    differences,
    held_out_losses,
    last_step_rows,
    summarize,
    validation_losses,
    with_published,
)
from formerlab.report.studies.tokenformer import (
    LENGTHS,
    METHODS,
    STAGES,
    STUDY,
    WAYS_TO_GROW,
    budgets_equal_to_grown,
    families_at_best_rates,
    fully_annealed_losses,
    mean_curves,
    run_before_growth,
    with_ancestors,
)
from formerlab.results.read import Results

_LOSS = "loss_minus_parent_nats"


@plot(reads="eval.csv test.csv",
      runs="tokenformer-1 long-matched-chosen grown-random-*-2 grown-zero-*-2 trained-on-*2 annealed-random-sqrt-* "
           "annealed-zero-keep-* annealed-trained-on-*",
      needs="grown-random-*-2 grown-zero-*-2", within_regime=True, draw=layout(
    Panel("_tera", _LOSS, by="label", kind="band", facet="stage", zero=0.0, outlier_factor=4.0, same_limits="y",
          name="legend", title="{stage}", xlabel="TFLOP since growth",
          ylabel="validation loss minus\nthe parent's (nats)"),
    columns=0, order="_shortest step"
))  # fmt: skip
def tokenformer_growth(results: Results, runs: list[str]) -> DataFrame:
    """Validation loss from growth on, minus the loss of the parent at that moment (line at zero), a panel for each
    length of the stage, paired by seed (Tokenformer, arXiv:2410.23168, section 3.3 and Appendix B). The control is the
    parent trained further, without growth, for the same FLOPs; in the long stage its peak learning rate is higher than
    in the shorter ones. If the learning rates of some stages fall to zero, only these are shown. To see: growth with
    zero keys and tau kept preserves the function, so it starts on the line; growth as published starts far above it,
    and helps if it ends below the control. The verdict rests on the test text (tokenformer_stage_length). The paper
    prints no values for its curves.
    """
    losses = fully_annealed_losses(results, runs)
    parents = with_ancestors(losses)["parent"].dropna().to_dict()
    stages = losses[losses["run"].isin(parents)]
    if not stages["variant"].str.startswith(GROWN).any():
        return DataFrame()
    curves = validation_losses(results, STUDY, list(losses["run"].unique()))
    of_runs = losses.drop_duplicates("run").assign(parent=lambda rows: rows["run"].map(parents)).set_index("run")
    rows = summarize(_minus_parent(curves, of_runs), _LOSS, ["run", "step"])
    rows = rows[rows["part"] == "mean"].assign(part="curve")
    if rows.empty:  # no seed in common with the parent
        return DataFrame()
    rows = rows.join(of_runs[["variant", "parent", "flops", "spec.steps"]], on="run").drop(columns="seed")
    rows["flops_of_stage"] = rows["step"] / rows.pop("spec.steps") * rows.pop("flops")
    rows["equal"] = rows["run"].map(budgets_equal_to_grown(of_runs))
    equal = rows["equal"].map(lambda budget: f", equal {budget}" if budget and budget == budget else "")
    further = ("parent trained further" + equal).where(rows["equal"].notna())
    rows["label"] = further.fillna(rows["variant"].replace(WAYS_TO_GROW).str.removeprefix(f"{GROWN}: "))
    length = rows["run"].str.extract(f"^annealed-.*-({'|'.join(LENGTHS)})(?:-|$)")[0]
    cost = rows.groupby(length.fillna(""))["flops_of_stage"].transform("max")
    return rows.assign(stage=(length + " stage").fillna("first stage"), _shortest=cost,
                       _tera=rows["flops_of_stage"] / 1e12, _style=rows["label"])  # fmt: skip


def _minus_parent(curves: DataFrame, runs: DataFrame) -> DataFrame:
    """Return the validation losses of the runs that have a parent, minus the parent's loss before they started.

    If the parent has another validation text, its loss is the first one of the parent trained further. `runs` has a row
    per run, indexed by run.
    """
    last = last_step_rows(curves).set_index(["run", "seed"])["loss_nats"]
    further = runs.index[runs["variant"].str.endswith(TRAINED_FURTHER)]
    starts = curves[curves["step"].eq(0) & curves["run"].isin(further)]
    first = starts.assign(run=starts["run"].map(runs["parent"])).groupby(["run", "seed"])["loss_nats"].first()
    curves = curves[curves["run"].isin(runs.index[runs["parent"].notna()])]
    parent = curves["run"].map(runs["parent"])
    same_text = curves["run"].map(runs["data.name"]) == parent.map(runs["data.name"])
    keys = list(zip(parent, curves["seed"], strict=True))
    before = np.where(same_text, last.reindex(keys), first.reindex(keys))
    return curves.assign(**{_LOSS: curves["loss_nats"] - before}).dropna(subset=_LOSS)


ARMS = {
    "continued-tokenformer-ungrown": "Tokenformer, not grown",
    "continued-tokenformer": "by tokens, zero keys, tau kept",
    "continued-tokenformer-sqrt": "by tokens, zero keys, tau = sqrt(n)",
    "continued-transformer-ungrown": "Transformer, not grown",
    "continued-net2net-pad": "in width by new blocks (the paper's Net2Net)",
    "continued-net2net": "in width by copies (Net2Net of 2015)",
    "continued-hypercloning": "in width by copies (HyperCloning)",
}


@plot(reads="eval.csv", runs="continued-*", draw=layout(
    Panel("step", "loss_nats", by="variant", kind="band", facet="_family", where={"part": "relative"}, zero=0.0,
          outlier_factor=2.5, name="legend", same_limits="y", title="{_family}, grown minus not grown",
          xlabel="step on the second domain", ylabel="loss difference (nats)"),
    wanted=[name for run, name in ARMS.items() if "ungrown" not in run], order="_order step"
))  # fmt: skip
def tokenformer_continued(results: Results, runs: list[str]) -> DataFrame:
    """Continued training of grown models, and of the same models not grown, on a second domain at a constant learning
    rate, after Fig. 6 of Tokenformer (arXiv:2410.23168): validation loss on the new domain minus the loss of the model
    of the same family that was not grown, at the same step, paired by seed. The CSV has the losses. To see: growing
    helps a model whose line is below zero. A model whose growth preserves its function starts at zero. Copies
    (the Net2Net of 2015, HyperCloning) do so by construction; padding with new blocks, the paper's form of Net2Net,
    does not. The paper prints no values.
    """
    curves = validation_losses(results, STUDY, runs)
    curves = curves[curves["run"].isin(ARMS)]
    family = {run: "tokenformer" if "tokenformer" in run else "transformer" for run in ARMS if "ungrown" not in run}
    relative = mean_curves(curves, {run: f"continued-{name}-ungrown" for run, name in family.items()})
    rows = pd.concat([mean_curves(curves).assign(part="loss"), relative.assign(part="relative")], ignore_index=True)
    families = rows["run"].str.contains("tokenformer").map({True: TOKENFORMER, False: TRANSFORMER})
    order = rows["run"].map(list(ARMS).index)
    return rows.assign(variant=rows["run"].map(ARMS), _family=families, _order=order)


@plot(reads="eval.csv test.csv",
      runs="matched-* modern-* classic-* long-* annealed-m* annealed-classic-* annealed-long-* annealed-whole-*",
      needs="long-matched-*", within_regime=True, draw=layout(
    Panel("difference_nats", "_label", by="_label", kind="forest", facet="_text", zero=0.0, same_limits="x",
          title="Tokenformer minus Transformer, tested on {_text}",
          xlabel="loss (nats per token; left: the Tokenformer is better)",
          published={"facet": "", "title": "Tokenformer minus modern Transformer"}),
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
    families["series"] = families["arm"] + " Transformer, " + families["text"]
    rivals = families[families["chosen"] & families["arm"].ne("matched")].dropna(subset="tokenformer")
    rivals = rivals.sort_values(["text", "arm", "tokens"]).rename(columns={"run": "rival", "tokenformer": "run"})
    pairs = rivals[["series", "tokens", "run", "rival"]]
    perplexities = published("zzox531/nlp_tokenformer").query("metric == 'perplexity'").set_index("model")["value"]
    gap = float(np.log(float(perplexities["TokenFormer"]) / float(perplexities["Transformer"])))
    rows = differences(losses, pairs, "run", "rival")
    if len(rows):
        rows = pooled_differences(rows, results, STUDY, "run", "rival", "difference_nats")
    return with_published(rows, gap, "third party, 124M parameters").assign(_style=TOKENFORMER)


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
          name="legend", title="Gain over the model before", xlabel="stage",
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
