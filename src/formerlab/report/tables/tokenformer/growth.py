"""Tables of grown Tokenformers, their controls and their costs."""

import re
from collections import Counter
from typing import Any

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
    fully_annealed_losses,
    published_points,
    published_ratio,
    runs_with_ancestors,
    stage_pairs,
    with_ancestors,
    with_registered_rates,
)
from formerlab.report.tables.blocks import (
    by_regime,
    claim_verdicts,
    in_words,
    negated,
    ngram_levels,
    ngrams,
    pooled_estimate,
    with_pooled,
    with_prefix,
    with_verdict,
)
from formerlab.results.read import Results
from formerlab.statistics import student

_SERIES = {"grown, 30B a stage": "grown", "Transformer, 300B tokens": "Transformer"}
"""Labels in the table, by published curve of Fig. 3."""


_GROWN, _ZERO = "grown: random keys, tau sqrt(n)", "grown: zero keys, tau kept"
_STAGE, _SCRATCH = "the parent trained further", "the same model from scratch"
_BEATS = "tokenformer-growth-beats-continuing"


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
    verdict = claim_verdicts(results, STUDY, _BEATS)[_BEATS]
    claimed = rows["run"].isin(verdict.runs) & rows.get("question", rows["run"]).eq(_STAGE)
    families = {"pattention": TOKENFORMER, "linear": TRANSFORMER}
    rows = rows.assign(family=rows["spec.model.projection.kind"].map(families))
    rows["verdict"] = claimed.map({True: verdict.word, False: None})
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
    verdict = claim_verdicts(results, STUDY, _NEW_TEXT)[_NEW_TEXT]
    names = expand_columns(
        "validation_perplexity first_step_gain_nats[] mean_gain_nats[] validation_gain_nats[] minus_net2net_nats[]"
    )
    rows = rows.join(DataFrame(columns, rows.index, names))
    return rows.assign(verdict=rows["run"].eq(grown).map({True: verdict.word, False: None}))


def _published_costs() -> DataFrame:
    """Return the perplexities of Tables 6 and 7 with the TPU hours of Fig 3, a row per size, and the ratio of hours."""
    points = published_points(*(("Fig 3", series) for series in _SERIES)).replace({"series": _SERIES})
    points = points[~points["run"].str.endswith(" 124M")]  # not grown; another number of training tokens
    points = points.assign(size=points["run"].str.split().str[1])
    wide = points.pivot_table(["perplexity", "tpu_v4_hours"], "size", "series", "first", sort=False)
    units = {"perplexity": "perplexity", "tpu_v4_hours": "TPU hours"}
    wide.columns = wide.columns.map(lambda pair: f"{pair[1]}: {units[pair[0]]} ↓")
    return wide.reset_index().assign(flops_ratio=published_ratio()["flops_ratio"].iloc[0])


_COST = "tokenformer-growth-saves-cost"


def _ratios(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return a row per stage with columns for grown, zero keys and trained further; for published rows, the published
    costs.
    """
    if rows["source"].eq("published").any():
        ratio = rows["flops_ratio"].iloc[0]
        return {
            "OpenWebText; 30B tokens a stage, Transformer from 300B; at equal perplexity, hours of grown / Transformer "
            f"{ratio:.2f} (interpolated by us)": rows.drop(columns="flops_ratio").dropna(axis=1, how="all")
        }
    ways = {"grown": _GROWN, "zero keys": _ZERO, "further": f"{TOKENFORMER}, {TRAINED_FURTHER}"}
    scratch = rows[rows["grown_minus_it_nats"].notna()] if "grown_minus_it_nats" in rows else rows[:0]
    rows = rows.drop(scratch.index)
    grown = rows[rows["variant"].eq(_GROWN)]
    parents = rows[rows["run"].isin(grown["parent"])].assign(variant=ways["further"])
    rows = pd.concat([parents, rows[rows["variant"].isin(ways.values())]])
    if grown.empty:
        return rows
    table = rows[["flops_cumulative"]].drop_duplicates().sort_values("flops_cumulative", ignore_index=True)
    for name, variant in ways.items():
        of_way = rows[rows["variant"].eq(variant)].drop_duplicates("flops_cumulative")
        columns = {"perplexity": f"{name}_perplexity"}
        columns |= {end: end.replace("flops", name) for end in map(str, of_way) if end.startswith("flops_ratio")}
        table = table.merge(of_way[["flops_cumulative", *columns]].rename(columns=columns), "left", "flops_cumulative")
    names = ["none: the parent", *("short", "medium", "long")] if len(table) == 4 else map(str, range(len(table)))
    table.insert(0, "stage", [*names])
    cost_of_largest = grown["flops_cumulative"].iloc[0] / grown["least_ratio"].iloc[0]
    table.insert(2, "least_ratio", table["flops_cumulative"] / cost_of_largest)
    first, verdicts = grown.iloc[0], grown.set_index("flops_cumulative")["verdict"]
    text = first["regime"].partition(", ")[0]
    heading = (
        f"perplexity, and ratio of FLOPs; {text}; {first['transformers']:.0f} Transformers, "
        f"{first['single_seed']:.0f} of them with one seed; all others {seed_count(rows['seeds'])}"
    )
    blocks = {heading: table.assign(verdict=table["flops_cumulative"].map(verdicts))}
    if len(scratch):
        scratch = scratch.assign(
            parameters=scratch["parameters_non_embedding"],
            extrapolated=scratch["envelope"].eq("extrapolated").map({True: "yes", False: "no"}),
        ).sort_values("flops_cumulative")
        shown = "parameters flops_cumulative least_ratio perplexity flops_ratio[]+ grown_minus_it_nats[] extrapolated"
        blocks[f"Tokenformers from scratch, learning rate to zero; {text}"] = scratch[expand_columns(shown)]
    return blocks


def _answer_ratios(rows: DataFrame) -> str:
    grown = rows[rows["variant"].eq(_GROWN)].dropna(subset="flops_ratio")
    if grown.empty:
        return ""
    row = grown.sort_values("flops_cumulative").iloc[-1]
    return (
        f"Growth costs {in_words(row, 'flops_ratio')} times a Transformer of equal loss, claimed at most 0.5"
        f"{with_verdict(row)}; its parent alone costs {row['earlier_cost']:.2f} of the most expensive Transformer."
    )


@table(reads="test.csv", needs="envelope-*", readers=_ratios, answer=_answer_ratios, published=_published_costs,
       columns="source run regime variant schedule -learning_rate parent -parameters_non_embedding tokens "
               "-tokens_cumulative -flops flops_cumulative -loss_nats[] perplexity -bits_per_byte flops_of_transformer "
               "flops_ratio[]+ least_ratio grown_minus_it_nats[] parents_ratio earlier_cost transformers single_seed "
               "envelope seeds verdict size "
               "grown:~perplexity~↓ grown:~TPU~hours~↓ Transformer:~perplexity~↓ Transformer:~TPU~hours~↓"
       )  # fmt: skip
def tokenformer_envelope(results: Results, runs: list[str]) -> DataFrame:
    """Does growth need fewer FLOPs than training from scratch?

    - FLOPs with all ancestors over the FLOPs of a Transformer of equal loss, after Tables 6 and 7 of Tokenformer
    (arXiv:2410.23168; hours read from a figure, ± 30).
    - Brackets: 95 % interval over seeds, with the spread of the Transformers.
    - Doubt: part of the parent's low ratio when trained further comes from its learning rate falling to zero.
    """
    losses = fully_annealed_losses(results, runs)
    if runs_with_ancestors(losses).empty:
        losses = comparable_losses(results, STUDY, runs)
    scratch, rows = losses[losses["run"].str.startswith(FROM_SCRATCH)], []
    envelope = scratch.groupby("run")[["flops_cumulative", "loss_nats"]].mean().to_numpy().T
    seeds, largest = scratch.groupby("run").size(), scratch["flops_cumulative"].max()
    shared: dict[str, Any] = {"transformers": len(seeds), "single_seed": int((seeds == 1).sum())}
    shared |= {"regime": next(iter(scratch["regime"]), None)}
    reader, verdict = ClaimRows(results, STUDY, ClaimArms()), claim_verdicts(results, STUDY, _COST)[_COST]
    arms = registered_arms(_COST, results.scale).arms
    judged = arms["grown"].run if "grown" in arms else ""
    envelope_runs = tuple(f"{name}*" for name in FROM_SCRATCH)
    points = runs_with_ancestors(losses)
    models = [points, _fully_annealed_tokenformers(losses, points)] if judged in points.index else [points]
    for record in pd.concat(models).sort_values("flops_cumulative").to_dict("records"):
        row = {str(name): value for name, value in record.items()} | shared
        of_run = losses[losses["run"] == row["run"]]
        needed = of_run["loss_nats"].map(lambda loss: flops_at_loss(loss, *envelope))
        inside = needed.notna().all()
        row |= estimate("flops_ratio", student(of_run["flops_cumulative"] / needed if inside else []))
        signs, metric = {row["run"]: 1.0}, "flops_ratio_at_equal_loss"
        row |= pooled_estimate(reader, "flops_ratio_pooled", signs, metric, envelope=envelope_runs)
        row |= {
            "envelope": None if inside else "beyond its ends",
            "flops_of_transformer": flops_at_loss(row["loss_nats"], *envelope),
        }
        if row["run"] not in points.index:
            row |= difference(losses, judged, row["run"], "grown_minus_it_nats")
            if not inside:
                beyond = flops_at_loss(row["loss_nats"], *envelope, extrapolate=True)
                row |= {"envelope": "extrapolated", "flops_ratio": row["flops_cumulative"] / beyond}
        row["parents_ratio"] = (row["flops_cumulative"] - row["flops"]) / row["flops_of_transformer"] or None
        row["earlier_cost"] = (row["flops_cumulative"] - row["flops"]) / largest or None
        row["least_ratio"] = row["flops_cumulative"] / largest
        row["schedule"] = of_run["regime"].iloc[0].partition(", ")[2]
        row["verdict"] = verdict.word if row["run"] == judged else None
        rows.append(row | {"learning_rate": of_run["spec.optimizer.lr"].iloc[0]})
    return DataFrame(rows) if rows else DataFrame(columns=expand_columns("run flops_ratio[]"))


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
