"""Held-out loss against training cost, and savings by growing (Tokenformer, arXiv:2410.23168, Fig 1, 3 and 4).

Published costs are TPU hours read from the figures; published perplexities are from Tables 6 and 7.
"""

from functools import partial
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.arms import registered_arms
from formerlab.report.marks import mark
from formerlab.report.panel import Panel, layout, setting
from formerlab.report.runs import TRANSFORMER, differences, format_count, held_out_losses, seed_notes
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
from formerlab.report.style import BLACK, GREY, NARROW, PUBLISHED_INK, WIDEST, ink, label_at_edge, plot_style
from formerlab.report.tables.blocks import with_pooled
from formerlab.report.tables.tokenformer.growth import tokenformer_envelope
from formerlab.results.read import Results

_LOWEST = "Transformer from scratch"
CLAIMED_RATIO = 0.5
"""Largest ratio of FLOPs that the paper claims."""
_PUBLISHED = (
    ("Fig 3", "Transformer, 300B tokens"),
    ("Fig 4", "Transformer, 30B tokens"),
    ("Fig 3", "grown, 30B a stage"),
)
_STAGE = f"-({'|'.join(LENGTHS)})$"
_losses = partial(Panel, y="loss_nats", by="_series", ylabel="held-out loss (nats per token)")


def _write_stages(axes: Axes, rows: DataFrame) -> None:
    """Join each parent to the first model of every series that started from it, and name the parents, the lengths of
    the stages and the sizes of Transformers.
    """
    write = partial(axes.annotate, textcoords="offset points", color=GREY, fontsize=7)
    means = rows[rows["seed"].isna()].drop_duplicates("run").set_index("run").sort_values("_at")
    started = means[means["parent"].isin(means.index)]
    for run, point in started.drop_duplicates(["parent", "series"]).iterrows():
        ends = means.loc[[point["parent"], run], ["_at", "loss_nats"]].to_numpy(float)
        axes.plot(*ends.T, color=plot_style(point["series"])["color"], linewidth=1.4, zorder=1)
    for length, runs in started.groupby(started.index.str.extract(_STAGE)[0].to_numpy()):
        x = runs["_at"].iloc[0]
        axes.axvline(x, color=GREY, linestyle=":", linewidth=0.6, zorder=0)
        write(str(length), (x, 1), (0, -8), xycoords=("data", "axes fraction"), ha="center",
              bbox={"color": "white", "pad": 0.5})  # fmt: skip
    for x, y, relative in means.loc[means["series"].eq(PARENT), ["_at", "loss_nats", "_relative"]].to_numpy():
        write(f"parent, {relative:.2g}", (x, y), (-5, 6), ha="right", color=ink(plot_style(PARENT)["color"]))
    lowest = means.loc[means["series"].eq(_LOWEST), ["_at", "loss_nats", "parameters_non_embedding"]].to_numpy()
    for nth, (x, y, size) in enumerate(lowest):
        words = "" if nth else "Transformer from scratch, "
        write(words + format_count(size, 3), (x, y), (5, 4), color=GREY if nth else BLACK)


def _write_ratios(axes: Axes, rows: DataFrame) -> None:
    """Write each ratio with its interval at the right of its row."""
    for at, row in enumerate(rows.to_dict("records")[::-1]):
        words = "{flops_ratio:.1f} [{flops_ratio_pooled_low:.1f}, {flops_ratio_pooled_high:.1f}]".format_map(row)
        words = words if pd.notna(row["flops_ratio_pooled_low"]) else f"{row['flops_ratio']:.2f}"
        axes.annotate(
            words, (1, at), (6, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center"
        )


def draw_cost(data: DataFrame) -> Figure:
    """Draw our losses and the published losses against costs and, below them, the ratios of costs."""
    data.attrs["marks"] = {"bars", "dots"}
    notes, ratios = seed_notes(data), data[data["flops_ratio"].notna()]
    low = bool(len(ratios)) * (0.25 * len(ratios) + 0.95) + 0.25
    height = low + 3.2
    figure = Figure((WIDEST, height), label=" ".join(notes))
    note = f"{setting(data[data['_series'].notna()])}; {''.join(notes[:1])[:-1]}"
    figure.text(0.012, 0.03 / height, fill(note, 130), color=GREY, fontsize=7)
    for panel, source, x, wide, words in (
        (_losses("_relative", log="x", finish=_write_stages, title="Ours"), "ours",
         0.8, 2.9, "training cost with all ancestors\n(FLOPs, largest Transformer = 1)"),
        (_losses("_relative", log="x", name="inside", title="", ylabel="ln perplexity"), "published",
         5.3, 1.6, "training cost (TPU v4 hours,\nlargest Transformer = 1)"),
    ):  # fmt: skip
        rows = data[data["source"].eq(source) & data["_series"].notna()]
        axes = figure.add_axes((x / WIDEST, (low + 0.6) / height, wide / WIDEST, 2.3 / height))
        labels = mark(axes, panel, rows, {})[0] if len(rows) else []
        axes.set(xlabel=words, ylabel=panel.ylabel)
        axes.set_title(panel.heading(rows).rstrip(": "), color=BLACK if x < 1 else PUBLISHED_INK)
        label_at_edge(axes, [label for label in labels if label.text not in (PARENT, _LOWEST)], 14)
    if len(ratios):
        panel = Panel("flops_ratio", "_row", by="_row", style="series", kind="forest", log="x", zero=1.0)
        axes = figure.add_axes((1.9 / WIDEST, 0.75 / height, 3.7 / WIDEST, 0.25 * len(ratios) / height))
        mark(axes, panel, ratios, {})
        axes.set(title="Cost relative to a Transformer of equal loss (dashed: the claim, at most 0.5)",
                 xlabel="FLOPs, ancestors included (left is cheaper)")  # fmt: skip
        _write_ratios(axes, ratios)
    return figure


@plot(reads="test.csv", within_regime=True, draw=draw_cost)
def tokenformer_cost(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss against training cost, after Fig. 1 and 3 of Tokenformer (arXiv:2410.23168), relative to the cost
    of the largest Transformer from scratch: left in FLOPs of matrix products and attention, right in TPU hours. The
    cost of a grown model includes all its ancestors; the Tokenformer from scratch has the FLOPs of the chain of the
    long stage. Lines lead from the parent to the models that started from it, in the order of their cost; marks of
    equal cost are shifted sideways. The black line joins the Transformers from scratch with the lowest loss at their
    cost, labelled with their numbers of parameters; a mark without a bar is one seed. Below: the cost of the model of
    the claim and of its parent, relative to the cost at which the black line reaches their loss (extrapolated beyond
    1), with the interval of the verdict; dashed: the claim, at most 0.5; hollow: the largest grown model of the paper
    against its Transformers of 300B tokens. To see: growing saves cost if its mark is left of the black line, and helps
    if it is below the parent that was trained further, at equal FLOPs. The tables tokenformer_envelope and
    tokenformer_table have growth with zero keys and all Transformers. The published models are a thousand times larger,
    and their Transformers are single models. If the learning rates of some runs fell to zero, only these runs are
    shown. All losses are on one test text.
    """
    rows, losses = series_points(results, runs), fully_annealed_losses(results, runs)
    rows["_series"] = rows["series"].where(rows["series"].ne(WAYS_TO_GROW["grown: zero keys, tau kept"]))
    frames = [rows.assign(flops_ratio=np.nan)]
    if losses["run"].str.startswith(FROM_SCRATCH).any():
        lowest = scratch_points(losses).query("lowest").assign(part="mean", source="ours", series=_LOWEST)
        frames.append(lowest.assign(_series=_LOWEST).drop(columns="lowest"))
        arms = registered_arms("tokenformer-growth-saves-cost", results.scale).arms.values()
        ratios = tokenformer_envelope.rows(results, runs).assign(source="ours", part="ratio")
        claimed = ratios[ratios["run"].isin([arm.run for arm in arms])]
        ratios["series"] = ratios["run"].map(rows.drop_duplicates("run").set_index("run")["series"])
        ratios = ratios[ratios["run"].isin({*claimed["run"], *claimed["parent"]})].dropna(
            subset=["flops_ratio", "series"]
        )
        paper = published_ratio().assign(series="grown as published", _row="paper, 1.4B, TPU hours")
        names = ratios["series"] + ratios["run"].str.extract(_STAGE)[0].radd(", ").fillna("")
        ratios["_row"] = names.where(ratios["run"].isin(claimed["run"]), PARENT)
        columns = ["source", "part", "run", "series", "_row", *expand_columns("flops_ratio[]+")]
        frames.append(pd.concat([ratios, paper])[columns].assign(flops_ratio_limit=CLAIMED_RATIO))
    published = published_points(*_PUBLISHED)
    rows = pd.concat([*frames, published.assign(_series=published["series"])], ignore_index=True)
    cost = rows["flops_cumulative"].fillna(rows["tpu_v4_hours"])
    largest = cost.where(rows["variant"].eq(TRANSFORMER) | rows["run"].str.startswith(TRANSFORMER))
    rows["_relative"] = cost / largest.fillna(0).groupby(rows["source"]).transform("max").replace(0, np.nan)
    return rows


PUBLISHED_TOKENS_PER_NEW_PARAMETER = (27, 260)
"""Tokens per new parameter of the published stages: 15 billion from 757M to 1.31B, 60 billion from 124M to 354M."""


def _mark_paper(axes: Axes, rows: DataFrame) -> None:
    axes.axvspan(*PUBLISHED_TOKENS_PER_NEW_PARAMETER, color=PUBLISHED_INK, alpha=0.12, linewidth=0, zorder=0)
    across, (first, last) = axes.get_xaxis_transform(), PUBLISHED_TOKENS_PER_NEW_PARAMETER
    axes.text(last, 0.97, f"stages of the\npaper: {first} to {last} ", ha="right", va="top", transform=across,
              color=PUBLISHED_INK, fontsize=7)  # fmt: skip
    tokens = rows.drop_duplicates("tokens_per_new_parameter").sort_values("tokens_per_new_parameter")
    axes.set_xticklabels(f"{x:.0f}\n({format_count(count)})" for x, count in
                         zip(tokens["tokens_per_new_parameter"], tokens["_tokens"], strict=True))  # fmt: skip
    axes.set_xlim(right=1.1 * last)


@plot(reads="test.csv", runs="annealed-random-* annealed-zero-* annealed-trained-on-*", needs="annealed-trained-on-*",
      draw=layout(
    Panel("tokens_per_new_parameter", "difference_nats", by="_way", style="variant", name="legend", log="x", zero=0.0,
          title="Below 0, growing helps", finish=_mark_paper, ticks="{:.0f}".format,
          xlabel="tokens per new parameter (tokens of the stage)\n",
          ylabel="loss, grown minus parent\ntrained further (nats per token)"),
    notes=lambda rows: [f"{seed_notes(rows)[0][:-1]}; marks of one stage are shifted sideways."],
    width=NARROW, height=2.0
))  # fmt: skip
def tokenformer_stage_length(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of a grown Tokenformer minus the loss of its parent trained further for the same FLOPs, against the
    tokens of the stage per parameter that growth adds (arXiv:2410.23168). Differences are paired by seed; below zero,
    growing helps. A thick bar is the interval that the claim uses, a thin bar Student's interval of these seeds; the
    page of verdicts says whether the conditions of the claim are met. The shaded range has the stages of the paper.
    Every learning rate falls to zero. To see: whether growing needs a longer stage to help.
    """
    losses, records = held_out_losses(results, STUDY, runs), results.runs(STUDY).drop_duplicates("run").set_index("run")
    if "spec.growth.keys" not in losses:
        return DataFrame()
    losses = with_registered_rates(losses, results.scale)
    pairs = stage_pairs(losses, records)
    rows = differences(losses, pairs, "run", "rival")
    if rows.empty:
        return rows
    rows = with_pooled(rows, results, STUDY, "run", "rival", "difference_nats")
    return rows.assign(_way=rows["variant"].replace(WAYS_TO_GROW))
