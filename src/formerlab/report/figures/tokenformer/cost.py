"""Held-out loss against training cost, and savings by growing (Tokenformer, arXiv:2410.23168, Fig 1, 3 and 4).

Published costs are TPU hours read from the figures; published perplexities are from Tables 6 and 7.
"""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.arms import registered_arms
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    GROWN,
    TOKENFORMER,
    TRAINED_FURTHER,
    TRANSFORMER,
    differences,
    format_count,
    held_out_losses,
    seed_notes,
)
from formerlab.report.studies.tokenformer import (
    FROM_SCRATCH,
    LENGTHS,
    STUDY,
    WAYS_TO_GROW,
    budgets_equal_to_grown,
    fully_annealed_losses,
    published_points,
    published_ratio,
    runs_with_ancestors,
    scratch_points,
    series_points,
    stage_pairs,
    with_registered_rates,
)
from formerlab.report.style import GREY, NARROW, PUBLISHED_INK, plot_style
from formerlab.report.tables.blocks import with_pooled
from formerlab.report.tables.tokenformer.growth import tokenformer_envelope
from formerlab.results.read import Results

_loss_panel = partial(Panel, y="loss_nats", ylabel="held-out loss (nats per token)")


def _with_published(ours: DataFrame, *curves: tuple[str, str]) -> DataFrame:
    """Return our points, then published points. Lines join the sizes of a series unless a run of it started from
    another run. Growth with zero keys is not plotted.
    """
    rows = pd.concat([ours, published_points(*curves)], ignore_index=True)
    started = rows["parent"].notna().groupby(rows["series"]).transform("any")
    shown = rows["series"].where(rows["series"].ne(WAYS_TO_GROW[f"{GROWN}: zero keys, tau kept"]))
    return rows.assign(_linestyle=started.map({True: "", False: None}), _series=shown)


def _join_to_parents(axes: Axes, rows: DataFrame) -> None:
    """Join each run that started from another run to that run, in the colour of its series."""
    means = rows[rows["seed"].isna()].drop_duplicates("run").set_index("run")
    for run, parent, series in zip(means.index, means["parent"], means["series"], strict=True):
        if parent in means.index:
            ends = means.loc[[parent, run], ["_at", "loss_nats"]].to_numpy(float)
            axes.plot(*ends.T, color=plot_style(series)["color"], linewidth=1, zorder=1)


def _name_stages(axes: Axes, rows: DataFrame) -> None:
    """Join runs to their parents, name the lengths of the stages and the sizes of Transformers, and draw the cost of a
    Transformer of equal loss with its interval.
    """
    _join_to_parents(axes, rows)
    write = partial(axes.annotate, textcoords="offset points", color=GREY, fontsize=7)
    for length in LENGTHS:
        points = rows[rows["run"].str.endswith(f"-{length}") & rows["parent"].notna()]
        if len(points):
            axes.axvline(points["_at"].mean(), color=GREY, linestyle=":", linewidth=0.8, zorder=0)
            write(length, (points["_at"].mean(), 0), (3, 3), xycoords=("data", "axes fraction"))
    for point in rows[rows["series"].eq(_LOWEST)].to_dict("records"):
        write(format_count(point["parameters_non_embedding"], 3), (point["_at"], point["loss_nats"]), (4, 5))
    for x, y, *ratio in rows[["_at", "loss_nats", *_RATIO]].dropna().to_numpy(float):
        axes.plot([x / ratio[2], x / ratio[1]], [y, y], color=GREY, linewidth=4.5, alpha=0.35, zorder=0)
        axes.plot(x / ratio[0], y, "|", color=GREY, markersize=9)
        words = "Transformer of equal loss; growth\ncosts {:.1f} [{:.1f}, {:.1f}] times as much".format(*ratio)
        write(words, (x / ratio[2], y), (0, -5), va="top")


_LOWEST = "Transformer from scratch"


_RATIO = ["_ratio", "_ratio_low", "_ratio_high"]


@plot(reads="test.csv", within_regime=True, draw=layout(
    _loss_panel("_relative", by="_series", finish=_name_stages, name="inside",
                xlabel="training cost with all ancestors\n(FLOPs, largest Transformer = 1)",
                published={"title": "124M to 1.4B parameters", "ylabel": "",
                           "xlabel": "training cost\n(TPU v4 hours, largest Transformer = 1)"}),
    height=2.8
))  # fmt: skip
def tokenformer_cost(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss against training cost, after Fig. 1 and 3 of Tokenformer (arXiv:2410.23168), relative to the cost
    of the largest Transformer from scratch: left in FLOPs of matrix products and attention, right in TPU hours. The
    cost of a grown model includes all its ancestors; the Tokenformer from scratch has the FLOPs of the chain of the
    long stage. Lines join the parent to the runs that started from it, after a short, medium or long stage; marks of
    equal cost are shifted sideways. The black line joins the Transformers from scratch with the lowest loss at their
    cost, labelled with their numbers of parameters; a mark without a bar is one seed. The grey bar is the cost of a
    Transformer with the loss of the model that grew in the long stage, with the interval of the verdict (extrapolated
    beyond 1). To see: growing saves cost if its mark is left of the black line, and helps if it is below the parent
    that was trained further, at equal FLOPs. Growth with zero keys, and all Transformers, are in tokenformer_scaling.
    The published models are a thousand times larger, and their Transformers are single models. If the learning rates of
    some runs fell to zero, only these runs are shown. All losses are on one test text.
    """
    ours, losses = series_points(results, runs), fully_annealed_losses(results, runs)
    ours[_RATIO] = np.nan
    if losses["run"].str.startswith(FROM_SCRATCH).any():
        lowest = scratch_points(losses).query("lowest").assign(series=_LOWEST, part="mean", source="ours")
        ours = pd.concat([ours, lowest.reindex(columns=ours.columns)], ignore_index=True)
        arms = registered_arms("tokenformer-growth-saves-cost", results.scale).arms
        judged = [arm.run for arm in arms.values()]
        ratios = tokenformer_envelope.rows(results, runs).set_index("run").filter(judged, axis="index")
        for name, end in zip(_RATIO, ("", "_pooled_low", "_pooled_high"), strict=True):
            ours[name] = ours["run"].map(ratios[f"flops_ratio{end}"]).where(ours["part"] == "mean")
    rows = _with_published(
        ours,
        ("Fig 3", "Transformer, 300B tokens"),
        ("Fig 4", "Transformer, 30B tokens"),
        ("Fig 3", "grown, 60B a stage"),
        ("Fig 3", "grown, 30B a stage"),
        ("Fig 3", "grown, 15B a stage"),
    )
    cost = rows["flops_cumulative"].fillna(rows["tpu_v4_hours"])
    largest = cost.where(rows["variant"].eq(TRANSFORMER) | rows["run"].str.startswith(TRANSFORMER))
    return rows.assign(_relative=cost / largest.fillna(0).groupby(rows["source"]).transform("max").replace(0, np.nan))


CHAIN_LABELS = {**WAYS_TO_GROW, f"{TOKENFORMER}, {TRAINED_FURTHER}": f"parent {TRAINED_FURTHER}"}
"""Variants of chains that are plotted, and their labels. The table has the other variants."""


def _named(data: DataFrame) -> DataFrame:
    """Return the rows with the series of the two panels, `_model` and `_size`, and their plot style."""
    scratch = data[data["part"] == "scratch"]
    chain_rows = data[data["part"].eq("chain") & data["variant"].isin(CHAIN_LABELS)]
    names = dict.fromkeys(chain_rows["parent"].dropna(), f"{TOKENFORMER}, not grown")
    for run, variant, equal in chain_rows[["run", "variant", "equal"]].fillna("").to_numpy():
        names[run] = CHAIN_LABELS[variant] + f", equal {equal}" * bool(equal)
    parameters = data["parameters_non_embedding"]
    sizes = parameters.map(lambda size: f"Transformer, {format_count(size, 3)}", na_action="ignore")
    counts = sorted(scratch["parameters_non_embedding"].unique())
    shades = dict(zip(counts, map(to_hex, colormaps["Greys"](np.linspace(0.6, 1, len(counts)))), strict=True))
    alone = data["run"].isin(set(scratch["run"]) - set(names))
    model = data["run"].map(names).where(~alone, sizes)
    return data.assign(
        _size=sizes.where(data["run"].isin(scratch["run"]) & model.notna()),
        _model=model,
        _color=parameters.map(shades).where(alone),
        _marker=parameters.map(dict(zip(counts, "osD^vPX" * len(counts), strict=False))).where(alone),
        _linestyle=alone.map({True: "-", False: ""}),
    )


CLAIMED_RATIO = 0.5
"""Largest ratio of FLOPs that the paper claims."""


def _draw_envelope(axes: Axes, rows: DataFrame) -> None:
    """Draw the lower envelope."""
    lowest = rows[rows["lowest"].eq(True)].sort_values("_tera")
    axes.plot(lowest["_at"], lowest["loss_nats"], color=GREY, linewidth=4, alpha=0.3, zorder=0)


@plot(reads="test.csv", needs="envelope-*", within_regime=True, draw=layout(
    Panel("flops_ratio", "_row", by="_row", style="_model", kind="forest", where={"part": ["chain", "paper"]}, log="x",
          zero=1.0, title="Cost with all ancestors", xlabel="FLOPs relative to a Transformer of equal loss"),
    _loss_panel("_tera", by="_size", log="x", title="Transformers from scratch", xlabel="training cost (TFLOP)",
                finish=_draw_envelope),
    columns=1, height=2.2, order="_rank tokens parameters_non_embedding"
))  # fmt: skip
def tokenformer_scaling(results: Results, runs: list[str]) -> DataFrame:
    """Tokenformers that grow or train further against Transformers from scratch (arXiv:2410.23168). Above: FLOPs of a
    Tokenformer with all its ancestors, relative to the FLOPs at which the envelope of the Transformers reaches its loss
    (table tokenformer_envelope). Thick bars include the spread of the envelope between seeds, as in the verdict; thin
    bars are Student's intervals of the seeds of a row. To see: growing saves cost if its row is left of 1; the paper
    claims at most 0.5. Hollow: the largest grown model of the paper (30B tokens a stage) against its Transformers of
    300B tokens, in TPU hours read from Fig. 3. Below: three sizes of Transformers, trained for three lengths, each with
    its own full schedule, and the envelope (grey line); a mark without a bar is one seed.
    """
    losses = fully_annealed_losses(results, runs)
    points, grown = scratch_points(losses), runs_with_ancestors(losses)
    seeds = losses[losses["run"].isin({*points["run"], *grown["run"]})]
    columns = ["run", "seed", "variant", "loss_nats", "flops_cumulative", "tokens", "parameters_non_embedding", "lent"]
    parts = {"scratch": points, "chain": grown, "seed": seeds[columns]}
    frames = [frame.assign(source="ours", part=part) for part, frame in parts.items()]
    rows = pd.concat(frames, ignore_index=True)
    chain = rows[rows["part"] == "chain"].set_index("run")
    rows = _named(rows.assign(equal=rows["run"].map(budgets_equal_to_grown(chain))))
    ratios = tokenformer_envelope.rows(results, runs).set_index("run")
    for column in expand_columns("flops_ratio[]+"):
        rows[column] = rows["run"].map(ratios[column]).where(rows["part"] == "chain")
    rows["_tera"] = rows["flops_cumulative"] / 1e12
    rows["flops_ratio_limit"] = CLAIMED_RATIO
    length = rows["run"].str.extract(f"-({'|'.join(LENGTHS)})(?:-|$)")[0]
    rows["_row"] = rows["_model"].str.removesuffix(", equal FLOPs") + (", " + length + " stage").fillna("")
    rows["_rank"] = length.map(LENGTHS.index, na_action="ignore").fillna(-1)
    return pd.concat([rows, published_ratio().assign(_rank=9)], ignore_index=True)


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
