"""Held-out loss of averages over depth, by depth, time, tokens and sparsity (DenseFormer, arXiv:2402.02622)."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.claims.arms import registered_arms
from formerlab.report.claims.quantity import Quantity
from formerlab.report.figures.denseformer.inside import averages
from formerlab.report.marks import embolden_claims
from formerlab.report.names import data_set_labels
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    DENSEFORMER,
    TRANSFORMER,
    differences,
    estimate,
    format_count,
    held_out_losses,
    load_runs,
    means_by_run,
    seed_count,
    with_seeds,
)
from formerlab.report.studies.denseformer import DEPTH, LONG, SPARSE, STUDY, compared_runs
from formerlab.report.style import BETTER, BLACK, GREY, MET_GROUND, NARROW, RUST, ink, plot_style
from formerlab.report.tables import denseformer as tables
from formerlab.report.tables.cells import (
    NEEDED_BLOCKS,
    claim_rows,
    claim_verdicts,
    claim_words,
    in_words,
    pooled_estimate,
    with_pooled,
)
from formerlab.results.read import Results
from formerlab.results.schema import FORWARD
from formerlab.statistics import CONFIDENCE

DENSE = f"{DENSEFORMER} 1x1"
SPARSEST = f"{DENSEFORMER} 4x5"
_TIME, _GAIN, _MINUS_DENSE = f"{FORWARD}_time_s", "gain_over_shallowest_nats", "minus_dense_nats"
_DEEPER = "minus_shallowest_nats"
_GAIN_CLAIMS = {
    DEPTH: "1x1 is better at equal depth",
    LONG: "its gain lasts with training",
    "denseformer-gain-modern-backbone": "1x1 helps a modern Transformer",
    "denseformer-no-gain-modern-backbone": "the opposite",
}
_BARS = "thick bars: 95 % interval, as used for verdicts; thin: Student t"


def _models(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per compared run (`compared_runs`), with the label of its text."""
    models = compared_runs(results, runs).drop_duplicates("run", ignore_index=True).drop(columns="seed")
    return models.assign(_text=data_set_labels(models["data.name"], results.scale))


def _minus(results: Results, models: DataFrame, a: str, b: str, name: str, shared: Sequence[str]) -> DataFrame:
    """Return a row per model and per seed: the loss, the `shared` columns, and `name`, the loss of the run in column
    `a` minus the loss of the run in column `b`, with the interval that verdicts use. One of the columns is `base`. If
    both are one run, `name` is 0, and the seeds have no `_series`, since they have no spread around themselves.
    """
    shared = ["source", "variant", "layers", "tokens", "base", *shared]
    losses = held_out_losses(results, STUDY, models["run"])
    means = means_by_run(losses).drop(columns=["source", "variant", "layers", "tokens"])
    rows = with_seeds(means.merge(models.assign(source="ours")[["run", *shared]], on="run"), losses, shared)
    minus = differences(losses, models.assign(_of=models["run"])[["_of", a, b]], a, b, name)
    minus = minus.reindex(columns=["_of", "part", "seed", *expand_columns(f"{name}[]")])
    rows = rows.merge(minus.rename(columns={"_of": "run"}), "left", ["run", "part", "seed"])
    is_base, mean = rows["run"].eq(rows["base"]), rows["part"].eq("mean")
    rows = rows.assign(_series=rows["variant"].where(~is_base | mean), **{name: rows[name].mask(is_base & mean, 0.0)})
    return with_pooled(rows, results, STUDY, a, b, name)


@plot(reads="test.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    Panel("layers", _DEEPER, by="_series", facet="_panel", share_y=True, same_limits="y", zero=0.0, name="legend",
          apart=0.5, ticks="{:.0f}".format, xlabel="depth (blocks)",
          ylabel="loss minus the shallowest\nTransformer's (nats)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots), series side by side; loss per token, below 0: better; "
                        f"{_BARS}; published: differences of ln perplexity, without intervals, other depths."],
    wanted=[TRANSFORMER, DENSE]
))  # fmt: skip
def denseformer_depth(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of plain Transformers and DenseFormers 1x1 against depth, after Table 1 of DenseFormer
    (arXiv:2402.02622), minus the loss of the shallowest Transformer of the same text, paired by seed, for the texts
    with models of several depths. To see: which depth the Transformer needs to reach the loss of a DenseFormer. In the
    paper a DenseFormer of 48 blocks is about as good as a Transformer of 72. Our Transformers do not improve clearly
    with depth, so the figure gives no equivalent depth. Published: 378 to 676 million parameters (OpenWebText2, 40k
    steps).
    """
    models = _models(results, runs)
    group = ["regime", "tokens"]
    several = models.groupby(group)["layers"].transform("nunique") > 1
    models = models[several | (not several.any())]
    base = models[models["variant"] == TRANSFORMER].drop_duplicates(group).set_index(group)["run"].rename("base")
    ours = _minus(results, models.join(base, on=group), "run", "base", _DEEPER, ["_text"]).drop(columns="base")
    published = tables.published_depths().assign(
        part="mean", _text="OpenWebText2", _series=lambda rows: rows["variant"]
    )
    published[_DEEPER] = np.log(published["perplexity"] / published["perplexity"].iloc[0])
    rows = pd.concat([ours, published], ignore_index=True)
    count = rows["tokens"].map(lambda count: f", {format_count(count)} tokens", "ignore").fillna("")
    series = rows["_series"].where(rows["_series"].isin([TRANSFORMER, DENSE]))
    rows = rows.assign(_panel=rows["_text"] + count, _series=series)
    rows = rows.sort_values(["source", "layers"], kind="stable", ignore_index=True)
    for panel, points in rows[rows["_series"].eq(TRANSFORMER) & rows["part"].eq("mean")].groupby("_panel"):
        if points[f"{_DEEPER}_low"].iloc[-1] < 0 < points[f"{_DEEPER}_high"].iloc[-1]:
            rows["_panel"] = rows["_panel"].replace(panel, f"{panel}\n(depth alone: no clear gain)")
    return rows


def _finish_tradeoff(axes: Axes, rows: DataFrame) -> None:
    """Write our values beside the points and the number of blocks at published points, and make the ground above the
    line of the Transformers green. Share the y axis of the first panel.
    """
    first, (left, right), ends = axes.figure.axes[0], axes.get_xlim(), rows.filter(regex=f"^{_GAIN}_pooled").to_numpy()
    limits = np.nanmin([axes.get_ylim()[0], *ends.ravel()]) - 0.005, axes.get_ylim()[1]
    points = rows[rows["run"].ne(rows["base"])]
    for source, variant, layers, time, gain in points[
        ["source", "variant", "layers", "slower_percent", _GAIN]
    ].to_numpy():
        write = partial(axes.annotate, xy=(time, gain), textcoords="offset points", fontsize=7,
                        color=ink(plot_style(variant)["color"]))  # fmt: skip
        if source == "ours":
            side = -1 if time > (left + right) / 2 else 1
            write(f"gain {gain:.3f},\n{time:.0f} % more time", xytext=(6 * side, 3), va="bottom",
                  ha="left" if side > 0 else "right")  # fmt: skip
        else:
            write(f"{layers:.0f}", xytext=(4, -10) if variant == TRANSFORMER else (0, 5))
    line = points[points["variant"].eq(TRANSFORMER)].sort_values("slower_percent")
    if axes is not first:
        limits = min(limits[0], first.get_ylim()[0]), max(limits[1], first.get_ylim()[1])
        axes.sharey(first)
        axes.fill_between(line["slower_percent"], line[_GAIN], limits[1], color=MET_GROUND, linewidth=0, zorder=0)
    axes.set(xlim=(left, right), ylim=limits)


@plot(reads="test.csv speed.csv", needs="depth.kind=dwa", within_regime=True, draw=layout(
    Panel("slower_percent", _GAIN, by="_series", style="variant", facet="_panel", zero=0.0, share_y=True,
          finish=_finish_tradeoff, name="legend", xlabel="more time of a forward pass, %",
          ylabel="gain in loss\n(nats per token)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])}; up: better, left: faster; {_BARS}; bars across: "
                        f"quartiles of the time; zero: a Transformer of {rows['_base'].iloc[0]:.0f} blocks (paper: 48, "
                        f"numbers: blocks){rows['_untimed'].iloc[0]}."],
    height=2.4
))  # fmt: skip
def denseformer_tradeoff(results: Results, runs: list[str]) -> DataFrame:
    """Extra time of a full forward pass and gain in held-out loss, both against the shallowest timed Transformer of the
    same source, after Fig. 3 of DenseFormer (arXiv:2402.02622). The gain is paired by seed. Times are ratios of medians
    over repetitions, measured in turns on one machine. Right: Table 1 of the paper, as differences of ln perplexity;
    lines join models of 48 to 90 blocks. The panels have different scales of time. To see: on the right, a model on the
    green ground, above the line of the Transformers, is better than a deeper Transformer at equal time. Our deeper
    Transformers are not timed, so on the left there is no such line, and no trade-off: only the gain and the extra time
    of each scheme. The CSV also has the seeds and the published 4x1 and Skips with Gains.
    """
    models = _models(results, runs)
    kind, group = ["variant", "layers", "spec.model.width"], ["regime", "tokens"]
    timed = load_runs(results, STUDY).drop_duplicates("run")[["run", *kind]].merge(tables.speeds(results), on="run")
    timed = timed.rename(columns={"run": "_timed"}).drop_duplicates(kind)  # the learning rate does not change the time
    untimed = sorted({*models["layers"]} - {*timed["layers"]})
    models = models.merge(timed, on=kind)
    base = models[models["variant"] == TRANSFORMER].sort_values("layers").drop_duplicates(group).set_index(group)
    base = base[["run", "_timed", _TIME, "layers"]].rename(columns={_TIME: "_base_time", "layers": "_base"})
    models = models.join(base.rename(columns={"run": "base", "_timed": "_base_timed"}), on=group).dropna(subset="base")
    if models.empty:
        return DataFrame()
    ratios = tables.time_ratios(results, dict(models[["_timed", "_base_timed"]].to_numpy()))
    models = models.join(ratios.xs(FORWARD, level="measure"), on="_timed")
    models["slower_percent"] = 100 * (models[_TIME] / models["_base_time"] - 1)
    for end in ("low", "high"):
        models[f"slower_percent_{end}"] = 100 * (models[end] - 1)
    shared = ["_base", _TIME, *expand_columns("slower_percent[]")]
    ours = _minus(results, models, "base", "run", _GAIN, shared)
    alone = len(models[models["variant"].eq(TRANSFORMER)]) == 1
    published = tables.published_depths().assign(part="mean", _series=lambda rows: rows["variant"])
    published[_TIME] = 1 / published.pop("inference_batches_per_s")
    published["slower_percent"] = 100 * (published[_TIME] / published[_TIME].iloc[0] - 1)
    published[_GAIN] = np.log(published["perplexity"].iloc[0] / published["perplexity"])
    rows = pd.concat([ours, published], ignore_index=True)
    ends, depths = expand_columns("slower_percent[]")[1:], "/".join(f"{n:.0f}" for n in sorted({*models["layers"]}))
    panels = {"ours": f"ours, {depths} blocks" + ": no answer,\nno deeper Transformer is timed" * alone,
              "published": "on green,\nbetter than a Transformer of equal time"}  # fmt: skip
    return rows.assign(
        _series=rows["_series"].where(rows["variant"].isin(models["variant"]) & rows["part"].ne("seed")),
        _panel=rows["source"].map(panels),
        _untimed=f"; {', '.join(f'{layers:.0f}' for layers in untimed)} blocks: not timed" * bool(untimed),
        **{end: rows[end].where(rows["part"].eq("mean")) for end in ends},
    )


@plot(reads="test.csv", needs="depth.kind=dwa depth.dilation=1 depth.period=1", within_regime=True, draw=layout(
    Panel("difference_nats", "_label", by="_label", kind="forest", zero=0.0, finish=embolden_claims, facet="source",
          title="Loss, Transformer minus DenseFormer 1x1", same_limits="x",
          xlabel="nats per token\n(right: 1x1 better)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); M: million training tokens; {_BARS}; bold: rows of a "
                        "claim, green: its range for the mean; published: ln perplexity, no intervals."],
    order="_rank _group layers"
))  # fmt: skip
def denseformer_gain(results: Results, runs: list[str]) -> DataFrame:
    """Held-out loss of the plain Transformer minus the loss of DenseFormer 1x1 of the same depth, for each depth and
    number of training tokens (arXiv:2402.02622), paired by seed. The rows are the pairs of the table denseformer_table.
    Every run has its own full schedule, and a peak rate of 0.01 unless the row says otherwise. Dashed: a quarter of a
    published gain, the smallest mean that meets the claim. Thick bars include the variance between seeds, pooled over
    similar runs if there are any, and the variance due to the choice of texts if there are at least 20. Published:
    Tables 1 and 2, as differences of ln perplexity. To see: whether the gain grows with depth, and whether it lasts
    when both train longer or only makes the first steps easier.
    """
    pairs = tables.denseformer_table.rows(results, runs)
    if "plain" not in pairs:
        return DataFrame()
    compared = pairs["run"].isin(compared_runs(results, runs)["run"]) | pairs["setting"].eq("modern")
    pairs = pairs[compared & pairs["variant"].eq(DENSE) & pairs["gain_nats"].notna()].astype({"tokens": float})
    keys, pooled = ["layers", "tokens", "run", "plain"], expand_columns("gain_nats[]+")[3:]
    pairs["_text"] = data_set_labels(pairs["data.name"], results.scale)
    rows = differences(held_out_losses(results, STUDY), pairs[keys], "plain", "run").merge(
        pairs[["run", "plain", "setting", "plain_learning_rate", "verdict", "_text", *pooled]], on=["run", "plain"]
    )
    rows = rows.rename(columns=dict(zip(pooled, expand_columns("difference_nats[]+")[3:], strict=True)))
    published, limits = tables.published_pairs().query("gain_nats == gain_nats"), dict[str | None, float]()
    arms = {LONG: "dense_long", DEPTH: "dense"}
    first = published.sort_values("layers").drop_duplicates("regime")["gain_nats"]
    for (claim, arm), gain in zip(arms.items(), sorted(first, reverse=True), strict=True):
        of_claim = registered_arms(claim, results.scale).named()
        limits |= {model.run: 0.25 * gain for name, model in of_claim if name == arm}  # as in the criteria
    seeds = rows["part"].eq("seed")
    limit = rows["run"].map(limits).mask(rows["verdict"].isna())
    other = rows["verdict"].isna() & rows["run"].isin(limits)
    modern = rows["setting"].eq("modern")
    least = rows["verdict"].str.extract(NEEDED_BLOCKS)[0]
    words = rows["verdict"].str.extract(r"^([^(;:]+[^ (;:])")[0]
    notes = words + (" (needs " + least + " blocks)").fillna("")
    notes = notes.groupby([rows["run"], rows["plain"]]).transform("first")
    notes = notes.fillna(("Transformer's rate " + rows["plain_learning_rate"].map("{:g}".format)).where(other))
    groups = rows["_text"] + ", " + rows["tokens"].map(format_count)
    labels = groups + ": " + rows["layers"].map("{:.0f} blocks".format) + modern.map({True: ", modern", False: ""})
    claimed = rows.groupby(["run", "plain"])["verdict"].transform("count").gt(0)
    rows = rows.assign(
        _label=labels + ("\n" + notes).fillna(""),
        _group=groups,
        _rank=-rows["layers"].where(claimed, -1.0),
        _brief=~other & ~modern,
        **{column: rows[column].mask(seeds) for column in expand_columns("difference_nats[]+")[3:]},
        verdict=words.mask(seeds),
        difference_nats_limit=limit,
        difference_nats_met=np.where(limit.notna(), np.inf, np.nan),
    ).drop(columns=["setting", "plain_learning_rate"])
    published = published.assign(
        _label=published["regime"] + published["layers"].map(": {:.0f} blocks".format),
        _brief=True,
        difference_nats=published["gain_nats"],
        part="published",
        _group=published["regime"],
        _rank=2,
    )[["source", "layers", "_label", "_brief", "difference_nats", "part", "_group", "_rank"]]
    verdicts = claim_verdicts(results, STUDY, *_GAIN_CLAIMS)
    change = rows[rows["run"].isin(verdicts[LONG].runs) & rows["part"].eq("mean") & rows["verdict"].notna()]
    shorter = rows.loc[rows["run"].isin(verdicts[LONG].runs - {*change["run"]}), "tokens"].map(format_count)
    if len(shorter) and isinstance(kept := verdicts[LONG].quantities.get("kept"), Quantity):
        interval = kept.interval(CONFIDENCE)
        label = change["_group"] + f" minus {shorter.iloc[0]}" + change["layers"].map(": {:.0f} blocks".format)
        change = change[["source", "run", "plain", "_group", "_rank", "layers"]].assign(_label=label, _brief=False)
        values = estimate("difference_nats_pooled", interval) | {"difference_nats": interval.mean, "part": "change"}
        rows = pd.concat([rows, change.assign(**values).drop(columns="difference_nats_pooled")])
    claims = claim_words(verdicts, _GAIN_CLAIMS)
    return pd.concat([rows, published], ignore_index=True).assign(_style=DENSE, _claims=claims)


def _finish_sparsity(axes: Axes, rows: DataFrame) -> None:
    """Draw the line of the Transformer, name both lines in the first panel, and make the row of the claim bold."""
    axes.xaxis.set_major_locator(MultipleLocator(50))
    axes.axvline(100, color=BLACK, linewidth=0.9, zorder=1)
    embolden_claims(axes, rows)
    if axes is axes.figure.axes[0]:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.5)
        for at, name in ((0, "1x1"), (100, TRANSFORMER)):
            axes.text(at, high + 0.4, f" {name}", va="top", fontsize=7)


@plot(reads="test.csv", needs=("depth.dilation=[!1]* depth.period=1", "depth.dilation=1[0-9]* depth.period=1"),
      within_regime=True, draw=layout(
    Panel("_lost", "_label", by="_label", kind="forest", facet="_panel", zero=0.0, finish=_finish_sparsity,
          same_limits="x", xlabel=f"lost gain of 1x1, % ({BETTER})"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); thick bars: 95 % interval of the lost gain minus a "
                        "quarter of the gain, as used for the verdict; thin: Student t, for a known gain; in brackets: "
                        "number of weights, % of 1x1; bold: the claim, which asks for the green range."],
    columns=1, width=NARROW, order="_order"
))  # fmt: skip
def denseformer_sparsity(results: Results, runs: list[str]) -> DataFrame:
    """Sparse averages over depth, by dilation k x period p: the fraction of the gain of the dense average (1x1) of
    equal depth that they lose, after Fig. 4, 11 and 12 of DenseFormer (arXiv:2402.02622). The table
    denseformer_patterns has the losses minus 1x1 with intervals; here they are divided by the mean gain of 1x1 over the
    Transformer. Green: less than a quarter, as the claim on 4x5 asks. Published: Tables 1 and 4, as differences of ln
    perplexity. To see: which bars are to the right of the green range. The time of 4x5 is in denseformer_tradeoff.
    """
    models, keys = tables.pattern_losses(results, runs), ["regime", "setting", "layers"]
    if models.empty:
        return DataFrame()
    models = models.rename(columns=lambda name: name.replace("loss_minus_dense_nats", _MINUS_DENSE))
    plain = models[models["variant"] == TRANSFORMER].drop_duplicates(keys).set_index(keys)
    texts = data_set_labels(plain["data.name"], results.scale)
    gains = plain.apply(in_words, axis=1, name=_MINUS_DENSE)
    headings = dict(zip(plain["dense"], ", " + texts + " (gain of 1x1: " + gains + ")", strict=True))
    models = models.join(plain[_MINUS_DENSE].rename("dense_gain_nats"), on=keys)
    models = models[models["variant"].str.startswith(f"{DENSEFORMER} ")].dropna(subset="dense_gain_nats")
    models = models[models.groupby("dense")["run"].transform("size") > 1].astype({"layers": float})
    if models.empty:
        return DataFrame()
    ends, dense = expand_columns(f"{_MINUS_DENSE}[]+"), models["variant"].eq(DENSE)
    columns = ["run", "variant", "layers", "tokens", "dense", "dense_gain_nats", "seeds", "loss_nats", *ends]
    models = models.assign(**{_MINUS_DENSE: models[_MINUS_DENSE].mask(dense, 0.0)})[columns]
    losses = tables.losses_of_shared_seeds(results)
    seeds = losses[["run", "seed", "loss_nats"]].merge(models[columns[:6]], on="run")
    by_run = losses.set_index(["run", "seed"])["loss_nats"]
    of_dense = by_run.reindex(seeds.set_index(["dense", "seed"]).index).to_numpy()
    seeds = seeds.assign(**{_MINUS_DENSE: seeds["loss_nats"] - of_dense})[~seeds["variant"].eq(DENSE)]
    ours = pd.concat([models.assign(part="mean"), seeds.assign(part="seed")]).assign(source="ours")
    published = tables.published_models("Table 1", "Table 4").query("layers == 48").drop_duplicates("variant")
    behind = np.log(published["perplexity"] / published.loc[published["variant"].eq(DENSE), "perplexity"].iloc[0])
    published = published[["source", "variant", "layers"]].assign(
        run=published["variant"], part="mean", dense_gain_nats=behind.iloc[0], **{_MINUS_DENSE: behind}
    )  # the first row is the Transformer
    published = published[published["variant"].str.startswith(f"{DENSEFORMER} ")].dropna(subset=_MINUS_DENSE)
    rows = pd.concat([ours, published], ignore_index=True)
    schemes = rows["variant"].str.extract(r"(\d+)x(\d+)").astype(int)
    weights = np.array([sum(map(len, averages(int(layers), *scheme).values()))
                        for layers, *scheme in zip(rows["layers"], *schemes.to_numpy().T, strict=True)])  # fmt: skip
    for end in ("", "_low", "_high"):
        rows[f"_lost{end}"] = 100 * rows[f"{_MINUS_DENSE}{end}"] / rows["dense_gain_nats"]
    reader, plains = claim_rows(results, STUDY), dict(plain.set_index("dense")["run"])
    for at, row in rows[rows["part"].eq("mean") & rows["dense"].isin(plains) & ~rows["variant"].eq(DENSE)].iterrows():
        signs = {row["run"]: 1.0, row["dense"]: -0.75, plains[row["dense"]]: -0.25}  # as in the criterion
        for name, value in pooled_estimate(reader, "_lost_pooled", signs).items():
            rows.loc[at, name] = 25 + 100 * value / row["dense_gain_nats"]
    label = rows["variant"].str.removeprefix(f"{DENSEFORMER} ")
    fraction = Series(weights, rows.index) / (rows["layers"] * (rows["layers"] + 3) / 2)
    runs_of_claim = [arm.run for name, arm in registered_arms(SPARSE, results.scale).named() if name == "sparse"]
    verdicts = claim_verdicts(results, STUDY, SPARSE)
    verdict = rows["run"].isin(runs_of_claim).map({True: verdicts[SPARSE].word}).where(rows["part"].eq("mean"))
    claimed = rows["variant"].eq(SPARSEST)
    return rows.assign(
        _label=(label + fraction.map(" ({:.0%})".format).str.replace("%", " %")).mask(rows["variant"].eq(DENSE)),
        _panel=rows["layers"].map("{:.0f} blocks".format) + rows["dense"].map(headings).fillna(""),
        _style=rows["variant"],
        _color=np.where(claimed, RUST, GREY),
        _marker=Series("o", rows.index).mask(claimed),
        _lost_limit=np.where(verdict.notna(), 25.0, np.nan),
        _lost_met=np.where(verdict.notna(), -np.inf, np.nan),
        verdict=verdict,
        _claims=claim_words(verdicts, {SPARSE: "4x5 keeps three quarters of the gain"}),
        _order=np.lexsort((-weights, -rows["layers"], rows["source"])).argsort(),
    )
