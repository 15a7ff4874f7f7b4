"""Effect of growth on the loss, and a Tokenformer against its rivals (Tokenformer, arXiv:2410.23168, Fig 6 and 7)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas import DataFrame, Series

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
    seed_count,
    validation_losses,
)
from formerlab.report.studies.tokenformer import (
    STUDY,
    families_at_best_rates,
    mean_curves,
)
from formerlab.report.style import HOLLOW, PUBLISHED_GROUND, PUBLISHED_INK, plot_style
from formerlab.report.tables.blocks import claim_verdicts, in_words, pooled_estimate, with_pooled
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
_GAP_CLAIM = "tokenformer-gap-shrinks-with-training"
ITEMS = {"first_step": "first step", "area_under_curve": "mean of the curve", "last_step": "last step"}
"""Labels of the items of the claim on new text."""
_DRAWN = [name for run, name in ARMS.items() if "ungrown" not in run and "hypercloning" not in run]


def _limit_to_later_steps(axes: Axes, rows: DataFrame) -> None:
    """Set the limits from the rows after the first step. The difference at the first step is much larger."""
    later = rows.loc[rows["_item"].ne(ITEMS["first_step"])].filter(like="tokens_minus_net2net_nats")
    ends = [0.0, *later.to_numpy(float).ravel()]
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    if high > low:
        axes.set_xlim(low - 0.6 * (high - low), high + 0.1 * (high - low))


@plot(reads="eval.csv", runs="continued-*", draw=layout(
    Panel("step", "loss_nats", by="_series", kind="band", zero=0.0, name="legend", where={"part": "relative"},
          title="Below 0, growing helps", xlabel="step on the second domain",
          ylabel="loss, grown minus\nnot grown (nats)"),
    Panel("tokens_minus_net2net_nats", "_item", by="_item", kind="forest", style="_style", where={"part": "claim"},
          zero=0.0, title="Claim: tokens minus Net2Net ({verdict})", finish=_limit_to_later_steps,
          xlabel="loss (nats; left: tokens better)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])}; bands: 95 % Student t interval over seeds; bars: 95 % interval "
                        "with the spread of similar runs, as used for verdicts."],
    wanted=_DRAWN, order="_order step", height=2.1
))  # fmt: skip
def tokenformer_continued(results: Results, runs: list[str]) -> DataFrame:
    """Continued training of grown models on a second domain at a constant learning rate, after Fig. 6 of Tokenformer
    (arXiv:2410.23168). Left: validation loss on the new domain minus the loss of the same model without growth (zero),
    paired by step and seed. Right: the difference for growth by tokens (zero keys, tau kept) minus the difference for
    the paper's Net2Net, with the interval of the verdict. The claim is that this value is below zero. The CSV has the
    losses. To see: a model whose growth preserves its function starts at zero. Copies (the Net2Net of 2015, and
    HyperCloning) do so by construction. Padding with new blocks, the paper's form of Net2Net, does not. The curve of
    HyperCloning is not drawn, since it coincides with the Net2Net of 2015. The curves omit step 0; the legend has the
    values before the first step. The paper prints no values.
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
    starts = rows[rows["part"].eq("relative") & rows["step"].eq(0)].set_index("run")["loss_nats"]
    first = rows["run"].map(starts.map(", starts at {:+.2f}".format).str.replace("[+-](0.00)$", r"\1", regex=True))
    rows["_series"] = (rows["variant"] + first.fillna("")).where(rows["step"].gt(0) & rows["variant"].isin(_DRAWN))
    reader, registered = ClaimRows(results, STUDY, ClaimArms()), registered_arms(_CLAIM, results.scale)
    signs = {"tokenformer": 1.0, "tokenformer_ungrown": -1.0, "rival": -1.0, "rival_ungrown": 1.0}
    verdict = claim_verdicts(results, STUDY, _CLAIM)[_CLAIM].word
    for item, label in ITEMS.items():
        arms = {str(arm.run): signs[name] for name, arm in registered.for_item(item).items() if name in signs}
        value = pooled_estimate(reader, "tokens_minus_net2net_nats_pooled", arms, at=item) if len(arms) == 4 else {}
        if value:
            value["tokens_minus_net2net_nats"] = value.pop("tokens_minus_net2net_nats_pooled")
            row = {
                "source": "ours",
                "part": "claim",
                "run": "continued-tokenformer",
                "_item": label,
                "_order": 9,
                "verdict": verdict,
            }
            rows = pd.concat([rows, DataFrame([row | {"_style": "grown with zero keys"} | value])], ignore_index=True)
    return rows.reindex(columns=[*rows, *{"_item", "_style", "tokens_minus_net2net_nats"}.difference(rows)])


def _write_changes(axes: Axes, rows: DataFrame) -> None:
    """Write the change between the lengths, and mark the published difference at the right."""
    tokens = np.unique(rows["tokens"])
    axes.set_xticks(tokens, map(format_count, tokens), minor=False)
    axes.minorticks_off()
    left, right = 0.75 * tokens.min(), 1.25 * tokens.max()
    axes.axvspan(right, right * (right / left) ** 0.4, color=PUBLISHED_GROUND, linewidth=0, zorder=0)
    axes.set_xlim(left, right * (right / left) ** 0.4)
    middle, across = right * (right / left) ** 0.2, axes.get_xaxis_transform()
    axes.plot(middle, rows["_published"].iloc[0], **plot_style(TOKENFORMER) | HOLLOW, markersize=4.5)
    axes.text(middle, 0.03, "published by\na third party,\n124M model", color=PUBLISHED_INK, ha="center",
              transform=across, fontsize=7)  # fmt: skip
    for words in rows["_change"].dropna().unique():
        axes.text(0.02, 0.03, words, transform=axes.transAxes, fontsize=7)


@plot(reads="eval.csv test.csv",
      runs="matched-* modern-* classic-* long-* annealed-m* annealed-classic-* annealed-long-* annealed-whole-*",
      needs="long-matched-*", within_regime=True, draw=layout(
    Panel("_tokens", "difference_nats", by="_series", facet="_text", log="x", zero=0.0, name="legend", share_y=True,
          same_limits="y", title="{_text}: above 0, the Tokenformer is worse", xlabel="training tokens",
          finish=_write_changes, ylabel="loss, Tokenformer minus\nTransformer (nats per token)"),
    height=2.0
))  # fmt: skip
def tokenformer_gap(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of a Tokenformer minus the loss of Transformers of equal width and number of parameters. The x axis
    is the number of training tokens, and a panel is a test text. One Transformer is modern (RMSNorm, SwiGLU), the other
    is classic. Every run has its own full schedule, and each model has the best learning rate (lowest validation loss)
    of the rates that were run. Differences are paired by seed; a change is the difference after the longest training
    minus the difference after the shortest training. To see: whether the gap shrinks, stays or changes its sign as both
    train longer. Published (hollow, the same in both panels): against a modern Transformer. ‡: the Student t interval
    of these seeds includes zero.
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
        gap = published_gap()[["difference_nats"]].assign(source="published", part="published")
        gap = gap.assign(series="third party, 124M parameters")
        rows = rows.assign(_series="minus a " + names.str[0], _text=names.str[1])
        rows["_published"] = gap["difference_nats"].iloc[0]
        classic = rows["_series"].str.contains("classic")
        rows = rows.assign(_marker=classic.map({True: "X", False: "s"}), _tokens=rows["tokens"] * (1 - 0.15 * classic))
        rows = pd.concat([rows, gap], ignore_index=True)
    changes = tokenformer_modern.rows(results, runs).query("run.isna()")
    texts, arms = (
        data_set_labels(changes["regime"].str.partition(", ")[0], results.scale),
        changes["arm"] + " Transformer",
    )
    longest = (arms + ", " + texts).map(pairs.drop_duplicates("series", keep="last").set_index("series")["run"])
    claim = claim_verdicts(results, STUDY, _GAP_CLAIM)[_GAP_CLAIM]
    verdicts = [claim.word if run in claim.runs else None for run in longest]
    changes = changes.assign(
        source="ours", part="change", run=longest, verdict=Series(verdicts, changes.index, dtype=object)
    )
    ends = [f", claim {verdict}" if verdict else "" for verdict in verdicts]
    values = [in_words(row, "difference_nats") for _, row in changes.iterrows()]
    words = [f"change ({arm}){end}\n{value}" for arm, end, value in zip(changes["arm"], ends, values, strict=True)]
    rows["_change"] = rows.get("_text", texts).map(dict(zip(texts, words, strict=True)))
    rows = pd.concat([rows, changes.reindex(columns=[*rows, "verdict"])], ignore_index=True)
    return rows.assign(_style=TOKENFORMER)
