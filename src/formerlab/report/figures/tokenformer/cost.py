"""Held-out loss against training cost, and savings by growing (Tokenformer, arXiv:2410.23168, Fig 1, 3 and 4).

Published costs are TPU hours read from the figures; published perplexities are from Tables 6 and 7.
"""

import re
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.arms import registered_arms
from formerlab.report.claims.quantity import Quantity
from formerlab.report.marks import embolden_claims, mark
from formerlab.report.panel import Panel, layout, setting, with_claims
from formerlab.report.runs import TOKENFORMER, TRANSFORMER, differences, estimate, held_out_losses, seed_notes
from formerlab.report.studies.tokenformer import (
    FROM_SCRATCH,
    LENGTHS,
    PARENT,
    STUDY,
    WAYS_TO_GROW,
    fully_annealed_losses,
    published_points,
    published_ratio,
    scratch_points,
    series_points,
    stage_pairs,
    with_registered_rates,
)
from formerlab.report.style import (
    BETTER,
    BLACK,
    GREY,
    NARROW,
    WIDEST,
    arrow,
    ink,
    label_at_edge,
    plot_style,
)
from formerlab.report.tables.cells import ClaimVerdict, claim_verdicts, claim_words, with_pooled
from formerlab.report.tables.tokenformer.growth import cost_of_parent, tokenformer_envelope
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE

_LOWEST = "Transformer from scratch"
_CLAIM = "tokenformer-growth-saves-cost"
CLAIMED_RATIO = 0.5
"""Largest ratio of FLOPs that the paper claims."""
_PUBLISHED = (
    ("Fig 3", "Transformer, 300B tokens"),
    ("Fig 4", "Transformer, 30B tokens"),
    ("Fig 3", "grown, 30B a stage"),
)
_FROM_SCRATCH = "Tokenformer from scratch"
_CSV_ONLY = (WAYS_TO_GROW["grown: zero keys, tau kept"], _FROM_SCRATCH)
"""Series whose costs only the CSV has; tokenformer_stage_length shows their losses."""
_SHORTER_STAGES_PATTERN = f"-(?:{'|'.join(LENGTHS[:-1])})"
"""Runs of the shorter stages; the table tokenformer_envelope lists them."""
_FURTHER = "parent trained further, equal FLOPs"
_AT_ZERO = "Transformer, rate to 0"
_losses = partial(
    Panel, "_relative", "loss_nats", by="_series", log="x", unit="_line", ylabel="held-out loss (nats per token)"
)
_RIGHT = {"xytext": (7, 0), "ha": "left", "va": "center"}
_NAMES: dict[str, tuple[str, int, dict[str, Any]]] = {
    _LOWEST: (f"{TRANSFORMER} from scratch", 0, {"xytext": (7, 3), "ha": "left"}),
    PARENT: (f"{TOKENFORMER}\n(parent)", 0, {"xytext": (0, 8), "ha": "center"}),
    "grown as published": ("grown", 0, _RIGHT),
    _FURTHER: ("parent\ntrained\nfurther", 0, _RIGHT),
    "Transformer, 300B tokens": ("Transformer, 300B tokens", 0, {"xytext": (7, -1), "ha": "left"}),
    "Transformer, 30B tokens": ("30B tokens", -1, {"xytext": (9, -6), "ha": "right", "va": "top"}),
    "grown, 30B a stage": (f"{TOKENFORMER},\ngrown", -1, {"xytext": (-7, 0), "ha": "right", "va": "center"}),
}
"""Name of a series in the panels of losses, the point beside which it is, and its offset in points."""


def _write_models(axes: Axes, rows: DataFrame) -> None:
    """Draw an arrow from the parent to the grown model, and a double arrow, labelled with the cost ratio, from a model
    to the Transformers of equal loss. Name the series, and the number of seeds of each Transformer.
    """
    write = partial(axes.annotate, textcoords="offset points", fontsize=7)
    means = rows.dropna(subset="_at").drop_duplicates("run").set_index("run")
    for run, point in means[means["parent"].isin(means.index) & means["series"].ne(_FURTHER)].iterrows():
        ends = means.loc[[point["parent"], run], ["_at", "loss_nats"]].to_numpy(float)
        arrow(axes, *ends, color=plot_style(point["series"])["color"], shrinkA=4, shrinkB=4)
    for x, y, ratio, relative in means.dropna(subset="_ratio")[["_at", "loss_nats", "_ratio", "_relative"]].to_numpy():
        arrow(axes, (x, y), (relative / ratio, y), color=GREY, arrowstyle="<|-|>", shrinkA=5, shrinkB=5)
        write(f"{ratio:.2g}\N{MULTIPLICATION SIGN}", ((x * relative / ratio) ** 0.5, y), (0, -3), ha="center", va="top",
              color=GREY)  # fmt: skip
    for series, points in rows.groupby("_series", sort=False):
        if (series := str(series)) in _NAMES:
            words, at, beside = _NAMES[series]
            x, y = points.sort_values("_at")[["_at", "loss_nats"]].to_numpy()[at]
            write(words, (x, y), color=ink(plot_style(series)["color"]), **beside)
    for x, y, seeds in means.loc[means["series"].eq(_LOWEST), ["_at", "loss_nats", "seeds"]].to_numpy():
        write("1 seed" if seeds == 1 else f"{seeds:.0f} seeds", (x, y), (-5, -4), color=GREY, ha="right", va="top")


def _write_ratios(axes: Axes, rows: DataFrame) -> None:
    """Write each ratio with its interval at the right of its row."""
    for at, row in enumerate(rows.to_dict("records")[::-1]):
        words = "{flops_ratio:.1f} [{flops_ratio_pooled_low:.2g}, {flops_ratio_pooled_high:.1f}]"
        if pd.isna(row["flops_ratio_pooled_low"]):
            words = "{flops_ratio:.2f}"
        if row["source"] == "published":
            words = "{flops_ratio:.2f} to {flops_ratio_other_perplexity:.2f}"
        axes.text(1.02, at, words.format_map(row), va="center", transform=axes.get_yaxis_transform())


def draw_cost(data: DataFrame) -> Figure:
    """Draw the ratios of costs and, below them, our losses and the published losses against costs."""
    data.attrs["marks"] = {"bars"}
    notes, ratios = seed_notes(data), data[data["flops_ratio"].notna()]
    top = bool(len(ratios)) * (0.25 * len(ratios) + 0.85)
    height = top + 3.9
    figure = Figure((WIDEST, height), label=" ".join(notes))
    note = (
        f"{setting(data[data['_series'].notna()])}; {''.join(notes[:1])[:-1]}; the learning rates of the Transformers "
    )
    note += "and of the parent end at a tenth of the peak, all others at zero"
    figure.text(0.012, 0.03 / height, with_claims(note, data, 111), color=GREY, fontsize=7)
    if len(ratios):
        panel = Panel("flops_ratio", "_row", by="_row", style="series", kind="forest", log="x", zero=1.0)
        tall = 0.25 * len(ratios)
        axes = figure.add_axes((1.9 / WIDEST, (height - 0.3 - tall) / height, 3.4 / WIDEST, tall / height))
        mark(axes, panel, ratios, {})
        axes.set(title="Cost ratio at equal loss (dashed: the claim, at most 0.5)",
                 xlabel=f"FLOPs with all ancestors / FLOPs of a Transformer of equal loss ({BETTER})")  # fmt: skip
        _write_ratios(axes, ratios)
    drawn = list[Any]()
    for source, x, words, title, ylabel in (
        ("ours", 0.65, "FLOPs with all ancestors", "Ours", _losses.keywords["ylabel"]),
        ("published", 4.15, "TPU v4 hours", "PUBLISHED, not ours", "ln perplexity"),
    ):
        rows = data[data["source"].eq(source) & data["_series"].notna() & data["seed"].isna()]
        axes = figure.add_axes((x / WIDEST, 1.15 / height, 2.75 / WIDEST, 2.4 / height))
        labels = mark(axes, _losses(finish=_write_models), rows, {})[0] if len(rows) else []
        drawn.append((axes, labels))
        axes.set(xlabel=f"{words} (largest Transformer = 1, log)", ylabel=ylabel)
        axes.set_title(title, color=BLACK if source == "ours" else GREY)
    ends, limits = [axes.get_xlim() for axes, _ in drawn], [axes.get_ylim() for axes, _ in drawn]
    for (axes, labels), (_, top) in zip(drawn, limits, strict=True):  # equal scales, so that slopes can be compared
        axes.set(xlim=(np.min(ends), 2.3 * np.max(ends)), ylim=(top - np.ptp(limits, axis=1).max(), top))
        label_at_edge(axes, [label for label in labels if label.text not in _NAMES], 13)
    return figure


@plot(reads="test.csv", within_regime=True, draw=draw_cost)
def tokenformer_cost(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss against training cost, after Fig. 1 and 3 of Tokenformer (arXiv:2410.23168). Above: the cost of the
    claim's grown model (long stage) and of its parent, relative to a Transformer of equal loss on the black line.
    Bars: the interval of the verdict. Its low end is extrapolated beyond the black line, and two of the three
    Transformers on the line have one seed. Below: the losses of Transformers (black, grey) and Tokenformers (blue,
    pink). The cost of a grown model includes all its ancestors. Both panels have the same scales. Hollow: the
    paper's models, which are a thousand times larger. Their ratio is 0.40 to 0.42, because the paper prints two
    values of one perplexity. To see: growing saves cost if its mark is to the left of the black line. The CSV also
    has a Tokenformer of the grown size from scratch, which has the same cost, and the smallest Transformer with a
    rate to zero; the table tokenformer_envelope has the other stages and ways to grow.
    """
    rows, losses = series_points(results, runs), fully_annealed_losses(results, runs)
    rows["_series"] = rows["series"].where(
        ~rows["series"].isin(_CSV_ONLY) & ~rows["run"].str.contains(_SHORTER_STAGES_PATTERN)
    )
    frames = [rows.assign(flops_ratio=np.nan)]
    claims = ""
    if losses["run"].str.startswith(FROM_SCRATCH).any():
        lowest = scratch_points(losses).query("lowest").assign(part="mean", source="ours", series=_LOWEST)
        frames.append(lowest.assign(_series=_LOWEST).drop(columns="lowest"))
        arms = registered_arms(_CLAIM, results.scale).arms.values()
        ratios = tokenformer_envelope.rows(results, runs).assign(source="ours", part="ratio")
        at_zero = ratios[ratios["envelope"].eq("ends at rate zero")].assign(part="mean", series=_AT_ZERO, lent=True)
        frames.append(at_zero.reindex(columns=lowest.columns).assign(flops_ratio=np.nan))
        claimed = ratios[ratios["run"].isin([arm.run for arm in arms])]
        verdicts = claim_verdicts(results, STUDY, _CLAIM)
        if len(claimed) and (claims := claim_words(verdicts, {_CLAIM: "growing saves cost"})):
            needed = f"largest Transformer where at most {CLAIMED_RATIO} is needed"
            alone = cost_of_parent(ratios, claimed["parent"].iloc[0])
            claims += f" (the parent alone costs {alone:.2f} of the {needed})"
        ratios["series"] = ratios["run"].map(rows.drop_duplicates("run").set_index("run")["series"])
        ratios = ratios[ratios["run"].isin({*claimed["run"], *claimed["parent"]})].dropna(
            subset=["flops_ratio", "series"]
        )
        paper = published_ratio().assign(series="grown as published", _row="paper, 1.4B, TPU hours")
        ratios["_row"] = ratios["series"]
        ratios["verdict"] = ratios["run"].isin(claimed["run"]).map({True: verdicts[_CLAIM].word})
        columns = ["source", "part", "run", "series", "_row", "verdict", *expand_columns("flops_ratio[]+")]
        columns += ["flops_ratio_other_perplexity", "seeds"]
        frames.append(pd.concat([ratios, paper])[columns].assign(flops_ratio_limit=CLAIMED_RATIO))
    published = published_points(*_PUBLISHED)
    rows = pd.concat([*frames, published.assign(_series=published["series"])], ignore_index=True)
    cost = rows["flops_cumulative"].fillna(rows["tpu_v4_hours"])
    largest = cost.where(rows["variant"].eq(TRANSFORMER) | rows["run"].str.startswith(TRANSFORMER))
    linked = rows["parent"].notna() & rows["series"].ne(_FURTHER)  # arrows join models and their parents
    rows["_line"] = rows["run"].where(linked, rows["_series"])
    rows = rows.sort_values("series", key=lambda names: names.eq(_FROM_SCRATCH), kind="stable")
    ratio = rows.dropna(subset="flops_ratio").set_index("run")["flops_ratio"]
    rows["_ratio"] = rows["run"].map(ratio).where(rows["series"].ne(PARENT) & rows["flops_ratio"].isna())
    rows["_claims"] = claims
    rows["_relative"] = cost / largest.fillna(0).groupby(rows["source"]).transform("max").replace(0, np.nan)
    return rows


PUBLISHED_TOKENS_PER_NEW_PARAMETER = (27, 260)
"""Tokens per new parameter of the published stages: 15 billion from 757M to 1.31B, 60 billion from 124M to 354M."""


_GROWN, _SCRATCH = "annealed-random-sqrt", "annealed-scratch"
_RATE = re.compile(r"-\d+$")
"""Matches the learning rate at the end of the name of a run."""
_CLAIMS = {
    "tokenformer-growth-beats-continuing": "growing beats training the parent further",
    "tokenformer-growth-gap-shrinks-with-stage": "it helps more in longer stages",
}
"""Claims on the model grown as published, with their short labels in the figure."""
_CONDITIONS = {
    "tokens per new parameter": "short stage: few tokens",
    "decrease of the validation loss": "short, medium: parent no longer learns",
    "learning rate of": "long: another rate is better",
}
"""Short names of conditions that are not met, by words of the reasons (`ClaimVerdict.reasons`)."""


def _deciding(verdict: ClaimVerdict) -> str:
    """Return ` (long stage)` if this stage alone has the verdict of the claim."""
    stages = [stage for stage, word in verdict.items.items() if word == verdict.word]
    return f" ({', '.join(stages)} stage)" if 0 < len(stages) < len(verdict.items) else ""


@plot(reads="test.csv", runs="annealed-random-* annealed-zero-* annealed-trained-on-* annealed-scratch-*",
      needs="annealed-trained-on-*", draw=layout(
    Panel("_nats", "_label", by="_way", style="variant", kind="forest", name="legend", zero=0.0,
          finish=lambda axes, rows: embolden_claims(axes, rows.assign(verdict=rows["_nats_limit"])),
          title="Stage (tokens per new parameter)",
          xlabel=f"loss minus parent trained further\n(nats per token; {BETTER})"),
    notes=lambda rows: [note.rstrip(".") + "; green: meets a claim; the paper's stages have "
                        f"{' to '.join(map(str, PUBLISHED_TOKENS_PER_NEW_PARAMETER))} tokens per new parameter."
                        for note in seed_notes(rows)[:1]],
    width=NARROW, order="_order"
))  # fmt: skip
def tokenformer_stage_length(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of a grown Tokenformer minus the loss of its parent trained further for the same FLOPs
    (arXiv:2410.23168), by the length of the stage in tokens per parameter that growth adds. Differences are paired by
    seed; left of zero, growing helps. Per doubling: the slope of the three differences of the model grown as published.
    The squares are Tokenformers of the grown size from scratch, beside the same parent trained further. The one of the
    long stage has the FLOPs of the stage and of the parent, and read the parent's text; the stages read other text.
    Rows of all books, if any, have the FLOPs of the long stage, and read all training books. Every learning rate falls
    to zero. To see: whether growing needs a longer stage to help.
    """
    losses, records = held_out_losses(results, STUDY, runs), results.runs(STUDY).drop_duplicates("run").set_index("run")
    if "spec.growth.keys" not in losses:
        return DataFrame()
    losses = with_registered_rates(losses, results.scale)
    pairs = stage_pairs(losses, records)
    if pairs.empty:
        return pairs
    pairs = pd.concat([pairs, *_other_texts(pairs, losses)]).drop_duplicates("run")
    rows = differences(losses, pairs, "run", "rival")
    rows = with_pooled(rows, results, STUDY, "run", "rival", "difference_nats")
    verdicts = claim_verdicts(results, STUDY, *_CLAIMS)
    words = claim_words(verdicts, {name: text + _deciding(verdicts[name]) for name, text in _CLAIMS.items()})
    reasons = " ".join(reason for verdict in verdicts.values() for reason in verdict.reasons).lower()
    unmet = "; ".join(name for text, name in _CONDITIONS.items() if text in reasons)
    beats, shrinks = verdicts.values()
    if isinstance(trend := shrinks.quantities.get("trend"), Quantity):
        row = estimate("difference_nats_pooled", slope := trend.interval(CONFIDENCE))
        row |= {"difference_nats": row.pop("difference_nats_pooled"), "seeds": slope.seeds}
        row |= {"source": "ours", "part": "slope", "variant": rows["variant"].iloc[0]}
        rows = pd.concat([rows, DataFrame([row])], ignore_index=True)
    stages = rows["run"].str.replace(_RATE, "", regex=True).str.rpartition("-")[2]
    scratch, text = rows["run"].str.startswith(_SCRATCH, na=False), stages.replace("all", "all books")
    tokens = rows["tokens_per_new_parameter"].map(" ({:.0f})".format)
    decided = stages.map(beats.items).ne("no verdict") & stages.isin([*beats.items]) & ~scratch
    return rows.assign(
        **{f"_nats{end.removeprefix('difference_nats')}": rows[end] for end in expand_columns("difference_nats[]+")},
        _nats_limit=Series(0.0, rows.index).where(decided),
        _nats_met=Series(-np.inf, rows.index).where(decided),
        _label=("from scratch,\n" + text).where(scratch, text + tokens),
        _way=rows["variant"].replace(WAYS_TO_GROW),
        _order=stages.map([*LENGTHS, "all"].index, na_action="ignore").add(0.5 * scratch).fillna(2.2),
        verdicts=words,
        _claims=words + f" ({unmet})" * bool(words and unmet),
    ).fillna({"_label": "slope per\ndoubling"})


def _other_texts(pairs: DataFrame, losses: DataFrame) -> list[DataFrame]:
    """Return the pairs of models that read other text than the parent trained further, which is the same `rival`:
    from scratch, and the runs on all books with as many FLOPs as the long stage.
    """
    grown = pairs[pairs["run"].str.startswith(_GROWN)]
    scratch = grown.assign(variant="Tokenformer from scratch")
    flops, frames = losses.groupby("run")["flops"].first(), []
    for models, name in (scratch, rf"{_SCRATCH}-\1"), (grown, f"{_GROWN}-all"), (scratch, f"{_SCRATCH}-all"):
        runs = grown["run"].str.replace(rf"^{_GROWN}-([a-z]+).*", name, regex=True)
        equal = runs.map(flops).div(grown["run"].map(flops)).between(0.95, 1.05)
        of_long = equal & grown["run"].str.contains(f"-{LENGTHS[-1]}")
        frames.append(models.assign(run=runs)[of_long if name.endswith("-all") else runs.isin(flops.index)])
    return frames
