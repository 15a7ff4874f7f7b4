"""Tables of grown Tokenformers, their controls and their costs."""

from collections import Counter

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.envelope import flops_at_loss
from formerlab.report.columns import count
from formerlab.report.runs import (
    TOKENFORMER,
    TRAINED_FURTHER,
    TRANSFORMER,
    comparable_losses,
    difference,
    estimate,
    held_out_losses,
    means_by_run,
    seed_count,
    sort_by_regime,
    with_difference,
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
from formerlab.report.tables.cells import (
    answer_word,
    arm_runs,
    claim_rows,
    claim_verdicts,
    in_words,
    needed_words,
    negated,
    ngram_levels,
    ngrams,
    pooled_estimate,
    side_by_side,
    with_pooled,
    with_verdict,
    with_verdicts,
)
from formerlab.results.read import Results
from formerlab.statistics import student

_FAMILIES = {"pattention": TOKENFORMER, "linear": TRANSFORMER}
"""Labels by kind of projection."""
_GROWN = "grown: random keys, tau sqrt(n)"
_STAGE, _SCRATCH, _COSTS = "the parent trained further", "the same model from scratch", "cost"
_BEATS, _EQUAL_FLOPS = "tokenformer-growth-beats-continuing", "tokenformer-growth-equal-total-flops"


def _comparisons(losses: DataFrame, results: Results) -> DataFrame:
    """Return the pairs of runs whose losses the table subtracts, `run` minus `compared_with`, with the `question` of
    the pair.
    """
    losses = with_registered_rates(losses, results.scale)
    stages = stage_pairs(losses, results.runs(STUDY).drop_duplicates("run").set_index("run"))
    stages = stages.reindex(columns=["run", "rival", "tokens_per_new_parameter"]).astype({"run": losses["run"].dtype})
    runs = losses.drop_duplicates("run")
    from_scratch = runs["variant"].eq(TOKENFORMER) & runs["init.id"].isna() & ~runs["run"].str.endswith("-all")
    scratch, grown = runs[from_scratch], runs[runs["variant"].eq(_GROWN)]
    pairs = grown.merge(scratch, on=["parameters", "regime"], suffixes=("", "_scratch"))
    equal = (pairs["flops_cumulative"] / pairs["flops_cumulative_scratch"]).between(0.95, 1.05)
    pairs = pairs.loc[equal, ["run", "run_scratch"]].rename(columns={"run_scratch": "rival"})
    pairs = pairs.merge(stages.drop(columns="rival"), how="left")
    pairs = pd.concat([stages.assign(question=_STAGE), pairs.assign(question=_SCRATCH)], ignore_index=True)
    return pairs.rename(columns={"rival": "compared_with"})


_KEYS = {_GROWN: "random keys", "grown: zero keys, tau kept": "zero keys"}
_RATIO = expand_columns("flops_ratio[]+")


def _text_of(run: str) -> str:
    """Return ", all books" for a run that reads all training books; other stages read the last fifth."""
    return ", all books" if run.endswith("-all") else ""


def _stages(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the costs, the differences by stage with a column per way to grow, and the compared models. If some texts
    have a verdict, the other texts are left out. Without comparisons, return all models.
    """
    if rows["source"].eq("published").any():
        return rows[["variant", "flops_ratio"]]
    of_cost = rows["question"].eq(_COSTS) if "question" in rows else rows["run"].isna()
    costs, rows = rows[of_cost], rows[~of_cost]
    models = rows.drop_duplicates("run").set_index("run")
    asked = rows[rows["question"].notna()].sort_values(["tokens", "question", "variant"])
    if asked.empty:
        return rows.drop(columns="question")
    asked = asked.assign(text=asked["regime"].str.partition(", ")[0])
    if (evaluated := asked["verdict"].notna()).any():
        asked = asked[asked["text"].isin(asked.loc[evaluated, "text"])]
    blocks = dict[str, DataFrame]()
    if len(costs):
        shown = costs[["variant", "tokens", *_RATIO, "needed", "verdict"]].rename(columns={"tokens": "tokens_read"})
        text = costs["regime"].iloc[0].partition(", ")[0]
        title = f"cost with ancestors / cost of a Transformer of equal loss, on {text}"
        blocks[f"{title}\nIn FLOPs; the models are in the table tokenformer_envelope"] = shown
    for text, group in asked.groupby("text", sort=False):
        lengths = group["tokens"].drop_duplicates().rank().map({1: "short", 2: "medium", 3: "long"})
        stage = group["tokens"].map(dict(zip(group["tokens"].unique(), lengths, strict=True))).fillna("other")
        group = group.assign(
            stage=stage + ", " + group["tokens"].map(count) + group["run"].map(_text_of), other=group["question"]
        )
        wide = side_by_side(group, ["stage", "other"], group["variant"].map(_KEYS) + " (nats) ↓", "difference_nats",
                            [f"{name} (nats) ↓" for name in _KEYS.values()], pooled=True)  # fmt: skip
        claimed = group.dropna(subset="verdict").set_index(["stage", "other"])[["needed", "verdict"]]
        wide = wide.join(claimed, on=["stage", "other"])
        settings = "; ".join(filter(None, [seed_count(group["seeds"]), ngram_levels(rows[rows["regime"].eq(text)])]))
        blocks[f"test loss of the grown model minus another model with equal FLOPs, on {text!s}\n{settings}"] = wide
        names = dict(
            zip(group["run"], "grown, " + group["variant"].map(_KEYS) + group["run"].map(_text_of), strict=True)
        )
        names |= dict(zip(group["compared_with"], group["question"].str.removeprefix("the "), strict=True))
        parents = models[models["variant"].eq(TOKENFORMER) & models["regime"].isin(group["regime"])]
        parents = parents[parents["parameters_non_embedding"].eq(parents["parameters_non_embedding"].min())]
        names |= dict.fromkeys(parents.nlargest(1, "tokens").index, "better parent, without a stage")
        shown = models.loc[[*names]].assign(model=[*names.values()]).sort_values(["flops_cumulative", "model"])
        shown = shown.rename(columns={"tokens": "tokens_read", "learning_rate": "peak_learning_rate"}).reset_index()
        blocks["the compared models"] = shown[
            ["run", "model", "tokens_read", "peak_learning_rate", "flops_cumulative", "perplexity"]
        ]
    return blocks


def _answer_stages(rows: DataFrame) -> str:
    grown = rows[rows["variant"].eq(_GROWN)].sort_values("tokens")
    stages = grown[grown["question"].eq(_STAGE)]
    if stages.empty:
        return ""
    first, last = (f"{in_words(stages.iloc[at], 'difference_nats')} nats" for at in (0, -1))
    answer = f"{answer_word(stages.iloc[-1])}, after the longest stage{with_verdict(stages.iloc[-1])}"
    return f"{answer}: loss minus the parent trained further is {last}; after the shortest stage, {first}."


def _published_cost_ratios() -> DataFrame:
    """Return the published ratio of costs, with the perplexities of either of two tables that differ."""
    ratios, names = (
        published_ratio().iloc[0],
        {"Tables 6 and 7": "flops_ratio", "Table 7": "flops_ratio_other_perplexity"},
    )
    label = "grown to 1.4B, TPU hours (perplexities of {})"
    return DataFrame([{"variant": label.format(table), "flops_ratio": ratios[name]} for table, name in names.items()])


@table(reads="test.csv floors.csv", readers=_stages, answer=_answer_stages, published=_published_cost_ratios,
       columns="source run regime question variant family parameters_non_embedding learning_rate tokens -flops "
               "tokens_per_new_parameter flops_cumulative loss_nats[] -bits_per_byte perplexity[] compared_with "
               "difference_nats[]+ flops_ratio[]+ seeds diverged needed verdict")  # fmt: skip
def tokenformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Does growing beat training the parent further?

    - Costs and test losses of grown models. After Fig. 3 and Tables 6 and 7 of Tokenformer (arXiv:2410.23168).
    - Brackets: 95 % interval over seeds, with the variance of similar runs.
    - Doubt: the parent trained further stops learning after the short stage. Parent and model from scratch read other
    books than the stages.
    """
    losses = held_out_losses(results, STUDY, runs)
    rows = means_by_run(losses, first=["regime", "spec.optimizer.lr", "spec.model.projection.kind"])
    rows = rows.assign(family=rows["spec.model.projection.kind"].map(_FAMILIES))
    if {"init.id", "spec.growth.keys"} <= {*losses}:
        pairs = with_difference(_comparisons(losses, results), losses, "run", "compared_with", "difference_nats")
        pairs = with_pooled(pairs, results, STUDY, "run", "compared_with", "difference_nats")
        rows = rows.merge(pairs.dropna(subset="difference_nats"), on="run", how="left")
    question = rows.get("question", rows["run"])
    rows = with_verdicts(rows, results, STUDY, {_BEATS: question.eq(_STAGE), _EQUAL_FLOPS: question.eq(_SCRATCH)})
    beats = claim_verdicts(results, STUDY, _BEATS)[_BEATS]
    by_stage = {arm_runs(_BEATS, results.scale, item).get("grown"): word for item, word in beats.items.items()}
    tested = question.eq(_STAGE) & rows["run"].isin(by_stage)
    rows.loc[tested, "verdict"] = rows.loc[tested, "run"].map(by_stage) + f" ({_BEATS})"
    rows.loc[tested, "needed"] = needed_words(beats)
    rows = sort_by_regime(rows.rename(columns={"spec.optimizer.lr": "learning_rate"}), "flops_cumulative", "run")
    return pd.concat([ngrams(results, STUDY, runs), rows, _cost_ratios(results, runs)])


def _cost_ratios(results: Results, runs: list[str]) -> DataFrame:
    """Return the costs of tokenformer_envelope for the parent and for each way to continue it, after its longest
    stage.
    """
    if not any(run.startswith("envelope-") for run in runs):
        return DataFrame()
    rows = tokenformer_envelope.rows(results, runs)
    text = rows.loc[rows["envelope"].eq("yes"), "regime"].iloc[0]
    rows = rows[rows["variant"].isin(_WAYS) & rows["flops_ratio"].notna()]
    rows = rows[rows["parent"].notna() | rows["run"].isin(rows["parent"])].sort_values("flops_cumulative")
    rows = rows.drop_duplicates("variant", keep="last").sort_values(
        "variant", key=lambda names: names.map([*_WAYS].index)
    )
    rows = rows.assign(regime=text).replace({"variant": _WAYS})
    columns = ["run", "regime", "variant", "tokens", "flops_cumulative", "perplexity", *_RATIO, "seeds", "needed"]
    return rows.assign(question=_COSTS)[["question", *columns, "verdict"]]


_NEW_TEXT = "tokenformer-continued-training-lower"
_MOMENTS = {"first_step": "first_step", "mean": "area_under_curve", "validation": "last_step"}
"""Evaluation points by column prefix: `Arm.at` of the registry."""
_MOMENT_LABELS = {"first_step": "before the first step", "mean": "mean over training", "validation": "at the end"}


def _methods(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the models on new text by family, the model without growth first, then the three parts of the claim."""
    ungrown, first = rows["run"].str.endswith("-ungrown"), rows.iloc[0]
    methods = rows["variant"].str.removeprefix("grown: ").mask(ungrown, "not grown")
    reader_rows = rows.assign(
        variant=rows["family"] + ", " + methods, is_reference=ungrown, perplexity=rows["validation_perplexity"]
    )
    for name in _MOMENTS:
        reader_rows = negated(reader_rows, f"{name}_gain_nats", f"{name}_minus_ungrown_nats")
    reader_rows = reader_rows.sort_values(["family", "validation_minus_ungrown_nats"], na_position="first")
    columns = ["variant", "perplexity", *(f"{name}_minus_ungrown_nats" for name in _MOMENTS)]
    columns += [*expand_columns("validation_minus_ungrown_nats[]")[1:], "is_reference", "seeds"]
    text = f"{first['regime'].partition(', ')[0]}, {count(first['tokens'])} tokens"
    heading = f"{text}; loss on the validation split minus the loss of the model that is not grown"
    blocks = {heading: reader_rows[columns]}
    claimed = rows.dropna(subset="validation_verdict")
    if len(claimed):
        parts = pd.concat(
            negated(claimed, f"{name}_minus_net2net_nats", "change_minus_net2net_nats").assign(
                part=words, verdict=claimed[f"{name}_verdict"]
            )
            for name, words in _MOMENT_LABELS.items()
        )
        columns = ["part", *expand_columns("change_minus_net2net_nats[]"), "verdict"]
        blocks["the claim in three parts; zero keys with tau kept"] = parts[columns]
    return blocks


def _answer_methods(rows: DataFrame) -> str:
    claimed = rows.dropna(subset=["verdict", "validation_minus_net2net_nats"])
    if claimed.empty:
        return ""
    best = rows.sort_values("validation_gain_nats", na_position="first").iloc[-1]
    rows = negated(rows, "validation_minus_net2net_nats", "behind_nats")
    behind = rows.loc[claimed.index[0]]
    others = "".join(
        f" and {in_words(row, 'behind_nats')} nats with tau sqrt(n)"
        for _, row in rows[rows["variant"].eq("grown: zero keys, tau sqrt(n)")].iterrows()
    )
    return (
        f"{best['variant'].removeprefix('grown: ')} at the end: it lowers the loss by "
        f"{in_words(best, 'validation_gain_nats')} nats, though it starts {-best['first_step_gain_nats']:.2f} nats "
        f"higher. The gain with zero keys is smaller, by {in_words(behind, 'behind_nats')} nats with tau kept"
        f"{with_verdict(behind)}{others}."
    )


@table(reads="eval.csv test.csv", runs="continued-*", needs="continued-*", readers=_methods, answer=_answer_methods,
       columns="source run regime variant family parameters_non_embedding tokens -flops_cumulative loss_nats[] "
               "perplexity validation_perplexity first_step_gain_nats[] mean_gain_nats[] validation_gain_nats[] "
               "first_step_minus_net2net_nats[] mean_minus_net2net_nats[] validation_minus_net2net_nats[] "
               "first_step_verdict mean_verdict validation_verdict seeds verdict"
       )  # fmt: skip
def tokenformer_new_text(results: Results, runs: list[str]) -> DataFrame:
    """After which way of growing does a model learn a new text best?

    - Loss of the grown model minus the loss of the same model without growth. HyperCloning and Net2Net grow
    the width of a Transformer; noise breaks the symmetry of the copied weights.
    - Brackets: 95 % interval over paired seeds, with the variance of similar runs.
    - Doubt: Net2Net's stage costs a fifth more FLOPs, and its parent had a high learning rate.
    """
    losses = held_out_losses(results, STUDY, runs)
    rows = means_by_run(losses, first=["regime", "spec.model.projection.kind"])
    rows = rows.assign(family=rows["spec.model.projection.kind"].map(_FAMILIES))
    arms = arm_runs(_NEW_TEXT, results.scale, "last_step")
    rival, rival_ungrown, grown = (arms.get(name, "") for name in ("rival", "rival_ungrown", "tokenformer"))
    reader, columns = claim_rows(results, STUDY), []
    for run, family in rows[["run", "family"]].to_numpy():
        loss = pooled_estimate(reader, "loss", {run: 1.0}, at="last_step").get("loss", np.nan)
        row, gain = {"validation_perplexity": np.exp(loss)}, {f"continued-{family.lower()}-ungrown": 1.0, run: -1.0}
        minus_rival = Counter(gain)
        minus_rival.update({rival_ungrown: -1.0, rival: 1.0})
        for name, moment in _MOMENTS.items() if not run.endswith("-ungrown") else ():
            row |= pooled_estimate(reader, f"{name}_gain_nats", gain, at=moment)
            if run != rival:
                row |= pooled_estimate(reader, f"{name}_minus_net2net_nats", minus_rival, at=moment)
        columns.append(row)
    names = [f"{name}_{kind}_nats" for name in _MOMENTS for kind in ("gain", "minus_net2net")]
    names = ["validation_perplexity", *expand_columns("[] ".join(names) + "[]")]
    rows = rows.join(DataFrame(columns, rows.index, names))
    of_claim = claim_verdicts(results, STUDY, _NEW_TEXT)[_NEW_TEXT]
    for name, moment in _MOMENTS.items():
        word = of_claim.items.get(moment)
        rows[f"{name}_verdict"] = rows["run"].map({grown: f"{word} ({_NEW_TEXT})"} if word else {})
    return with_verdicts(rows, results, STUDY, {_NEW_TEXT: rows["run"].eq(grown)})


def _published_costs() -> DataFrame:
    """Return the perplexities of Tables 6 and 7 with the TPU hours of Fig 3, a row per size, and the ratio of hours."""
    series = {"grown, 30B a stage": "grown", "Transformer, 300B tokens": "Transformer"}
    points = published_points(*(("Fig 3", curve) for curve in series)).replace({"series": series})
    points, ratio = (rows.assign(size=rows["run"].str.split().str[1]) for rows in (points, published_ratio()))
    points = points[points["size"] != "124M"]  # not grown; another number of training tokens
    points = points.rename(columns={"tpu_v4_hours": "TPU hours"})
    wide = points.pivot_table(["perplexity", "TPU hours"], "size", "series", "first", sort=False)
    wide.columns = wide.columns.map("{0[1]}: {0[0]} ↓".format)
    return wide.reset_index().merge(ratio[["size", "flops_ratio"]], "left")


_COST, _ESTIMATE = "tokenformer-growth-saves-cost", "grown / Transformer of equal loss, FLOPs (our estimate)"
_WAYS = {TOKENFORMER: "parent"} | WAYS_TO_GROW | {f"{TOKENFORMER}, {TRAINED_FURTHER}": "parent trained further"}


def _ratios(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the parent with its grown and further trained models, then models from scratch; or the published costs."""
    if rows["source"].eq("published").any():
        ratios = rows["flops_ratio"].map("{:.2f}".format, na_action="ignore").fillna("not estimated")
        costs = rows.drop(columns="flops_ratio").dropna(axis=1, how="all").assign(**{_ESTIMATE: ratios})
        return {"OpenWebText; stages of 30B tokens; Transformer trained on 300B tokens": costs}
    at_zero = rows["parent"].isna() & rows["schedule"].str.endswith(" to 0")
    ours = rows[rows["variant"].isin(_WAYS) & ~at_zero].replace({"variant": _WAYS})
    transformers = rows.loc[rows["variant"].eq(TRANSFORMER), "flops_cumulative"]
    scratch = rows[rows["envelope"].eq("yes") | at_zero | rows.index.isin([transformers.idxmax()])]
    if scratch.empty or ours.empty:
        return rows
    ours, scratch = (
        part.assign(teraflops=part["flops_cumulative"] / 1e12, tokens_read=part["tokens"]) for part in (ours, scratch)
    )
    order = [*dict.fromkeys(_WAYS.values())]
    ours = ours.sort_values("teraflops").sort_values("variant", key=lambda names: names.map(order.index), kind="stable")
    ours = ours.assign(variant=ours["variant"] + ours["run"].map(_text_of))
    text = rows.loc[rows["envelope"].eq("yes"), "regime"].iloc[0].partition(", ")[0]
    low, least = ours["flops_ratio_pooled_low"].fillna(ours["flops_ratio_low"]), ours["least_ratio"]
    ours["extrapolated"] = np.select([ours["flops_ratio"] < least, low < least], ["ratio and low end", "low end"], "no")
    columns = ["variant", "tokens_read", "teraflops", "perplexity", *expand_columns("flops_ratio[]+"), "extrapolated"]
    scratch = scratch.assign(
        variant=scratch["variant"]
        + ", "
        + scratch["parameters_non_embedding"].map(count)
        + scratch["run"].map(_text_of),
        used=scratch["envelope"].eq("yes").map({True: "yes", False: "no"}),
        rate=scratch["schedule"].str.rpartition(" to ")[2].replace({"0": "zero", "0.1": "0.1 of its peak"}),
    ).sort_values(["teraflops", "perplexity"])
    columns_of_scratch = ["variant", "rate", "tokens_read", "teraflops", "perplexity", "seeds", "used"]
    return {
        f"test loss on {text}; {seed_count(ours['seeds'])}": ours[[*columns, "verdict"]],
        f"models from scratch; test loss on {text}": scratch[columns_of_scratch],
    }


def cost_of_parent(rows: DataFrame, parent: str) -> float:
    """Return the FLOPs of a parent, divided by the FLOPs of the most expensive Transformer from scratch."""
    flops = rows["flops_cumulative"]
    return float(flops[rows["run"].eq(parent)].max() / flops[rows["variant"].eq(TRANSFORMER)].max())


def _answer_ratios(rows: DataFrame) -> str:
    grown = rows[rows["variant"].eq(_GROWN)].dropna(subset="flops_ratio")
    if grown.empty:
        return ""
    row = grown.sort_values("flops_cumulative").iloc[-1]
    parent = cost_of_parent(rows, row["parent"])
    return (
        f"We cannot test it, because the parent alone costs {parent:.2f} times as much as our most expensive "
        f"Transformer. Growth costs {in_words(row, 'flops_ratio')} times as much as a Transformer of equal loss"
        f"{with_verdict(row)}."
    )


@table(reads="test.csv", needs="envelope-*", readers=_ratios, answer=_answer_ratios, published=_published_costs,
       columns="source run regime variant schedule -learning_rate parent parameters_non_embedding tokens "
               "-tokens_cumulative -flops flops_cumulative -loss_nats[] perplexity -bits_per_byte flops_of_transformer "
               "flops_ratio[]+ least_ratio -grown_minus_it_nats[] envelope seeds verdict size "
               "grown:~perplexity~↓ grown:~TPU~hours~↓ Transformer:~perplexity~↓ Transformer:~TPU~hours~↓")  # fmt: skip
def tokenformer_envelope(results: Results, runs: list[str]) -> DataFrame:
    """Does growth need fewer FLOPs than training from scratch?

    - Ratio: FLOPs, with ancestors, over FLOPs of a Transformer of equal loss, interpolated between Transformers marked
    "used". After Tables 6 and 7 of Tokenformer (arXiv:2410.23168; hours from a figure).
    - Brackets: 95 % interval over seeds, with the variance of Transformers.
    - Doubt: used Transformers end at a tenth of the peak rate, stages at zero. Some Transformers have one seed.
    """
    losses = fully_annealed_losses(results, runs)
    if runs_with_ancestors(losses).empty:
        losses = comparable_losses(results, STUDY, runs)
    scratch, points = scratch_points(losses), runs_with_ancestors(losses)
    envelope = scratch[["flops_cumulative", "loss_nats"]].to_numpy().T
    claimed, reader, columns = arm_runs(_COST, results.scale).get("grown", ""), claim_rows(results, STUDY), []
    annealed = _fully_annealed_tokenformers(losses, points) if claimed in points.index else points[:0]
    rows = pd.concat([points, annealed]).sort_values("flops_cumulative", ignore_index=True)
    for run, loss, flops in rows[["run", "loss_nats", "flops_cumulative"]].to_numpy():
        of_run, is_annealed = losses[losses["run"] == run], run in annealed.index
        needed = of_run["loss_nats"].map(lambda loss: flops_at_loss(loss, *envelope))
        row = estimate("flops_ratio", student(of_run["flops_cumulative"] / needed if needed.notna().all() else []))
        row |= pooled_estimate(reader, "flops_ratio_pooled", {run: 1.0}, "flops_ratio_at_equal_loss",
                               envelope=tuple(f"{name}*" for name in FROM_SCRATCH))  # fmt: skip
        row["flops_of_transformer"] = flops_at_loss(loss, *envelope, extrapolate=is_annealed)
        row["envelope"] = None if needed.notna().all() else "beyond its ends"
        if is_annealed:
            row |= difference(losses, claimed, run, "grown_minus_it_nats")
            if row["envelope"]:
                row |= {"envelope": "extrapolated", "flops_ratio": flops / row["flops_of_transformer"]}
        columns.append(row)
    rows = rows.join(DataFrame(columns, rows.index, None if columns else expand_columns("flops_ratio[]")))
    rows["least_ratio"] = rows["flops_cumulative"] / scratch["flops_cumulative"].max()
    scratch = scratch.assign(envelope=scratch["lowest"].map({True: "yes", False: "no"}))
    at_zero = _fully_annealed_transformers(losses).assign(envelope="ends at rate zero")
    first = losses.drop_duplicates("run").set_index("run")[["regime", "spec.optimizer.lr"]]
    table = pd.concat([rows, scratch, at_zero], ignore_index=True)
    table = table.join(first.set_axis(["regime", "learning_rate"], axis=1), on="run")
    table["schedule"] = table["regime"].str.partition(", ")[2]
    return with_verdicts(table, results, STUDY, {_COST: table["run"].eq(claimed)})


def _fully_annealed_tokenformers(losses: DataFrame, grown: DataFrame) -> DataFrame:
    """Return the Tokenformers from scratch that cost as much as a parent or a grown model, were tested on the same text
    and have a learning rate that ends at 0.
    """
    annealed = losses["init.id"].isna() & losses["lent"] & losses["variant"].eq(TOKENFORMER)
    if not annealed.any():
        return grown[:0]
    points = with_ancestors(losses[annealed], "tokens")
    costs = grown["flops_cumulative"]
    return points[points["flops_cumulative"].map(lambda cost: costs.between(0.95 * cost, 1.05 * cost).any())]


def _fully_annealed_transformers(losses: DataFrame) -> DataFrame:
    """Return the modern Transformers from scratch that were tested on the text of the envelope and have a learning rate
    that ends at 0. If several have the same number of tokens, use the one with the lowest validation loss.
    """
    modern = losses["variant"].eq(TRANSFORMER) & losses["run"].str.contains("modern-[^-]*$") & losses["lent"]
    losses = losses[modern & losses["regime"].str.endswith(" to 0")]
    if losses.empty:
        return losses[["run"]]
    valid = losses.groupby(["tokens", "run"])["final.valid_loss_nats"].mean()
    return means_by_run(losses[losses["run"].isin([run for _, run in valid.groupby("tokens").idxmin()])])
