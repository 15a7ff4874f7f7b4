"""Held-out loss of averages over depth, by depth, speed, tokens and sparsity (DenseFormer, arXiv:2402.02622)."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.names import TABLE_LABELS, data_set_labels
from formerlab.report.panel import Panel, layout
from formerlab.report.published import DENSEFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.runs import (
    DENSEFORMER,
    TRANSFORMER,
    comparable_losses,
    differences,
    format_count,
    held_out_losses,
    means_by_run,
    seed_count,
    seed_notes,
    summarize,
    with_seeds,
)
from formerlab.report.style import GREY, NARROW, ink, plot_style
from formerlab.report.tables import denseformer as tables
from formerlab.report.tables.blocks import with_pooled
from formerlab.results.read import Results
from formerlab.results.schema import FORWARD

STUDY = "denseformer"
_TIME, _GAIN, _BEHIND = f"{FORWARD}_time_s", "gain_nats", "minus_dense_nats"


_depth = partial(Panel, "layers", by="_series", style="variant", xlabel="depth (blocks)", ticks="{:.0f}".format)


@plot(reads="test.csv", runs="depth.kind=identity depth.kind=dwa", within_regime=True, draw=layout(
    _depth("_loss", where={"source": "ours", "part": "mean"}, title="Loss, {_text}", name="legend",
           ylabel="held-out loss\n(nats per token)"),
    _depth(_GAIN, where={"source": "ours", "part": "mean"}, title="Gain, paired by seed", name="none", zero=0.0,
           ylabel="plain minus DenseFormer\n(nats per token)"),
    _depth("_loss", where={"source": "published"}, title="Table 1", name="legend", ylabel="ln perplexity"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])}; bars of the gain: thick, 95 % interval as used for verdicts; "
                        "thin, Student t of these seeds."],
    wanted=[TRANSFORMER, f"{DENSEFORMER} 1x1"], columns=3, height=1.7
))  # fmt: skip
def denseformer_depth(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of plain Transformers and DenseFormers against depth, and the gain of the DenseFormer of the same
    depth, after Table 1 of DenseFormer (arXiv:2402.02622). Schemes that were run at one depth are left out if other
    schemes were run at several. To see: which depth the plain Transformer needs to reach the loss of a DenseFormer, and
    whether the gain grows with depth. If the plain line does not fall with depth, part of the gain is easier
    optimisation. Published: 378 to 676 million parameters (OWT2, 40k steps).
    """
    losses = comparable_losses(results, STUDY, runs)
    gains = tables.gains(results, runs)[["run", "plain", *expand_columns(f"{_GAIN}[]")]]
    means = means_by_run(losses).sort_values(["variant", "layers"]).merge(gains, "left", "run").assign(part="mean")
    ours = with_seeds(
        with_pooled(means, results, STUDY, "plain", "run", _GAIN), losses, ("source", "variant", "layers")
    )
    rows = pd.concat([ours, tables.published_depths().assign(part="mean")], ignore_index=True)
    texts = data_set_labels(rows["run"].map(losses.drop_duplicates("run").set_index("run")["data.name"]), results.scale)
    main, published = str(texts.value_counts().idxmax()), rows["source"].eq("published")
    depths = rows.groupby([texts, "variant"], dropna=False)["layers"].transform("nunique")
    plotted = texts.eq(main) & (depths.gt(1) | (depths[~published].max() == 1))
    plotted |= published & rows["variant"].isin(set(rows.loc[plotted, "variant"]))
    loss = rows["perplexity"].astype(float).map(np.log)
    return rows.assign(_text=main, _series=rows["variant"].where(plotted), _loss=loss)


def _front(speed: "Series[float]", loss: "Series[float]") -> list[bool]:
    """Return for each point whether it is on the Pareto front of speed (higher is better) and loss (lower is
    better).
    """
    points = list(zip(speed, loss, strict=True))
    return [not any((s >= a and v < b) or (s > a and v <= b) for s, v in points) for a, b in points]


def _name_points(axes: Axes, rows: DataFrame) -> None:
    """Write the scheme or the depth beside each point, and draw the Pareto front of the published models."""
    points = rows[rows["part"] == "mean"].sort_values("_slower")
    for name, layers, x, y in points[["variant", "layers", "_slower", _GAIN]].itertuples(index=False, name=None):
        words, at, side = name.removeprefix(f"{DENSEFORMER} "), (5, 5), "left"
        if name == TRANSFORMER:
            words, at, side = (f"{layers:.0f}", (4, -9), "left") if x else (f"plain, {layers:.0f}", (-4, -10), "right")
        elif points["source"].eq("published").all() and "x" in words:
            at, side = (-4, -8 if words.endswith("5") else 4), "right"
        axes.annotate(words, (x, y), at, textcoords="offset points", fontsize=7, ha=side,
                      color=ink(plot_style(name)["color"]))  # fmt: skip
    axes.margins(x=0.18)
    front = points[points["front"].astype(bool) & points["source"].eq("published")]
    axes.step(front["_slower"], front[_GAIN], where="post", color=GREY, linewidth=0.8, linestyle="--", zorder=0)


@plot(reads="test.csv speed.csv", draw=layout(
    Panel("_slower", _GAIN, by="variant", name="none", zero=0.0, finish=_name_points, title="{_base} blocks, {_text}",
          xlabel="time of a forward pass\n(% more than plain, {_base} blocks)",
          ylabel="gain over plain\n(nats per token)", published={"title": "Table 1, 48 and 72 blocks", "ylabel": ""}),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); bars of the gain: 95 % intervals, thick as in verdicts, "
                        "thin Student t over these seeds; bars of the time: quartiles; dashed: Pareto front."],
    height=2.0
))  # fmt: skip
def denseformer_tradeoff(results: Results, runs: list[str]) -> DataFrame:
    """Gain in held-out loss against the time of a full forward pass, after Fig. 3 of DenseFormer (arXiv:2402.02622).
    Both are relative to the shallowest plain Transformer that was timed, at the origin; the gain is paired by seed, and
    the published gain is a difference of ln perplexity. Times are medians over repetitions, measured in turns on one
    machine. To see: how much time each gain takes. Our models have one depth; the paper also has deeper plain
    Transformers, and there every DenseFormer has a larger gain than the plain Transformers that take as long. The
    dashed line joins the models of the Pareto front, for which no other model is both faster and better.
    """
    timed = tables.gains(results, runs)
    ours = timed[timed["setting"] == "main"].merge(tables.speeds(results), on="run")
    for end, time in (("", ""), ("_low", "_high"), ("_high", "_low")):
        ours[f"batches_per_s{end}"] = 1 / ours[f"{FORWARD}_time_s{time}"]
    losses = held_out_losses(results, STUDY)
    plain = ours[ours["spec.model.depth.kind"] == "identity"].sort_values("layers")
    if plain.empty:
        return DataFrame()
    base = str(plain["run"].iloc[0])
    gains = differences(losses, DataFrame({"run": ours["run"], "base": base}), "base", "run", _GAIN)
    gains = with_pooled(gains, results, STUDY, "base", "run", _GAIN).drop(columns=["source", "base", "seeds"])
    ours["front"] = _front(ours["batches_per_s"], ours["loss_nats"])
    ours = ours.drop(columns=expand_columns(f"{_GAIN}[]"))
    ours = with_seeds(ours, losses, ("source", "variant", "layers", "batches_per_s"))
    ours = ours.merge(gains, on=["run", "part", "seed"], how="left")
    ours[_GAIN] = ours[_GAIN].mask(ours["run"].eq(base), 0.0)
    published = tables.published_depths().rename(columns={"inference_batches_per_s": "batches_per_s"})
    published[_GAIN] = np.log(published["perplexity"].iloc[0] / published["perplexity"])
    published = published.assign(front=_front(published["batches_per_s"], published["perplexity"]), part="mean")
    texts = data_set_labels(timed.set_index("run")["data.name"], results.scale)
    columns = expand_columns(f"source part run variant layers batches_per_s[] {FORWARD}_sequences loss_nats[] "
                             f"perplexity seeds seed diverged front {_GAIN}[]")  # fmt: skip
    rows = pd.concat([ours, published], ignore_index=True)
    rows = rows.reindex(columns=[*columns, f"{_GAIN}_pooled_low", f"{_GAIN}_pooled_high"])
    speeds = {"ours": plain["batches_per_s"].iloc[0], "published": published["batches_per_s"].iloc[0]}
    for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        rows[f"_slower{end}"] = 100 * (rows["source"].map(speeds) / rows[f"batches_per_s{other}"] - 1)
    shallowest = rows.groupby("source")["layers"].transform("min").map("{:.0f}".format)
    return rows.assign(_text=rows["run"].map(texts).fillna(""), _base=shallowest)


def _percent(nats: float) -> float:
    """Return the percentage by which a perplexity falls if the loss falls by `nats`."""
    return 100 * float(-np.expm1(-nats))


CLAIMED_DEPTH = 24
"""Least number of blocks for which the paper claims a gain."""
PUBLISHED_GAINS = {"48 blocks,\nOpenWebText2": ("Table 1", 48), "24 blocks,\nPG-19": ("Table 2", 24)}
"""Table of the paper and depth of the two models, by label."""


def _published_pairs() -> DataFrame:
    """Return the published gains of 1x1 over the plain Transformer, with their standard errors if printed."""
    rows = published(PAPER, *(table for table, _ in PUBLISHED_GAINS.values()))
    values, pairs = rows.set_index(["table_or_figure", "model", "metric"])["value"].astype(float), []
    for label, (table, depth) in PUBLISHED_GAINS.items():
        both = [f"{name} {depth} blocks" for name in (TRANSFORMER, f"{DENSEFORMER} 1x1")]
        plain, dense = (values[table, model, "perplexity"] for model in both)
        errors = [values.get((table, model, "perplexity_standard_error"), np.nan) for model in both]
        gain, error = float(np.log(plain / dense)), float(np.hypot(errors[0] / plain, errors[1] / dense))
        pairs.append({"_label": label, "difference_nats": gain} | {
            f"difference_nats_{end}": gain + sign * error for end, sign in (("low", -1), ("high", 1))})  # fmt: skip
    return DataFrame(pairs).assign(source="published", part="published", run="published")


def _show_percent(axes: Axes, rows: DataFrame) -> None:
    """Write the percentage of perplexity below each tick."""
    axes.xaxis.set_major_formatter(lambda nats, _: f"{nats:g}\n{_percent(nats):.0f} %".replace("-", "\N{MINUS SIGN}"))


@plot(reads="test.csv",
      runs=("depth.kind=identity", "depth.kind=dwa depth.dilation=1 depth.period=1", "long-plain-*", "long-dwa-1x1-*"),
      needs="long-dwa-1x1-*", within_regime=True, draw=layout(
    Panel("difference_nats", "_label", by="_label", kind="forest", zero=0.0, title="Plain minus DenseFormer 1x1",
          xlabel="loss (nats per token), % of perplexity\n(right: DenseFormer is better)\n", finish=_show_percent),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); M: million training tokens; thick bars: 95 % "
                        "interval, as used for verdicts; thin: Student t; tinted: published; its standard error, if "
                        "printed, is shorter than the mark."],
    width=NARROW, columns=1
))  # fmt: skip
def denseformer_gain(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of the plain Transformer minus that of DenseFormer 1x1 of the same depth, for each depth and number
    of training tokens (arXiv:2402.02622), paired by seed; rows also name the test text. Every run has its own full
    schedule. Dashed: a quarter of the smaller published gain, which the claim asks of models of at least 24 blocks.
    Thick bars include the variance between seeds, pooled over similar runs, and the variance due to the choice of texts
    if there are at least 20. Published: Tables 1 and 2. To see: whether the gain grows with depth, and whether it lasts
    when both train longer or only makes the first steps easier.
    """
    losses = held_out_losses(results, STUDY, runs)
    losses["plain"] = losses["run"].map(tables.plains(losses))
    dense = losses[losses["variant"].str.startswith(DENSEFORMER)].dropna(subset="plain").drop_duplicates("run")
    dense = dense.sort_values(["layers", "variant", "tokens"]).astype({"tokens": float})
    rows = differences(losses, dense[["layers", "tokens", "run", "plain"]], "plain", "run")
    if rows.empty:
        return rows
    rows = with_pooled(rows, results, STUDY, "plain", "run", "difference_nats")
    tests = results.rows("test.csv", STUDY, runs)
    texts = data_set_labels(dense.set_index("run")["data.name"], results.scale).replace(TABLE_LABELS)
    if "document" in tests:
        counts = tests.dropna(subset="document").groupby("run")["document"].nunique().map("{} ".format)
        texts = counts.reindex(texts.index).fillna("") + texts
    labels = rows["layers"].map("{:.0f} blocks, ".format) + rows["tokens"].map(format_count) + ",\n"
    theirs = _published_pairs()
    least = 0.25 * theirs["difference_nats"].min()  # the criterion of denseformer-better-at-equal-depth
    rows = rows.assign(_label=labels + rows["run"].map(texts), difference_nats_limit=least).astype({"layers": float})
    rows["difference_nats_limit"] = rows["difference_nats_limit"].where(rows["layers"] >= CLAIMED_DEPTH)
    return pd.concat([rows, theirs], ignore_index=True).assign(_style=f"{DENSEFORMER} 1x1")


def _published_sparsity() -> DataFrame:
    """Return gain, loss difference and time of the published models of 48 blocks (Tables 1 and 4)."""
    depths = tables.published_depths().rename(columns={"variant": "model"})
    rows = pd.concat([depths[depths["layers"] == 48], tables.published_table("Table 4")]).drop_duplicates("model")
    rows[_GAIN] = np.log(rows["perplexity"].iloc[0] / rows["perplexity"])
    rows[["dilation", "period"]] = rows["model"].str.extract(r"(\d+)x(\d+)").astype(float)
    rows = rows.assign(layers=48.0, run=rows["model"], part="mean").dropna(subset=["dilation", _GAIN])
    dense = rows.loc[rows["dilation"].eq(1) & rows["period"].eq(1), _GAIN].iloc[0]
    return rows.assign(**{_BEHIND: dense - rows[_GAIN], _TIME: 1 / rows["inference_batches_per_s"]})


_forest = partial(Panel, y="_label", by="_label", kind="forest", where={"_shown": True})


@plot(reads="test.csv", runs="depth.kind=identity depth.kind=dwa",
      needs=("depth.dilation=[!1]* depth.period=1", "depth.dilation=1[0-9]* depth.period=1"), within_regime=True,
      draw=layout(
    _forest(_BEHIND, zero=0.0, title="Loss", xlabel="loss minus 1x1 (nats per token)"),
    _forest("_time", zero=100.0, title="Time", xlabel="forward pass (% of 1x1)"),
    notes=lambda rows: [f"{seed_notes(rows.drop(columns='interval'))[0][:-1]}; bars of times: quartiles; "
                        "star: p = 1 mod k."],
    columns=1, width=NARROW, order="source layers dilation period"
))  # fmt: skip
def denseformer_sparsity(results: Results, runs: list[str]) -> DataFrame:
    """Sparse averages over depth against the dense average (1x1) of the same depth, by dilation k x period p, after
    Fig. 4, 11 and 12 of DenseFormer (arXiv:2402.02622). Above: held-out loss minus that of 1x1, paired by seed. Below:
    a full forward pass, if it was measured, with quartiles of the repetitions. A star marks p = 1 mod k, where each
    average reads the block that follows the previous average. Dashed: a quarter of the gain of 1x1 over the plain
    Transformer; the claim is that the sparse average 4x5 loses less. Hollow: Tables 1 and 4, as differences of ln
    perplexity. To see: which bars are right of the dashed line, and whether the time that they save is worth the loss.
    """
    ours = tables.gains(results, runs)
    ours["dilation"], ours["period"] = ours["spec.model.depth.dilation"], ours["spec.model.depth.period"]
    ours = ours.dropna(subset=["dilation", _GAIN])
    models, is_dense = ["data.name", "layers"], ours["dilation"].eq(1) & ours["period"].eq(1)
    dense = ours[is_dense].drop_duplicates(models).set_index(models)["run"].rename("dense")
    ours = ours.join(dense, on=models, how="inner").merge(tables.speeds(results), on="run", how="left")
    ours = ours[ours.groupby("dense")["run"].transform("size") > 1]
    if ours.empty:
        return DataFrame()
    against = ours.set_index("run")["dense"].to_dict()
    behind = summarize(held_out_losses(results, STUDY), "loss_nats", ["run"], against, _BEHIND)
    of_seed = behind["part"] == "seed"
    seeds = behind[of_seed].merge(ours[["run", "layers", "dilation", "period"]], on="run")
    ours = ours.merge(behind[~of_seed].drop(columns=["source", "seeds"]), on="run", how="left")
    ours = pd.concat([with_pooled(ours.assign(part="mean"), results, STUDY, "run", "dense", _BEHIND), seeds])
    rows: DataFrame = pd.concat([ours, _published_sparsity()], ignore_index=True)
    rows["follows"] = (rows["dilation"] > 1) & (rows["period"] % rows["dilation"] == 1)
    columns = f"source part run layers dilation period follows {_GAIN}[] {_BEHIND}[] {_TIME}[] interval seeds seed"
    rows = rows.reindex(columns=[*expand_columns(columns), f"{_BEHIND}_pooled_low", f"{_BEHIND}_pooled_high"])
    scheme = rows["dilation"].map("{:.0f}x".format) + rows["period"].map("{:.0f}".format)
    rows["_label"] = (
        scheme + rows["follows"].map({True: " *, ", False: ", "}) + rows["layers"].map("{:.0f} blocks".format)
    )
    is_dense = rows["dilation"].eq(1) & rows["period"].eq(1)
    time_of_dense = rows["source"].map(rows[is_dense].groupby("source")[_TIME].first())
    for end in ("", "_low", "_high"):
        rows[f"_time{end}"] = 100 * rows[f"{_TIME}{end}"] / time_of_dense
    gains = rows[is_dense & rows["part"].eq("mean")].set_index(["source", "layers"])[_GAIN]
    keys = pd.MultiIndex.from_frame(rows[["source", "layers"]])
    return rows.assign(
        _shown=~is_dense & rows[["_time", _BEHIND]].notna().any(axis=1),
        _style=f"{DENSEFORMER} " + scheme,
        **{f"{_BEHIND}_limit": 0.25 * gains[~gains.index.duplicated()].reindex(keys).to_numpy()},
    )
