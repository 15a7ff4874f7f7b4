"""Tables of the Tokenformer study (arXiv:2410.23168)."""

from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.envelope import flops_at_loss
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows, pooled_differences
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
from formerlab.report.tables.blocks import by_regime, claim_runs, pooled_ends, with_pooled
from formerlab.results.read import Results
from formerlab.statistics import student

_PRINTED = (
    "grown,~15B grown,~30B grown,~60B Transformer,~30B Transformer,~300B grown,~30B~(TPU~hours) "
    "Transformer,~300B~(TPU~hours)"
)
"""Columns of perplexities by tokens of a stage or of the training, and of the hours of two of them."""


def _published_main() -> DataFrame:
    """Return the perplexities of Tables 6 and 7, a row per size, with the TPU hours of Fig 3."""
    rows = published(PAPER, "Tables 6-7", "Table 6", "Table 7").query("metric == 'perplexity'")
    rows = rows[~rows["model"].str.endswith(" 124M")]
    kind = rows["setting"].str.contains("grown").map({True: "grown, ", False: "Transformer, "})
    training = kind + rows["setting"].str.extract(r"(\d+B) tokens")[0]
    cells = rows.assign(training=training, size=rows["model"].str.split().str[1])
    texts = cells.groupby(["size", "training"], sort=False)["value"].agg(lambda values: " or ".join(map(str, values)))
    table = DataFrame(texts.unstack("training"))
    table = table.loc[["354M", "757M", "1.4B"]]
    hours = published(PAPER, "Fig 3").query("metric == 'training_cost'")
    for family, tokens in (("TokenFormer", "30B"), ("Transformer", "300B")):
        of_family = hours[hours["model"].str.startswith(family) & hours["setting"].str.startswith(f"{tokens} ")]
        name = f"{family.replace('TokenFormer', 'grown')}, {tokens} (TPU hours)"
        table[name] = of_family.set_index(of_family["model"].str.split().str[1])["value"].reindex(table.index)
    return table.reset_index()


_LABELS = {
    "grown: random keys, tau sqrt(n)": "grown as published",
    "grown: zero keys, tau kept": "grown with zero keys",
    f"{TOKENFORMER}, {TRAINED_FURTHER}": "parent trained further",
}
"""Variants that readers know by a name of the study page."""
_STAGE, _SCRATCH, _SECOND = "stage", "from scratch", "second text"
_GROWTH_CLAIMS = (
    "tokenformer-growth-beats-continuing",
    "tokenformer-growth-equal-total-flops",
    "tokenformer-growth-gap-shrinks-with-stage",
    "tokenformer-continued-training-lower",
)


def _comparisons(losses: DataFrame, results: Results) -> DataFrame:
    """Return the pairs of runs that the table compares: `run` minus `compared_with`, and the `question`."""
    stages = stage_pairs(with_registered_controls(losses, results.scale),
                         results.runs(STUDY).drop_duplicates("run").set_index("run"))  # fmt: skip
    runs = losses.drop_duplicates("run").assign(start=lambda rows: rows["init.id"].notna())
    pairs = [(row.run, row.rival, _STAGE, row.tokens_per_new_parameter) for row in stages.itertuples()]
    for scratch in runs[runs["variant"].eq(TOKENFORMER) & ~runs["start"]].to_dict("records"):
        equal = (runs["flops_cumulative"] / scratch["flops_cumulative"]).between(0.95, 1.05)
        same = equal & (runs["parameters"] == scratch["parameters"]) & (runs["regime"] == scratch["regime"])
        grown = runs[same & runs["variant"].eq(next(iter(_LABELS)))]
        pairs += [(run, scratch["run"], _SCRATCH, np.nan) for run in grown["run"]]
    second = runs[runs["run"].str.startswith("continued-")]
    for run, projection in second[["run", "spec.model.projection.kind"]].to_numpy():
        family = "tokenformer" if projection == "pattention" else "transformer"
        pairs += [(run, f"continued-{family}-ungrown", _SECOND, np.nan)]
    return DataFrame(pairs, columns=["run", "compared_with", "question", "tokens_per_new_parameter"])


def _by_question(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return a block per question and test text; without comparisons, all models by data set."""
    if rows["source"].eq("published").any():
        return rows.dropna(axis=1, how="all")
    rows = rows.assign(variant=rows["variant"].replace(_LABELS))
    if rows["question"].isna().all():
        return by_regime(rows.drop(columns="question"))
    blocks, levels = {}, rows.drop_duplicates("run").set_index("run")
    for (question, regime), pairs in rows.dropna(subset="question").groupby(["question", "regime"], sort=False):
        controls = levels.loc[pairs["compared_with"].unique()].reset_index()
        controls = controls.drop(columns=[name for name in controls if str(name).startswith("difference")])
        shown = pd.concat([controls, pairs[pairs["run"] != pairs["compared_with"]]], ignore_index=True)
        if question == _SECOND:
            shown["variant"] = shown["family"] + ", " + shown["variant"].str.removeprefix("grown: ")
            shown["variant"] = shown["variant"].mask(
                shown["run"].str.endswith("-ungrown"), shown["family"] + ", not grown"
            )
        else:
            shown["variant"] = shown["variant"].replace(TOKENFORMER, "the same model from scratch")
        order = ["flops_cumulative"] if question != _SECOND else ["family", "perplexity"]
        text = str(regime).partition(", ")[0]
        columns = ["variant", "tokens", "tokens_per_new_parameter", "flops_cumulative", "perplexity"]
        columns += [*expand_columns("difference_nats[]+"), "seeds", "bold"]
        if question != _STAGE:
            columns.remove("tokens_per_new_parameter")
        blocks[f"{_HEADINGS[str(question)]}, {text}"] = shown.sort_values(order, kind="stable")[columns]
    return blocks


_HEADINGS = {
    _STAGE: "loss minus the parent trained further for equal FLOPs",
    _SCRATCH: "loss minus the same model from scratch for equal FLOPs",
    _SECOND: "continued training, loss minus the same family not grown",
}


@table(reads="test.csv floors.csv", published=_published_main, readers=_by_question,
       columns="source run regime question variant family parameters_non_embedding learning_rate tokens -flops "
               "tokens_per_new_parameter flops_cumulative loss_nats[] -bits_per_byte perplexity[] compared_with "
               "difference_nats[]+ seeds diverged bold size " + _PRINTED)  # fmt: skip
def tokenformer_table(results: Results, runs: list[str]) -> DataFrame:
    """Held-out perplexity of Tokenformers that grow, after Tables 6 and 7 of Tokenformer (arXiv:2410.23168). A parent
    grows by new parameter tokens, as published (random keys, tau = sqrt(n)) or with zero keys, and is trained for a
    stage on new text. Differences of the loss are paired by seed; below zero, the model is better than the one it is
    compared with, which is the row without a difference. In brackets: 95 % Student t interval over seeds. Cumulative
    FLOPs include the parent. Bold: rows on which a verdict rests; it compares their two differences, on validation
    text. Published: perplexities on OpenWebText, by the tokens of each stage or of the training, one model per cell;
    TPU hours are read from a figure (± 30). The CSV has all runs.
    """
    losses = held_out_losses(results, STUDY, runs)
    rows = means_by_run(losses, first=["regime", "spec.optimizer.lr", "spec.model.projection.kind"])
    pairs = _comparisons(losses, results) if "init.id" in losses and "spec.growth.keys" in losses else DataFrame()
    if len(pairs):
        differing = differences(losses, pairs[pairs["run"] != pairs["compared_with"]], "run", "compared_with")
        if len(differing):
            differing = pooled_differences(differing, results, STUDY, "run", "compared_with", "difference_nats")
            differing = differing[differing["part"] == "mean"].drop(columns=["source", "part", "seed", "seeds"])
            rows = rows.merge(differing, on="run", how="left")
    bold = claim_runs(results, STUDY, *_GROWTH_CLAIMS)
    rows = rows.assign(bold=rows["run"].isin(bold) & rows.get("compared_with", rows["run"]).isin(bold))
    families = {"pattention": TOKENFORMER, "linear": TRANSFORMER}
    rows = rows.assign(family=rows["spec.model.projection.kind"].map(families))
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


@table(runs="transformer-[1-4] tokenformer-1 grown-random-sqrt-[2-4] classic-chosen",
       published=_published_formulas,
       readers=lambda rows: rows.rename(columns={"run": "published model"} if rows["source"].iloc[0] != "ours" else {})
       .replace({"^LM-": "language model ", "^Scale-": "grown, "}, regex=True),
       columns="source run variant layers width -attention_tokens -feedforward_tokens -parameters_attention "
               "-parameters_feedforward parameters_formula parameters_with_embedding -flops_token_token_coefficient "
               "-context -flops_projections -flops_token_token flops_formula parameters_difference flops_difference "
               "parameters_printed nearer_count_minus_printed_percent")  # fmt: skip
def tokenformer_formulas(results: Results, runs: list[str]) -> DataFrame:
    """Counted parameters and FLOPs beside the formulas, after Table 3 of Tokenformer (arXiv:2410.23168). Parameters
    without embedding and norms are N = 12 L d^2 or 2 L d (n_q + n_k + n_v + n_o + n_ff), for L blocks of width d with n
    parameter tokens in each projection. A forward pass over T tokens has 2 N T + 4 L d T^2 FLOPs, a training step three
    times as many. Expected are 0 more FLOPs than by the formula, and as many more parameters as norms and biases have.
    Published: the configurations of Table 9. A printed size should equal the formula without or with an embedding of
    50,304 rows; the last column has the nearer one. "1.4B" fits neither: it is 1.27B or 1.31B.
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


@table(reads="eval.csv test.csv", published=_published_gap,
       readers=lambda rows: by_regime(rows.rename(columns={"perplexity": "Transformer ↓"})),
       runs="modern-* classic-* matched-* *-modern-* *-classic-* *-matched-*",
       columns="source run regime tokens arm -learning_rate -parameters_non_embedding -tokenformer "
               "perplexity_tokenformer perplexity -loss_nats[] difference_nats[]+ seeds -diverged bold")  # fmt: skip
def tokenformer_modern(results: Results, runs: list[str]) -> DataFrame:
    """Perplexity of a Tokenformer and of Transformers of equal size, from scratch. They have equal width, training
    tokens and parameters without embedding (about 0.2 M). Modern: RMSNorm, SwiGLU, rotary positions; classic:
    LayerNorm, GeLU, biases, as GPT-2. Each model has the learning rate of a common grid with the lowest validation
    loss. The difference is the loss of the Tokenformer (arXiv:2410.23168) minus that of the Transformer, paired by
    seed; above zero, the Tokenformer is worse. In brackets: 95 % Student t interval over seeds. Bold: rows on which a
    verdict rests. The last row of a text is the longest training minus the shortest, over the seeds that both have.
    Published: a third party, one model of each.
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
    worse, shrinks = (claim_runs(results, STUDY, claim) for claim in _GAP_CLAIMS)
    rivals["bold"] = rivals["run"].isin(worse) & rivals["arm"].eq("modern")
    changes = []
    for (regime, arm), group in rivals.groupby(["regime", "arm"], sort=False):
        if len(group) > 1:
            names = group[["tokenformer", "run"]].iloc[[-1, 0]].to_numpy().ravel()
            signs = dict(zip(names, (1.0, -1.0, -1.0, 1.0), strict=True))
            values = [sign * by_seed(losses, run) for run, sign in signs.items()]
            shared = pd.concat(values, axis=1, join="inner").sum(axis=1)
            change = {"regime": regime, "arm": f"{arm}, longest minus shortest", "seeds": len(shared)}
            change |= estimate("difference_nats", student(shared)) | pooled_ends(reader, "difference_nats", signs)
            changes.append(change | {"bold": {*names} <= shrinks})
    rows = pd.concat([rivals, DataFrame(changes)], ignore_index=True).sort_values("regime", kind="stable")
    return rows.rename(columns={"spec.optimizer.lr": "learning_rate"})


def _stages_apart(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the models grown as published with their parent, and the others, in blocks of their own."""
    if rows["source"].eq("published").any():
        return rows.rename(columns={"run": "model", "flops_ratio": "hours_ratio"}).replace(
            "TokenFormer", "Tokenformer", regex=True
        )
    rows = rows.assign(variant=rows["variant"].replace({TOKENFORMER: "parent"} | _LABELS)).drop(columns="schedule")
    main = rows["variant"].isin(("parent", "grown as published"))
    blocks = {"parent, and grown as published": rows[main], "other ways to train the parent further": rows[~main]}
    return {heading: block for heading, block in blocks.items() if len(block)}


@table(reads="test.csv", needs="envelope-*", readers=_stages_apart, published=published_ratio,
       columns="source run variant schedule -learning_rate -parent -parameters_non_embedding tokens "
               "-tokens_cumulative -flops flops_cumulative -loss_nats[] perplexity -bits_per_byte flops_of_transformer "
               "flops_ratio[]+ envelope seeds bold")  # fmt: skip
def tokenformer_envelope(results: Results, runs: list[str]) -> DataFrame:
    """FLOPs of grown Tokenformers relative to a Transformer from scratch with the same loss, after section 4.1 of
    arXiv:2410.23168. Cumulative FLOPs include all ancestors. The Transformers have three sizes and three lengths, each
    with its own schedule; their FLOPs at a loss are interpolated along their lower envelope, and there is no ratio
    beyond its ends. A ratio below 1 saves cost; the paper claims at most 0.5. In brackets: 95 % Student t interval over
    the seeds of the model alone. The interval in a column of its own has the spread of the Transformers too; the
    verdict rests on it, in the bold row. All losses are on the test text of the Transformers. Published: TPU hours,
    0.40 with the perplexity of the 757M Transformer in Table 6 and 0.42 with that in Table 7 (11.99 and 11.93),
    interpolated between points whose hours are read from a figure (± 30).
    """
    losses = fully_annealed_losses(results, runs)
    if runs_with_ancestors(losses).empty:
        losses = comparable_losses(results, STUDY, runs)
    scratch, rows = losses[losses["run"].str.startswith(FROM_SCRATCH)], []
    envelope = scratch.groupby("run")[["flops_cumulative", "loss_nats"]].mean().to_numpy().T
    reader, claimed = (
        ClaimRows(results, STUDY, ClaimArms()),
        claim_runs(results, STUDY, "tokenformer-growth-saves-cost"),
    )
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
        row |= {"schedule": of_run["regime"].iloc[0].partition(", ")[2], "bold": row["run"] in claimed}
        rows.append(row | {"learning_rate": of_run["spec.optimizer.lr"].iloc[0]})
    return DataFrame(rows) if rows else DataFrame(columns=expand_columns("run flops_ratio[]"))
