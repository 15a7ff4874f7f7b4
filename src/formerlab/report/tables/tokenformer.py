"""Tables of the Tokenformer study (arXiv:2410.23168)."""

from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import table
from formerlab.report.claims.envelope import flops_at_loss
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published, published_rows
from formerlab.report.runs import (
    TOKENFORMER,
    TRAINED_FURTHER,
    TRANSFORMER,
    by_seed,
    comparable_losses,
    difference,
    estimate,
    held_out_losses,
    language_baselines,
    last_step_rows,
    load_runs,
    means_by_run,
    sort_by_regime,
    subtract,
    token_growth_labels,
    validation_losses,
)
from formerlab.report.studies.questions import CHANCE, accuracy_columns
from formerlab.report.studies.tokenformer import (
    FROM_SCRATCH,
    METHODS,
    STAGES,
    STUDY,
    Shape,
    families_at_best_rates,
    model_shape,
    run_before_growth,
    runs_with_ancestors,
)
from formerlab.report.tables.blocks import by_regime
from formerlab.results.read import Results
from formerlab.statistics import student


def _published_main() -> DataFrame:
    rows = published(PAPER, "Tables 6-7", "Table 6", "Table 7").query("metric == 'perplexity'")
    size = rows["model"].str.extract(r"([\d.]+)(M|B)$")
    variant = rows["setting"].str.removeprefix("OpenWebText; ") + rows["note"].map(
        lambda note: f" ({note})" if note else ""
    )
    parameters = size[0].astype(float) * size[1].map({"M": 1e6, "B": 1e9})
    columns = {"run": rows["model"], "variant": variant, "parameters": parameters}
    return DataFrame(columns | {"perplexity": rows["value"].astype(float)})


_LABELS = {
    "grown: random keys, tau sqrt(n)": "grown as published",
    "grown: zero keys, tau kept": "grown with zero keys",
    f"{TOKENFORMER}, {TRAINED_FURTHER}": "parent trained further",
}
"""Variants that readers know by a name of the study page."""


def _labelled(rows: DataFrame) -> DataFrame:
    """Return rows with the names of the study page, the modern and the classic Transformer apart."""
    if rows["source"].eq("published").any():
        return rows.rename(columns={"run": "model", "variant": "training"})
    transformer = rows["variant"].eq(TRANSFORMER)
    style = rows["run"].str.extract("(classic)")[0].map({"classic": ARMS["classic"]}).fillna(ARMS["modern"])
    variant = rows["variant"].replace(_LABELS)
    return rows.assign(variant=variant.mask(transformer & rows["run"].str.contains("classic|modern|envelope"), style))


def _main_rates(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the rows by data set, without training on a second domain and without learning rates of fewer seeds."""
    if rows["source"].eq("published").any():
        return _labelled(rows).sort_values("parameters", kind="stable")
    most = rows.groupby(["regime", "variant", "parameters", "tokens"], dropna=False)["seeds"].transform("max")
    return by_regime(_labelled(rows[~rows["run"].str.startswith("continued-") & ~(rows["seeds"] < most)]))


@table(reads="test.csv floors.csv", published=_published_main, readers=_main_rates,
       columns="source run regime variant parameters -parameters_non_embedding learning_rate tokens -flops "
               "flops_cumulative loss_nats[] -bits_per_byte perplexity[] seeds -diverged")  # fmt: skip
def tokenformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Size, training cost and held-out loss of Tokenformers and Transformers, after Tables 6 and 7 of Tokenformer
    (arXiv:2410.23168). Grown models start from a smaller Tokenformer, their parent, which is also trained further
    without growth. A modern Transformer has RMSNorm, SwiGLU and rotary positions, a classic one is like GPT-2. In
    brackets: 95 % Student t interval over seeds; a run that diverged counts as a uniform guess. Losses compare within
    one block. Rows are sorted by cumulative FLOPs; the CSV also has learning rates of fewer seeds, and training on a
    second domain. Published models have 124M to 1.4B parameters: compare ratios and no
    levels.
    """
    rows = means_by_run(held_out_losses(results, STUDY, runs), first=["regime", "spec.optimizer.lr"])
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


def _published_formulas() -> DataFrame:
    rows, table = [], published_rows(PAPER, "Table 9")
    for row in table[table["model"].str.startswith(("LM", "Scale"))].to_dict("records"):
        sizes = ("layers", "hidden_size", "attention_tokens_per_projection", "ffn_tokens")
        shape = Shape(*(int(row[key]) for key in sizes))
        printed, formula = row["parameters"] * 1e6, shape.parameters
        nearest = min((formula, formula + VOCABULARY * shape.width), key=lambda count: abs(count / printed - 1))
        share = {"parameters_printed": printed, "nearer_count_minus_printed_percent": 100 * (nearest / printed - 1)}
        rows.append(_columns(row["model"], TOKENFORMER, shape) | share)
    return DataFrame(rows)


@table(runs="transformer-[1-4] tokenformer-1 grown-random-sqrt-[2-4]", published=_published_formulas,
       readers=lambda rows: rows.rename(columns={"run": "published model"} if rows["source"].iloc[0] != "ours" else {}),
       columns="source run variant layers width -attention_tokens -feedforward_tokens -parameters_attention "
               "-parameters_feedforward parameters_formula -flops_token_token_coefficient -context -flops_projections "
               "-flops_token_token flops_formula parameters_difference flops_difference parameters_printed "
               "nearer_count_minus_printed_percent")  # fmt: skip
def tokenformer_formulas(results: Results, runs: list[str]) -> DataFrame:
    """Do counted parameters and FLOPs fit the formulas? The formulas are after Table 3 of Tokenformer
    (arXiv:2410.23168). Parameters without embedding and norms are N = 12 L d^2 or 2 L d (n_q + n_k + n_v + n_o + n_ff),
    for L blocks of width d with n parameter tokens in each projection. A forward pass over T tokens has 2 N T + 4 L d
    T^2 FLOPs (the paper heads this column training FLOPs; version 1 had half of the first term for attention), and a
    training step three times as many. Our record minus the formula should be zero, but for the final norm. Published:
    the configurations of Table 9, whose printed sizes fit the formula with or without the embedding of 50,304 rows,
    whichever is nearer; "1.4B" is 1.31B.
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


PUBLISHED = "grown-random-sqrt-2"


_FURTHER = {"trained-on-2": "the FLOPs of the stage", "trained-on-tokens-2": "the tokens of the stage"}


def _ways_to_grow(rows: DataFrame) -> DataFrame:
    """Return rows with the model in words in the first column."""
    grown = "grown: " + rows["keys"] + " keys, tau " + rows["tau"]
    model = grown.replace(_LABELS).fillna("parent trained further, for " + rows["run"].map(_FURTHER))
    return DataFrame({"model": model}).join(rows.drop(columns=["keys", "tau"]))


@table(reads="eval.csv test.csv", readers=_ways_to_grow,
       runs="tokenformer-1 long-matched-chosen grown-random-*-2 grown-zero-*-2 trained-on-2 trained-on-tokens-2",
       needs="grown-random-*-2 grown-zero-*-2")  # fmt: skip
def tokenformer_ablation(results: Results, runs: list[str]) -> DataFrame:
    """Ways to grow a Tokenformer, and its parent trained further, at the end of a short stage. They are of sections 3.3
    and 4.1 of Tokenformer (arXiv:2410.23168). All start from the same parent and read the same batches. The published
    recipe has random keys, tau = sqrt(n) for n parameter tokens, a fresh optimizer, and trains the parent's parameters
    too; with zero keys, tau is kept. In brackets: 95 % Student t interval over seeds, differences paired by seed. Rows
    are sorted by loss.
    """
    losses = held_out_losses(results, STUDY, runs)
    curves, rows = validation_losses(results, STUDY, runs), []
    parent = by_seed(last_step_rows(curves), run_before_growth(losses, "Tokenformer"))
    first_step = curves[curves["step"] == 0]
    grown = losses[losses["run"].str.startswith(("grown-", "trained-on-"))]
    for record in grown.drop_duplicates("run").to_dict("records"):
        run, final = record["run"], by_seed(losses, record["run"])
        grew = isinstance(record["spec.growth.keys"], str)
        row = {"run": run} | (token_growth_labels(record) if grew else {"keys": f"not grown, {TRAINED_FURTHER}"})
        row |= estimate("start_minus_parent_nats", student(subtract(by_seed(first_step, run), parent)))
        row |= estimate("loss_nats", student(final)) | difference(losses, run, PUBLISHED, "loss_minus_published_nats")
        rows.append(row | {"seeds": len(final)})
    return DataFrame(rows).sort_values("loss_nats", ignore_index=True) if rows else DataFrame()


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


ARMS = {"matched": "Tokenformer", "modern": "modern Transformer", "classic": "classic Transformer"}


@table(reads="eval.csv test.csv", readers=by_regime,
       runs="modern-* classic-* matched-* *-modern-* *-classic-* *-matched-*",
       columns="source run variant regime learning_rate chosen -parameters_non_embedding tokens -flops loss_nats[] "
               "-perplexity tokenformer_minus_best_nats[] seeds -diverged")  # fmt: skip
def tokenformer_modern(results: Results, runs: list[str]) -> DataFrame:
    """A Tokenformer beside a modern and a classic Transformer of equal size. All are trained from scratch with equal
    tokens and equal parameters without embedding. Modern: RMSNorm, SwiGLU, rotary positions; classic: LayerNorm, GeLU,
    biases, and the Tokenformer's positions. The difference compares each model at its chosen learning rate, paired by
    seed. In brackets: 95 % Student t interval over seeds. Third parties report that a Tokenformer is 0.024 nats (124M
    parameters) and 0.15 bits per byte (17M, feed-forward layers only) above a modern Transformer.
    """
    losses = held_out_losses(results, STUDY, runs)
    families = families_at_best_rates(results, runs)[["run", "arm", "chosen", "tokenformer"]]
    points = means_by_run(losses, first=["regime", "spec.optimizer.lr"]).merge(families)
    points = points.sort_values(["regime", "tokens", "arm", "loss_nats"], ignore_index=True)
    pairs = zip(points["run"], points["tokenformer"].where(points["chosen"]), strict=True)
    differences = [difference(losses, tokenformer, run, "tokenformer_minus_best_nats") for run, tokenformer in pairs]
    points = points.assign(chosen=points["chosen"].map({True: "yes", False: ""}), variant=points["arm"].map(ARMS))
    points = points.join(DataFrame(differences)).assign(diverged=points["diverged"].replace(0, None))
    return points.rename(columns={"spec.optimizer.lr": "learning_rate"})


@table(reads="test.csv", needs="envelope-*", readers=_labelled,
       columns="source run variant schedule learning_rate -parent -parameters_non_embedding -tokens tokens_cumulative "
               "-flops flops_cumulative loss_nats[] -bits_per_byte flops_ratio[] envelope seeds")  # fmt: skip
def tokenformer_envelope(results: Results, runs: list[str]) -> DataFrame:
    """Cost of grown Tokenformers beside Transformers from scratch with the same loss. The method is of section 4.1 of
    Tokenformer (arXiv:2410.23168). The first row is the parent; below it are models that grew from it, and the parent
    trained further. The Transformers have three sizes and three lengths, each with its own schedule; their FLOPs at a
    loss are interpolated along the lower envelope of the finished ones, and no ratio is given beyond its ends. A ratio
    below 1 saves cost; the paper claims at most 0.5. In brackets: 95 % Student t interval over seeds. All losses are on
    the test text of the Transformers.
    """
    losses = comparable_losses(results, STUDY, runs)
    scratch, rows = losses[losses["run"].str.startswith(FROM_SCRATCH)], []
    envelope = scratch.groupby("run")[["flops_cumulative", "loss_nats"]].mean().to_numpy().T
    for row in runs_with_ancestors(losses).sort_values("flops_cumulative").to_dict("records"):
        ratios = []
        of_run = losses[losses["run"] == row["run"]]
        for seed in of_run.to_dict("records"):
            ratios.append(seed["flops_cumulative"] / flops_at_loss(seed["loss_nats"], *envelope))
        inside = not np.isnan(ratios).any()
        rows.append(row | estimate("flops_ratio", student(ratios if inside else [])))
        rows[-1]["envelope"] = None if inside else "beyond its ends"
        rows[-1]["schedule"] = of_run["regime"].iloc[0].partition(", ")[2]
        rows[-1]["learning_rate"] = of_run["spec.optimizer.lr"].iloc[0]
    return DataFrame(rows)
