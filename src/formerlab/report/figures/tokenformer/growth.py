"""Effect of growth, and Tokenformers compared with Transformers (Tokenformer, arXiv:2410.23168, Fig 6 and 7)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.arms import registered_arms
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.columns import with_interval
from formerlab.report.names import regime_label
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
    mean_curves,
)
from formerlab.report.style import GREY
from formerlab.report.tables.cells import claim_verdicts, claim_words, pooled_estimate
from formerlab.report.tables.tokenformer.models import published_gaps, tokenformer_modern
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
    later = rows.loc[~rows["_item"].str.startswith(ITEMS["first_step"])].filter(like="tokens_minus_net2net_nats")
    ends = [0.0, *later.to_numpy(float).ravel()]
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    if high > low:
        axes.set_xlim(low - 0.6 * (high - low), high + 0.1 * (high - low))


@plot(reads="eval.csv", runs="continued-*", draw=layout(
    Panel("step", "_relative", by="_series", kind="band", zero=0.0, name="legend", where={"part": "relative"},
          title="Below 0, growing helps", xlabel="step on the second domain",
          ylabel="loss, grown minus\nnot grown (nats)"),
    Panel("tokens_minus_net2net_nats", "_item", by="_item", kind="forest", style="_style", where={"part": "claim"},
          zero=0.0, title="The claim asks for values below 0", finish=_limit_to_later_steps,
          xlabel="loss, tokens minus Net2Net (nats; left: tokens better)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])}; bands (series of the claim): 95 % Student t interval over "
                        "seeds; bars: 95 % interval with the spread of similar runs, as used for verdicts."],
    wanted=_DRAWN, order="_order step", height=2.1
))  # fmt: skip
def tokenformer_continued(results: Results, runs: list[str]) -> DataFrame:
    """Continued training of grown models on a second domain at a constant learning rate, after Fig. 6 of Tokenformer
    (arXiv:2410.23168, which prints no values). Left: validation loss on the new domain minus the loss of the same model
    without growth, paired by step and seed; the legend has the values before the first step. Right: the difference for
    growth by tokens (zero keys, tau kept) minus the difference for the paper's Net2Net; docs/verdicts.md shows the
    gain, which has the opposite sign. To see: a model whose growth preserves its function starts at zero. Copies do so
    by construction (the Net2Net of 2015, and HyperCloning, whose curve coincides with it and is not drawn). Padding
    with new blocks, the paper's form of Net2Net, does not. The CSV has the losses.
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
    of_claim = rows["run"].isin(["continued-tokenformer", "continued-net2net-pad"])
    rows = rows.assign(
        _relative=rows["loss_nats"],
        **{f"_relative{end}": rows[f"loss_nats{end}"].where(of_claim) for end in ("_low", "_high")},
    )
    reader, registered = ClaimRows(results, STUDY, ClaimArms()), registered_arms(_CLAIM, results.scale)
    signs = {"tokenformer": 1.0, "tokenformer_ungrown": -1.0, "rival": -1.0, "rival_ungrown": 1.0}
    verdicts = claim_verdicts(results, STUDY, _CLAIM)
    verdict, rows["_claims"] = (
        verdicts[_CLAIM].word,
        claim_words(verdicts, {_CLAIM: "growth by tokens ends with the lower loss"}),
    )
    for item, label in ITEMS.items():
        arms = {str(arm.run): signs[name] for name, arm in registered.for_item(item).items() if name in signs}
        value = pooled_estimate(reader, "tokens_minus_net2net_nats_pooled", arms, at=item) if len(arms) == 4 else {}
        if value:
            words = with_interval(*value.values(), ".3f")
            value["tokens_minus_net2net_nats"] = value.pop("tokens_minus_net2net_nats_pooled")
            row = {
                "source": "ours",
                "part": "claim",
                "run": "continued-tokenformer",
                "_item": f"{label}\n{words}",
                "_order": 9,
                "verdict": verdict,
            }
            rows = pd.concat([rows, DataFrame([row | {"_style": "grown with zero keys"} | value])], ignore_index=True)
    return rows.reindex(columns=[*rows, *{"_item", "_style", "tokens_minus_net2net_nats"}.difference(rows)])


_CLASSIC_SHIFT = 0.7
"""Factor that moves the marks of the classic Transformer to the left on the axis of tokens."""
_GAP_CLAIMS = {
    "tokenformer-worse-than-modern-transformer": "worse than a modern Transformer (after few tokens)",
    _GAP_CLAIM: "the gap shrinks with training",
}


def _finish_gap(axes: Axes, rows: DataFrame) -> None:
    """Label the numbers of tokens."""
    ticks = rows.dropna(subset="tokens").drop_duplicates("tokens")["tokens"]
    axes.set_xticks(ticks, ticks.map(format_count))
    axes.set_xlim(0.4 * ticks.min(), 2 * ticks.max())
    axes.minorticks_off()


@plot(reads="eval.csv test.csv lender_test.csv",
      runs="matched-* modern-* classic-* long-* annealed-m* annealed-classic-* annealed-long-* annealed-whole-*",
      needs="long-matched-*", within_regime=True, draw=layout(
    Panel("_tokens", "difference_nats", by="_series", facet="_panel", log="x", zero=0.0, name="legend", share_y=True,
          where={"part": ["mean", "seed"]}, same_limits="y", xlabel="training tokens", finish=_finish_gap,
          ylabel="loss, Tokenformer minus\nTransformer (nats; above 0,\nthe Tokenformer is worse)"),
    Panel("difference_nats", "_row", by="_row", kind="forest", zero=0.0, where={"part": "change"},
          title="Change, shared seeds", xlabel="nats (left: the gap shrinks)"),
    Panel("difference_nats", "_row", by="_row", kind="forest", zero=0.0, where={"part": "published"},
          title="124M parameters", xlabel="nats (right: worse)"),
    columns=3, height=2.2
))  # fmt: skip
def tokenformer_gap(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of a Tokenformer minus the loss of Transformers of equal width and number of parameters, against
    the number of training tokens. A panel is a test text and the learning rate at the end of training. One Transformer
    is modern (RMSNorm, SwiGLU), the other is classic (as GPT-2). Every run has its own full schedule, and each model
    has the best learning rate (lowest validation loss) of the rates that were run. Differences are paired by seed. The
    change is the difference after the longest training minus the difference after the shortest training, over the seeds
    that both have, so it is not exactly the step between the two marks. Marks of the classic Transformer are moved to
    the left. On the novels, the modern Transformer of 49M tokens has the second best rate of its search; the best is
    0.002 nats lower and at the edge of the search (tokenformer_rates). Runs whose learning rate falls to zero belong
    to data set `novels` (trained on the books, tested on the novels); on the test books they have no pooled interval
    and no dots. Published: the paper (arXiv:2410.23168, Table 6) and a third party. To see: whether the gap shrinks,
    stays or changes its sign as both train longer. If a thin bar includes zero, these seeds alone do not show the sign.
    """
    table = tokenformer_modern.rows(results, runs)
    if table.empty:
        return table
    table = table.dropna(subset="arm").rename(columns={"run": "rival", "tokenformer": "run"})
    losses, ends = held_out_losses(results, STUDY, runs), expand_columns("difference_nats[]+")
    changes, verdicts = table["rival"].isna(), table["verdict"].str.partition(" (")[0].replace("", None)
    pairs = table[~changes & table["regime"].isin(losses["regime"])]
    seeds = differences(losses, pairs[["regime", "arm", "tokens", "run", "rival"]], "run", "rival")
    table = table.assign(
        source="ours",
        part=changes.map({True: "change", False: "mean"}),
        verdict=verdicts,
        _panel=table["regime"].map(lambda regime: regime_label(regime, results.scale)),
    )
    table["_panel"] = table["_panel"].str.replace(", cosine learning rate", ": rate")
    seeds = seeds[seeds["part"].eq("seed")].merge(table[["regime", "_panel"]].drop_duplicates())
    published = published_gaps().assign(source="published", part="published")
    rows = pd.concat([seeds, table, published], ignore_index=True)
    columns = ["source", "regime", "arm", "tokens", "run", "rival", "part", "seed", "seeds", *ends, "verdict"]
    lengths = rows.groupby("arm")["tokens"].nunique()
    few = rows["arm"].map(lengths < lengths.max()).map({True: " (short runs only)", False: ""})
    names = rows["_panel"].str.replace(": ", "\n").str.removesuffix(" of its peak")
    published_names = rows["run"].str.extract("(paper|report)")[0] + ":\n" + rows["arm"]
    labelled_rows: DataFrame = rows[[*columns, "_panel"]].assign(
        _series="minus a " + rows["arm"] + " Transformer" + few,
        _tokens=rows["tokens"] * rows["arm"].map({"classic": _CLASSIC_SHIFT}).fillna(1.0),
        _row=names.fillna(published_names),
        _marker=rows["arm"].map({"classic": "D", "modern": "s"}),
        _color=rows["arm"].map({"classic": GREY}),
        _style=TOKENFORMER,
        _claims=claim_words(claim_verdicts(results, STUDY, *_GAP_CLAIMS), _GAP_CLAIMS),
    )
    return labelled_rows
