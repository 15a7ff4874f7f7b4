"""Tables of the Tokenformer study (arXiv:2410.23168)."""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.drawings import Table
from formerlab.report.formulas import Shape, published_shapes, shape_of
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.questions import CHANCE, accuracy_columns
from formerlab.report.runs import (
    TOKENFORMER,
    TRAINED_ON,
    TRANSFORMER,
    add_perplexity,
    by_run,
    ends_over_seeds,
    floors,
    held_out,
    held_out_losses,
    main_first,
    minus,
)
from formerlab.report.scaling import against_envelope, scaling_laws
from formerlab.report.tokenformer import METHODS, STAGES, at_step, before_growth, by_step
from formerlab.results.read import Results

STUDY = "tokenformer"


def main(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run in the order of cost."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return losses
    rows = by_run(losses).merge(losses[["run", "regime"]].drop_duplicates(), on="run")
    return pd.concat([floors(results, STUDY, runs), main_first(rows, "flops_cumulative", "run")])


def _published_main() -> DataFrame:
    rows = published(PAPER, "Tables 6-7", "Table 6", "Table 7").query("metric == 'perplexity'")
    sizes = [re.search(r"([\d.]+)(M|B)$", model) for model in rows["model"]]
    settings = rows["setting"].str.removeprefix("OpenWebText; ")
    return DataFrame(
        {
            "run": rows["model"],
            "variant": [
                f"{setting} ({note})" if note else setting for setting, note in zip(settings, rows["note"], strict=True)
            ],
            "parameters": [float(size[1]) * {"M": 1e6, "B": 1e9}[size[2]] for size in sizes if size],
            "perplexity": rows["value"].astype(float),
        }
    )


tokenformer_table = Table(
    reads=("test.csv", "floors.csv", "run.json"),
    runs=("*",),
    caption=(
        "Size, training cost and held-out loss of every run, after Tables 6 and 7 of Tokenformer (arXiv:2410.23168). "
        "Losses compare within one data set. Cumulative FLOPs include all ancestors of a grown model. Brackets: 95 % "
        "Student t interval over seeds. Perplexity is exp of the mean loss. A run that diverged counts as a uniform "
        "guess. Published is OpenWebText at 124M to 1.4B parameters: compare ratios, never levels."
    ),
    ours=main,
    published=_published_main,
    columns=(
        "source run regime variant parameters -parameters_non_embedding tokens -flops flops_cumulative loss_nats[] "
        "-bits_per_byte perplexity[] seeds -diverged"
    ),
)


def zeroshot(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, and the row of chance."""
    rows = results.rows("zeroshot.csv", STUDY, runs)
    if rows.empty:
        return rows
    records = held_out_losses(results, STUDY, runs).drop_duplicates("run").set_index("run")
    ours = accuracy_columns(rows, ["run"])
    ours.insert(1, "variant", ours["run"].map(records["variant"]).fillna(CHANCE))
    return ours


def _published_zeroshot() -> DataFrame:
    rows = published(PAPER, "Table 1")
    rows = rows[(rows["unit"] == "%") & rows["model"].str.startswith(("TokenFormer", "Pythia"))]
    order = rows["metric"].drop_duplicates()
    wide = rows.assign(value=rows["value"].astype(float) / 100).pivot(index="model", columns="metric", values="value")
    wide = wide.loc[rows["model"].drop_duplicates(), order]
    wide.columns = [f"{name} (published)" for name in order]
    return DataFrame(wide.reset_index().rename(columns={"model": "run"}))


tokenformer_zeroshot = Table(
    reads=("zeroshot.csv", "test.csv", "run.json"),
    runs=("*",),
    caption=(
        "Zero-shot accuracy, after Table 1 of Tokenformer (arXiv:2410.23168): a column per task and metric, the row "
        "chance says what guessing gives. acc takes the most probable answer, acc_norm the most probable per "
        "character, and acc_mutual_info the one that gains most from the question; small models are at chance in the "
        "first two. After ±: one standard error over questions, and over seeds where there are several. The published "
        "suites and the embedded tasks are different questions: compare models within a block, never across."
    ),
    ours=zeroshot,
    published=_published_zeroshot,
)


VOCABULARY = 50304


def formulas(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per size."""
    records = results.runs(STUDY, runs).drop_duplicates("run").to_dict("records")
    return DataFrame([_row(record) for record in records])


def _row(record: Mapping[Hashable, Any]) -> dict[str, Any]:
    shape = shape_of(record)
    time, batch, steps = (int(record[f"spec.{key}"]) for key in ("task.context", "task.batch", "steps"))
    return {
        "run": record["run"],
        "variant": TOKENFORMER if shape.attention_tokens else TRANSFORMER,
        **_columns(shape, time),
        "parameters_difference": record["parameters_non_embedding"] - shape.parameters(),
        "flops_difference": record["flops"] - 3 * steps * batch * shape.flops(time, head=True),
    }


def _columns(shape: Shape, time: int | None) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "layers": shape.layers,
        "width": shape.width,
        "attention_tokens": shape.attention_tokens or None,
        "feedforward_tokens": shape.feedforward_tokens or None,
        "parameters_attention": shape.attention(),
        "parameters_feedforward": shape.feedforward(),
        "parameters_formula": shape.parameters(),
        "flops_token_token_coefficient": 4 * shape.layers * shape.width,
    }
    if time is None:
        return columns
    flops = {"flops_projections": shape.projection_flops(time), "flops_token_token": shape.token_token_flops(time)}
    return columns | {"context": time} | flops | {"flops_formula": shape.flops(time)}


def _published_formulas() -> DataFrame:
    rows = []
    for row in published_shapes().to_dict("records"):
        sizes = (int(row[key]) for key in ("attention_tokens_per_projection", "ffn_tokens"))
        shape = Shape(int(row["layers"]), int(row["hidden_size"]), VOCABULARY, *sizes)
        printed, formula = row["parameters"] * 1e6, shape.parameters()
        nearest = min((formula, formula + VOCABULARY * shape.width), key=lambda count: abs(count / printed - 1))
        share = {"parameters_printed": printed, "nearer_count_minus_printed_percent": 100 * (nearest / printed - 1)}
        rows.append({"run": row["model"], "variant": TOKENFORMER} | _columns(shape, None) | share)
    return DataFrame(rows)


tokenformer_formulas = Table(
    reads=("run.json",),
    runs=("transformer-[1-4]", "tokenformer-1", "grown-random-sqrt-[2-4]"),
    caption=(
        "Parameters and FLOPs of every size, after Table 3 of Tokenformer (arXiv:2410.23168). Formula: parameters "
        "without embedding and norms, 12 L d^2 or 2 L d (n_q + n_k + n_v + n_o + n_ff), and the forward FLOPs of one "
        "sequence, 2 N T + 4 L d T^2 (the paper heads that column training FLOPs; version 1 had half of the first "
        "term for attention). Difference: what the run recorded (training FLOPs with logits are three times the "
        "formula), minus the formula; 0 but for the final norm's gain and bias. That the record is what modules and "
        "PyTorch's counter count is a test of the project. Published block: the configurations of Table 9, whose "
        "printed sizes fit the formula with or without the embedding of 50,304 rows, whichever is nearer; '1.4B' is "
        "1.31B."
    ),
    ours=formulas,
    published=_published_formulas,
    columns=(
        "source run variant layers width -attention_tokens -feedforward_tokens -parameters_attention "
        "-parameters_feedforward parameters_formula -flops_token_token_coefficient -context -flops_projections "
        "-flops_token_token flops_formula parameters_difference flops_difference parameters_printed "
        "nearer_count_minus_printed_percent"
    ),
)


DEFAULTS = {"score": "score-l2_gelu", "layernorm": "layernorm-none"}


def scores(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per arm, by block and loss."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return losses
    rows = []
    for row in by_run(losses).to_dict("records"):
        block = str(row["run"]).partition("-")[0]
        default = DEFAULTS[block]
        difference = minus(held_out(losses, str(row["run"])), held_out(losses, default))
        shared = {"block": block, "run": row["run"]}
        numbers = {key: row[key] for key in ("loss_nats", "loss_nats_low", "loss_nats_high", "perplexity")}
        numbers |= ends_over_seeds("loss_minus_default_nats", difference) if row["run"] != default else {}
        rows.append(shared | numbers | {"seeds": row["seeds"], "diverged": row["diverged"] or None})
    return DataFrame(rows).sort_values(["block", "loss_nats"], ascending=[False, True], ignore_index=True)


def _published_scores() -> DataFrame:
    rows = published(PAPER, "Table 4", "Table 5")
    return DataFrame(
        {
            "block": rows["table_or_figure"],
            "run": rows["model"],
            "ImageNet top-1 (%)": rows["value"].astype(float),
        }
    )


tokenformer_scores = Table(
    reads=("test.csv", "run.json"),
    runs=("score-*", "layernorm-*"),
    caption=(
        "Score functions and block norms of a Tokenformer from scratch on language, after Tables 4 and 5 of "
        "Tokenformer (arXiv:2410.23168), which are on ImageNet: held-out loss, and its difference to the default of "
        "each block (score-l2_gelu, layernorm-none), paired by seed; above zero is worse. In brackets: 95 % Student t "
        "interval over seeds. All arms have one learning rate, that of the study. exp_l1 is softmax times n, the row "
        "exp + L1 of the paper; gelu_l1 is our reading of a row that neither official code has. Published: top-1 "
        "accuracy on ImageNet."
    ),
    ours=scores,
    published=_published_scores,
)


PUBLISHED = "grown-random-sqrt-2"


def ablation(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per way of growing, in the order of the held-out loss."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return DataFrame()
    start = before_growth(losses, "Tokenformer")
    grown = losses[losses["run"].str.startswith(("grown-", "trained-on-"))]
    curves = by_step(results, runs)
    parent, published = at_step(curves, start, None), held_out(losses, PUBLISHED)
    rows = []
    for record in grown.drop_duplicates("run").to_dict("records"):
        run = record["run"]
        final = held_out(losses, run)
        rows.append(
            _choices(record)
            | ends_over_seeds("start_minus_parent_nats", minus(at_step(curves, run, 0), parent))
            | ends_over_seeds("loss_nats", final)
            | (ends_over_seeds("loss_minus_published_nats", minus(final, published)) if run != PUBLISHED else {})
            | {"seeds": len(final)}
        )
    return DataFrame(rows).sort_values("loss_nats", ignore_index=True) if rows else DataFrame()


def _choices(record: dict[Any, Any]) -> dict[str, Any]:
    if not isinstance(record["spec.growth.keys"], str):
        return {"run": record["run"], "keys": f"not grown, {TRAINED_ON}"}
    old = record.get("spec.growth.old_tokens")
    slower = isinstance(old, float) and old == old  # NaN where no run of the table says anything
    return {
        "run": record["run"],
        "keys": record["spec.growth.keys"],
        "tau": {"sqrt": "sqrt(n)", "keep": "kept"}[record["spec.growth.tau"]],
        "optimizer": {"fresh": "fresh", "carry": "carried"}[record["spec.growth.optimizer"]],
        "old_tokens": f"at {old} of the learning rate" if slower else "frozen" if old == "freeze" else "trained",
    }


tokenformer_ablation = Table(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=(
        "tokenformer-1",
        "long-matched-chosen",
        "grown-random-*-2",
        "grown-zero-*-2",
        "trained-on-2",
        "trained-on-tokens-2",
    ),
    needs=("grown-random-*-2", "grown-zero-*-2"),
    caption=(
        "Ways to grow, at the end of the first stage. All are from the same parent on the same batches (Tokenformer, "
        "arXiv:2410.23168, sections 3.3 and 4.1); beside them the parent itself trained on, for the stage's FLOPs "
        "(trained-on-2) and for its tokens (trained-on-tokens-2). Start minus parent: validation loss before the first "
        "step, minus the parent's at its end; zero where growth keeps the function. Loss minus published: held-out "
        "loss minus that of the published recipe (random keys, tau = sqrt(n), fresh optimizer, all tokens trained); "
        "below zero is better. Brackets: 95 % Student t interval over seeds, differences paired by seed."
    ),
    ours=ablation,
)


def methods(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per method and stage, stage 1 being the model before growth."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return losses
    rows: list[dict[str, Any]] = []
    for method, (_, pattern, _) in METHODS.items():
        start = before_growth(losses, method)
        before = held_out(losses, start)
        for stage in (1, *STAGES):
            run = start if stage == 1 else pattern.format(size=stage)
            after = held_out(losses, run)
            if not after or run in [row["run"] for row in rows]:
                continue
            record = losses[losses["run"] == run].iloc[0].to_dict()
            shape = shape_of(record)
            row = {"method": "before growth" if stage == 1 else method, "stage": stage, "run": run}
            row |= {"parameters_non_embedding": record["parameters_non_embedding"], "tokens": record["tokens"]}
            row |= {"flops_token_token_coefficient": 4 * shape.layers * shape.width}
            row |= add_perplexity(ends_over_seeds("loss_nats", after))
            if stage > 1:
                row |= ends_over_seeds("gain_nats", minus(before, after)) | _against_tokenformer(
                    losses, method, stage, before, after
                )
            rows.append(row | {"seeds": len(after)})
    return DataFrame(rows)


def _against_tokenformer(
    losses: DataFrame, method: str, stage: int, before: dict[int, float], after: dict[int, float]
) -> dict[str, float]:
    _, pattern, _ = METHODS["Tokenformer"]
    ours = held_out(losses, pattern.format(size=stage))
    if method == "Tokenformer":
        return {}
    lead = minus(minus(held_out(losses, before_growth(losses, "Tokenformer")), ours), minus(before, after))
    return ends_over_seeds("tokenformers_lead_nats", lead) | ends_over_seeds(
        "loss_minus_tokenformers_nats", minus(after, ours)
    )


def _published_methods() -> DataFrame:
    table = published(PAPER, "Table 8").assign(value=lambda rows: rows["value"].astype(float))
    wide = table.pivot(index="model", columns="metric", values="value").loc[table["model"].unique()]
    names = [model.rsplit(" ", 1) for model in wide.index]
    return DataFrame(
        {
            "method": [name for name, _ in names],
            "run": [size for _, size in names],
            "flops_token_token_coefficient": wide["token_token_flops_coefficient"].to_numpy() * 1e4,
            "perplexity": wide["perplexity"].to_numpy(),
        }
    )


tokenformer_methods = Table(
    reads=("test.csv", "run.json"),
    runs=("tokenformer-1", "transformer-1", "long-*-chosen", "grown-random-sqrt-[23]", "net2net-*", "hypercloning-*"),
    needs=("grown-random-sqrt-2", "net2net-*", "hypercloning-*"),
    caption=(
        "Growing by tokens against growing in width, after Table 8 of Tokenformer (arXiv:2410.23168). Gain: how much "
        "lower the held-out loss is than that of the family's own model before growth. Tokenformer's lead: its gain "
        "minus the method's gain at the same stage, paired by seed; above zero, growing by tokens gains more. Loss "
        "minus Tokenformer's is the plain difference. In brackets: 95 % Student t interval over seeds. FLOPs: 4 L d, "
        "what multiplies T^2. The published perplexities fit neither Table 7 nor a documented setting; read them by "
        "column."
    ),
    ours=methods,
    published=_published_methods,
    columns=(
        "source method stage run -parameters_non_embedding -tokens flops_token_token_coefficient -loss_nats[] "
        "perplexity[] seeds gain_nats[] tokenformers_lead_nats[] loss_minus_tokenformers_nats[]"
    ),
)


def modern(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per arm and learning rate, the best rate of each arm marked."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return DataFrame()
    rates = losses.drop_duplicates("run").set_index("run")["spec.optimizer.lr"]
    points = by_run(losses).merge(losses[["run", "regime"]].drop_duplicates(), on="run")
    points["arm"] = points["run"].str.rpartition("-")[0]  # long-matched, where the budget is a longer one
    curves = by_step(results, runs)
    points["validation"] = [np.mean(list(at_step(curves, run, None).values())) for run in points["run"]]
    best = points.loc[points.groupby("arm")["validation"].idxmin()].set_index("arm")["run"].to_dict()
    rows = []
    for row in points.sort_values(["arm", "loss_nats"]).to_dict("records"):
        run, arm = str(row["run"]), str(row["arm"])
        ours = re.sub("modern|classic", "matched", arm)
        keys = (
            "regime",
            "parameters_non_embedding",
            "tokens",
            "flops",
            "loss_nats",
            "loss_nats_low",
            "loss_nats_high",
            "perplexity",
        )
        line = {"run": run, "learning_rate": rates[run], "best": "best" if best[arm] == run else ""}
        line |= {key: row[key] for key in keys}
        if best[arm] == run and arm != ours and ours in best:
            line |= ends_over_seeds(
                "tokenformer_minus_best_nats", minus(held_out(losses, best[ours]), held_out(losses, run))
            )
        rows.append(line | {"seeds": row["seeds"], "diverged": row["diverged"] or None})
    return DataFrame(rows)


tokenformer_modern = Table(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("modern-*", "classic-*", "matched-*", "*-modern-*", "*-classic-*", "*-matched-*"),
    caption=(
        "A Tokenformer beside a modern and a classic Transformer. All are from scratch, with equal tokens and, but for "
        "the embedding, equal parameters: matched is the Tokenformer; modern has RMSNorm, SwiGLU and full rotary "
        "positions; classic has LayerNorm, GeLU, biases and the Tokenformer's positions. Runs named long have seen "
        "more tokens. Every arm has the rate, of a grid of three or four, with the lowest validation loss at its end. "
        "Tokenformer minus best: held-out loss of the Tokenformer minus this arm's, each at its best rate, paired by "
        "seed, with its 95 % Student t interval; above zero, the Tokenformer is worse. Third parties report 0.024 nats "
        "(124M) and 0.15 bits per byte (17M, feed-forward only) above a modern Transformer."
    ),
    ours=modern,
    columns=(
        "source run regime learning_rate best -parameters_non_embedding tokens -flops loss_nats[] -perplexity "
        "tokenformer_minus_best_nats[] seeds -diverged"
    ),
)


tokenformer_envelope = Table(
    reads=("test.csv", "run.json"),
    runs=("*",),
    needs=("envelope-*",),
    caption=(
        "What grown models, and parents that were trained on, cost beside Transformers from scratch (Tokenformer, "
        "arXiv:2410.23168). FLOPs ratio: a run's cumulative FLOPs, its ancestors' included, by those at which the "
        "lower envelope of Transformers from scratch (those finished of three sizes and three lengths, every one with "
        "its own full schedule) reaches the same held-out loss, interpolated in logarithms; 0.5 would be half the "
        "cost. A value per seed, in brackets the 95 % Student t interval over seeds. Beyond its ends the envelope "
        "says nothing."
    ),
    ours=against_envelope,
    columns=(
        "source run -variant parent parameters_non_embedding -tokens tokens_cumulative -flops flops_cumulative "
        "loss_nats[] -bits_per_byte flops_ratio[] envelope seeds"
    ),
)


tokenformer_laws = Table(
    reads=("test.csv", "run.json"),
    runs=("envelope-*", "modern-chosen", "long-modern-chosen"),
    caption=(
        "Power laws of the held-out loss of Transformers from scratch: loss = constant times FLOPs to the exponent, "
        "on the runs of the lower envelope; and loss = constant times parameters and tokens, each to its exponent, on "
        "all runs. In brackets: 95 % Student t interval of least squares on logarithms, over the points and not over "
        "seeds: it says how well the law fits. Deviation: of the loss from the law, standard deviation. Best offset: "
        "the irreducible loss with which the points would fit best; its p is that of the F test against none, so the "
        "plain law is kept unless p is small. Larger models over wider ranges have exponents of -0.050, -0.076 and "
        "-0.095 (Kaplan et al., arXiv:2001.08361)."
    ),
    ours=scaling_laws,
)
