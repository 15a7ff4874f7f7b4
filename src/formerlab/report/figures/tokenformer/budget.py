"""FLOPs by length of the text, and the gap to Transformers by budget (Tokenformer, arXiv:2410.23168, Fig 5)."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.figures.denseformer.gain import forest_of_differences
from formerlab.report.formulas import Shape, shape_of
from formerlab.report.panel import Panel, Style, sheet
from formerlab.report.published import published
from formerlab.report.rates import last_losses
from formerlab.report.runs import held_out, held_out_losses, short
from formerlab.report.style import BLACK, VERMILION
from formerlab.report.summary import differences, published_difference
from formerlab.results.read import Results

STUDY = "tokenformer"
LENGTHS = tuple(2**power for power in range(7, 18))
_WIDTHS = (("124M", 768, 576), ("354M", 1416, 2140), ("757M", 2104, 4850))
"""Size, width of the Transformer, tokens of the Tokenformer of width 768 (Tables 8 and 9 of the paper)."""
_VOCABULARY = 50304


def length_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per model and length."""
    found = []
    for record in results.runs(STUDY, runs).drop_duplicates("run").to_dict("records"):
        family = "Tokenformer" if record["spec.model.projection.kind"] == "pattention" else "Transformer"
        found.append(("ours", family, short(record["parameters_non_embedding"]), record["run"], shape_of(record)))
    for name, width, tokens in _WIDTHS:
        wide, grown = Shape(12, width, _VOCABULARY, hidden=4 * width), Shape(12, 768, _VOCABULARY, tokens, 4 * tokens)
        found.append(("published", "Transformer", name, f"Transformer {name}, d = {width}", wide))
        found.append(("published", "Tokenformer", name, f"TokenFormer {name}, d = 768", grown))
    return DataFrame(
        {"source": source, "family": family, "size": size, "run": run, "width": shape.width, "length": length}
        | {"flops": shape.flops(length), "token_token_flops": shape.token_token_flops(length)}
        for source, family, size, run, shape in found
        for length in LENGTHS
    )


def _of_family(name: str, rows: DataFrame) -> Style:
    wide = rows["family"].eq("Transformer").all()
    return {"color": BLACK if wide else VERMILION, "linestyle": "--" if wide else "-", "marker": ""}


def draw_length(data: DataFrame) -> Figure:
    """Draw our sizes left and the paper's right."""
    names = data["family"] + " " + data["size"] + ", d " + data["width"].astype(str)
    rows = data.assign(series=names, per_token=data["flops"] / data["length"])
    shared = partial(
        Panel, "length", "per_token", by="series", log="xy", xlabel="length of the text (tokens)", style=_of_family,
        ticks=lambda value: f"{value / 1024:g}k" if value >= 1024 else f"{value:g}",
    )  # fmt: skip
    return sheet(
        shared(where={"source": "ours"}, title="Formula: {setting}", ylabel="forward FLOPs per token"),
        shared(where={"source": "published"}, title="formula, sizes of Table 8"),
        notes=["Without the logits; rows are of whole texts. Attention counts the whole square, half of it masked."],
        wanted=("Tokenformer", "Transformer"),
    )(rows)


tokenformer_length = Plot(
    reads=("run.json",),
    runs=("transformer-[1-4]", "classic-chosen", "tokenformer-1", "long-matched-chosen", "grown-random-sqrt-[2-4]"),
    caption=(
        "FLOPs of a forward pass against the length of the text, 2 N T + 4 L d T^2, after Fig. 5 of Tokenformer "
        "(arXiv:2410.23168), drawn per token so that the lines part: computed, not measured. To see: at equal "
        "parameters a Transformer that grows in width pays for its width in the token-token term, which a Tokenformer "
        "of fixed width does not; the two part where that term takes over. A Transformer that grew its feed-forward "
        "layer alone would keep the term too. Right: the same for the sizes of Table 8, of 12 layers, whose widths "
        "follow from its printed FLOPs."
    ),
    data=length_data,
    draw=draw_length,
)


OURS, RIVALS = "matched", ("modern", "classic")


def gap_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return rows of Tokenformer minus each rival, by budget, both at their best rate by the validation loss."""
    losses = held_out_losses(results, STUDY, runs)
    best, rows = _best(losses, last_losses(results, STUDY, runs)), []
    for (arm, tokens), run in best.items():
        if arm in RIVALS and (OURS, tokens) in best:
            ours = best[OURS, tokens]
            shared = {"series": f"minus {arm} Transformer", "tokens": tokens, "run": ours, "rival": run}
            rows += differences(held_out(losses, ours), held_out(losses, run), **shared)
    theirs = published("zzox531/nlp_tokenformer").query("metric == 'perplexity'").set_index("model")["value"]
    gap = float(np.log(float(theirs["TokenFormer"]) / float(theirs["Transformer"])))
    rows += [published_difference(gap, "third party, 124M parameters")] * bool(rows)
    return DataFrame(rows)


def _best(losses: DataFrame, validation: dict[str, float]) -> dict[tuple[str, float], str]:
    """Return, by arm and tokens, the run with the lowest validation loss at its end, the mean over seeds."""
    found: dict[tuple[str, float], dict[str, float]] = {}
    for run, group in losses.groupby("run"):
        for arm in (OURS, *RIVALS):
            if any(fnmatchcase(str(run), pattern) for pattern in (f"{arm}-*", f"long-{arm}-*")):
                mean = float(np.mean([validation[name] for name in group["id"]]))
                if not np.isnan(mean):
                    found.setdefault((arm, float(group["tokens"].iloc[0])), {})[str(run)] = mean
    return {key: min(runs, key=lambda run: runs[run]) for key, runs in sorted(found.items())}


tokenformer_gap = Plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("matched-*", "modern-*", "classic-*", "long-matched-*", "long-modern-*", "long-classic-*"),
    needs=("long-matched-*",),
    caption=(
        "Held-out loss of a Tokenformer minus that of Transformers of equal width and parameters, for each number of "
        "tokens seen, every run with its own full schedule; a modern Transformer (RMSNorm, SwiGLU) and a classic "
        "one. Each model has the rate, of those run, with the lowest validation loss. Differences are paired by seed; "
        "above zero the Tokenformer is worse. To see: whether the gap shrinks, stays or changes its sign as both train "
        "longer. The published line is a third party's, against a modern Transformer at 124M parameters."
    ),
    data=gap_data,
    draw=forest_of_differences("Tokenformer minus Transformer (nats per token)"),
)
