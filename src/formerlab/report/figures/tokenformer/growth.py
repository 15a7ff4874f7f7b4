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
from formerlab.report.marks import embolden_claims
from formerlab.report.names import regime_label
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    TOKENFORMER,
    differences,
    format_count,
    held_out_losses,
    seed_count,
    seed_notes,
    validation_losses,
)
from formerlab.report.studies.tokenformer import (
    STUDY,
    mean_curves,
)
from formerlab.report.style import BETTER, GREY, NARROW, wrap
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
ITEMS = {"first_step": ("starts lower", "step 0, before training"),
         "area_under_curve": ("falls faster", "mean from step 0 on"),
         "last_step": ("ends lower", "last step")}  # fmt: skip
"""Parts of the claim on new text, and the losses that they compare."""
_DRAWN = [name for run, name in ARMS.items() if "ungrown" not in run and "hypercloning" not in run]


def _limit_to_later(axes: Axes, rows: DataFrame) -> None:
    """Set the limits from the losses after the first step. The differences before it are much larger."""
    later = rows[rows["step"].gt(0)]
    if len(later):
        ends = later.filter(regex="^_relative(_|$)").to_numpy(float)
        low, high = min(0.0, np.nanmin(ends)), max(0.0, np.nanmax(ends))
        axes.set_ylim(low - 0.06 * (high - low), high + 0.25 * (high - low))  # the arrows of step 0 need room


def _limit_to_later_parts(axes: Axes, rows: DataFrame) -> None:
    """Set the limits from the parts of the claim after the first step, and make the rows bold."""
    later = rows.loc[~rows["_label"].str.startswith(ITEMS["first_step"][0])].filter(regex="^_gain(_|$)")
    ends = [0.0, *later.drop(columns=["_gain_limit", "_gain_met"]).to_numpy(float).ravel()]
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    if high > low:
        axes.set_xlim(low - 0.1 * (high - low), high + 0.6 * (high - low))
    embolden_claims(axes, rows)


@plot(reads="eval.csv", runs="continued-*", draw=layout(
    Panel("step", "_relative", by="_series", kind="line", zero=0.0, where={"part": "relative"}, apart=25,
          title="Loss, grown minus not grown", finish=_limit_to_later, xlabel="step on the new text",
          ylabel=f"nats per token ({BETTER})"),
    Panel("_gain", "_label", by="_label", kind="forest", style="_style", where={"part": "claim"}, zero=0.0,
          title="Claim in three parts", finish=_limit_to_later_parts,
          xlabel="gain, tokens minus Net2Net\n(nats; right: tokens better)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])}; thin bars (last step): 95 % Student t interval over "
                        "seeds; thick bars: 95 % interval with the spread of similar runs, as used for verdicts; "
                        "green: meets the claim."],
    wanted=[wrap(name, 16) for name in _DRAWN], order="_order step", height=2.3
))  # fmt: skip
def tokenformer_continued(results: Results, runs: list[str]) -> DataFrame:
    """Continued training of grown models on a second domain at a constant learning rate, after Fig. 6 of Tokenformer
    (arXiv:2410.23168, which prints no values). Left: validation loss on the new domain minus the loss of the same model
    without growth, paired by step and seed; arrows: values at step 0, before training. Right: the gain (not grown minus
    grown) of growth by tokens (zero keys, tau kept) minus the gain of the paper's Net2Net, with the verdict on each
    part of the claim. The mean of the curve includes step 0, where the loss of Net2Net is far higher. To
    see: a model whose growth preserves its function starts at zero. Copies do so by construction (the Net2Net of 2015,
    and HyperCloning, whose curve coincides with it and is not drawn). Padding with new blocks, the paper's form of
    Net2Net, does not, but its loss is the lowest in the end. The CSV has the losses.
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
    last = rows["step"].eq(rows["step"].max())
    rows["_series"] = rows["variant"].map(lambda name: wrap(name, 16)).where(rows["variant"].isin(_DRAWN))
    for end in ("", "_low", "_high"):
        rows[f"_relative{end}"] = rows[f"loss_nats{end}"].where(last | (end == ""))
    reader, registered = ClaimRows(results, STUDY, ClaimArms()), registered_arms(_CLAIM, results.scale)
    signs = {"tokenformer": 1.0, "tokenformer_ungrown": -1.0, "rival": -1.0, "rival_ungrown": 1.0}
    verdicts = claim_verdicts(results, STUDY, _CLAIM)
    rows["_claims"] = claim_words(verdicts, {_CLAIM: "growth by tokens ends with the lower loss"})
    for item, (part, moment) in ITEMS.items():
        arms = {str(arm.run): signs[name] for name, arm in registered.for_item(item).items() if name in signs}
        value = pooled_estimate(reader, "tokens_minus_net2net_nats_pooled", arms, at=item) if len(arms) == 4 else {}
        if value:
            value["tokens_minus_net2net_nats"] = value.pop("tokens_minus_net2net_nats_pooled")
            low, high, mean = (-number for number in value.values())
            gain = {"_gain": mean, "_gain_pooled_low": high, "_gain_pooled_high": low}
            row = {"source": "ours", "part": "claim", "run": "continued-tokenformer", "verdict": verdicts[_CLAIM].word}
            row |= {
                "_label": f"{part}: {verdicts[_CLAIM].items.get(item, '')}".rstrip(": ")
                + f"\n({moment})\n{with_interval(mean, high, low, 'z.3f')}",
                "_style": "grown with zero keys",
            }
            row |= value | gain | {"_order": 9, "_gain_limit": 0.0, "_gain_met": np.inf}
            rows = pd.concat([rows, DataFrame([row])], ignore_index=True)
    return rows.reindex(columns=[*rows, *{"_label", "_gain", "tokens_minus_net2net_nats"}.difference(rows)])


_GAP_CLAIMS = {
    "tokenformer-worse-than-modern-transformer": "worse than a modern Transformer after few tokens",
    _GAP_CLAIM: "the gap shrinks with training",
}


@plot(reads="eval.csv test.csv lender_test.csv",
      runs="matched-* modern-* classic-* long-* annealed-m* annealed-classic-* annealed-long-* annealed-whole-*",
      needs="long-matched-*", within_regime=True, draw=layout(
    Panel("_nats", "_label", by="_series", facet="_panel", kind="forest", zero=0.0, name="legend", same_limits="x",
          finish=embolden_claims, xlabel=f"loss, Tokenformer minus Transformer\n(nats per token; {BETTER})"),
    notes=lambda rows: [note.rstrip(".") + "; bold: a claim uses the row; green: meets it." for note in
                        seed_notes(rows)[:1]],
    columns=1, width=NARROW, order="_order"
))  # fmt: skip
def tokenformer_gap(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of a Tokenformer minus the loss of Transformers of equal width and number of parameters, by the
    number of training tokens. A panel is a test text and the learning rate at the end of training. One Transformer is
    modern (RMSNorm, SwiGLU), the other is classic (as GPT-2). Every run has its own full schedule, and each model has
    the best learning rate (lowest validation loss) of the rates that were run. Differences are paired by seed. The
    change is the difference after the longest training minus the difference after the shortest training, over the seeds
    that both have, so it is not exactly the difference of the two marks above it. On the novels, the modern Transformer
    of 49M tokens has the second best rate of its search; the best is 0.002 nats lower and at the edge of the search
    (tokenformer_rates). The models of the upper panel on the test books are in the CSV. Published, as differences of ln
    perplexity: the paper (arXiv:2410.23168, Table 6) and a third party. To see: whether the gap shrinks, stays or
    changes its sign as both train longer. If a thin bar includes zero, these seeds alone do not show the sign.
    """
    table = tokenformer_modern.rows(results, runs)
    if table.empty:
        return table
    table = table.dropna(subset="arm").rename(columns={"run": "rival", "tokenformer": "run"})
    losses, ends = held_out_losses(results, STUDY, runs), expand_columns("difference_nats[]+")
    changes, verdicts = table["rival"].isna(), table["verdict"].str.partition(" (")[0].replace("", None)
    pairs = table[~changes & table["regime"].isin(losses["regime"])]
    seeds = differences(losses, pairs[["regime", "arm", "tokens", "run", "rival"]], "run", "rival")
    table = table.assign(source="ours", part=changes.map({True: "change", False: "mean"}), verdict=verdicts)
    seeds = seeds[seeds["part"].eq("seed")].merge(table[["regime"]].drop_duplicates())
    published = published_gaps().assign(source="published", part="published")
    rows = pd.concat([seeds, table, published], ignore_index=True)
    columns = ["source", "regime", "arm", "tokens", "run", "rival", "part", "seed", "seeds", *ends, "verdict"]
    of_books = rows["regime"].notna() & ~rows["regime"].isin(
        losses["regime"]
    )  # tested on books, trained for the novels
    panels = rows["regime"].map(lambda regime: regime_label(regime, results.scale), na_action="ignore")
    panels = panels.str.replace("^English |^test | learning", "", regex=True).str.replace(", cosine", ",")
    lengths, change = rows["tokens"].map(format_count, na_action="ignore") + " tokens", rows["part"].eq("change")
    span = " minus ".join(format_count(rows["tokens"].agg(end)) for end in ("max", "min"))
    claims = claim_verdicts(results, STUDY, *_GAP_CLAIMS)
    claimed, least = rows["verdict"].notna(), claims[next(iter(_GAP_CLAIMS))].quantities.get("m")
    return rows[columns].assign(
        **{f"_nats{end.removeprefix('difference_nats')}": rows[end] for end in ends},
        _nats_limit=change.map({True: 0.0, False: least}).where(claimed),
        _nats_met=change.map({True: -np.inf, False: np.inf}).where(claimed),
        _panel=panels.fillna("124M parameters").mask(of_books),
        _label=lengths.mask(change, span).fillna(rows["run"].str.removesuffix(", 124M")),
        _series="minus a " + rows["arm"] + " Transformer",
        _order=10 * rows["source"].eq("published") + 5 * ~panels.eq(panels[claimed].max()) + change,
        _marker=rows["arm"].map({"classic": "D", "modern": "s"}),
        _color=rows["arm"].map({"classic": GREY}),
        _style=TOKENFORMER,
        _claims=claim_words(claims, _GAP_CLAIMS),
    )
