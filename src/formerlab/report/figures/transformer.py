"""Figures of the translation study (arXiv:1706.03762)."""

from functools import partial
from itertools import product
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FixedLocator
from pandas import DataFrame, Series

from formerlab.report.catalogue import plot
from formerlab.report.claims.quantity import Quantity
from formerlab.report.marks import embolden_claims, heat
from formerlab.report.panel import Panel, layout, setting
from formerlab.report.runs import differences, differences_by_step, held_out_losses, seed_count, validation_losses
from formerlab.report.style import (
    BETTER,
    BLACK,
    GREY,
    HOLLOW,
    LETTER,
    NARROW,
    PUBLISHED_GROUND,
    WIDEST,
    plot_style,
)
from formerlab.report.tables.cells import claim_verdicts, claim_words, with_pooled
from formerlab.report.tables.transformer import CLAIMS, LABELS, THEORY, complexity, published_variations, scores, slope
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE

STUDY = "transformer"
VARIANTS = ["heads-1", "dropout-0", "dropout-2", "smoothing-0", "smoothing-2", "positions-learned"]
"""Runs that change no size and have a row in Table 3. The published sizes are far from ours."""
_MINUS = {"loss_nats": "loss_minus_base_nats", "sacrebleu": "bleu_minus_base"}
_PUBLISHED = {"published_nats": "loss_minus_base_nats", "published_bleu": "bleu_minus_base"}
_beside_base = partial(Panel, y="_label", by="_series", kind="forest", zero=0.0, name="legend")
_SHORT_CLAIMS = dict(zip(CLAIMS, ("one head is worse", "no dropout is worse", "smoothing costs loss and gains BLEU",
                                 "learned positions are equal"), strict=True))  # fmt: skip
LEARNED = 0.02
"""Largest difference in loss at which the claim calls learned positions equal to sinusoids, in nats."""


@plot(reads="test.csv bleu.csv", runs="base heads-* key-* layers-* width-* hidden-* dropout-* smoothing-* positions-*",
      needs="heads-* key-* layers-* width-* hidden-* dropout-* smoothing-* positions-*", draw=layout(
    _beside_base("loss_minus_base_nats", title="Loss minus loss of base (test){_decided}", finish=embolden_claims,
                 xlabel=f"nats per word piece ({BETTER})"),
    _beside_base("bleu_minus_base", title="BLEU minus base (validation)",
                 xlabel="points of BLEU (better \N{RIGHTWARDS ARROW})",
                 finish=lambda axes, rows: embolden_claims(axes, rows[rows["bleu_minus_base_limit"].notna()])),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); thin bars: 95 % Student t interval of these seeds; thick "
                        "bars (bold rows): as used for verdicts; green: a claim asks for this range."],
    width=NARROW, columns=1
))  # fmt: skip
def transformer_differences(results: Results, runs: list[str]) -> DataFrame:
    """Variations of the base model, as differences from the base model, after Table 3 of arXiv:1706.03762. Above: loss
    per word piece without label smoothing, on the test split. Below: sacreBLEU on the validation split, as in the
    claim; its thick bar is an interval over seeds and sentences. Both are paired by seed. Hollow: the paper's values
    for English to German on its development split, where base has eight heads (one head minus four, as ours: 0.056 nats
    and -0.6 BLEU). The claim on label smoothing asks that without it both the loss and the BLEU are lower than for
    base. To see: which changes are on the same side of zero as in the paper. Our models were still learning when
    training ended, so variants that learn faster have the lower loss, and the claims get no verdict.
    """
    losses = held_out_losses(results, STUDY, runs).join(scores(results, "valid")[["sacrebleu"]], on=["run", "seed"])
    pairs = DataFrame({"run": [run for run in losses["run"].unique() if run != "base"], "base": "base"})
    of_loss, of_bleu = (differences(losses, pairs, "run", "base", name, value) for value, name in _MINUS.items())
    if not len(of_loss) + len(of_bleu):
        return DataFrame()
    if len(of_loss):
        of_loss = with_pooled(of_loss, results, STUDY, "run", "base", _MINUS["loss_nats"])
    published = published_variations().rename(columns=_PUBLISHED)[["run", *_MINUS.values()]].assign(source="published")
    published = published[published["run"].isin(VARIANTS) & published["run"].isin(pairs["run"])]
    rows = pd.concat([of_loss, of_bleu, published], ignore_index=True)
    limits = 0.25 * published.set_index("run")[_MINUS["loss_nats"]].reindex(["heads-1", "dropout-0"])
    limits["positions-learned"] = LEARNED
    limits["smoothing-0"] = 0.0
    met = {"positions-learned": -LEARNED, "smoothing-0": -np.inf}
    claims = claim_verdicts(results, STUDY, *CLAIMS)
    verdicts = {run: claim.word for claim in claims.values() for run in claim.runs}
    bleu = claims["transformer-label-smoothing-trade"].quantities.get("bleu_effect")  # with smoothing minus without
    if isinstance(bleu, Quantity):
        mean = rows["run"].eq("smoothing-0") & rows["part"].eq("mean") & rows["bleu_minus_base"].notna()
        ends = bleu.interval(CONFIDENCE)
        rows.loc[mean, ["bleu_minus_base_pooled_low", "bleu_minus_base_pooled_high"]] = -ends.high, -ends.low
    order = rows["run"].map({run: number for number, run in enumerate(VARIANTS)}).fillna(len(VARIANTS))
    return rows.assign(
        loss_minus_base_nats_limit=rows["run"].map(limits),
        loss_minus_base_nats_met=rows["run"].map(dict.fromkeys(limits.index, np.inf) | met),
        bleu_minus_base_limit=rows["run"].map({"smoothing-0": 0.0}),
        bleu_minus_base_met=rows["run"].map({"smoothing-0": -np.inf}),
        verdict=rows["run"].map(verdicts).where(rows["part"].eq("mean")),
        _claims=claim_words(claims, _SHORT_CLAIMS).replace("no verdict", "no verdict (our models were still learning)"),
        _decided=": no verdict" * ({*verdicts.values()} == {"no verdict"}),
        _label=rows["run"].replace(LABELS, regex=True),
        _series=rows["source"].map({"ours": "ours", "published": "the paper, 65M"}),
        _style="Transformer",
        _order=order,
    ).sort_values("_order", kind="stable", ignore_index=True)


def _draw_published_value(axes: Axes, rows: DataFrame) -> None:
    """Draw the paper's value in a tinted strip at the right."""
    first, last = rows["step"].min(), rows["step"].max()
    left, right = last + 0.15 * (last - first), last + 0.65 * (last - first)
    axes.axvspan(left, right, color=PUBLISHED_GROUND, linewidth=0, zorder=0)
    axes.set_xlim(first - 0.17 * (last - first), right)
    axes.set_xticks([first, last])
    middle, value = (left + right) / 2, rows["published_nats"].iloc[0]
    axes.plot(middle, value, **plot_style("Transformer") | HOLLOW, markersize=4.5)
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, value + 0.05 * (high - low)))
    axes.set_xticks(rows["step"].unique(), minor=True)
    axes.tick_params(axis="x", which="minor", bottom=True, length=3)
    if axes is axes.figure.axes[0]:
        axes.text(middle, 0.03, "paper,\n100k", color=GREY, ha="center", fontsize=7,
                  transform=axes.get_xaxis_transform())  # fmt: skip


@plot(reads="eval.csv", runs="base heads-1 dropout-0 smoothing-0 positions-learned", draw=layout(
    Panel("step", "validation_minus_base_nats", by="_series", facet="_label", kind="line", zero=0.0, name="none",
          xlabel="step", ylabel="validation loss minus\nloss of base (nats)", share_y=True, same_limits="y",
          finish=_draw_published_value),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); bars: 95 % Student t interval of these seeds; below 0, "
                        "the variant is better than base; validation text (transformer_differences: test); tinted: the "
                        "paper at step 100,000, 65M parameters."],
    columns=4
))  # fmt: skip
def transformer_training(results: Results, runs: list[str]) -> DataFrame:
    """Validation loss of four variants minus the base model during training, beside the differences at the end of the
    paper's training (Table 3 of arXiv:1706.03762; one head minus eight heads; from four, as ours, the loss rises
    by 0.056 nats). Paired by seed, from a third of our steps on. To see: in three of four variants the advantage over
    the base model shrinks with training. In two of these the sign at our last step is still the opposite of the
    paper's, so short runs can show the wrong sign.
    """
    curves = validation_losses(results, STUDY, runs)
    curves = curves[3 * curves["step"] >= curves["step"].max()]
    pairs = DataFrame({"run": [run for run in VARIANTS if run in set(curves["run"])], "base": "base"})
    rows = differences_by_step(curves, pairs, "run", "base", "validation_minus_base_nats")
    if rows.empty:
        return rows
    published = published_variations().set_index("run")["published_nats"]
    label = rows["run"].replace(LABELS, regex=True)
    order = rows["run"].map({run: number for number, run in enumerate(VARIANTS)})
    return rows.assign(
        published_nats=rows["run"].map(published), _label=label, _series="ours", _style="Transformer", _order=order
    ).sort_values(["_order", "step"], kind="stable", ignore_index=True)


_ATTENTIONS = ("encoder", "decoder", "cross")
_END = "<|endoftext|>"
_MOST_HEADS = 4


def clearness(rows: DataFrame) -> "Series[Any]":
    """Return how clear the cross-attention of each seed and head is: its smallest row maximum, the clearest last.

    A row maximum is the largest weight on a piece of a source word for one target piece. The full stop and the end of
    the sentence are excluded.
    """
    words = rows[rows["part"].eq("cross") & rows["key_token"].str.contains(r"\w") & rows["key_token"].ne(_END)]
    words = words[words["query"] < words["query"].max() - 1]
    largest = words.groupby(["seed", "head", "query"])["weight"].max().groupby(["seed", "head"]).min()
    clear: Series[Any] = largest.sort_values(kind="stable")
    return clear


def draw_attention(data: DataFrame) -> Figure:
    """Draw one head of the cross-attention and one of the encoder large, and all heads small, in one scale."""
    heads, sharp = sorted(data["head"].unique()), clearness(data).index[-1][1]
    encoder = data[data["part"].eq("encoder")]
    reach = encoder["weight"] * (encoder["query"] - encoder["key"]).abs()
    far: Any = reach.groupby(encoder["head"]).sum().idxmax()
    framed = {"cross": sharp, "encoder": far}
    figure = Figure((WIDEST, 4.6), layout="constrained")
    choice = data["_choice"].iloc[0] if "_choice" in data else ""
    parts = [setting(data), f"seed {data['seed'].iloc[0]}, layer {data['layer'].iloc[0] + 1}, one sentence", choice,
             "right: the encoder head whose attention reaches furthest", "below: all heads, queries down, keys across",
             "one scale for all panels"]  # fmt: skip
    note = "; ".join(filter(None, parts))
    figure.set_label(note)
    top, below = figure.subfigures(2, 1, height_ratios=(10, 3))  # type: ignore[misc]
    large = top.add_subplot(1, 2, 1)
    small = below.subplots(1, len(_ATTENTIONS) * len(heads), squeeze=False)[0]
    for panel, (attention, head) in zip(small, product(_ATTENTIONS, heads), strict=True):
        if framed.get(attention) == head:  # a large panel
            panel.spines[:].set(visible=True, color=BLACK, linewidth=2)
        _draw_map(panel, data[data["part"].eq(attention) & data["head"].eq(head)])
        panel.set(xticks=[], yticks=[], title=attention if head == heads[0] else f"{head + 1}")
    image = _draw_map(large, data[data["part"].eq("cross") & data["head"].eq(sharp)])
    large.axhline(data.loc[data["part"].eq("cross"), "query"].max() - 1.5, color=GREY, linewidth=0.8)
    large.set(title=f"decoder to encoder, head {sharp + 1}", xlabel="source piece", ylabel="predicted target piece")
    second = top.add_subplot(1, 2, 2)
    _draw_map(second, encoder[encoder["head"].eq(far)])
    second.set(title=f"encoder, head {far + 1}", xlabel="source piece (key)", ylabel="source piece (query)")
    top.colorbar(image, ax=second, label="fraction of the attention", fraction=0.04)
    below.supxlabel(fill(note, int(WIDEST / LETTER)), x=0.01, ha="left", color=GREY, fontsize=7)
    return figure


def _draw_map(panel: Axes, rows: DataFrame) -> AxesImage:
    image = heat(panel, rows, "key", "query", "weight", cmap="Greys", vmin=0.0, vmax=1.0)
    for axis, side in ((panel.yaxis, "query"), (panel.xaxis, "key")):
        tokens = rows.drop_duplicates(side).sort_values(side)[f"{side}_token"].tolist()
        if side == "query" and rows["part"].iloc[0] == "cross":
            tokens = [*tokens[1:], _END]  # the decoder input is shifted by one: row i predicts piece i + 1
        labels = ["</s>" if token == _END else token.replace(" ", "\u2423") for token in map(str, tokens)]
        axis.set_ticks(range(len(tokens)), labels)
    panel.tick_params(axis="x", rotation=90)
    return image


@plot(reads="attention.csv", runs="base", draw=draw_attention)
def transformer_attention(results: Results, runs: list[str]) -> DataFrame:
    """Attention probabilities of the base model on one test sentence, after Figures 3 to 5 of arXiv:1706.03762, in the
    last layer. Left: of the first four heads of all seeds, the head from decoder to encoder whose smallest row maximum
    is the largest, without the full stop and the end of the sentence (below the line). A row is the target piece that
    is predicted (the CSV names the piece before it, which is the query), a column a source piece. Right: the head of
    the encoder whose attention is furthest from the query on average. Small: the four heads of this seed in the
    encoder, in the decoder and from decoder to encoder (cross). To see: which source piece each target piece is
    translated from. The left head is chosen for being clear, and most heads are not.
    """
    rows = results.rows("attention.csv", STUDY, runs)
    rows = rows[(rows["sentence"] == rows["sentence"].iloc[0]) & (rows["head"] < _MOST_HEADS)]
    rows = rows[rows["layer"] == rows["layer"].max()]
    clear = clearness(rows)
    seeds = len(clear.index.unique("seed"))
    choice = (f"left: the clearest of {len(clear)} heads of {seeds} seeds (smallest row maximum {clear.iloc[-1]:.2f}, "
              f"median of the heads {clear.median():.2f}, without the rows below the line)")  # fmt: skip
    of_seed: DataFrame = rows[rows["seed"] == clear.index[-1][0]].assign(source="ours", _choice=choice)
    return of_seed.reset_index(drop=True)


def _write_milliseconds(axes: Axes, rows: DataFrame) -> None:
    axes.yaxis.set_major_locator(FixedLocator([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]))
    axes.yaxis.set_major_formatter("{x:g}")


_CALLS = 5
"""Default number of timed calls of the stage complexity."""
_costs = partial(Panel, style="_operation", kind="band", log="xy", ticks="{:g}".format, same_limits="y")
_counted = partial(_costs, y="_millions", by="_counted", ylabel="multiply-adds\n(millions)")
_timed = partial(_costs, y="_milliseconds", by="_measured", ylabel="time (ms)", finish=_write_milliseconds)


@plot(reads="complexity.csv", draw=layout(
    _counted("n", where={"axis": "n"}, title="Count, width d = {d}"),
    _counted("d", where={"axis": "d"}, title="Count, length n = {n}"),
    _timed("n", where={"axis": "n"}, xlabel="length n (log)", title="Measured time of a call"),
    _timed("d", where={"axis": "d"}, xlabel="width d (log)", title="Measured time of a call"),
    notes=lambda rows: [
        f"At the lines: slope over the last doubling; time: fastest of {_CALLS} calls on one core, bands: lowest to "
        f"highest of {rows['_timings'].iloc[0]} such timings; kernel k = {rows['k'].iloc[0]}, neighbourhood r = "
        f"{rows['r'].iloc[0]}."
    ],
    height=1.6
))  # fmt: skip
def transformer_complexity(results: Results, runs: list[str]) -> DataFrame:
    """Self-attention, recurrence, convolution and self-attention restricted to a neighbourhood, after Table 1 of
    arXiv:1706.03762: counted multiply-adds and measured time of one call of the mixing operation, against length n and
    width d. All axes are logarithmic, so a slope is an exponent. Beside the lines are the slopes between the two
    largest sizes, with the exponents of the paper's counts in brackets. The table transformer_layers has the slopes
    over all sizes, with errors. To see: the counts have exactly the exponents of the paper. Few times follow them: at
    large sizes self-attention is steepest in n, and convolution in d, but small calls take constant time, and the
    largest calls of self-attention and convolution grow faster than their counts.
    """
    rows, sizes = complexity(results, runs).assign(source="ours", _data_set=None), ["operation", "axis", "n", "d"]
    timings = results.rows("complexity.csv", STUDY, runs)
    timings = timings[timings["run"].isin(rows["run"])].groupby(sizes)["time_s"].agg(["min", "max", "size"])
    rows = rows.join(timings, on=sizes)
    rows["_operation"] = rows["operation"].str.replace("_", "-")
    exponents = THEORY.set_index("layer").to_dict()
    for (layer, axis), points in rows.groupby(["operation", "axis"]):
        last, paper = points.sort_values(str(axis)).tail(2), exponents[f"counted_exponent_{axis}"][str(layer)]
        for name, column, digits in (("_measured", "time_s", 2), ("_counted", "multiply_adds", 0)):
            steep = f"{slope(last, str(axis), column)[0]:.{digits}f}"
            rows.loc[points.index, name] = f"{points['_operation'].iloc[0]}\n{steep} (paper {paper})"
    return rows.assign(
        _milliseconds=1e3 * rows["time_s"],
        _milliseconds_low=1e3 * rows.pop("min"),
        _milliseconds_high=1e3 * rows.pop("max"),
        _timings=rows.pop("size"),
        _millions=rows["multiply_adds"] / 1e6,
    )
