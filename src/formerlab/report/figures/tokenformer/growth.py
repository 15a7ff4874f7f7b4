"""Effect of growth on the loss, and a Tokenformer against its rivals (Tokenformer, arXiv:2410.23168, Fig 6 and 7)."""

import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import plot
from formerlab.report.claims.arms import registered_arms
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.names import data_set_labels
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    TOKENFORMER,
    differences,
    format_count,
    held_out_losses,
    validation_losses,
)
from formerlab.report.studies.tokenformer import (
    STUDY,
    families_at_best_rates,
    mean_curves,
)
from formerlab.report.tables.blocks import pooled_estimate, with_pooled
from formerlab.report.tables.tokenformer.models import published_gap, tokenformer_modern
from formerlab.results.read import Results

ARMS = {
    "continued-tokenformer-ungrown": "Tokenformer, not grown",
    "continued-tokenformer": "by tokens, zero keys, tau kept",
    "continued-tokenformer-sqrt": "by tokens, zero keys, tau = sqrt(n)",
    "continued-transformer-ungrown": "Transformer, not grown",
    "continued-net2net-pad": "in width by new blocks (the paper's Net2Net)",
    "continued-net2net": "in width by copies (Net2Net of 2015)",
    "continued-hypercloning": "in width by copies (HyperCloning)",
}


_CLAIM = "tokenformer-continued-training-lower"
ITEMS = {"last_step": "last step", "area_under_curve": "whole curve"}
"""Labels of the items of the claim on new text that are drawn; the curves show the first step."""


@plot(reads="eval.csv", runs="continued-*", draw=layout(
    Panel("step", "loss_nats", by="variant", kind="band", zero=0.0, outlier_factor=2.5, name="legend",
          where={"part": "relative"}, title="Grown minus not grown (below 0: helps)",
          xlabel="step on the second domain", ylabel="loss difference (nats)"),
    Panel("tokens_minus_net2net_nats", "_item", by="_item", kind="forest", style="_style", where={"part": "claim"},
          zero=0.0, title="Claim: tokens minus Net2Net",
          xlabel="loss (nats; left: tokens better, as claimed)"),
    wanted=[name for run, name in ARMS.items() if "ungrown" not in run], order="_order step", height=2.1
))  # fmt: skip
def tokenformer_continued(results: Results, runs: list[str]) -> DataFrame:
    """Continued training of grown models, and of the same models not grown, on a second domain at a constant learning
    rate, after Fig. 6 of Tokenformer (arXiv:2410.23168). Left: validation loss on the new domain minus the loss of
    the model of the same family that was not grown (zero), at the same step, paired by seed. Right: the difference
    for growth by tokens (zero keys, tau kept) minus the difference for the paper's Net2Net, with the interval of
    the verdict. The claim is that this value is below zero. The CSV has the losses. To see: a model whose growth
    preserves its function starts at zero. Copies (the Net2Net of 2015, HyperCloning) do so by construction; padding
    with new blocks, the paper's form of Net2Net, does not. The paper prints no values.
    """
    curves = validation_losses(results, STUDY, runs)
    curves = curves[curves["run"].isin(ARMS)]
    family = {run: "tokenformer" if "tokenformer" in run else "transformer" for run in ARMS if "ungrown" not in run}
    relative = mean_curves(curves, {run: f"continued-{name}-ungrown" for run, name in family.items()})
    parts = {"loss": mean_curves(curves), "relative": relative}
    rows = pd.concat([frame.assign(part=part) for part, frame in parts.items() if len(frame)], ignore_index=True)
    rows = rows.assign(
        _order=rows["run"].map(list(ARMS).index), **dict.fromkeys(("variant", "_style"), rows["run"].map(ARMS))
    )
    reader, registered = ClaimRows(results, STUDY, ClaimArms()), registered_arms(_CLAIM, results.scale)
    signs = {"tokenformer": 1.0, "tokenformer_ungrown": -1.0, "rival": -1.0, "rival_ungrown": 1.0}
    for item, label in ITEMS.items():
        arms = {str(arm.run): signs[name] for name, arm in registered.for_item(item).items() if name in signs}
        value = pooled_estimate(reader, "tokens_minus_net2net_nats_pooled", arms, at=item) if len(arms) == 4 else {}
        if value:
            value["tokens_minus_net2net_nats"] = value.pop("tokens_minus_net2net_nats_pooled")
            row = {"source": "ours", "part": "claim", "run": "continued-tokenformer", "_item": label, "_order": 9}
            rows = pd.concat([rows, DataFrame([row | {"_style": "grown with zero keys"} | value])], ignore_index=True)
    return rows.reindex(columns=[*rows, *{"_item", "_style", "tokens_minus_net2net_nats"}.difference(rows)])


@plot(reads="eval.csv test.csv",
      runs="matched-* modern-* classic-* long-* annealed-m* annealed-classic-* annealed-long-* annealed-whole-*",
      needs="long-matched-*", within_regime=True, draw=layout(
    Panel("difference_nats", "_label", by="_label", kind="forest", facet="_text", zero=0.0, same_limits="x",
          title="Tokenformer minus Transformer, {_text}",
          xlabel="loss (nats per token; left: Tokenformer better)",
          published={"facet": "", "title": "minus a modern Transformer"})
))  # fmt: skip
def tokenformer_gap(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of a Tokenformer minus that of Transformers of equal width and parameters, for each number of
    training tokens, with a panel per test text. One Transformer is modern (RMSNorm, SwiGLU), the other classic. Every
    run has its own full schedule, and each model has the best learning rate (lowest validation loss) of the rates that
    were run. Differences are paired by seed; a change is the difference after the longest training minus that after the
    shortest. To see: whether the gap shrinks, stays or changes its sign as both train longer. Published: against a
    modern Transformer.
    """
    losses = held_out_losses(results, STUDY, runs)
    families = families_at_best_rates(results, runs)
    families["text"] = data_set_labels(families["data.name"], results.scale)
    families["series"] = families["arm"] + " Transformer, " + families["text"]
    rivals = families[families["chosen"] & families["arm"].ne("matched")].dropna(subset="tokenformer")
    rivals = rivals.sort_values(["text", "arm", "tokens"]).rename(columns={"run": "rival", "tokenformer": "run"})
    pairs = rivals[["series", "tokens", "run", "rival"]]
    rows = differences(losses, pairs, "run", "rival")
    if len(rows):
        rows = with_pooled(rows, results, STUDY, "run", "rival", "difference_nats")
        names = rows["series"].str.rsplit(", ", n=1)
        labels = names.str[0] + ", " + rows["tokens"].map(format_count) + " tokens"
        gap = published_gap()[["difference_nats"]].assign(source="published", part="published")
        gap = gap.assign(**dict.fromkeys(("series", "_label"), "third party, 124M parameters"))
        rows = pd.concat([rows.assign(_label=labels, _text=names.str[1]), gap], ignore_index=True)
    changes = tokenformer_modern.rows(results, runs).query("run.isna()")
    texts, arms = (
        data_set_labels(changes["regime"].str.partition(", ")[0], results.scale),
        changes["arm"] + " Transformer",
    )
    longest = (arms + ", " + texts).map(pairs.drop_duplicates("series", keep="last").set_index("series")["run"])
    changes = changes.assign(source="ours", part="change", run=longest)
    changes = changes.assign(_text=texts, _label=arms + ", change")
    rows = pd.concat([rows, changes.reindex(columns=rows.columns)], ignore_index=True)
    return rows.assign(_style=TOKENFORMER, _label=rows["_label"].str.replace(" Transformer", ""))
