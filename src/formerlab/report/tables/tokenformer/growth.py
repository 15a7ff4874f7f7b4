"""Tables of grown Tokenformers, their controls and their costs."""

import re
from collections import Counter

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.arms import registered_arms
from formerlab.report.claims.envelope import flops_at_loss
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.columns import count
from formerlab.report.runs import (
    TOKENFORMER,
    TRAINED_FURTHER,
    TRANSFORMER,
    comparable_losses,
    difference,
    differences,
    estimate,
    held_out_losses,
    means_by_run,
    seed_count,
    sort_by_regime,
)
from formerlab.report.studies.tokenformer import (
    FROM_SCRATCH,
    STUDY,
    WAYS_TO_GROW,
    fully_annealed_losses,
    published_points,
    published_ratio,
    runs_with_ancestors,
    scratch_points,
    stage_pairs,
    with_ancestors,
    with_registered_rates,
)
from formerlab.report.tables.blocks import (
    by_regime,
    in_words,
    negated,
    ngram_levels,
    ngrams,
    pooled_estimate,
    with_pooled,
    with_prefix,
    with_verdict,
    with_verdicts,
)
from formerlab.results.read import Results
from formerlab.statistics import student

_SERIES = {"grown, 30B a stage": "grown", "Transformer, 300B tokens": "Transformer"}
"""Labels in the table, by published curve of Fig. 3."""


_GROWN, _ZERO = "grown: random keys, tau sqrt(n)", "grown: zero keys, tau kept"
_STAGE, _SCRATCH = "the parent trained further", "the same model from scratch"
_BEATS, _EQUAL_FLOPS = "tokenformer-growth-beats-continuing", "tokenformer-growth-equal-total-flops"


def _comparisons(losses: DataFrame, results: Results) -> DataFrame:
    """Return the pairs of runs whose losses the table subtracts, `run` minus `compared_with`, with the `question` of
    the pair.
    """
    losses = with_registered_rates(losses, results.scale)
    stages = stage_pairs(losses, results.runs(STUDY).drop_duplicates("run").set_index("run"))
    runs = losses.drop_duplicates("run").assign(start=lambda rows: rows["init.id"].notna())
    pairs = [(row.run, row.rival, _STAGE, row.tokens_per_new_parameter) for row in stages.itertuples()]
    for scratch in runs[runs["variant"].eq(TOKENFORMER) & ~runs["start"]].to_dict("records"):
        equal = (runs["flops_cumulative"] / scratch["flops_cumulative"]).between(0.95, 1.05)
        same = equal & (runs["parameters"] == scratch["parameters"]) & (runs["regime"] == scratch["regime"])
        grown = runs[same & runs["variant"].eq(_GROWN)]
        stage = dict(zip(stages.get("run", ()), stages.get("tokens_per_new_parameter", ()), strict=True))
        pairs += [(run, scratch["run"], _SCRATCH, stage.get(run, np.nan)) for run in grown["run"]]
    return DataFrame(pairs, columns=["run", "compared_with", "question", "tokens_per_new_parameter"])


def _stages(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return a block per text with a row per stage; without comparisons, all models by data set."""
    if rows["question"].isna().all():
        return by_regime(rows.drop(columns="question"))
    rows = rows.assign(text=rows["regime"].str.partition(", ")[0])
    level, blocks = rows.drop_duplicates("run").set_index("run")["perplexity"], dict[str, DataFrame]()
    texts_of_grown = rows.loc[rows["question"].eq(_STAGE) & rows["variant"].eq(_GROWN), "text"]
    for text, group in rows[rows["question"].notna() & rows["text"].isin(texts_of_grown)].groupby("text", sort=False):
        stages = group[group["question"].eq(_STAGE)]
        grown, zero = (stages[stages["variant"].eq(name)].set_index("tokens") for name in (_GROWN, _ZERO))
        grown = grown.rename(columns=lambda name: re.sub("^difference", "grown_minus", name))
        zero = zero.rename(columns=lambda name: re.sub("^difference", "zero_minus", name))
        scratch = group[group["question"].eq(_SCRATCH)].set_index("tokens")["compared_with"].map(level)
        table = grown.assign(grown=grown["perplexity"], scratch=scratch.reindex(grown.index))
        table = table.assign(further=grown["compared_with"].map(level), zero=zero["perplexity"].reindex(grown.index))
        levels = {"grown": "grown ↓", "zero": "zero keys ↓", "further": "further ↓", "scratch": "from scratch ↓"}
        ends = [name for name in map(str, zero) if name.startswith("zero_minus")]
        table = table.drop(columns="perplexity").rename(columns=levels).join(zero[ends]).reset_index()
        shown = ["tokens", "tokens_per_new_parameter", *levels.values()]
        shown += [name for name in map(str, table) if name.startswith(("grown_minus", "zero_minus"))]
        floor = with_prefix("; ", ngram_levels(rows[rows["regime"].eq(text)]))
        blocks[f"perplexity, and loss; {text}, {seed_count(table['seeds'])}{floor}"] = table[[*shown, "verdict"]]
    return blocks or by_regime(rows.drop(columns="text"))


def _answer_stages(rows: DataFrame) -> str:
    stages = rows[rows["question"].eq(_STAGE) & rows["variant"].eq(_GROWN)].sort_values("tokens")
    if stages.empty:
        return ""
    ends = {words: in_words(stages.iloc[at], "difference_nats") for at, words in ((0, "shortest"), (-1, "longest"))}
    text = " and ".join(f"{value} after the {words} stage" for words, value in ends.items())
    return f"Grown minus parent trained further, nats: {text}{with_verdict(stages.iloc[-1])}."


@table(reads="test.csv floors.csv", readers=_stages, answer=_answer_stages,
       columns="source run regime question variant family parameters_non_embedding learning_rate tokens -flops "
               "tokens_per_new_parameter flops_cumulative loss_nats[] -bits_per_byte perplexity[] compared_with "
               "difference_nats[]+ seeds diverged verdict")  # fmt: skip
def tokenformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Does growing beat training the parent further?

    - Test perplexity, and loss minus the parent trained further for equal FLOPs. Grown: new keys are random, tau is
    sqrt(n) (as published); zero keys keep the old tau.
    - Brackets: 95 % interval over seeds, with the variance of similar runs.
    - Doubt: the parent trained further hardly learns; the model from scratch was trained on other text.
    """
    losses = held_out_losses(results, STUDY, runs)
    rows = means_by_run(losses, first=["regime", "spec.optimizer.lr", "spec.model.projection.kind"])
    pairs = _comparisons(losses, results) if "init.id" in losses and "spec.growth.keys" in losses else DataFrame()
    if len(pairs) and len(differing := differences(losses, pairs, "run", "compared_with")):
        differing = with_pooled(differing, results, STUDY, "run", "compared_with", "difference_nats")
        differing = differing[differing["part"] == "mean"].drop(columns=["source", "part", "seed", "seeds"])
        rows = rows.merge(differing, on="run", how="left")
    families, question = {"pattention": TOKENFORMER, "linear": TRANSFORMER}, rows.get("question", rows["run"])
    rows = rows.assign(family=rows["spec.model.projection.kind"].map(families))
    rows = with_verdicts(rows, results, STUDY, {_BEATS: question.eq(_STAGE), _EQUAL_FLOPS: question.eq(_SCRATCH)})
    rows = rows.rename(columns={"spec.optimizer.lr": "learning_rate"})
    return pd.concat([ngrams(results, STUDY, runs), sort_by_regime(rows, "flops_cumulative", "run")])


_NEW_TEXT = "tokenformer-continued-training-lower"


def _methods(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the models on new text with their losses minus the loss of the same family without growth, sorted by this
    difference.
    """
    rows = negated(rows, "validation_gain_nats", "minus_ungrown_nats")
    rows = negated(rows, "minus_net2net_nats", "behind_net2net_nats")
    ungrown = rows["run"].str.endswith("-ungrown")
    methods = rows["variant"].str.removeprefix("grown: ").mask(ungrown, "not grown")
    rows = rows.assign(variant=rows["family"] + ", " + methods, is_reference=ungrown)
    rows = rows.rename(columns={"perplexity": "test", "validation_perplexity": "perplexity"})
    for name in ("first_step", "mean"):
        rows = negated(rows, f"{name}_gain_nats", f"{name}_minus_ungrown_nats")
    columns = ["variant", "perplexity", "first_step_minus_ungrown_nats", "mean_minus_ungrown_nats"]
    columns += [*expand_columns("minus_ungrown_nats[] behind_net2net_nats[]"), "is_reference"]
    first = rows.iloc[0]
    heading = f"{first['regime'].partition(', ')[0]}, {count(first['tokens'])} tokens, validation split"
    return {heading: rows.sort_values("minus_ungrown_nats")[[*columns, "seeds", "verdict"]]}


def _answer_methods(rows: DataFrame) -> str:
    claimed = negated(
        rows.dropna(subset=["verdict", "minus_net2net_nats"]), "minus_net2net_nats", "behind_net2net_nats"
    )
    if claimed.empty:
        return ""
    row = claimed.iloc[0]
    return (
        "Growth with zero keys lowers the loss less than Net2Net by padding, by "
        f"{in_words(row, 'behind_net2net_nats')} nats{with_verdict(row)}."
    )


@table(reads="eval.csv test.csv", runs="continued-*", needs="continued-*", readers=_methods, answer=_answer_methods,
       columns="source run regime variant family parameters_non_embedding tokens -flops_cumulative loss_nats[] "
               "perplexity validation_perplexity first_step_gain_nats[] mean_gain_nats[] validation_gain_nats[] "
               "minus_net2net_nats[] seeds verdict"
       )  # fmt: skip
def tokenformer_new_text(results: Results, runs: list[str]) -> DataFrame:
    """Which way to grow learns a new text best?

    - Loss at the last validation minus the loss of the same family without growth. HyperCloning and Net2Net grow the
    width of a Transformer; noise breaks the symmetry of copies.
    - Brackets: 95 % interval over seeds, paired, with the variance of similar runs.
    - Doubt: Net2Net's stage costs a fifth more FLOPs, and its parent had a high learning rate.
    """
    losses = held_out_losses(results, STUDY, runs)
    rows = means_by_run(losses, first=["regime", "spec.model.projection.kind"])
    families = {"pattention": TOKENFORMER, "linear": TRANSFORMER}
    rows = rows.assign(family=rows["spec.model.projection.kind"].map(families))
    arms = registered_arms(_NEW_TEXT, results.scale).for_item("last_step")
    rival, rival_ungrown, grown = (
        str(arms[name].run) if name in arms else "" for name in ("rival", "rival_ungrown", "tokenformer")
    )
    reader, columns = ClaimRows(results, STUDY, ClaimArms()), []
    for run, family in rows[["run", "family"]].to_numpy():
        loss = pooled_estimate(reader, "loss", {run: 1.0}, at="last_step").get("loss", np.nan)
        row = {"validation_perplexity": np.exp(loss)}
        if not run.endswith("-ungrown"):
            gain = {f"continued-{family.lower()}-ungrown": 1.0, run: -1.0}
            row |= pooled_estimate(reader, "validation_gain_nats", gain, at="last_step")
            row |= pooled_estimate(reader, "first_step_gain_nats", gain, at="first_step")
            row |= pooled_estimate(reader, "mean_gain_nats", gain, at="area_under_curve")
            if run != rival:
                signs = Counter(gain)
                signs.update({rival_ungrown: -1.0, rival: 1.0})
                row |= pooled_estimate(reader, "minus_net2net_nats", signs, at="last_step")
        columns.append(row)
    names = expand_columns(
        "validation_perplexity first_step_gain_nats[] mean_gain_nats[] validation_gain_nats[] minus_net2net_nats[]"
    )
    rows = rows.join(DataFrame(columns, rows.index, names))
    return with_verdicts(rows, results, STUDY, {_NEW_TEXT: rows["run"].eq(grown)})


def _published_costs() -> DataFrame:
    """Return the perplexities of Tables 6 and 7 with the TPU hours of Fig 3, a row per size, and the ratio of hours."""
    points = published_points(*(("Fig 3", series) for series in _SERIES)).replace({"series": _SERIES})
    points = points[~points["run"].str.endswith(" 124M")]  # not grown; another number of training tokens
    points = points.assign(size=points["run"].str.split().str[1])
    wide = points.pivot_table(["perplexity", "tpu_v4_hours"], "size", "series", "first", sort=False)
    units = {"perplexity": "perplexity", "tpu_v4_hours": "TPU hours"}
    wide.columns = wide.columns.map(lambda pair: f"{pair[1]}: {units[pair[0]]} ↓")
    ratio = published_ratio()
    return wide.reset_index().merge(ratio.assign(size=ratio["run"].str.split().str[1])[["size", "flops_ratio"]], "left")


_COST = "tokenformer-growth-saves-cost"
_WAYS = WAYS_TO_GROW | {f"{TOKENFORMER}, {TRAINED_FURTHER}": "parent trained further", TOKENFORMER: "parent"}


def _ratios(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the ways to spend FLOPs on the parent, then the Transformers; or the published costs."""
    if rows["source"].eq("published").any():
        hours = rows.drop(columns="flops_ratio").join(rows["flops_ratio"].round(2).rename("ratio at equal loss ↓"))
        return {"OpenWebText; 30B tokens a stage, Transformer from 300B": hours.dropna(axis=1, how="all")}
    scratch, ours = rows[rows["variant"].eq(TRANSFORMER)], rows[rows["variant"].isin(_WAYS)]
    if scratch.empty or ours.empty:
        return rows
    cost = {"teraflops": rows["flops_cumulative"] / 1e12, "equal_loss_teraflops": rows["flops_of_transformer"] / 1e12}
    rows = rows.assign(variant=rows["variant"].replace(_WAYS)).join(DataFrame(cost))
    ours, text = rows.loc[ours.index], scratch["regime"].iloc[0].partition(", ")[0]
    sizes = "from scratch, rate to zero, " + ours["parameters_non_embedding"].map(count)
    ours = ours.assign(variant=ours["variant"].mask(ours["grown_minus_it_nats"].notna(), sizes))
    ours = ours.assign(_cost=ours["teraflops"].round(-1)).sort_values(["_cost", "variant"])
    heading = f"Tokenformers; {text}; {seed_count(ours['seeds'])}"
    shown = ["variant", "tokens", "teraflops", "perplexity", "equal_loss_teraflops", *expand_columns("flops_ratio[]+")]
    shown.append("least_ratio")
    columns = ["parameters_non_embedding", "tokens", "teraflops", "perplexity", "seeds", "envelope"]
    return {
        heading: ours[[*shown, "verdict"]],
        f"the Transformers from scratch; {text}": rows.loc[scratch.index, columns].sort_values("perplexity"),
    }


def _answer_ratios(rows: DataFrame) -> str:
    grown = rows[rows["variant"].eq(_GROWN)].dropna(subset="flops_ratio")
    if grown.empty:
        return ""
    row = grown.sort_values("flops_cumulative").iloc[-1]
    costs = [rows.loc[rows["run"].eq(row["parent"]), "flops_cumulative"].max(),
             rows.loc[rows["variant"].eq(TRANSFORMER), "flops_cumulative"].max()]  # fmt: skip
    return (
        f"Growth as published costs {in_words(row, 'flops_ratio')} times a Transformer of equal loss, claimed at most "
        f"0.5{with_verdict(row)}. Its parent alone costs {costs[0] / costs[1]:.2f} of the most expensive Transformer."
    )


@table(reads="test.csv", needs="envelope-*", readers=_ratios, answer=_answer_ratios, published=_published_costs,
       columns="source run regime variant schedule -learning_rate parent parameters_non_embedding tokens "
               "-tokens_cumulative -flops flops_cumulative -loss_nats[] perplexity -bits_per_byte flops_of_transformer "
               "flops_ratio[]+ least_ratio -grown_minus_it_nats[] envelope seeds verdict size "
               "grown:~perplexity~↓ grown:~TPU~hours~↓ Transformer:~perplexity~↓ Transformer:~TPU~hours~↓")  # fmt: skip
def tokenformer_envelope(results: Results, runs: list[str]) -> DataFrame:
    """Does growth need fewer FLOPs than training from scratch?

    - FLOPs, with all ancestors, over those of a Transformer of equal loss, interpolated between the lowest
    Transformers; after Tables 6 and 7 of Tokenformer (arXiv:2410.23168; hours from a figure).
    - Brackets: 95 % interval over seeds, with the spread of the Transformers.
    - Doubt: the parent's learning rate ended at a tenth; in a stage it falls to zero.
    """
    losses = fully_annealed_losses(results, runs)
    if runs_with_ancestors(losses).empty:
        losses = comparable_losses(results, STUDY, runs)
    scratch, rows = scratch_points(losses), []
    envelope = scratch[["flops_cumulative", "loss_nats"]].to_numpy().T
    reader, arms = ClaimRows(results, STUDY, ClaimArms()), registered_arms(_COST, results.scale).arms
    judged = str(arms["grown"].run) if "grown" in arms else ""
    envelope_runs = tuple(f"{name}*" for name in FROM_SCRATCH)
    points = runs_with_ancestors(losses)
    annealed = _fully_annealed_tokenformers(losses, points) if judged in points.index else points[:0]
    for record in pd.concat([points, annealed]).sort_values("flops_cumulative").to_dict("records"):
        row = {str(name): value for name, value in record.items()}
        of_run = losses[losses["run"] == row["run"]]
        needed = of_run["loss_nats"].map(lambda loss: flops_at_loss(loss, *envelope))
        inside = needed.notna().all()
        row |= estimate("flops_ratio", student(of_run["flops_cumulative"] / needed if inside else []))
        signs, metric = {row["run"]: 1.0}, "flops_ratio_at_equal_loss"
        row |= pooled_estimate(reader, "flops_ratio_pooled", signs, metric, envelope=envelope_runs)
        row["envelope"] = None if inside else "beyond its ends"
        is_annealed = row["run"] in annealed.index
        row["flops_of_transformer"] = flops_at_loss(row["loss_nats"], *envelope, extrapolate=is_annealed)
        if is_annealed:
            row |= difference(losses, judged, row["run"], "grown_minus_it_nats")
        if is_annealed and not inside:
            ratio = row["flops_cumulative"] / row["flops_of_transformer"]
            row |= {"envelope": "extrapolated", "flops_ratio": ratio}
        row["least_ratio"] = row["flops_cumulative"] / scratch["flops_cumulative"].max()
        rows.append(row)
    table = DataFrame(rows) if rows else DataFrame(columns=expand_columns("run flops_ratio[]"))
    scratch = scratch.assign(envelope=scratch["lowest"].map({True: "yes", False: "no"}))
    first = losses.drop_duplicates("run").set_index("run")[["regime", "spec.optimizer.lr"]]
    table = pd.concat([table, scratch], ignore_index=True)
    table = table.join(first.set_axis(["regime", "learning_rate"], axis=1), on="run")
    table["schedule"] = table["regime"].str.partition(", ")[2]
    return with_verdicts(table, results, STUDY, {_COST: table["run"].eq(judged)})


def _fully_annealed_tokenformers(losses: DataFrame, grown: DataFrame) -> DataFrame:
    """Return the Tokenformers from scratch that cost as much as a parent or a grown model, were tested on the same text
    and have a learning rate that ends at 0.
    """
    annealed = losses["init.id"].isna() & losses["lent"] & losses["variant"].eq(TOKENFORMER)
    if not annealed.any():
        return grown[:0]
    points = with_ancestors(losses[annealed], "tokens")
    ends = grown["flops_cumulative"]
    return points[[bool(ends.between(0.95 * cost, 1.05 * cost).any()) for cost in points["flops_cumulative"]]]
