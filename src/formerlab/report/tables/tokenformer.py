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
    chains,
    families_at_best_rates,
    model_shape,
    run_before_growth,
)
from formerlab.results.read import Results
from formerlab.statistics import student


def _published_main() -> DataFrame:
    rows = published(PAPER, "Tables 6-7", "Table 6", "Table 7").query("metric == 'perplexity'")
    size = rows["model"].str.extract(r"([\d.]+)(M|B)$")
    variant = rows["setting"].str.removeprefix("OpenWebText; ") + rows["note"].map(
        lambda note: f" ({note})" if note else ""
    )
    parameters = size[0].astype(float) * size[1].map({"M": 1e6, "B": 1e9})
    shown = {"run": rows["model"], "variant": variant, "parameters": parameters}
    return DataFrame(shown | {"perplexity": rows["value"].astype(float)})


@table(reads="test.csv floors.csv", published=_published_main,
       columns="source run regime variant parameters -parameters_non_embedding tokens -flops flops_cumulative "
               "loss_nats[] -bits_per_byte perplexity[] seeds -diverged")  # fmt: skip
def tokenformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Size, training cost and held-out loss of every run, after Tables 6 and 7 of Tokenformer (arXiv:2410.23168).
    Losses compare within one data set. Cumulative FLOPs include all ancestors of a grown model. Brackets: 95 %
    Student t interval over seeds. Perplexity is exp of the mean loss. A run that diverged counts as a uniform
    guess. Published is OpenWebText at 124M to 1.4B parameters: compare ratios, never levels.
    """
    rows = means_by_run(held_out_losses(results, STUDY, runs), first=["regime"])
    return pd.concat([language_baselines(results, STUDY, runs), sort_by_regime(rows, "flops_cumulative", "run")])


def _published_zeroshot() -> DataFrame:
    wide = published_rows(PAPER, "Table 1").set_index("model").filter(regex="^(?!.*perplexity)")
    wide = wide[wide.index.str.startswith(("TokenFormer", "Pythia"))] / 100
    return wide.add_suffix(" (published)").rename_axis("run").reset_index()


@table(reads="zeroshot.csv", published=_published_zeroshot)
def tokenformer_zeroshot(results: Results, runs: list[str]) -> DataFrame:
    """Zero-shot accuracy, after Table 1 of Tokenformer (arXiv:2410.23168): a column per task and metric, the row
    chance says what guessing gives. acc takes the most probable answer, acc_norm the most probable per character,
    and acc_mutual_info the one that gains most from the question; small models are at chance in the first two.
    After ±: one standard error over questions, and over seeds where there are several. The published suites and the
    embedded tasks are different questions: compare models within a block, never across.
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
       columns="source run variant layers width -attention_tokens -feedforward_tokens -parameters_attention "
               "-parameters_feedforward parameters_formula -flops_token_token_coefficient -context -flops_projections "
               "-flops_token_token flops_formula parameters_difference flops_difference parameters_printed "
               "nearer_count_minus_printed_percent")  # fmt: skip
def tokenformer_formulas(results: Results, runs: list[str]) -> DataFrame:
    """Parameters and FLOPs of every size, after Table 3 of Tokenformer (arXiv:2410.23168). Formula: parameters
    without embedding and norms, 12 L d^2 or 2 L d (n_q + n_k + n_v + n_o + n_ff), and the forward FLOPs of one
    sequence, 2 N T + 4 L d T^2 (the paper heads that column training FLOPs; version 1 had half of the first term
    for attention). Difference: what the run recorded (training FLOPs with logits are three times the formula),
    minus the formula; 0 but for the final norm's gain and bias. That the record is what modules and PyTorch's
    counter count is a test of the project. Published block: the configurations of Table 9, whose printed sizes fit
    the formula with or without the embedding of 50,304 rows, whichever is nearer; '1.4B' is 1.31B.
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
       published=lambda: published_rows(
           PAPER, "Table 4", "Table 5", by=("table_or_figure", "model"),
           names={"table_or_figure": "block", "model": "run", "top1_accuracy": "ImageNet top-1 (%)"}),
       columns="source block run loss_nats[] perplexity loss_minus_default_nats[] seeds diverged "
               "ImageNet~top-1~(%)")  # fmt: skip
def tokenformer_scores(results: Results, runs: list[str]) -> DataFrame:
    """Score functions and block norms of a Tokenformer from scratch on language, after Tables 4 and 5 of Tokenformer
    (arXiv:2410.23168), which are on ImageNet: held-out loss, and its difference to the default of each block
    (score-l2_gelu, layernorm-none), paired by seed; above zero is worse. In brackets: 95 % Student t interval over
    seeds. All arms have one learning rate, that of the study. exp_l1 is softmax times n, the row exp + L1 of the paper;
    gelu_l1 is our reading of a row that neither official code has. Published: top-1 accuracy on ImageNet.
    """
    losses = held_out_losses(results, STUDY, runs)
    rows = means_by_run(losses)
    rows = rows.assign(block=rows["run"].str.partition("-")[0], diverged=rows["diverged"].replace(0, None))
    pairs = zip(rows["run"], rows["block"].map(DEFAULTS), strict=True)
    rows = rows.join(DataFrame([difference(losses, run, default, "loss_minus_default_nats") for run, default in pairs]))
    return rows.sort_values(["block", "loss_nats"], ascending=[False, True], ignore_index=True)


PUBLISHED = "grown-random-sqrt-2"


@table(reads="eval.csv test.csv",
       runs="tokenformer-1 long-matched-chosen grown-random-*-2 grown-zero-*-2 trained-on-2 trained-on-tokens-2",
       needs="grown-random-*-2 grown-zero-*-2")  # fmt: skip
def tokenformer_ablation(results: Results, runs: list[str]) -> DataFrame:
    """Ways to grow, at the end of the first stage. All are from the same parent on the same batches (Tokenformer,
    arXiv:2410.23168, sections 3.3 and 4.1); beside them the parent trained further, for the stage's FLOPs
    (trained-on-2) and for its tokens (trained-on-tokens-2). Start minus parent: validation loss before the first
    step, minus the parent's at its end; zero where growth keeps the function. Loss minus published: held-out loss
    minus that of the published recipe (random keys, tau = sqrt(n), fresh optimizer, all tokens trained); below zero
    is better. Brackets: 95 % Student t interval over seeds, differences paired by seed.
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
       columns="source method stage run -parameters_non_embedding -tokens flops_token_token_coefficient -loss_nats[] "
               "perplexity[] seeds gain_nats[] tokenformers_lead_nats[] loss_minus_tokenformers_nats[]")  # fmt: skip
def tokenformer_methods(results: Results, runs: list[str]) -> DataFrame:
    """Growing by tokens against growing in width, after Table 8 of Tokenformer (arXiv:2410.23168). Gain: how much
    lower the held-out loss is than that of the family's own model before growth. Tokenformer's lead: its gain minus
    the method's gain at the same stage, paired by seed; above zero, growing by tokens gains more. Loss minus
    Tokenformer's is the plain difference. In brackets: 95 % Student t interval over seeds. FLOPs: 4 L d, what
    multiplies T^2. The published perplexities fit neither Table 7 nor a documented setting; read them by column.
    """
    losses = held_out_losses(results, STUDY, runs)
    points = means_by_run(losses, first=["spec.model.layers", "spec.model.width"])
    points["flops_token_token_coefficient"] = 4 * points["spec.model.layers"] * points["spec.model.width"]
    first, (_, ours), rows = run_before_growth(losses, "Tokenformer"), METHODS["Tokenformer"], []
    for method, (_, pattern) in METHODS.items():
        start = run_before_growth(losses, method)
        rows.append({"run": start, "method": "before growth", "stage": 1})
        for stage in STAGES:
            run, grown = pattern.format(size=stage), ours.format(size=stage)
            row = {"run": run, "method": method, "stage": stage} | difference(losses, start, run, "gain_nats")
            if run != grown:
                gained = (subtract(by_seed(losses, a), by_seed(losses, b)) for a, b in ((first, grown), (start, run)))
                row |= estimate("tokenformers_lead_nats", student(subtract(*gained)))
                row |= difference(losses, run, grown, "loss_minus_tokenformers_nats")
            rows.append(row)
    return DataFrame(rows).drop_duplicates("run").merge(points, on="run")


ARMS = {"matched": "Tokenformer", "modern": "modern Transformer", "classic": "classic Transformer"}


@table(reads="eval.csv test.csv", runs="modern-* classic-* matched-* *-modern-* *-classic-* *-matched-*",
       columns="source run variant regime learning_rate chosen -parameters_non_embedding tokens -flops loss_nats[] "
               "-perplexity tokenformer_minus_best_nats[] seeds -diverged")  # fmt: skip
def tokenformer_modern(results: Results, runs: list[str]) -> DataFrame:
    """A Tokenformer beside a modern and a classic Transformer. All are from scratch, with equal tokens and, but for
    the embedding, equal parameters: matched is the Tokenformer; modern has RMSNorm, SwiGLU and full rotary
    positions; classic has LayerNorm, GeLU, biases and the Tokenformer's positions. Every arm has the rate, of those
    run on the same text for as many tokens, with the lowest validation loss at its end. Tokenformer minus best:
    held-out loss of the Tokenformer minus this arm's, each at its best rate, paired by seed, with its 95 % Student t
    interval; above zero, the Tokenformer is worse. Third parties report 0.024 nats (124M) and 0.15 bits per byte (17M,
    feed-forward only) above a modern Transformer.
    """
    losses = held_out_losses(results, STUDY, runs)
    families = families_at_best_rates(results, runs)[["run", "arm", "chosen", "tokenformer"]]
    points = means_by_run(losses, first=["regime", "spec.optimizer.lr"]).merge(families)
    points = points.sort_values(["regime", "tokens", "arm", "loss_nats"], ignore_index=True)
    pairs = zip(points["run"], points["tokenformer"].where(points["chosen"]), strict=True)
    found = [difference(losses, tokenformer, run, "tokenformer_minus_best_nats") for run, tokenformer in pairs]
    points = points.assign(chosen=points["chosen"].map({True: "yes", False: ""}), variant=points["arm"].map(ARMS))
    points = points.join(DataFrame(found)).assign(diverged=points["diverged"].replace(0, None))
    return points.rename(columns={"spec.optimizer.lr": "learning_rate"})


@table(reads="test.csv", needs="envelope-*",
       columns="source run variant -parent parameters_non_embedding -tokens tokens_cumulative -flops flops_cumulative "
               "loss_nats[] -bits_per_byte flops_ratio[] envelope seeds")  # fmt: skip
def tokenformer_envelope(results: Results, runs: list[str]) -> DataFrame:
    """Cost of grown models, and of parents that were trained further, beside Transformers from scratch (Tokenformer,
    arXiv:2410.23168). FLOPs ratio: a run's cumulative FLOPs, its ancestors' included, by those at which the lower
    envelope of Transformers from scratch (those finished of three sizes and three lengths, every one with its own
    full schedule, by its mean over seeds) reaches the same held-out loss, interpolated in logarithms; 0.5 would be half
    the cost. A value per seed, in brackets the 95 % Student t interval over seeds. Beyond its ends the envelope says
    nothing. All losses are on its test text, also of runs that were tested on another too.
    """
    losses = comparable_losses(results, STUDY, runs)
    scratch, rows = losses[losses["run"].str.startswith(FROM_SCRATCH)], []
    envelope = scratch.groupby("run")[["flops_cumulative", "loss_nats"]].mean().to_numpy().T
    for row in chains(losses).sort_values("flops_cumulative").to_dict("records"):
        ratios = []
        for _, own in losses[losses["run"] == row["run"]].iterrows():
            ratios.append(own["flops_cumulative"] / flops_at_loss(own["loss_nats"], *envelope))
        known = not np.isnan(ratios).any()
        rows.append(row | estimate("flops_ratio", student(ratios if known else [])))
        rows[-1]["envelope"] = None if known else "beyond its ends"
    return DataFrame(rows)
