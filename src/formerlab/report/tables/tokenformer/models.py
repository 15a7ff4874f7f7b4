"""Tables of Tokenformers from scratch: against Transformers, by score function, zero-shot, and by formula."""

from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import table
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.columns import count
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published, published_rows
from formerlab.report.runs import (
    TOKENFORMER,
    TRANSFORMER,
    by_seed,
    estimate,
    held_out_losses,
    language_baselines,
    load_runs,
    means_by_run,
    with_difference,
)
from formerlab.report.studies.questions import CHANCE, accuracy_columns
from formerlab.report.studies.tokenformer import (
    STUDY,
    Shape,
    families_at_best_rates,
    model_shape,
)
from formerlab.report.tables.blocks import by_regime, claim_runs, pooled_estimate, with_pooled
from formerlab.results.read import Results
from formerlab.statistics import student


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
    coefficient = 4 * shape.layers * shape.width
    return {"run": run, "variant": variant, "layers": shape.layers, "width": shape.width} | {
        "parameters_formula": shape.parameters,
        "flops_token_token_coefficient": coefficient,
    }


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
       columns="source run variant layers width parameters_formula parameters_with_embedding "
               "-flops_token_token_coefficient context flops_formula parameters_difference flops_difference "
               "parameters_printed nearer_count_minus_printed_percent")  # fmt: skip
def tokenformer_formulas(results: Results, runs: list[str]) -> DataFrame:
    """Do the counted parameters and FLOPs follow the formulas? After Table 3 of Tokenformer (arXiv:2410.23168).
    Parameters without embedding and norms are N = 12 L d^2 or 2 L d (n_q + n_k + n_v + n_o + n_ff), for L blocks of
    width d with n parameter tokens in each projection. A forward pass over T tokens (the context) has 2 N T + 4 L d T^2
    FLOPs, a training step three times as many. The counted FLOPs must equal the formula. The counted parameters must
    exceed it by the parameters of norms and biases. Published: the configurations of Table 9. A printed size should
    equal the formula without or with an embedding of 50,304 rows; the last column has the nearer one. "1.4B" fits
    neither: it is 1.27B or 1.31B.
    """
    rows = []
    for record in results.runs(STUDY, runs).drop_duplicates("run").to_dict("records"):
        shape, tokens = model_shape(record), record["spec.model.projection.kind"] == "pattention"
        time, batch, steps = (int(record[f"spec.{key}"]) for key in ("task.context", "task.batch", "steps"))
        row = _columns(record["run"], TOKENFORMER if tokens else TRANSFORMER, shape)
        row |= {"context": time, "flops_formula": shape.flops(time)}
        row["parameters_difference"] = record["parameters_non_embedding"] - shape.parameters
        vocabulary = int(record["spec.model.vocabulary"])
        row["flops_difference"] = record["flops"] - 3 * steps * batch * shape.flops(time, vocabulary)
        rows.append(row)
    return DataFrame(rows)


_GAP_CLAIMS = "tokenformer-worse-than-modern-transformer", "tokenformer-gap-shrinks-with-training"


def published_gap() -> DataFrame:
    """Return the pair of an independent implementation."""
    rows = (
        published("zzox531/nlp_tokenformer").query("metric == 'perplexity'").set_index("model")["value"].astype(float)
    )
    pair = {"perplexity_tokenformer": rows["TokenFormer"], "perplexity": rows["Transformer"]}
    gap = float(np.log(rows["TokenFormer"] / rows["Transformer"]))
    return DataFrame([pair | {"run": "course report, 124M", "arm": "modern", "difference_nats": gap}])


def _gaps(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the gaps by text; in the row of a change, `tokens` is "<longest> minus <shortest>" training."""
    if rows["source"].eq("ours").all():
        trained = rows.groupby("regime")["tokens"].agg(["max", "min"]).map(count)
        change = rows["regime"].map(trained["max"] + " minus " + trained["min"])
        tokens = rows["tokens"].map(count, na_action="ignore").astype(object).fillna(change)
        rows = rows.drop(columns="run").assign(tokens=tokens)
    columns = {"run": "published by", "arm": "compared with", "perplexity": "perplexity: Transformer ↓"}
    return by_regime(rows.assign(arm=rows["arm"] + " Transformer").rename(columns=columns))


@table(reads="eval.csv test.csv floors.csv", published=published_gap, readers=_gaps,
       runs="modern-* classic-* matched-* *-modern-* *-classic-* *-matched-*",
       columns="source run regime tokens arm -learning_rate -parameters_non_embedding -tokenformer "
               "perplexity_5gram perplexity_tokenformer perplexity -loss_nats[] difference_nats[]+ seeds -diverged bold"
       )  # fmt: skip
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
    rivals = rivals.assign(perplexity_tokenformer=rivals["tokenformer"].map(level))
    rivals = with_difference(rivals, losses, "tokenformer", "run", "difference_nats")
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
            change |= pooled_estimate(reader, "difference_nats_pooled", signs)
            changes.append(change | {"bold": {*names} <= shrinks})
    rows = pd.concat([rivals, DataFrame(changes)], ignore_index=True).sort_values("regime", kind="stable")
    ngrams = language_baselines(results, STUDY, runs).set_index("run")["perplexity"]
    rows["perplexity_5gram"] = ("5-gram on " + rows["regime"].str.partition(", ")[0]).map(ngrams)
    return rows.rename(columns={"spec.optimizer.lr": "learning_rate"})
