"""Tables of the Tokenformer study (arXiv:2410.23168)."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.arms import read_arms
from formerlab.report.claims.envelope import flops_at_loss
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows, pooled_differences
from formerlab.report.columns import count
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published, published_rows
from formerlab.report.runs import (
    TOKENFORMER,
    TRAINED_FURTHER,
    TRANSFORMER,
    by_seed,
    comparable_losses,
    difference,
    differences,
    estimate,
    held_out_losses,
    language_baselines,
    load_runs,
    means_by_run,
    sort_by_regime,
    subtract,
)
from formerlab.report.studies.questions import CHANCE, accuracy_columns
from formerlab.report.studies.tokenformer import (
    FROM_SCRATCH,
    METHODS,
    STAGES,
    STUDY,
    Shape,
    families_at_best_rates,
    fully_annealed_losses,
    model_shape,
    published_ratio,
    run_before_growth,
    runs_with_ancestors,
    stage_pairs,
    with_registered_controls,
)
from formerlab.report.tables.blocks import by_regime, claim_runs, pooled_ends, pooled_estimate, with_pooled
from formerlab.results.read import Results
from formerlab.statistics import student


def _published_main() -> DataFrame:
    """Return the perplexities of Tables 6 and 7 with the TPU hours of Fig 3, a row per size, family and tokens."""
    rows = published(PAPER, "Tables 6-7", "Table 6", "Table 7").query("metric == 'perplexity'")
    rows = rows[~rows["model"].str.endswith(" 124M")].assign(value=pd.to_numeric(rows["value"]))
    family = rows["setting"].str.contains("grown").map({True: "grown", False: TRANSFORMER})
    tokens = rows["setting"].str.extract(r"(\d+B) tokens")[0]
    hours = published(PAPER, "Fig 3").query("metric == 'training_cost'").rename(columns={"value": "tpu_hours"})
    hours = hours.assign(stage_tokens=hours["setting"].str.extract(r"(\d+B) tokens")[0])
    rows = rows.assign(size=rows["model"].str.split().str[1], variant=family, stage_tokens=tokens)
    rows = rows.merge(hours[["model", "stage_tokens", "tpu_hours"]], on=["model", "stage_tokens"], how="left")
    return rows.rename(columns={"value": "perplexity"})[["size", "variant", "stage_tokens", "perplexity", "tpu_hours"]]


def _published_sizes(rows: DataFrame) -> DataFrame:
    """Return the grown models (30B tokens a stage) beside the Transformers (300B tokens), a row per size."""
    table = DataFrame({"size": rows["size"].unique()})
    for variant, tokens in (("grown", "30B"), (TRANSFORMER, "300B")):
        trained = rows[rows["variant"].eq(variant) & rows["stage_tokens"].eq(tokens)].drop_duplicates("size")
        for column, unit in (("perplexity", "perplexity"), ("tpu_hours", "TPU hours")):
            values = trained.set_index("size")[column].astype(float)
            table[f"{variant}, {tokens} ({unit}) ↓"] = table["size"].map(values)
    return table


_GROWN, _ZERO = "grown: random keys, tau sqrt(n)", "grown: zero keys, tau kept"
_LABELS = {
    _GROWN: "grown as published",
    _ZERO: "grown with zero keys",
    f"{TOKENFORMER}, {TRAINED_FURTHER}": "parent trained further",
}
"""Variants that readers know by a name of the study page."""
_STAGE, _SCRATCH, _SECOND = "the parent trained further", "the same model from scratch", "new text"
_NEW_TEXT = "tokenformer-continued-training-lower"


def _comparisons(losses: DataFrame, results: Results) -> DataFrame:
    """Return the pairs of runs that the table compares: `run` minus `compared_with`, and the `question`."""
    stages = stage_pairs(with_registered_controls(losses, results.scale),
                         results.runs(STUDY).drop_duplicates("run").set_index("run"))  # fmt: skip
    runs = losses.drop_duplicates("run").assign(start=lambda rows: rows["init.id"].notna())
    pairs = [(row.run, row.rival, _STAGE, row.tokens_per_new_parameter) for row in stages.itertuples()]
    for scratch in runs[runs["variant"].eq(TOKENFORMER) & ~runs["start"]].to_dict("records"):
        equal = (runs["flops_cumulative"] / scratch["flops_cumulative"]).between(0.95, 1.05)
        same = equal & (runs["parameters"] == scratch["parameters"]) & (runs["regime"] == scratch["regime"])
        grown = runs[same & runs["variant"].eq(_GROWN)]
        stage = dict(zip(stages.get("run", ()), stages.get("tokens_per_new_parameter", ()), strict=True))
        pairs += [(run, scratch["run"], _SCRATCH, stage.get(run, np.nan)) for run in grown["run"]]
    second = runs[runs["run"].str.startswith("continued-") & ~runs["run"].str.endswith("-ungrown")]
    for run, projection in second[["run", "spec.model.projection.kind"]].to_numpy():
        family = "tokenformer" if projection == "pattention" else "transformer"
        pairs += [(run, f"continued-{family}-ungrown", _SECOND, np.nan)]
    return DataFrame(pairs, columns=["run", "compared_with", "question", "tokens_per_new_parameter"])


def _minus_net2net(results: Results, pairs: DataFrame) -> DataFrame:
    """Return the gain over the same family without growth, minus the gain of Net2Net, at the last validation.

    A gain is a loss without growth minus a loss with growth. The claim on new text compares these gains.
    """
    arms = read_arms(Path(), results.scale).get(STUDY, {}).get(_NEW_TEXT, ClaimArms()).for_item("last_step")
    reader, rows = ClaimRows(results, STUDY, ClaimArms()), []
    rival, rival_ungrown = (arms[name].run if name in arms else None for name in ("rival", "rival_ungrown"))
    for run, other in pairs.loc[pairs["question"] == _SECOND, ["run", "compared_with"]].to_numpy():
        signs = dict[str, float]()
        for name, sign in (other, 1.0), (run, -1.0), (str(rival_ungrown), -1.0), (str(rival), 1.0):
            signs[name] = signs.get(name, 0.0) + sign
        if run != rival:
            rows.append({"run": run} | pooled_estimate(reader, "minus_net2net_nats", signs, at="last_step"))
    return DataFrame(rows, columns=["run", *expand_columns("minus_net2net_nats[]")])


def _by_question(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the growth stages, and the growth for new text; without comparisons, all models by data set."""
    if rows["source"].eq("published").any():
        return {"OpenWebText, one model of each": _published_sizes(rows)}
    rows = rows.assign(variant=rows["variant"].replace(_LABELS))
    if rows["question"].isna().all():
        return by_regime(rows.drop(columns="question"))
    stages = rows[rows["question"].isin((_STAGE, _SCRATCH)) & rows["variant"].isin(_LABELS.values())]
    stages = stages.assign(text=stages["regime"].str.partition(", ")[0])
    keys, table = ["text", "tokens", "tokens_per_new_parameter", "question", "seeds"], DataFrame()
    for variant, group in stages.groupby("variant", sort=False):
        names = {
            f"difference_nats{end}": f"{variant} (nats) ↓{end.removeprefix('_pooled')}"
            for end in ("", "_pooled_low", "_pooled_high")
        }
        block = group[[*keys, *names]].rename(columns=names)
        table = block if table.empty else table.merge(block, on=keys, how="outer")
    second = rows[rows["question"] == _SECOND]
    second = second.assign(variant=second["family"] + ", " + second["variant"].str.removeprefix("grown: "))
    texts = " and ".join(dict.fromkeys(str(regime).partition(", ")[0] for regime in second["regime"]))
    columns = ["variant", "tokens", "perplexity", *expand_columns("difference_nats[]+ minus_net2net_nats[]"), "seeds"]
    second = second.sort_values("minus_net2net_nats", ascending=False)[[*columns, "bold"]]
    blocks = {
        "growth, loss minus a control of equal FLOPs": table.rename(columns={"question": "control"}),
        f"growth for new text, {texts}": second,
    }
    return {heading: block for heading, block in blocks.items() if len(block)}


@table(reads="test.csv floors.csv", published=_published_main, readers=_by_question,
       columns="source run regime question variant family parameters_non_embedding learning_rate tokens -flops "
               "tokens_per_new_parameter flops_cumulative loss_nats[] -bits_per_byte perplexity[] compared_with "
               "difference_nats[]+ minus_net2net_nats[] seeds diverged bold size stage_tokens tpu_hours")  # fmt: skip
def tokenformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Does growth pay? After Tables 6 and 7 of Tokenformer (arXiv:2410.23168). A parent grows by new parameter tokens,
    as published (random keys, tau = sqrt(n)) or with zero keys and the old tau, and is trained for a stage on new text.
    First block: held-out loss minus the loss of a control that costs the same FLOPs, parent included; below zero,
    growth pays. Second block: loss minus that of the same family without growth, and how much more a method gains than
    Net2Net by padding, at the last validation, in bold if a verdict rests on it; below zero, Net2Net gains more.
    HyperCloning and Net2Net grow the width of a Transformer; noise breaks the symmetry of copies. In brackets: 95 %
    interval over seeds, paired, with the variance of similar runs, as for verdicts. Published: TPU hours are read from
    a figure (± 30); Table 7 has perplexity 11.93 for the Transformer of 757M. The CSV has all runs and perplexities.
    """
    losses = held_out_losses(results, STUDY, runs)
    rows = means_by_run(losses, first=["regime", "spec.optimizer.lr", "spec.model.projection.kind"])
    pairs = _comparisons(losses, results) if "init.id" in losses and "spec.growth.keys" in losses else DataFrame()
    if len(pairs) and len(differing := differences(losses, pairs, "run", "compared_with")):
        differing = pooled_differences(differing, results, STUDY, "run", "compared_with", "difference_nats")
        differing = differing[differing["part"] == "mean"].drop(columns=["source", "part", "seed", "seeds"])
        rows = rows.merge(differing, on="run", how="left").merge(_minus_net2net(results, pairs), on="run", how="left")
    claimed = claim_runs(results, STUDY, _NEW_TEXT)[_NEW_TEXT]
    families = {"pattention": TOKENFORMER, "linear": TRANSFORMER}
    rows = rows.assign(family=rows["spec.model.projection.kind"].map(families))
    rows["bold"] = rows["run"].isin(claimed) & rows.get("minus_net2net_nats", rows["loss_nats"] * np.nan).notna()
    rows = rows.rename(columns={"spec.optimizer.lr": "learning_rate"})
    return pd.concat([language_baselines(results, STUDY, runs), sort_by_regime(rows, "flops_cumulative", "run")])


def _published_zeroshot() -> DataFrame:
    wide = published_rows(PAPER, "Table 1").set_index("model").filter(regex="^(?!.*perplexity)")
    wide = wide[wide.index.str.startswith(("TokenFormer", "Pythia"))] / 100
    return wide.add_suffix(" (published)").rename_axis("run").reset_index()


@table(reads="zeroshot.csv", published=_published_zeroshot)
def tokenformer_zeroshot(results: Results, runs: list[str]) -> DataFrame:
    """Zero-shot accuracy of Tokenformers and Transformers, after Table 1 of Tokenformer (arXiv:2410.23168). A column is
    a task and a metric, and the row chance is the accuracy of guessing; higher is better. acc takes the most probable
    answer, acc_norm the most probable per character, and acc_mutual_info the one that gains most from the question;
    small models are at chance in the first two. After ±: one standard error over questions, and over seeds if there are
    at least two. The embedded tasks and the published ones are different questions: compare models within a block.
    """
    variants = load_runs(results, STUDY, runs).drop_duplicates("run").set_index("run")["variant"]
    ours = accuracy_columns(results.rows("zeroshot.csv", STUDY, runs), ["run"])
    ours.insert(1, "variant", ours["run"].map(variants).fillna(CHANCE))
    return ours


VOCABULARY = 50304


def _columns(run: str, variant: str, shape: Shape) -> dict[str, Any]:
    tokens = {"attention_tokens": shape.attention, "feedforward_tokens": shape.feedforward}
    each = 2 * shape.layers * shape.width
    return {"run": run, "variant": variant, "layers": shape.layers, "width": shape.width} | {
        **(tokens if variant == TOKENFORMER else dict.fromkeys(tokens)),
        "parameters_attention": 4 * each * shape.attention,
        "parameters_feedforward": each * shape.feedforward,
        "parameters_formula": shape.parameters,
        "flops_token_token_coefficient": 2 * each,
    }


DEFAULTS = {"score": "score-l2_gelu", "layernorm": "layernorm-none"}


@table(reads="test.csv", runs="score-* layernorm-*",
       readers=lambda rows: rows.rename(columns={"run": "choice"}).replace({"block": {"layernorm": "block norm"}}),
       published=lambda: published_rows(
           PAPER, "Table 4", "Table 5", by=("table_or_figure", "model"),
           names={"table_or_figure": "block", "model": "run", "top1_accuracy": "ImageNet top-1 (%)"}),
       columns="source block run loss_nats[] perplexity loss_minus_default_nats[] seeds diverged "
               "ImageNet~top-1~(%)")  # fmt: skip
def tokenformer_scores(results: Results, runs: list[str]) -> DataFrame:
    """Score functions and block norms of Tokenformers on language. Tables 4 and 5 of Tokenformer (arXiv:2410.23168)
    compare them on ImageNet. Models are trained from scratch with one learning rate, and each is compared with the
    default (score l2_gelu, no parameters in block norms), paired by seed. In brackets: 95 % Student t interval over
    seeds. exp_l1 is softmax times n, the row exp + L1 of the paper; gelu_l1 is our reading of a row that neither
    official code has.
    """
    losses = held_out_losses(results, STUDY, runs)
    rows = means_by_run(losses)
    rows = rows.assign(block=rows["run"].str.partition("-")[0], diverged=rows["diverged"].replace(0, None))
    pairs = zip(rows["run"], rows["block"].map(DEFAULTS), strict=True)
    rows = rows.join(DataFrame([difference(losses, run, default, "loss_minus_default_nats") for run, default in pairs]))
    return rows.sort_values(["block", "loss_nats"], ascending=[False, True], ignore_index=True)


def _published_formulas() -> DataFrame:
    rows, table = [], published_rows(PAPER, "Table 9")
    for row in table[table["model"].str.startswith(("LM", "Scale"))].to_dict("records"):
        sizes = ("layers", "hidden_size", "attention_tokens_per_projection", "ffn_tokens")
        shape = Shape(*(int(row[key]) for key in sizes))
        printed, formula = row["parameters"] * 1e6, shape.parameters
        nearest = min((formula, formula + VOCABULARY * shape.width), key=lambda count: abs(count / printed - 1))
        share = {"parameters_printed": printed, "nearer_count_minus_printed_percent": 100 * (nearest / printed - 1)}
        share["parameters_with_embedding"] = formula + VOCABULARY * shape.width
        rows.append(_columns(row["model"], TOKENFORMER, shape) | share)
    return DataFrame(rows)


def _counted(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return counts beside formulas for our models, or the sizes of the published ones."""
    if rows["source"].eq("published").any():
        names = rows["run"].replace({"^LM-": "language model ", "^Scale-": "grown, "}, regex=True)
        columns = ["parameters_formula", "parameters_with_embedding", "parameters_printed"]
        return DataFrame({"model": names}).join(rows[[*columns, "nearer_count_minus_printed_percent"]])
    parameters = {"parameters, counted": rows["parameters_formula"] + rows["parameters_difference"]}
    parameters["parameters_formula"] = rows["parameters_formula"]
    parameters["parameters of norms and biases"] = rows["parameters_difference"]
    more = ["flops_formula", "flops_difference", "layers", "width", "context"]
    return rows[["variant"]].join(DataFrame(parameters)).join(rows[more]).drop_duplicates()


@table(runs="transformer-[1-4] tokenformer-1 grown-random-sqrt-[2-4] classic-chosen",
       published=_published_formulas, readers=_counted,
       columns="source run variant layers width -attention_tokens -feedforward_tokens -parameters_attention "
               "-parameters_feedforward parameters_formula parameters_with_embedding -flops_token_token_coefficient "
               "context -flops_projections -flops_token_token flops_formula parameters_difference flops_difference "
               "parameters_printed nearer_count_minus_printed_percent")  # fmt: skip
def tokenformer_formulas(results: Results, runs: list[str]) -> DataFrame:
    """Do the counted parameters and FLOPs follow the formulas? After Table 3 of Tokenformer (arXiv:2410.23168).
    Parameters without embedding and norms are N = 12 L d^2 or 2 L d (n_q + n_k + n_v + n_o + n_ff), for L blocks of
    width d with n parameter tokens in each projection. A forward pass over T tokens (the context) has 2 N T + 4 L d T^2
    FLOPs, a training step three times as many. Counted minus formula must be 0 FLOPs, and the parameters of norms and
    biases. Published: the configurations of Table 9. A printed size should equal the formula without or with an
    embedding of 50,304 rows; the last column has the nearer one. "1.4B" fits neither: it is 1.27B or 1.31B.
    """
    rows = []
    for record in results.runs(STUDY, runs).drop_duplicates("run").to_dict("records"):
        shape, tokens = model_shape(record), record["spec.model.projection.kind"] == "pattention"
        time, batch, steps = (int(record[f"spec.{key}"]) for key in ("task.context", "task.batch", "steps"))
        row = _columns(record["run"], TOKENFORMER if tokens else TRANSFORMER, shape) | {"context": time}
        row |= {"flops_projections": 2 * shape.parameters * time, "flops_formula": shape.flops(time)}
        row |= {"flops_token_token": shape.token_token_flops(time)}
        row["parameters_difference"] = record["parameters_non_embedding"] - shape.parameters
        vocabulary = int(record["spec.model.vocabulary"])
        row["flops_difference"] = record["flops"] - 3 * steps * batch * shape.flops(time, vocabulary)
        rows.append(row)
    return DataFrame(rows)


def _published_methods() -> DataFrame:
    names = {"token_token_flops_coefficient": "flops_token_token_coefficient"}
    table = published_rows(PAPER, "Table 8", names=names, factors={"flops_token_token_coefficient": 1e4})
    table[["method", "run"]] = table["model"].str.rsplit(n=1, expand=True)
    return table


@table(reads="test.csv",
       runs="tokenformer-1 transformer-1 long-*-chosen grown-random-sqrt-[23] net2net-* hypercloning-*",
       needs="net2net-* hypercloning-*", published=_published_methods,
       columns="source method stage -run -parameters_non_embedding -tokens flops_token_token_coefficient -loss_nats[] "
               "perplexity[] seeds gain_nats[] tokenformers_lead_nats[] loss_minus_tokenformers_nats[]")  # fmt: skip
def tokenformer_methods(results: Results, runs: list[str]) -> DataFrame:
    """Growth by parameter tokens and growth in width (Net2Net, HyperCloning), after Table 8 of Tokenformer
    (arXiv:2410.23168). A gain is the loss before growth minus the loss after it, within one family. In brackets: 95 %
    Student t interval over seeds, differences paired by seed. The published perplexities fit neither Table 7 nor a
    documented setting; read them by column.
    """
    losses = held_out_losses(results, STUDY, runs)
    points = means_by_run(losses, first=["spec.model.layers", "spec.model.width"])
    points["flops_token_token_coefficient"] = 4 * points["spec.model.layers"] * points["spec.model.width"]
    first, (_, tokens), rows = run_before_growth(losses, "Tokenformer"), METHODS["Tokenformer"], []
    for method, (_, pattern) in METHODS.items():
        start = run_before_growth(losses, method)
        rows.append({"run": start, "method": "before growth", "stage": 1})
        for stage in STAGES:
            run, grown = pattern.format(size=stage), tokens.format(size=stage)
            row = {"run": run, "method": method, "stage": stage} | difference(losses, start, run, "gain_nats")
            if run != grown:
                gained = (subtract(by_seed(losses, a), by_seed(losses, b)) for a, b in ((first, grown), (start, run)))
                row |= estimate("tokenformers_lead_nats", student(subtract(*gained)))
                row |= difference(losses, run, grown, "loss_minus_tokenformers_nats")
            rows.append(row)
    return DataFrame(rows).drop_duplicates("run").merge(points, on="run")


_GAP_CLAIMS = "tokenformer-worse-than-modern-transformer", "tokenformer-gap-shrinks-with-training"


def _published_gap() -> DataFrame:
    """Return the pair of an independent implementation."""
    rows = (
        published("zzox531/nlp_tokenformer").query("metric == 'perplexity'").set_index("model")["value"].astype(float)
    )
    pair = {"perplexity_tokenformer": rows["TokenFormer"], "perplexity": rows["Transformer"]}
    gap = float(np.log(rows["TokenFormer"] / rows["Transformer"]))
    return DataFrame([pair | {"run": "course report, 124M", "arm": "modern", "difference_nats": gap}])


def _gaps(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the gaps by text; the tokens of a change are those of the longest and the shortest training."""
    if rows["source"].eq("ours").all():
        trained = rows.groupby("regime")["tokens"].agg(["max", "min"]).map(count)
        change = rows["regime"].map(trained["max"] + " minus " + trained["min"])
        tokens = rows["tokens"].map(count, na_action="ignore").astype(object).fillna(change)
        rows = rows.drop(columns="run").assign(tokens=tokens)
    columns = {"run": "published by", "arm": "compared with", "perplexity": "perplexity: Transformer ↓"}
    return by_regime(rows.assign(arm=rows["arm"] + " Transformer").rename(columns=columns))


@table(reads="eval.csv test.csv", published=_published_gap, readers=_gaps,
       runs="modern-* classic-* matched-* *-modern-* *-classic-* *-matched-*",
       columns="source run regime tokens arm -learning_rate -parameters_non_embedding -tokenformer "
               "perplexity_tokenformer perplexity -loss_nats[] difference_nats[]+ seeds -diverged bold")  # fmt: skip
def tokenformer_modern(results: Results, runs: list[str]) -> DataFrame:
    """Is a Tokenformer worse than a Transformer of equal size? Both are trained from scratch with equal width, training
    tokens and parameters without embedding (about 0.2 M). Modern: RMSNorm, SwiGLU, rotary positions; classic:
    LayerNorm, GeLU, biases, as GPT-2. Each model has the learning rate of a common grid with the lowest validation
    loss. The difference is the loss of the Tokenformer (arXiv:2410.23168) minus that of the Transformer, paired by
    seed; above zero, the Tokenformer is worse. The last row of a text is the difference after the longest training
    minus the difference after the shortest, over the seeds that both have. In brackets: 95 % interval over seeds, with
    the variance of similar runs, as for verdicts. Bold: a difference on which a verdict rests. Published: a third
    party, one model of each.
    """
    losses = held_out_losses(results, STUDY, runs)
    families = families_at_best_rates(results, runs)[["run", "arm", "chosen", "tokenformer"]]
    points = means_by_run(losses, first=["regime", "spec.optimizer.lr"]).merge(families)
    level = points.set_index("run")["perplexity"]
    rivals = points[points["chosen"] & points["arm"].ne("matched")].dropna(subset="tokenformer")
    rivals = rivals.sort_values(["regime", "arm", "tokens"], ascending=[True, False, True], ignore_index=True)
    pairs = zip(rivals["tokenformer"], rivals["run"], strict=True)
    gaps = DataFrame([difference(losses, *pair, "difference_nats") for pair in pairs])
    rivals = rivals.assign(perplexity_tokenformer=rivals["tokenformer"].map(level)).join(gaps)
    rivals = with_pooled(rivals, results, STUDY, "tokenformer", "run", "difference_nats")
    reader = ClaimRows(results, STUDY, ClaimArms())
    worse, shrinks = claim_runs(results, STUDY, *_GAP_CLAIMS).values()
    rivals["bold"] = rivals["run"].isin(worse)
    changes = []
    for (regime, arm), group in rivals.groupby(["regime", "arm"], sort=False):
        if len(group) > 1:
            names = group[["tokenformer", "run"]].iloc[[-1, 0]].to_numpy().ravel()
            signs = dict(zip(names, (1.0, -1.0, -1.0, 1.0), strict=True))
            values = [sign * by_seed(losses, run) for run, sign in signs.items()]
            shared = pd.concat(values, axis=1, join="inner").sum(axis=1)
            change = {"regime": regime, "arm": arm, "seeds": len(shared)} | estimate("difference_nats", student(shared))
            change |= pooled_ends(reader, "difference_nats", signs)
            changes.append(change | {"bold": {*names} <= shrinks})
    rows = pd.concat([rivals, DataFrame(changes)], ignore_index=True).sort_values("regime", kind="stable")
    return rows.rename(columns={"spec.optimizer.lr": "learning_rate"})


def _growth(rows: DataFrame) -> DataFrame:
    """Return the parent and the models grown as published, or the published ratio."""
    if rows["source"].eq("published").any():
        return DataFrame({"model": "Tokenformer 1.4B", "hours_ratio": rows["flops_ratio"]})
    grown = rows[rows["variant"].eq(_GROWN)]
    rows = pd.concat([rows[rows["run"].isin(grown["parent"])], grown] if len(grown) else [rows], ignore_index=True)
    variant = rows["variant"].replace({TOKENFORMER: "parent"} | _LABELS)
    return rows.assign(variant=variant).drop(columns=["schedule", "parent"])


@table(reads="test.csv", needs="envelope-*", readers=_growth, published=published_ratio,
       columns="source run variant schedule -learning_rate parent -parameters_non_embedding tokens -tokens_cumulative "
               "-flops flops_cumulative -loss_nats[] perplexity -bits_per_byte flops_of_transformer flops_ratio[]+ "
               "parents_ratio envelope seeds bold")  # fmt: skip
def tokenformer_envelope(results: Results, runs: list[str]) -> DataFrame:
    """Does growth need fewer FLOPs than training from scratch? FLOPs of a grown Tokenformer, with all ancestors,
    divided by the FLOPs of a Transformer from scratch with the same loss, after section 4.1 of arXiv:2410.23168. Below
    1, growth saves cost; the paper claims at most 0.5. The last column is the same for the ancestors alone: if it is
    near 1 or above, the stage cannot save cost. The Transformers have three sizes and three lengths, each with its own
    schedule; their FLOPs at a loss are interpolated along their lower envelope, and there is no ratio beyond its ends.
    All losses are on their test text. In brackets: 95 % interval over seeds, with the spread of the Transformers. Bold:
    the row on which the verdict rests. Published: TPU hours, interpolated by us between points that are read from a
    figure (± 30): 0.40 with the perplexity of the 757M Transformer in Table 6, 0.42 with that in Table 7. The CSV has
    zero keys and the parent trained further.
    """
    losses = fully_annealed_losses(results, runs)
    if runs_with_ancestors(losses).empty:
        losses = comparable_losses(results, STUDY, runs)
    scratch, rows = losses[losses["run"].str.startswith(FROM_SCRATCH)], []
    envelope = scratch.groupby("run")[["flops_cumulative", "loss_nats"]].mean().to_numpy().T
    reader, claim = ClaimRows(results, STUDY, ClaimArms()), "tokenformer-growth-saves-cost"
    claimed = claim_runs(results, STUDY, claim)[claim]
    envelope_runs = tuple(f"{name}*" for name in FROM_SCRATCH)
    for record in runs_with_ancestors(losses).sort_values("flops_cumulative").to_dict("records"):
        row = {str(name): value for name, value in record.items()}
        of_run = losses[losses["run"] == row["run"]]
        needed = of_run["loss_nats"].map(lambda loss: flops_at_loss(loss, *envelope))
        inside = needed.notna().all()
        row |= estimate("flops_ratio", student(of_run["flops_cumulative"] / needed if inside else []))
        signs, metric = {row["run"]: 1.0}, "flops_ratio_at_equal_loss"
        row |= pooled_ends(reader, "flops_ratio", signs, metric, envelope=envelope_runs)
        row |= {
            "envelope": None if inside else "beyond its ends",
            "flops_of_transformer": flops_at_loss(row["loss_nats"], *envelope),
        }
        row["parents_ratio"] = (row["flops_cumulative"] - row["flops"]) / row["flops_of_transformer"] or None
        row |= {"schedule": of_run["regime"].iloc[0].partition(", ")[2], "bold": row["run"] in claimed}
        rows.append(row | {"learning_rate": of_run["spec.optimizer.lr"].iloc[0]})
    return DataFrame(rows) if rows else DataFrame(columns=expand_columns("run flops_ratio[]"))
