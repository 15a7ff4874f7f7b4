"""Held-out loss of averages over depth, by depth, time, tokens and sparsity (DenseFormer, arXiv:2402.02622)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.arms import registered_arms
from formerlab.report.names import TABLE_LABELS, data_set_labels
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    DENSEFORMER,
    TRANSFORMER,
    differences,
    format_count,
    held_out_losses,
    load_runs,
    means_by_run,
    seed_count,
    summarize,
    validation_losses,
    with_seeds,
)
from formerlab.report.studies.denseformer import DEPTH, LONG, SPARSE, STUDY, compared_runs, registered_runs
from formerlab.report.style import GREY, NARROW, RUST
from formerlab.report.tables import denseformer as tables
from formerlab.report.tables.blocks import claim_verdicts, with_pooled
from formerlab.results.read import Results
from formerlab.results.schema import FORWARD

DENSE = f"{DENSEFORMER} 1x1"
SPARSEST = f"{DENSEFORMER} 4x5"
_TIME, _GAIN, _BEHIND, _DEEPER = f"{FORWARD}_time_s", "gain_nats", "minus_dense_nats", "minus_shallowest_nats"
_LAST_STEP = "right of the curves: last step, with 95 % Student t intervals over seeds."
_BARS = "thick bars: 95 % interval, as used for verdicts; thin: Student t"


def _models(results: Results, runs: Sequence[str]) -> tuple[DataFrame, DataFrame]:
    """Return a row per compared run (`compared_runs`), with the label of its text, and the losses by seed."""
    models = compared_runs(results, runs).drop_duplicates("run", ignore_index=True).drop(columns="seed")
    models = models.assign(_text=data_set_labels(models["data.name"], results.scale).replace(TABLE_LABELS))
    return models, held_out_losses(results, STUDY, models["run"])


def _compared(
    models: DataFrame, losses: DataFrame, results: Results, a: str, b: str, name: str, shared: Sequence[str]
) -> DataFrame:
    """Return a row per model and per seed with the loss, and with the loss of the run in column `a` minus the loss of
    the run in column `b` as `name`. Rows have the `shared` columns.
    """
    shared = ["source", "variant", "layers", "tokens", *shared]
    models = models.assign(source="ours")
    means = means_by_run(losses).drop(columns=["source", "variant", "layers", "tokens"])
    rows = with_seeds(means.merge(models[["run", *shared]], on="run"), losses, shared)
    pairs = models[models[a].notna() & models[b].notna()].assign(_of=models["run"])[["_of", a, b]]
    minus = with_pooled(differences(losses, pairs, a, b, name), results, STUDY, a, b, name)
    keep = ["_of", "part", "seed", *expand_columns(f"{name}[]+")]
    return rows.merge(minus.reindex(columns=keep).rename(columns={"_of": "run"}), "left", ["run", "part", "seed"])


def _widen(axes: Axes, rows: DataFrame) -> None:
    """Show a single depth in the middle of a panel."""
    if rows["layers"].nunique() == 1:
        axes.set_xlim(rows["layers"].iloc[0] - 2, rows["layers"].iloc[0] + 2)


@plot(reads="test.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    Panel("layers", _DEEPER, by="_series", finish=_widen, facet="_panel", share_y=True, same_limits="y", zero=0.0,
          ticks="{:.0f}".format, name="legend", xlabel="depth (blocks)",
          ylabel="loss minus the shallowest\nTransformer (nats per token)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); below 0: better than the shallowest Transformer of the "
                        f"panel; {_BARS}; published: ln perplexity."],
    wanted=[TRANSFORMER, DENSE], columns=3, height=1.8
))  # fmt: skip
def denseformer_depth(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of plain Transformers and DenseFormers 1x1 against depth, minus the loss of the shallowest
    Transformer of the same text, paired by seed, after Table 1 of DenseFormer (arXiv:2402.02622). All panels have one
    scale. The models of each text have their own width and number of training tokens, so only differences within a
    panel compare. To see: how much a DenseFormer gains over the Transformer of equal depth, and which depth the
    Transformer needs to reach its loss. If the Transformer does not improve with depth, part of the gain is easier
    optimisation. Published: 378 to 676 million parameters (OpenWebText2, 40k steps).
    """
    models, losses = _models(results, runs)
    depths = models.groupby(["regime", "tokens"])["layers"].transform("nunique")
    models = models[depths == depths.groupby(models["regime"]).transform("max")]
    plain = models[models["variant"] == TRANSFORMER].drop_duplicates(["regime", "tokens"])
    base = plain.set_index(["regime", "tokens"])["run"].rename("base")
    rows = _compared(models.join(base, on=["regime", "tokens"]), losses, results, "run", "base", _DEEPER, ["_text"])
    rows[_DEEPER] = rows[_DEEPER].mask(rows["run"].isin(base), rows["part"].map({"mean": 0.0}))
    theirs = tables.published_depths().assign(part="mean", _text="Table 1")
    loss = np.log(theirs["perplexity"])
    rows = pd.concat([rows, theirs.assign(**{_DEEPER: loss - loss.iloc[0]})], ignore_index=True)
    series = rows["variant"].where(rows["variant"].isin([TRANSFORMER, DENSE]))
    panel = rows["_text"] + rows["tokens"].map(lambda count: f", {format_count(count)} tokens", "ignore").fillna("")
    return rows.assign(_panel=panel, _series=series).sort_values("layers", kind="stable", ignore_index=True)


@plot(reads="eval.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    Panel("million_tokens", "difference_nats", by="variant", unit="run", kind="band", facet="_panel", ends=True,
          zero=0.0, same_limits="y", share_y=True, xlabel="training tokens (million)",
          ylabel="validation loss minus\nTransformer (nats per token)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])}; below 0: better than the Transformer of equal depth; "
                        f"{_LAST_STEP if rows['seeds'].max() > 1 else 'no interval.'}"],
    height=1.9
))  # fmt: skip
def denseformer_curves(results: Results, runs: list[str]) -> DataFrame:
    """Validation loss of DenseFormers during training, minus the loss of the Transformer of equal depth, text and
    number of tokens at the same step, paired by seed, for the models of the registered claims: of each depth the runs
    with the most tokens. The y range covers the second half of training and the intervals of the last step. To see:
    whether the averages help at the end, or only early on. Each run has a learning rate of its own, so a
    difference in the middle also has the effect of the rates.
    """
    models, _ = _models(results, runs)
    models = models[models["arm"] | (not models["arm"].any())]
    models = models[models["tokens"] == models.groupby("layers")["tokens"].transform("max")]
    others = models[models["variant"] != TRANSFORMER].dropna(subset="plain")
    curves = validation_losses(results, STUDY, models["run"]).query("step > 0")
    if curves.empty or others.empty:
        return DataFrame()
    rows = summarize(
        curves, "loss_nats", ["run", "step"], others.set_index("run")["plain"].to_dict(), "difference_nats"
    )
    columns = ["run", "variant", "layers", "tokens", "plain", "data.name"]
    rows = rows[rows["part"] == "mean"].merge(others[columns], on="run").sort_values("layers", kind="stable")
    million = rows["tokens"].astype(float) * rows["step"] / rows.groupby("run")["step"].transform("max") / 1e6
    panel = rows["layers"].map("{:.0f} blocks, ".format) + data_set_labels(rows.pop("data.name"), results.scale)
    return rows.assign(million_tokens=million, _panel=panel)


@plot(reads="test.csv speed.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    Panel(_GAIN, "_label", by="_label", kind="forest", share_y=True, zero=0.0,
          title="Gain (right: better)", xlabel="loss of the Transformer minus\nloss (nats per token)"),
    Panel("_slower", "_label", by="_label", kind="forest", share_y=True, zero=0.0,
          title="Time (left: faster)", xlabel="time of a forward pass\n(% more than the Transformer)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); gain: {_BARS}; bars of the time: quartiles of the "
                        "repetitions; tinted: published, against the Transformer of 48 blocks."],
    order="_order"
))  # fmt: skip
def denseformer_tradeoff(results: Results, runs: list[str]) -> DataFrame:
    """Gain in held-out loss and time of a full forward pass, after Fig. 3 of DenseFormer (arXiv:2402.02622). Ours are
    relative to the Transformer of equal depth; the gain is paired by seed. Published models, also the deeper
    Transformers, are relative to the Transformer of 48 blocks, and are sorted by time; their gain is a difference of ln
    perplexity. Times are medians over repetitions, measured in turns on one machine. To see: how much time each gain
    takes. In the paper every DenseFormer has a larger gain than the Transformers that take as long.
    """
    models, losses = _models(results, runs)
    kind = ["variant", "layers", "spec.model.width"]
    timed = load_runs(results, STUDY).drop_duplicates("run")[["run", *kind]].merge(tables.speeds(results), on="run")
    timed = timed.drop(columns="run").drop_duplicates(kind)  # the time does not depend on the learning rate
    models = models.merge(timed, on=kind)
    if models.empty:
        return DataFrame()
    times = [*expand_columns(f"{_TIME}[]"), f"{FORWARD}_sequences"]
    ours = _compared(models, losses, results, "plain", "run", _GAIN, ["plain", "_text"])
    ours = ours.merge(models[["run", *times]], on="run")
    ours[times] = ours[times].where(ours["part"].eq("mean"))
    base = models.set_index("run")[_TIME].reindex(ours["plain"]).to_numpy()
    published = tables.published_depths().assign(part="mean", _text="OpenWebText2")
    published[_TIME] = 1 / published.pop("inference_batches_per_s")
    published[_GAIN] = np.log(published["perplexity"].iloc[0] / published["perplexity"])
    rows = pd.concat([ours.assign(_base=base), published.assign(_base=published[_TIME].iloc[0])], ignore_index=True)
    for end in ("", "_low", "_high"):
        rows[f"_slower{end}"] = 100 * (rows[f"{_TIME}{end}"] / rows["_base"] - 1)
    theirs, zero = rows["source"].eq("published"), rows["_slower"].eq(0) & rows["variant"].eq(TRANSFORMER)
    shown = rows["variant"].isin([*models["variant"], TRANSFORMER]) & ~zero & rows["run"].ne(rows["plain"])
    label = rows["variant"].str.removeprefix(f"{DENSEFORMER} ") + rows["layers"].map(", {:.0f} blocks".format)
    return rows.assign(
        _label=label.where(shown), _style=rows["variant"], _order=rows["_slower"].where(theirs, rows["layers"] - 1e6)
    )


def _percent(nats: float) -> float:
    """Return the percentage by which a perplexity falls if the loss falls by `nats`."""
    return 100 * float(-np.expm1(-nats))


def _published_gains() -> DataFrame:
    """Return the published gains of 1x1 at the smallest depth of each text (Tables 1 and 2)."""
    rows = tables.published_pairs()
    rows = rows[rows["variant"] == DENSE].sort_values("layers").drop_duplicates("regime")
    label = rows["layers"].map("{:.0f} blocks,\n".format) + rows["regime"]
    return DataFrame(
        {"_label": label, "difference_nats": rows["gain_nats"], "source": "published", "part": "published"}
    )


def _verdicts(results: Results, arms: Mapping[str, str]) -> dict[str, str]:
    """Return the verdict of each claim in a word, by the runs of its arm. `arms` maps claims to arms."""
    words = claim_verdicts(results, STUDY, *arms)
    named = [(claim, *pair) for claim in arms for pair in registered_arms(claim, results.scale).named()]
    return {arm.run: words[claim].word for claim, name, arm in named if name == arms[claim] and arm.run}


def _write_verdicts(axes: Axes, rows: DataFrame) -> None:
    """Write the verdict at the left in the rows on which a claim rests, and their labels in bold."""
    labels = {label.get_text(): label for label in axes.get_yticklabels()}
    for name, verdict in rows.reindex(columns=["_label", "_verdict"]).dropna().drop_duplicates().to_numpy():
        height = list(labels).index(name)
        axes.text(0.02, height, verdict, va="center", color=GREY, fontsize=7, transform=axes.get_yaxis_transform())
        labels[name].set_fontweight("bold")


def _finish_gain(axes: Axes, rows: DataFrame) -> None:
    """Write the percentage of perplexity below each tick, and the verdicts."""
    axes.xaxis.set_major_formatter(lambda nats, _: f"{nats:g}\n{_percent(nats):.0f} %".replace("-", "\N{MINUS SIGN}"))
    _write_verdicts(axes, rows)


@plot(reads="test.csv", needs="depth.kind=dwa depth.dilation=1 depth.period=1", within_regime=True, draw=layout(
    Panel("difference_nats", "_label", by="_label", kind="forest", zero=0.0, finish=_finish_gain,
          title="Transformer minus 1x1 (right: 1x1 is better)", xlabel="loss (nats per token),\n% of perplexity\n"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); M: million training tokens; {_BARS}; bold: a claim rests "
                        "on the row; tinted: published."],
    width=2.9, columns=1  # the README shows it at 290 pixels
))  # fmt: skip
def denseformer_gain(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of the plain Transformer minus that of DenseFormer 1x1 of the same depth, for each depth and number
    of training tokens (arXiv:2402.02622), paired by seed; rows also name the test text. Every run has its own full
    schedule. Bold: rows on which a claim rests, with its verdict. Dashed: a quarter of the smaller published gain,
    which the claim on equal depth asks for. Thick bars include the variance between seeds, pooled over similar runs,
    and the variance due to the choice of texts if there are at least 20. Published: Tables 1 and 2, as differences of
    ln perplexity. To see: whether the gain grows with depth, and whether it lasts when both train longer or only makes
    the first steps easier.
    """
    models, losses = _models(results, runs)
    dense = models[models["variant"].eq(DENSE)].dropna(subset="plain").astype({"tokens": float})
    rows = differences(losses, dense[["layers", "tokens", "run", "plain"]], "plain", "run")
    if rows.empty:
        return rows
    rows = with_pooled(rows, results, STUDY, "plain", "run", "difference_nats")
    texts = dense.set_index("run")["_text"]
    tests = results.rows("test.csv", STUDY, dense["run"].tolist())
    if "document" in tests:
        counts = tests.dropna(subset="document").groupby("run")["document"].nunique().map("{} ".format)
        texts = counts.reindex(texts.index).fillna("") + texts
    labels = rows["layers"].map("{:.0f} blocks, ".format) + rows["tokens"].map(format_count) + ",\n"
    theirs, claimed = _published_gains(), rows["run"].isin(registered_runs(results.scale, DEPTH))
    least = 0.25 * theirs["difference_nats"].min()  # the criterion of denseformer-better-at-equal-depth
    rows = rows.assign(
        _label=labels + rows["run"].map(texts),
        _verdict=rows["run"].map(_verdicts(results, {DEPTH: "dense", LONG: "dense_long"})),
        difference_nats_limit=np.where(claimed, least, np.nan),
    )
    return pd.concat([rows, theirs], ignore_index=True).assign(_style=DENSE)


def _finish_sparsity(axes: Axes, rows: DataFrame) -> None:
    axes.xaxis.set_major_locator(MultipleLocator(50))
    _write_verdicts(axes, rows)


def _published_sparsity() -> DataFrame:
    """Return the gains and the loss differences of the published models of 48 blocks (Tables 1 and 4)."""
    rows = tables.published_models("Table 1", "Table 4").query("layers == 48").drop_duplicates("variant")
    rows[_GAIN] = np.log(rows["perplexity"].iloc[0] / rows["perplexity"])
    rows = rows[rows["variant"].str.startswith(DENSEFORMER)].dropna(subset=_GAIN)
    gain = rows.loc[rows["variant"].eq(DENSE), _GAIN].iloc[0]
    columns = {"variant": rows["variant"], "run": rows["variant"], "_dense_gain": gain, _BEHIND: gain - rows[_GAIN]}
    return rows[["source", _GAIN]].assign(layers=48.0, part="mean", **columns)


@plot(reads="test.csv", needs=("depth.dilation=[!1]* depth.period=1", "depth.dilation=1[0-9]* depth.period=1"),
      within_regime=True, draw=layout(
    Panel("_lost", "_label", by="_label", kind="forest", zero=0.0, finish=_finish_sparsity,
          title="Lost gain of 1x1 (left: better)", xlabel="loss minus loss of 1x1\n(% of the gain of 1x1)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); {_BARS}, both divided by the mean gain of 1x1; "
                        "bold: a claim rests on the row; *: reads the block after the last average; tinted: "
                        "published."],
    columns=1, width=NARROW, order="_order"
))  # fmt: skip
def denseformer_sparsity(results: Results, runs: list[str]) -> DataFrame:
    """Sparse averages over depth, by dilation k x period p: the part of the gain of the dense average (1x1) of equal
    depth that they lose, after Fig. 4, 11 and 12 of DenseFormer (arXiv:2402.02622). The loss minus the loss of 1x1 is
    paired by seed and divided by the mean gain of 1x1 over the Transformer. Dashed: a quarter; the claim is that 4x5
    loses less. A star marks p = 1 mod k, where each average reads the block that follows the previous average.
    Published: Tables 1 and 4, as differences of ln perplexity. To see: which bars are right of the dashed line. The
    time that each scheme saves is in denseformer_tradeoff.
    """
    models, losses = _models(results, runs)
    models = models[models["variant"].str.startswith(f"{DENSEFORMER} ")]
    model = ["regime", "layers", "tokens"]
    dense = models[models["variant"] == DENSE].drop_duplicates(model).set_index(model)["run"].rename("dense")
    models = models.join(dense, on=model, how="inner").dropna(subset="plain")
    models = models[models.groupby("dense")["run"].transform("size") > 1]
    if models.empty:
        return DataFrame()
    rows = _compared(models, losses, results, "run", "dense", _BEHIND, ["dense", "plain"])
    gains = differences(losses, models[["run", "plain"]], "plain", "run", _GAIN).query("part == 'mean'")
    gain = gains.set_index("run")[_GAIN]
    rows = rows.assign(**{_GAIN: rows["run"].map(gain), "_dense_gain": rows["dense"].map(gain)})
    rows[_BEHIND] = rows[_BEHIND].mask(rows["run"].eq(rows["dense"]) & rows["part"].eq("mean"), 0.0)
    rows = pd.concat([rows, _published_sparsity()], ignore_index=True)
    dilation, period = rows["variant"].str.extract(r"(\d+)x(\d+)").astype(float).T.to_numpy()
    for end in ("", "_low", "_high", "_pooled_low", "_pooled_high"):
        rows[f"_lost{end}"] = 100 * rows[f"{_BEHIND}{end}"] / rows["_dense_gain"]
    star = np.where((dilation > 1) & (period % dilation == 1), " *, ", ", ")
    label = rows["variant"].str.removeprefix(f"{DENSEFORMER} ") + star + rows["layers"].map("{:.0f} blocks".format)
    claimed = rows["variant"].eq(SPARSEST)
    return rows.assign(
        _label=label.mask(rows["variant"].eq(DENSE)),
        _style=rows["variant"],
        _color=np.where(claimed, RUST, GREY),
        _lost_limit=np.where(claimed, 25.0, np.nan),
        _verdict=rows["run"].map(_verdicts(results, {SPARSE: "sparse"})),
        _order=np.lexsort((period, dilation, -rows["layers"], ~claimed, rows["source"])).argsort(),
    )
