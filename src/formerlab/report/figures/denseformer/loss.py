"""Held-out loss of averages over depth, by depth, time, tokens and sparsity (DenseFormer, arXiv:2402.02622)."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.arms import registered_arms
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.figures.denseformer.inside import averages
from formerlab.report.marks import write_verdicts
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
    with_seeds,
)
from formerlab.report.studies.denseformer import DEPTH, LONG, SPARSE, STUDY, compared_runs
from formerlab.report.style import GREY, NARROW, RUST
from formerlab.report.tables import denseformer as tables
from formerlab.report.tables.blocks import claim_verdicts, pooled_estimate, with_pooled
from formerlab.results.read import Results
from formerlab.results.schema import FORWARD

DENSE = f"{DENSEFORMER} 1x1"
SPARSEST = f"{DENSEFORMER} 4x5"
_TIME, _GAIN, _MINUS_DENSE = f"{FORWARD}_time_s", "gain_nats", "minus_dense_nats"
_DEEPER, _EQUAL = "minus_shallowest_nats", "minus_plain_nats"
_LAST_STEP = "right of the curves: last step, with 95 % Student t intervals over seeds."
_BARS = "thick bars: 95 % interval, as used for verdicts; thin: Student t"
_DEPTHS = partial(Panel, "layers", by="_series", facet="_panel", share_y=True, same_limits="y", zero=0.0,
                  ticks="{:.0f}".format, xlabel="depth (blocks)")  # fmt: skip


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


@plot(reads="test.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    _DEPTHS(_DEEPER, ylabel="minus the shallowest\nTransformer (nats)", name="legend"),
    _DEPTHS(_EQUAL, ylabel="minus the Transformer\nof equal depth (nats)", name="none"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); loss per token, below 0: better; {_BARS}; published: "
                        "differences of ln perplexity, without intervals."],
    wanted=[TRANSFORMER, DENSE], height=1.5
))  # fmt: skip
def denseformer_depth(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of plain Transformers and DenseFormers 1x1 against depth, after Table 1 of DenseFormer
    (arXiv:2402.02622), for the texts with models of several depths. Above: loss minus the loss of the shallowest
    Transformer of the same text. Below: loss of DenseFormer minus the loss of the Transformer of equal depth. Both are
    paired by seed, and each line of panels has one scale. To see: which depth the Transformer needs to reach the loss
    of a DenseFormer, and whether the gain grows with depth. In the paper a DenseFormer of 48 blocks is about as good as
    a Transformer of 72. Published: 378 to 676 million parameters (OpenWebText2, 40k steps).
    """
    models, losses = _models(results, runs)
    group = ["regime", "tokens"]
    several = models.groupby(group)["layers"].transform("nunique") > 1
    models = models[several | (not several.any())]
    plain = models[models["variant"] == TRANSFORMER].drop_duplicates(group)
    base = plain.set_index(group)["run"].rename("base")
    deeper = _compared(models.join(base, on=group), losses, results, "run", "base", _DEEPER, ["_text"])
    deeper[_DEEPER] = deeper[_DEEPER].mask(deeper["run"].isin(base), deeper["part"].map({"mean": 0.0}))
    pairs = models[models["variant"].isin([TRANSFORMER, DENSE])]
    equal = _compared(pairs, losses, results, "run", "plain", _EQUAL, ["_text", "plain"])
    equal[_EQUAL] = equal[_EQUAL].mask(equal["run"].eq(equal["plain"]), equal["part"].map({"mean": 0.0}))
    published = tables.published_depths().assign(part="mean", _text="OpenWebText2")
    loss = np.log(published["perplexity"])
    of_equal_depth = published["layers"].map(loss.groupby(published["layers"]).max())
    published[_DEEPER], published[_EQUAL] = loss - loss.iloc[0], loss - of_equal_depth
    rows = pd.concat([deeper, equal, published], ignore_index=True)
    series = rows["variant"].where(rows["variant"].isin([TRANSFORMER, DENSE]))
    count = rows["tokens"].map(lambda count: f", {format_count(count)} tokens", "ignore").fillna("")
    return rows.assign(_panel=rows["_text"] + count, _series=series).sort_values(
        ["source", "layers"], kind="stable", ignore_index=True
    )


_RELATIVE = partial(Panel, y="_label", by="_label", style="variant", kind="forest", zero=0.0)


@plot(reads="test.csv speed.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    _RELATIVE("_slower", title="Time of a forward pass", xlabel="% more than the Transformer"),
    _RELATIVE(_GAIN, title="Gain (right: better)", xlabel="loss of the Transformer\nminus loss (nats per token)"),
    notes=lambda rows: [f"against the Transformer of equal depth; deeper Transformers are not timed, so a comparison "
                        f"at equal time is not tested; {seed_count(rows['seeds'])} (dots); {_BARS}; bars of the time: "
                        "quartiles; tinted: published (ln perplexity)."],
    columns=1, width=NARROW
))  # fmt: skip
def denseformer_tradeoff(results: Results, runs: list[str]) -> DataFrame:
    """Time of a full forward pass and gain in held-out loss of DenseFormers, both against the Transformer of equal
    depth. The gain is paired by seed. Times are medians over repetitions, measured in turns on one machine. Tinted:
    Table 1 of DenseFormer (arXiv:2402.02622), whose gain is a difference of ln perplexity. To see: what a DenseFormer
    costs and gains. Fig. 3 of the paper compares with deeper Transformers that take equal time. Our deeper Transformers
    are not timed, so this comparison is not tested.
    """
    models, losses = _models(results, runs)
    kind = ["variant", "layers", "spec.model.width"]
    timed = load_runs(results, STUDY).drop_duplicates("run")[["run", *kind]].merge(tables.speeds(results), on="run")
    timed = timed.drop(columns="run").drop_duplicates(kind)  # the time does not depend on the learning rate
    models = models.merge(timed, on=kind)
    base = models.drop_duplicates("run").set_index("run")[_TIME]
    text = data_set_labels(models["data.name"], results.scale)
    models = models.assign(_base=models["plain"].map(base), _text=text).dropna(subset="_base")
    if models.empty:
        return DataFrame()
    times = [_TIME, f"{_TIME}_low", f"{_TIME}_high"]
    ours = _compared(models, losses, results, "plain", "run", _GAIN, ["plain", "_base", "_text", *times])
    ours[times] = ours[times].where(ours["part"].eq("mean"))
    ours.loc[ours["run"].eq(ours["plain"]), _GAIN] = 0.0
    published = tables.published_depths().assign(part="mean", _text="paper")
    published[_TIME] = 1 / published.pop("inference_batches_per_s")
    plain = published[published["variant"] == TRANSFORMER].set_index("layers")
    published["_base"] = published["layers"].map(plain[_TIME])
    published[_GAIN] = np.log(published["layers"].map(plain["perplexity"]) / published["perplexity"])
    rows = pd.concat([ours, published], ignore_index=True)
    for end in ("", "_low", "_high"):
        rows[f"_slower{end}"] = 100 * (rows[f"{_TIME}{end}"] / rows["_base"] - 1)
    label = rows["variant"].str.removeprefix(f"{DENSEFORMER} ") + rows["layers"].map(", {:.0f} blocks, ".format)
    has_label = rows["variant"].isin(models["variant"]) & rows["variant"].ne(TRANSFORMER)
    return rows.assign(_label=(label + rows.pop("_text")).where(has_label))


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


def _finish_gain(axes: Axes, rows: DataFrame) -> None:
    """Write the change of perplexity below each tick, write the verdicts, and shrink markers that would cover
    intervals.
    """
    for line in axes.get_lines():
        line.set_markersize(3 if line.get_marker() == "s" else line.get_markersize())
    axes.xaxis.set_major_formatter(lambda nats, _: f"{nats:g}\n{_percent(nats):.0f} %".replace("-", "\N{MINUS SIGN}"))
    write_verdicts(axes, rows)


@plot(reads="test.csv", needs="depth.kind=dwa depth.dilation=1 depth.period=1", within_regime=True, draw=layout(
    Panel("difference_nats", "_label", by="_label", kind="forest", zero=0.0, finish=_finish_gain,
          title="Transformer minus 1x1 (right: 1x1 is better)", xlabel="loss (nats per token),\n% of perplexity\n"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); M: million training tokens; {_BARS}; bold: a claim rests "
                        "on the row, and asks for a mean in the green range; tinted: published."],
    width=2.9, columns=1  # the README shows it at 290 pixels
))  # fmt: skip
def denseformer_gain(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of the plain Transformer minus the loss of DenseFormer 1x1 of the same depth, paired by seed
    (arXiv:2402.02622). A row is a depth, a number of training tokens and a test text. Every run has its own full
    schedule. Bold: rows that a claim uses, with its verdict. Dashed: a quarter of a published gain, the smallest mean
    that meets the claim. Thick bars include the variance between seeds, pooled over similar runs. With at least 20
    texts, they also include the variance between texts. Published: Tables 1 and 2, as differences of ln perplexity. To
    see: whether the gain grows with depth, and whether it lasts when both train longer or only makes the first steps
    easier.
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
    published, limits = _published_gains(), dict[str | None, float]()
    arms = {LONG: "dense_long", DEPTH: "dense"}
    for (claim, arm), gain in zip(arms.items(), sorted(published["difference_nats"], reverse=True), strict=True):
        of_claim = registered_arms(claim, results.scale).named()
        limits |= {model.run: 0.25 * gain for name, model in of_claim if name == arm}  # the limit in the criteria
    limit = rows["run"].map(limits)
    rows = rows.assign(
        _label=labels + rows["run"].map(texts),
        verdict=rows["run"].map(_verdicts(results, arms)).where(rows["part"].eq("mean")),
        difference_nats_limit=limit,
        difference_nats_met=np.where(limit.notna(), np.inf, np.nan),
    ).sort_values("difference_nats_limit", kind="stable")  # claims first
    return pd.concat([rows, published], ignore_index=True).assign(_style=DENSE)


def _published_sparsity() -> DataFrame:
    """Return the gains and the loss differences of the published models of 48 blocks (Tables 1 and 4)."""
    rows = tables.published_models("Table 1", "Table 4").query("layers == 48").drop_duplicates("variant")
    rows[_GAIN] = np.log(rows["perplexity"].iloc[0] / rows["perplexity"])
    rows = rows[rows["variant"].str.startswith(DENSEFORMER)].dropna(subset=_GAIN)
    gain = rows.loc[rows["variant"].eq(DENSE), _GAIN].iloc[0]
    columns = {"variant": rows["variant"], "run": rows["variant"], _MINUS_DENSE: gain - rows[_GAIN]}
    return rows[["source", _GAIN]].assign(layers=48.0, part="mean", _dense_gain=gain, **columns)


def _finish_sparsity(axes: Axes, rows: DataFrame) -> None:
    axes.xaxis.set_major_locator(MultipleLocator(50))
    of_claim = rows.dropna(subset="verdict")
    words = [f"{lost:.0f} %\n{verdict}".replace(" ", "\N{NO-BREAK SPACE}")
             for lost, verdict in of_claim[["_lost", "verdict"]].to_numpy()]  # fmt: skip
    write_verdicts(axes, of_claim.assign(verdict=words))


@plot(reads="test.csv", needs=("depth.dilation=[!1]* depth.period=1", "depth.dilation=1[0-9]* depth.period=1"),
      within_regime=True, draw=layout(
    Panel("_lost", "_label", by="_label", kind="forest", zero=0.0, finish=_finish_sparsity,
          title="Fraction of the gain of 1x1 that is lost", xlabel="% of the gain (left: better)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); bars: 95 % interval of the distance from the limit of "
                        "25 %, as used for the verdict; bold: the claim, which asks for the green range; tinted: "
                        "published."],
    columns=1, width=NARROW, order="_order"
))  # fmt: skip
def denseformer_sparsity(results: Results, runs: list[str]) -> DataFrame:
    """Fraction of the gain of 1x1 that sparse averages (dilation k x period p) of equal depth lose, after Fig. 4, 11
    and 12 of DenseFormer (arXiv:2402.02622). The loss minus the loss of 1x1 is paired by seed. It is divided by the
    mean gain of 1x1 over the Transformer, for the seeds that all three have. Rows have the number of mixing weights,
    and the number of mixing weights of 1x1. Green: less than a quarter, as the claim on 4x5 asks. A bar is the interval
    of this claim's quantity, the lost loss minus a quarter of the gain. It is to the right of the green range only if
    more than a quarter is lost. Published: Tables 1 and 4, as differences of ln perplexity. To see: which bars are to
    the right of the green range. The time of 4x5 is in denseformer_tradeoff.
    """
    models, losses = _models(results, runs)
    models = models[models["variant"].str.startswith(f"{DENSEFORMER} ")]
    models = models.assign(_text=data_set_labels(models["data.name"], results.scale))
    model = ["regime", "layers", "tokens"]
    dense = models[models["variant"] == DENSE].drop_duplicates(model).set_index(model)["run"].rename("dense")
    models = models.join(dense, on=model, how="inner").dropna(subset="plain")
    models = models[models.groupby("dense")["run"].transform("size") > 1]
    if models.empty:
        return DataFrame()
    of_plain = losses[["run", "seed"]].rename(columns={"run": "plain"})
    common = models[["run", "plain"]].merge(losses, on="run").merge(of_plain, on=["plain", "seed"])
    plains = losses[losses["run"].isin(models["plain"])]
    losses = pd.concat([plains, common.drop(columns="plain")])  # the seeds that the Transformer has too
    rows = _compared(models, losses, results, "run", "dense", _MINUS_DENSE, ["dense", "plain", "_text"])
    gains = differences(losses, models[["run", "plain"]], "plain", "run", _GAIN).query("part == 'mean'")
    gain = gains.set_index("run")[_GAIN]
    rows = rows.assign(**{_GAIN: rows["run"].map(gain)}, _dense_gain=rows["dense"].map(gain))
    rows[_MINUS_DENSE] = rows[_MINUS_DENSE].mask(rows["run"].eq(rows["dense"]) & rows["part"].eq("mean"), 0.0)
    reader, means = ClaimRows(results, STUDY, ClaimArms()), rows["part"].eq("mean") & rows["run"].ne(rows["dense"])
    for at, run, base, plain in rows.loc[means, ["run", "dense", "plain"]].reset_index().to_numpy():
        excess = pooled_estimate(reader, "", {run: 1.0, base: -0.75, plain: -0.25})  # the quantity of the claim
        for end in ("_low", "_high"):
            rows.loc[at, f"{_MINUS_DENSE}_pooled{end}"] = 0.25 * gain[base] + excess.get(end, np.nan)
    rows = pd.concat([rows, _published_sparsity()], ignore_index=True)
    schemes = rows["variant"].str.extract(r"(\d+)x(\d+)").astype(int)
    weights = np.array([sum(map(len, averages(int(layers), *scheme).values()))
                        for layers, *scheme in zip(rows["layers"], *schemes.to_numpy().T, strict=True)])  # fmt: skip
    for end in ("", "_pooled_low", "_pooled_high"):
        rows[f"_lost{end}"] = 100 * rows[f"{_MINUS_DENSE}{end}"] / rows["_dense_gain"]
    text = rows.pop("_text").fillna("paper")
    label = rows["variant"].str.removeprefix(f"{DENSEFORMER} ") + rows["layers"].map(", {:.0f} blocks, ".format) + text
    of_dense = (rows["layers"] * (rows["layers"] + 3) / 2).map("{:.0f} weights".format)
    label += ",\n" + Series(weights, rows.index).map("{} of ".format) + of_dense
    verdict = rows["run"].map(_verdicts(results, {SPARSE: "sparse"})).where(rows["part"].eq("mean"))
    claimed, met = rows["variant"].eq(SPARSEST), verdict.notna()
    return rows.assign(
        _label=label.mask(rows["variant"].eq(DENSE)),
        _style=rows["variant"],
        _color=np.where(claimed, RUST, GREY),
        _marker=Series("o", rows.index).mask(claimed),
        _lost_limit=np.where(met, 25.0, np.nan),
        _lost_met=np.where(met, -np.inf, np.nan),
        verdict=verdict,
        _order=np.lexsort((weights, -rows["layers"], rows["source"])).argsort(),
    )
